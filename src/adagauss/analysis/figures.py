"""Figures of a run, from its folder alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from adagauss.analysis.confusion import confusion_figure
from adagauss.analysis.plotting import MANY_TICKS, new_figure, number_ticks, save_figure, set_title, shown
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learn import Learner
from adagauss.experiments.run import Results, Run, RunFolder, protocol_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_DRAWN_CLASSES = 10
ELLIPSE_SIGMAS = 2.0
MANY_COLOURS = 10
MOST_NUMBERS = 15
"""Tasks up to which each cell of the accuracy matrix holds its number."""
STYLES = ("-", "--", ":")


def accuracy_curve(results: Results) -> Figure:
    """Accuracy over all seen classes after each task: one line per method, with a band of one standard deviation."""
    figure = new_figure(8.5, max(4.0, 1.4 + 0.2 * len(results)))
    axes = figure.add_subplot()
    curves = {name: 100 * np.array([run.curve for run in runs]) for name, runs in results.items()}
    # The best method comes first in the legend, since its curve ends highest.
    for index, (name, values) in enumerate(sorted(curves.items(), key=lambda item: -item[1][:, -1].mean())):
        tasks = np.arange(1, values.shape[1] + 1)
        mean, deviation = values.mean(0), values.std(0)
        marker = "o" if len(tasks) <= MANY_TICKS else ""
        style = STYLES[index // MANY_COLOURS % len(STYLES)]
        (line,) = axes.plot(
            tasks, mean, style, marker=marker, markersize=4, label=f"{shown(name)}  {mean[-1]:.1f}", color=f"C{index}"
        )
        axes.fill_between(tasks, mean - deviation, mean + deviation, alpha=0.15, color=line.get_color(), linewidth=0)
    axes.set(xlabel="tasks learned", ylabel="accuracy on all seen classes, %", ylim=(0, 102))
    set_title(axes, protocol_title(results))
    axes.set_xticks(tasks[:: -(-len(tasks) // MANY_TICKS)])
    axes.grid(alpha=0.3)
    # Beside the curves, which it would otherwise cover.
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), title="A_last, %", fontsize=9)
    return figure


def matrix_figure(result: Run) -> Figure:
    """The accuracy matrix: row t after task t, column k on task k."""
    rows = result.matrix
    size = len(rows)
    values = np.full((size, size), np.nan)
    for index, accuracies in enumerate(rows):
        values[index, : len(accuracies)] = 100 * np.array(accuracies)
    side = min(8.0, 0.6 * size)
    figure = new_figure(max(4.0, 1.8 + side), max(3.0, 1.2 + side))
    axes = figure.add_subplot()
    image = axes.imshow(values, vmin=0, vmax=100, cmap="viridis")
    for row in range(size if size <= MOST_NUMBERS else 0):
        for column in range(row + 1):
            shade = "white" if values[row, column] < 60 else "black"
            axes.text(column, row, f"{values[row, column]:.0f}", ha="center", va="center", color=shade)
    axes.set(xlabel="accuracy on task", ylabel="after task")
    set_title(axes, result.title)
    number_ticks(axes, size, both=True)
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
    figure = new_figure(8.5, 5.5)
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
    axes.plot([], [], "k-", label="memorised (2σ)")
    axes.plot([], [], "k--", label="real (2σ)")
    if len(sample):
        axes.plot([], [], "k.", alpha=0.4, label="test images")
    for label, colour in zip(labels, colours, strict=True):
        axes.plot([], [], "s", color=colour, label=shown(label))
    axes.set(xlabel="first direction between classes", ylabel="second direction")
    set_title(axes, title)
    # Names beside the plot: at the means they would cover each other.
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
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
    result = Run.open(folder.path)
    target = folder.path / "figures"
    protocol = result.protocol
    names = [label for classes in protocol.classes for label in classes]
    figures = {
        "accuracy": accuracy_curve({result.method: [result]}),
        "matrix": matrix_figure(result),
        "confusion": confusion_figure(result.confusion, names, protocol.tasks, result.title),
    }
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
