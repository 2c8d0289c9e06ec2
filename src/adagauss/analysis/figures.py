"""Figures of a run, from its folder alone."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from adagauss.gaussians import ClassGaussians
from adagauss.learner import Learner
from adagauss.runs.folder import RunFolder
from adagauss.runs.results import Results, RunResult, protocol_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_DRAWN_CLASSES = 10
ELLIPSE_SIGMAS = 2.0
MANY_LINES, MANY_COLOURS = 6, 10
STYLES = ("-", "--", ":")


def new_figure(width: float = 6.0, height: float = 4.0) -> Figure:
    """A figure that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def accuracy_curve(results: Results) -> Figure:
    """Accuracy over all seen classes after each task: one line per method, with a band of one standard deviation."""
    crowded = len(results) > MANY_LINES
    figure = new_figure(8.5 if crowded else 6.0, 5.0 if crowded else 4.0)
    axes = figure.add_subplot()
    curves = {name: 100 * np.array([run.details.accuracy for run in runs]) for name, runs in results.items()}
    # The best method comes first in the legend, since its curve ends highest.
    for index, (name, values) in enumerate(sorted(curves.items(), key=lambda item: -item[1][:, -1].mean())):
        tasks = np.arange(1, values.shape[1] + 1)
        mean, deviation = values.mean(0), values.std(0)
        style = STYLES[index // MANY_COLOURS % len(STYLES)]
        (line,) = axes.plot(
            tasks, mean, style, marker="o", markersize=4, label=f"{name}  {mean[-1]:.1f}", color=f"C{index}"
        )
        axes.fill_between(tasks, mean - deviation, mean + deviation, alpha=0.15, color=line.get_color(), linewidth=0)
    axes.set(xlabel="tasks learned", ylabel="accuracy on all seen classes, %", ylim=(0, 102))
    _set_title(axes, protocol_title(results))
    axes.set_xticks(tasks)
    axes.grid(alpha=0.3)
    if crowded:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), title="accuracy after the last task, %")
    else:
        axes.legend(title="accuracy after the last task, %")
    return figure


def matrix_figure(result: RunResult) -> Figure:
    """The accuracy matrix: row t after task t, column k on task k."""
    rows = result.details.accuracy_matrix
    size = len(rows)
    values = np.full((size, size), np.nan)
    for index, accuracies in enumerate(rows):
        values[index, : len(accuracies)] = 100 * np.array(accuracies)
    figure = new_figure(1.8 + 0.6 * size, 1.2 + 0.6 * size)
    axes = figure.add_subplot()
    image = axes.imshow(values, vmin=0, vmax=100, cmap="viridis")
    for row in range(size):
        for column in range(row + 1):
            shade = "white" if values[row, column] < 60 else "black"
            axes.text(column, row, f"{values[row, column]:.0f}", ha="center", va="center", color=shade)
    axes.set(xlabel="accuracy on task", ylabel="after task")
    _set_title(axes, result.title)
    ticks = list(range(size))
    axes.set_xticks(ticks, [str(tick + 1) for tick in ticks])
    axes.set_yticks(ticks, [str(tick + 1) for tick in ticks])
    figure.colorbar(image, label="%", shrink=0.8)
    return figure


def gaussians_figure(
    memory: ClassGaussians, real: ClassGaussians, sample: Tensor, targets: Tensor, title: str = ""
) -> Figure:
    """Memorised Gaussians against the real ones, in the two principal directions between the real class means."""
    labels = [label for label in memory.labels if label in real][:MAX_DRAWN_CLASSES]
    mine, theirs = memory.select(labels), real.select(labels)
    centre = theirs.means.mean(0)
    _, _, directions = torch.linalg.svd(theirs.means - centre, full_matrices=False)
    plane = directions[:2].T
    figure = new_figure(7.0, 5.5)
    axes = figure.add_subplot()
    colours = [f"C{index}" for index in range(len(labels))]
    order = {label: index for index, label in enumerate(real.labels)}
    for label, colour in zip(labels, colours, strict=True):
        points = (sample[targets == order[label]].double() - centre) @ plane
        axes.scatter(points[:, 0], points[:, 1], s=6, alpha=0.35, color=colour, linewidths=0)
    for bank, style in ((theirs, "--"), (mine, "-")):
        means = (bank.means - centre) @ plane
        covariances = plane.T @ bank.covariances @ plane
        for mean, covariance, colour in zip(means, covariances, colours, strict=True):
            draw_ellipse(axes, mean, covariance, colour, style)
    for mean, label, colour in zip((mine.means - centre) @ plane, labels, colours, strict=True):
        place = (float(mean[0]), float(mean[1]))
        axes.annotate(_plain(str(label)), place, color=colour, weight="bold", fontsize=11)
    axes.plot([], [], "k-", label="memorised (2σ)")
    axes.plot([], [], "k--", label="real (2σ)")
    if len(sample):
        axes.plot([], [], "k.", alpha=0.4, label="test images")
    axes.set(xlabel="first direction between classes", ylabel="second direction")
    _set_title(axes, title)
    axes.legend(loc="best", fontsize=8)
    axes.set_aspect("equal", adjustable="datalim")
    return figure


def draw_ellipse(axes: Axes, mean: Tensor, covariance: Tensor, colour: str, style: str) -> None:
    """The contour of a 2-D Gaussian at two standard deviations."""
    from matplotlib.patches import Ellipse

    values, vectors = torch.linalg.eigh(covariance)
    width, height = (2 * ELLIPSE_SIGMAS * values.clamp_min(0).sqrt()).tolist()
    angle = math.degrees(math.atan2(float(vectors[1, 0]), float(vectors[0, 0])))
    axes.add_patch(
        Ellipse(
            (float(mean[0]), float(mean[1])),
            width,
            height,
            angle=angle,
            fill=False,
            edgecolor=colour,
            linestyle=style,
            linewidth=1.5,
        )
    )


def write_figures(folder: RunFolder) -> list[Path]:
    """Draw every figure a finished run has the data for; returns their paths."""
    result = folder.result()
    target = folder.path / "figures"
    target.mkdir(exist_ok=True)
    figures = {"accuracy": accuracy_curve({result.method: [result]}), "matrix": matrix_figure(result)}
    last = len(result.protocol.tasks) - 1
    if (folder.task(last) / "real.safetensors").exists():
        memory = Learner.load(folder.checkpoint(last)).memory
        if len(memory) and memory.covariance != "none":
            real, sample, targets = folder.real(last)
            figures["gaussians"] = gaussians_figure(memory, real, sample, targets, result.title)
    paths = []
    for name, figure in figures.items():
        path = target / f"{name}.png"
        save_figure(figure, path)
        paths.append(path)
    return paths


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG; characters that the font lacks are drawn as boxes, without a warning for each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(path, dpi=130)


def _plain(text: str) -> str:
    """Text with escaped dollar signs: matplotlib would typeset a name that contains them as a formula."""
    return text.replace("$", r"\$")


def _set_title(axes: Axes, text: str) -> None:
    axes.set_title(_plain(text), fontsize=9, wrap=True)
