"""The figures of `adagauss analyse`: predictions, statistics of classes, and what adaptation and settings change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from torch import Tensor

from adagauss.analysis import plotting as plot
from adagauss.analysis.measure import BANKS, DISTANCES, EFC_UPDATE, OWN, TRACKED, UNMOVED, Quantity
from adagauss.analysis.plotting import Drawing, Line, Panel, Row, colour, draw_curves, lines_of, panels, shown
from adagauss.analysis.studies import (
    DISTILLATIONS,
    NO_DISTILLATION,
    NotDrawableError,
    check_axis,
    register_study,
    select,
)
from adagauss.core import linalg
from adagauss.data.decode import decode_image
from adagauss.experiments.paper import in_figures
from adagauss.experiments.run import Groups, Numbers, Run, all_runs
from adagauss.methods import Method
from adagauss.parts.terms import AntiCollapse, CrossEntropy

if TYPE_CHECKING:
    from adagauss.analysis.predictions import LabelledPrediction

BY_TASK = "task of the classes"
MOST_NAMES = 60
"""Classes up to which each row has a name."""
MOST_GROUPS = 4
"""Groups with panels of their own."""
MOST_LINES = 12
"""Lines of the accuracy in one panel; more get a panel each."""
MINUTES, BYTES = "training, minutes", "stored without the network, bytes"


def others(groups: Groups) -> str:
    """The end of a note if there is no room for some groups."""
    more = len(groups) - MOST_GROUPS
    return f"; {more} more group{'s are' if more > 1 else ' is'} in the CSV file" if more > 0 else ""


def furthest(runs: Sequence[Run]) -> list[Run]:
    """The runs with most finished tasks."""
    return [run for run in runs if run.done == max(one.done for one in runs)]


# Predictions of one model.


def confusion_figure(counts: npt.ArrayLike, names: Sequence[object], title: str = "") -> Figure:
    """Shares of the images of each true class (row) that are predicted as each class (column), in percent."""
    values = np.array(counts, dtype=np.float64)
    size = len(values)
    side = min(13.0, max(3.2, 0.3 * size if size <= plot.MOST_NUMBERS else 3.0 + 0.1 * size))
    with plot.use_style():
        figure = Figure(figsize=(side + 1.8, side + 0.8))
        axes = figure.add_subplot()
        image = plot.draw_matrix(axes, percent(values), names if size <= 2 * MOST_NAMES else ())
        axes.set(xlabel="predicted class", ylabel="true class", title=shown(title, 200, fold=80))
        figure.colorbar(image, label="% of the true class", shrink=0.7, ticks=[0, 1, 5, 10, 25, 50, 100])
    return figure


def percent(counts: Numbers) -> Numbers:
    """Counts as shares of their row."""
    shares: Numbers = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return shares


def contact_sheet(predictions: Sequence[LabelledPrediction], title: str) -> Figure:
    """A sheet of the images; the caption of each names the prediction, the true class and the file."""
    columns, rows = 4, max(1, -(-len(predictions) // 4))
    with plot.use_style():
        figure = Figure(figsize=(2.3 * columns, 2.8 * rows + 0.5))
        figure.suptitle(shown(title, 90))
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, one in zip(grid.flat, predictions, strict=False):
            axes.imshow(np.moveaxis(decode_image(Path(one.name), 224), 0, 2))
            predicted = f"{shown(one.predicted, 26)} {100 * one.probability:.0f} %"
            file = shown(Path(one.name).name, 26, keep_end=True)
            axes.set_title(f"{predicted}\nis {shown(one.true, 23)}\n{file}", fontsize="small")
    return figure


# Predictions of runs.


@register_study()
def accuracy(groups: Groups) -> Drawing:
    """Accuracy on all seen classes.

    A method that compensates drift and has no task-recency bias loses least after later tasks.
    """
    lines = lines_of(groups, lambda run: {"accuracy": np.array(run.curve)})
    named = []
    for line in lines:
        last = 100 * float(np.mean([run.curve[-1] for run in line.runs]))
        named.append(replace(line, label=f"{line.label}  {last:.1f}", columns={"group": line.label}))
    panel = Panel("accuracy", "accuracy on all seen classes, %", scale=100, limits=(0, 102))
    note = "every task has equal weight"
    if len(named) <= MOST_LINES:
        return draw_curves([panel], named, note, "A_last, %")
    figure, _ = plot.small_multiples(panel, named)
    return Drawing(figure, plot.curve_rows([panel], named), f"{note}; number: A_last, %")


@register_study()
def recency(groups: Groups) -> Drawing:
    """Share of predictions by task.

    Without bias each task gets its share of the predictions; a rise to the right is the task-recency bias.
    """
    ratio, late = "share of predictions / share of images", "share of errors that fall on the newest task"
    lines = lines_of(groups, lambda run: {ratio: share_over_fair(run), late: late_errors(run)})
    chosen = [
        Panel(ratio, "predictions / images", "task", "task predicted after the last task"),
        Panel(late, "", start=2),
    ]
    figure, grid = plot.small_multiples(chosen[0], lines)
    for axes, line in zip(grid, lines, strict=True):
        axes.set_ylim(0, 1.25 * axes.get_ylim()[1] if axes is grid[0] else None)  # room for the text
        axes.axhline(1, color="black", linewidth=0.6, linestyle=(0, (4, 3)))
        last = np.array([values[late][-1] for values in line.values if len(values[late])])
        if len(finite := last[np.isfinite(last)]):
            place: dict[str, Any] = {"transform": axes.transAxes, "va": "top", "fontsize": "x-small"}
            axes.text(0.03, 0.97, f"{100 * finite.mean():.0f} % of errors", **place)
    note = "dashed line: no bias; text: share of the errors on old images that are predicted as the newest task"
    return Drawing(figure, plot.curve_rows(chosen, lines), note)


def share_over_fair(run: Run) -> Numbers:
    """Predictions of each task over its test images, after the last finished task."""
    last = run.evaluations[-1]
    images = np.bincount(last.task_of_class[last.true].numpy(), minlength=len(last.sizes))
    shares: Numbers = np.array(last.prediction_share()) * len(last.true) / images
    return shares


def late_errors(run: Run) -> Numbers:
    """After each task from the second: the share of the errors on old tasks that are predicted as the newest task.

    NaN where all images of old tasks are classified correctly.
    """
    found = []
    for evaluation in run.evaluations[1:]:
        newest, task = len(evaluation.sizes) - 1, evaluation.task_of_class
        wrong = (evaluation.predicted != evaluation.true) & (task[evaluation.true] < newest)
        late = wrong & (task[evaluation.predicted] == newest)
        found.append(float(late.sum()) / float(wrong.sum()) if bool(wrong.any()) else np.nan)
    return np.array(found)


@register_study()
def confusion(groups: Groups) -> Drawing:
    """Confusion by task.

    Bright columns at the right are the task-recency bias; the diagonal holds confusion within a task.
    """
    matrices: dict[str, Numbers] = {}
    for label, runs in groups.items():
        known = furthest(runs)
        member = (known[0].task_of_class[:, None] == np.arange(known[0].done)).astype(np.float64)
        matrices[label] = percent(sum((member.T @ run.confusion @ member for run in known), np.zeros(())))
    rows: list[Row] = [
        {"group": label, "of": "tasks", "true": f"task {row + 1}", "predicted": f"task {column + 1}", "%": value}
        for label, values in matrices.items()
        for (row, column), value in np.ndenumerate(values)
    ]
    drawn = list(groups)[:MOST_GROUPS]
    figure, (grid,) = panels(len(drawn), height=2.3)
    for axes, label in zip(grid, drawn, strict=True):
        image = plot.draw_matrix(axes, matrices[label])
        axes.set(xlabel="predicted task", ylabel="true task", title=shown(label, fold=28))
    bar = figure.colorbar(image, ax=grid, shrink=0.8, fraction=0.04, pad=0.02, ticks=[0, 1, 5, 10, 25, 50, 100])
    bar.set_label("% of the true task")
    return Drawing(figure, rows, f"after the last task, over all seeds{others(groups)}")


@register_study()
def pareto(groups: Groups) -> Drawing:
    """Accuracy against time and memory.

    No method is both better and cheaper than one on the line.
    """
    points = {label: np.array([[*cost(run), 100 * run.curve[-1]] for run in runs]) for label, runs in groups.items()}
    rows: list[Row] = [
        {"group": label, "seed": run.seed, "A_last, %": float(score), MINUTES: float(minutes), BYTES: float(size)}
        for label, runs in groups.items()
        for run, (minutes, size, score) in zip(runs, points[label], strict=True)
    ]
    looks = dict(zip(groups, plot.places(groups), strict=True))
    means = {label: found.mean(0) for label, found in points.items()}
    figure, (grid,) = panels(2, height=2.4, sharey=True)
    for place, (axes, name) in enumerate(zip(grid, (f"{MINUTES}, all tasks", BYTES), strict=True)):
        both = np.array(list(means.values()))[:, [place, 2]]
        axes.plot(*both[front(both)].T, color="#999999", linewidth=1, zorder=0, drawstyle="steps-post")
        for label, mean in means.items():
            axes.plot(mean[place], mean[2], plot.marker(looks[label]), color=colour(looks[label]), markersize=5)
            axes.lines[-1].set_label(shown(label))
        axes.set(xlabel=name)
        axes.margins(0.12)
        if (both[:, 0] > 0).all():
            plot.set_log_scale(axes, "x")
    grid[0].set_ylabel(plot.typeset("A_last, %"))
    plot.name_lines(grid[1])
    return Drawing(figure, rows, "grey line: Pareto front; the bytes do not include the network")


def cost(run: Run) -> tuple[float, float]:
    """Minutes of training over all tasks, and bytes stored without the network after the last one."""
    size = run.cost.bytes_per_class * len(run.labels) + run.cost.other_state_bytes
    return run.cost.training_seconds / 60, float(size)


def front(points: Numbers) -> list[int]:
    """Rows (cost, score) that no other row beats in both, by cost.

    >>> front(np.array([[1.0, 50.0], [2.0, 40.0], [3.0, 60.0]]))
    [0, 2]
    """
    kept: list[int] = []
    for row in sorted(range(len(points)), key=lambda row: (points[row, 0], -points[row, 1])):
        if not kept or points[row, 1] > points[kept[-1], 1]:
            kept.append(row)
    return kept


# Settings.

BETA_SETTINGS = ("representation.terms.anti_collapse.beta", "drift.beta")
DISTILLATION_SETTINGS = (
    "representation.terms.distillation",
    "representation.terms.anti_collapse",
    "representation.heads",
    "representation.train_old_heads",
    "drift.anti_collapse",
)


def beta_of(method: Method) -> float | None:
    """β of the anti-collapse loss; None without it."""
    terms = method.representation.terms.values()
    return next((term.beta for term in terms if isinstance(term, AntiCollapse) and term.weight > 0), None)


def by_variant(groups: Groups) -> Groups:
    """Groups named by distillation and anti-collapse, in the order of the paper; at least two."""
    names: dict[str, str] = {}
    for label, runs in groups.items():
        method = runs[0].config.method
        kinds = [DISTILLATIONS.get(term.kind) for term in method.representation.terms.values() if term.weight > 0]
        names[label] = next(filter(None, kinds), NO_DISTILLATION) + (" + L_AC" if beta_of(method) is not None else "")
    found = sorted(set(names.values()))
    if len(found) < 2:
        raise NotDrawableError(f"it compares distillations, with and without L_AC, but the runs have only {found[0]}")
    check_axis(groups, DISTILLATION_SETTINGS)
    kinds = [NO_DISTILLATION, "feature KD", "feature KD (norm)", "logit KD", "projected KD"]
    order = sorted(groups, key=lambda label: (kinds.index(names[label].partition(" + ")[0]), names[label]))
    unique = [label for label in groups if list(names.values()).count(names[label]) == 1]
    return {names[label] if label in unique else f"{names[label]} ({label})": groups[label] for label in order}


def scores(groups: Groups) -> dict[str, dict[str, list[float]]]:
    """A_last and A_inc of every run in percent, by group."""
    return {
        quantity: {label: [100 * run.metrics[metric] for run in runs] for label, runs in groups.items()}
        for quantity, metric in {"A_last": "a_last", "A_inc": "a_inc"}.items()
    }


def value_rows(groups: Groups, values: Mapping[str, Mapping[str, Sequence[float]]], column: str = "group") -> list[Row]:
    """Rows of one number per quantity, group and run; ``column`` names what distinguishes the numbers of a quantity."""
    runs = all_runs(groups)
    return [
        {column: label, "seed": run.seed, "quantity": quantity, "value": value}
        for quantity, by_label in values.items()
        for label, numbers in by_label.items()
        for run, value in zip(groups.get(label, runs), numbers, strict=True)
    ]


def paper_rows(values: Mapping[str, float]) -> list[Row]:
    """Numbers that the paper states, by quantity."""
    return [{"group": "paper", "quantity": quantity, "value": float(value)} for quantity, value in values.items()]


@register_study()
def distillation(groups: Groups) -> Drawing:
    """Accuracy by distillation.

    Projected distillation beats logit distillation by 1.4 (CIFAR-100), 0.9 and 4.0 points of A_last.
    """
    found = scores(by_variant(groups))
    figure = plot.bar_figure({f"{quantity}, %": bars for quantity, bars in found.items()})
    datasets = {"CIFAR-100": "cifar100", "ImageNet-Subset": "imagenet_subset", "CUB200": "cub200"}
    gains = {name: in_figures("Fig. distillation comparison")[key] for name, key in datasets.items()}
    paper = paper_rows({f"projected - logit, {name}": gain for name, gain in gains.items()})
    note = f"projected over logit KD in the paper, A_last: {', '.join(f'{k} {v:+.1f}' for k, v in gains.items())}"
    return Drawing(figure, [*value_rows(by_variant(groups), found), *paper], note)


@register_study()
def beta(groups: Groups) -> Drawing:
    """β of the anti-collapse loss.

    β = 1 is best, and L_AC saturates at -1; a larger β raises the other losses, 0.1 leaves the bias.
    """
    groups = select(groups, lambda run: beta_of(run.config.method) is not None, "runs with L_AC")
    betas = {label: beta_of(runs[0].config.method) or 0.0 for label, runs in groups.items()}
    if len(set(betas.values())) < 2:
        raise NotDrawableError(f"it compares values of β, but all runs have β = {next(iter(betas.values())):g}")
    check_axis(groups, BETA_SETTINGS)
    groups = {label: groups[label] for label in sorted(groups, key=betas.__getitem__)}
    lines = [replace(line, columns={"group": line.label, "β": betas[line.label]}) for line in lines_of(groups, losses)]
    figure, ((first, *more), last) = panels(2, 2)
    found = scores(groups)
    for (quantity, by_label), dashes in zip(found.items(), ("-", "--"), strict=True):
        means = [np.mean(numbers) for numbers in by_label.values()]
        first.plot(sorted(betas.values()), means, dashes, color=plot.GREY, label=plot.typeset(quantity), zorder=1)
        for line in lines:
            y = by_label[line.label]
            first.plot([betas[line.label]] * len(y), y, plot.marker(line.index), color=colour(line.index))
    first.set(xscale="log", xlabel="β", ylabel="accuracy, %")
    first.legend()
    axis = "epoch", "epoch, all tasks"
    chosen = [
        Panel("L_CE", "cross-entropy", *axis),
        Panel("L_KD", "distillation L_PKD, without λ", *axis, log=True),
        Panel("L_AC", "anti-collapse L_AC, without α", *axis),
    ]
    plot.draw_panels([*more, *last], chosen, lines)
    plot.name_lines(last[-1])
    for axes in (*more, *last):
        for edge in np.cumsum([len(task.history) for task in lines[0].runs[0].facts])[:-1]:
            axes.axvline(edge + 0.5, color="#bbbbbb", linewidth=0.6, zorder=0)
    rows: list[Row] = [{**row, "β": betas[str(row["group"])]} for row in value_rows(groups, found)]
    swept = ", ".join(f"{value:g}" for value in in_figures("Fig. beta sweep")["values"])
    note = f"losses: mean of each epoch; vertical lines: a new task; β in the paper: {swept}"
    return Drawing(figure, rows + plot.curve_rows(chosen, lines), note)


def losses(run: Run) -> dict[str, Numbers]:
    """Each loss without its weight in every epoch of all tasks; NaN where it does not apply, as in the first task."""
    terms = run.config.method.representation.terms
    names = {
        "L_CE": [name for name, term in terms.items() if isinstance(term, CrossEntropy)],
        "L_KD": [name for name, term in terms.items() if term.kind in DISTILLATIONS],
        "L_AC": [name for name, term in terms.items() if isinstance(term, AntiCollapse)],
    }

    def value(epoch: Mapping[str, float], own: Sequence[str]) -> float:
        found = [epoch[name] / terms[name].weight for name in own if name in epoch and terms[name].weight]
        return sum(found) if found else np.nan

    epochs = [epoch for task in run.facts for epoch in task.history]
    return {loss: np.array([value(epoch, own) for epoch in epochs]) for loss, own in names.items()}


# Memory.

ABSOLUTE, RELATIVE, EFFECTIVE, INVERSE = "rank, λ > 0.01", "rank, λ > 0.001·λ₁", "effective rank", "‖Σ⁻¹‖_F"
RANKS: Mapping[str, Callable[[Tensor], Tensor]] = {
    ABSOLUTE: linalg.absolute_rank,
    RELATIVE: linalg.relative_rank,
    EFFECTIVE: linalg.effective_rank,
    INVERSE: linalg.inverse_norm,
}
RANK_PANELS = (
    Panel(ABSOLUTE, "mean rank, λ > 0.01\n(the paper's)", "task", BY_TASK, limits=(0, None)),
    Panel(RELATIVE, "mean rank, λ > 0.001·λ₁\n(scale-free)", "task", BY_TASK, limits=(0, None)),
    Panel(EFFECTIVE, "mean effective rank,\nexp(entropy of λ)", "task", BY_TASK, limits=(0, None)),
)

RANK_NOTE = "after the last task; mean over the classes of each task"


def with_covariances(groups: Groups) -> Groups:
    """The groups whose runs store covariances."""
    return select(groups, lambda run: "memory.spectra" in run.tables, "runs that store covariances")


def rank_by_task(run: Run) -> dict[str, Numbers]:
    """Each of `RANKS` of the covariances after the last finished task, mean over the classes of each task."""
    values = torch.from_numpy(run.table("memory.spectra")[-1])
    return {name: run.by_task(function(values).double().numpy()) for name, function in RANKS.items()}


@register_study(Quantity.MEMORY)
def ranks(groups: Groups) -> Drawing:
    """Rank and inverse norm of memorised covariances.

    Covariances of early tasks have lower ranks, and so larger inverses: the task-recency bias.
    """
    inverse = Panel(INVERSE, "mean $\\Vert\\Sigma^{-1}\\Vert_F$,\nwithout shrinkage", "task", BY_TASK, log=True)
    return draw_curves([*RANK_PANELS, inverse], lines_of(with_covariances(groups), rank_by_task), RANK_NOTE)


@register_study(Quantity.MEMORY)
def ranks_by_distillation(groups: Groups) -> Drawing:
    """Ranks of memorised covariances by distillation.

    Only projected distillation with anti-collapse has full rank (64 of 64) in every task.
    """
    variants = by_variant(with_covariances(groups))
    figure, rows, _ = draw_curves(RANK_PANELS, lines_of(variants, rank_by_task))
    size = max(run.table("memory.spectra").shape[2] for runs in variants.values() for run in runs)
    for axes in figure.axes:
        axes.set_ylim(0, 1.12 * size)
    paper = in_figures("Fig. rank per task")["value"]
    plot.annotate_line(figure.axes[0], f"full rank ({size}), as the paper's projected KD + L_AC", size)
    rows = [*rows, *paper_rows({"rank, projected KD + L_AC, of 64": paper})]
    return Drawing(figure, rows, f"{RANK_NOTE}; the paper's with projected KD + L_AC: {paper} of {paper}")


@register_study(Quantity.MEMORY)
def spectrum(groups: Groups) -> Drawing:
    """Eigenvalues of memorised covariances.

    Anti-collapse keeps the smallest eigenvalues up: largest over smallest is about 84 instead of 120,000.
    """
    relative, axis = "λᵢ / λ₁", ("i", "i, the largest eigenvalue first")

    def spectra(run: Run) -> dict[str, Numbers]:
        values: Numbers = run.table("memory.spectra")[-1].mean(0)
        return {"mean eigenvalue": values, relative: values / values[0]}

    lines = lines_of(with_covariances(groups), spectra)
    chosen = [
        Panel("mean eigenvalue", r"mean $\lambda_i$ over classes", *axis, log=True),
        Panel(relative, r"$\lambda_i/\lambda_1$ (scale-free)", *axis, log=True),
    ]
    figure, values, _ = draw_curves(chosen, lines)
    ratios = {
        line.label: [1 / max(float(curves[relative][-1]), np.finfo(float).tiny) for curves in line.values]
        for line in lines
    }
    rows = [*values, *value_rows({line.label: line.runs for line in lines}, {"largest / smallest": ratios})]
    paper = in_figures("Fig. eigenvalue spectrum")
    for which in ("without_l_ac", "with_l_ac"):
        text = f"paper's smallest, {which.replace('_l_ac', ' L_AC')}: 1/{paper[which]:,.0f}"
        plot.annotate_line(figure.axes[1], text, 1 / paper[which])
        rows += paper_rows({f"largest / smallest, {which}": paper[which]})
    note = "after the last task; eigenvalues of each class are sorted, then averaged over classes"
    return Drawing(figure, rows, note)


@register_study(Quantity.MEMORY)
def shift(groups: Groups) -> Drawing:
    """Predicted shift of the class means.

    Shifts differ between classes and tasks, so one shift for all classes is not enough.
    """
    groups = select(groups, lambda run: run.done > 1, "runs of two tasks or more")
    rows: list[Row] = []
    means: dict[str, Numbers] = {}
    for label, runs in groups.items():
        means[label] = np.mean([run.table("memory.shift")[:, :, 0] for run in furthest(runs)], 0)
        for run in runs:
            table = run.table("memory.shift")
            for task, place in np.argwhere(np.isfinite(table[:, :, 0])).tolist():
                known: Row = {"group": label, "seed": run.seed, "class": str(run.labels[place]), "task": task + 1}
                moved, relative = table[task, place].tolist()
                rows.append({**known, "shift": moved, "shift / √tr Σ": relative})
    drawn = list(groups)[:MOST_GROUPS]
    most = max(means[label].shape[1] for label in drawn)
    figure, (grid,) = panels(len(drawn), height=min(9.0, max(2.4, 0.8 + 0.12 * min(most, MOST_NAMES))))
    largest = max(float(np.nanmax(means[label])) for label in drawn)
    for axes, label in zip(grid, drawn, strict=True):
        tasks, classes = means[label].shape
        axes.grid(visible=False)
        axes.set_facecolor("#e6e6e6")
        extent = (1.5, tasks + 0.5, classes - 0.5, -0.5)
        image = axes.imshow(means[label][1:].T, aspect="auto", vmin=0, vmax=largest, extent=extent)
        axes.set_xticks(range(2, tasks + 1, -(-(tasks - 1) // 10)))
        if classes <= MOST_NAMES:
            axes.set_yticks(range(classes), [shown(name, 20) for name in groups[label][0].labels])
        axes.set(xlabel="after task", title=shown(label, fold=28))
    grid[0].set_ylabel("class, in the order learned")
    figure.colorbar(image, ax=grid, fraction=0.04, pad=0.02, label="‖μ after − μ before‖₂")
    note = f"mean over seeds; grey: not learned yet, or learned in this task{others(groups)}"
    return Drawing(figure, rows, note)


# Real statistics.


@register_study(Quantity.REAL)
def strength(groups: Groups) -> Drawing:
    """Representation strength.

    Projected distillation lets features spread over more directions than feature or logit distillation.
    """
    directions = "directions below 95 % of the variance"
    seen, mean = f"{directions}, all seen tasks", f"{directions}, mean over tasks"
    effective = "effective rank, all seen tasks"

    def strengths(run: Run) -> dict[str, Numbers]:
        pooled, tasks = (torch.from_numpy(run.table(f"real.{name}")) for name in ("all_spectra", "task_spectra"))
        by_task = [float(linalg.directions(tasks[t, : t + 1]).double().mean()) for t in range(run.done)]
        return {
            seen: linalg.directions(pooled).double().numpy(),
            mean: np.array(by_task),
            effective: linalg.effective_rank(pooled).numpy(),
        }

    chosen = [
        Panel(seen, "directions below 95 % of the\nvariance, all seen tasks", limits=(0, None)),
        Panel(mean, "the same of each seen task,\nmean over tasks", limits=(0, None)),
        Panel(effective, "effective rank,\nall seen tasks", limits=(0, None)),
    ]
    note = "covariance of all features, classes together; one direction more than counted is needed to reach 95 %"
    return draw_curves(chosen, lines_of(groups, strengths), note)


@register_study(Quantity.REAL)
def mahalanobis(groups: Groups) -> Drawing:
    """Distance and logit of all test images by task.

    Classes of early tasks have larger distances and smaller logits; without bias the curves are flat.
    """
    groups = select(groups, lambda run: "real.logits" in run.tables, "runs that store covariances")

    def by_task(run: Run) -> dict[str, Numbers]:
        published, plain = map(run.by_task, run.table("real.mahalanobis"))
        return {"published": published, "plain": plain, "logit": run.by_task(run.table("real.logits"))}

    axis = "task", BY_TASK
    chosen = [
        Panel("published", "squared distance,\nΣ as in the paper", *axis, log=True),
        Panel("plain", "squared distance,\nΣ as memorised", *axis, log=True),
        Panel("logit", "logit of a linear head trained\non samples of the Gaussians", *axis),
    ]
    note = f"{RANK_NOTE}, and over all test images; Σ as in the paper: shrunk by 3 and normalised"
    return draw_curves(chosen, lines_of(groups, by_task), note)


def memory_curves(
    groups: Groups,
    memories: Sequence[str],
    chosen: Sequence[Panel],
    values: Callable[[Run, str], Mapping[str, Numbers]],
    note: str,
) -> Drawing:
    """Small multiples: each of the first groups has panels of its own, and each memory has a colour."""
    drawn = list(groups)[:MOST_GROUPS]
    if len(chosen) == 1:
        figure, (across,) = panels(len(drawn), sharey=True)
        grid = [[axes] for axes in across]
    else:
        figure, grid = panels(len(chosen), len(drawn))
    rows: list[Row] = []
    for place, (label, runs) in enumerate(groups.items()):
        lines = [
            Line(memory, runs, [values(run, memory) for run in runs], index, {"group": label, "memory": memory})
            for index, memory in enumerate(memories)
        ]
        rows += plot.curve_rows(chosen, lines)
        if label in drawn:
            plot.draw_panels(grid[place], chosen, lines)
            grid[place][0].set_title(shown(label, fold=24) if len(groups) > 1 else "")
    if len(chosen) == 1:
        for axes in across[1:]:
            axes.set_ylabel("")
    plot.name_lines(grid[-1 if len(chosen) == 1 else 0][-1])
    return Drawing(figure, rows, note + others(groups))


@register_study(Quantity.REAL)
def distances(groups: Groups) -> Drawing:
    """Memorised and real statistics of old classes.

    Adapting means and covariances lowers all distances, compared with EFC's update by 29, 39 and 72 %.
    """
    groups = select(groups, has_distances, "runs of two tasks or more with statistics per class")
    keys = {"mean": "mean_l2", "covariance": "cov_l2", "kl": "sym_kl"}
    chosen = [
        Panel("mean", r"$\Vert\mu-\mu^*\Vert_2$", start=2, limits=(0, None)),
        Panel("covariance", r"$\Vert\Sigma-\Sigma^*\Vert_F$", start=2, limits=(0, None)),
        Panel("kl", r"$\mathrm{KL}(N\Vert N^*)+\mathrm{KL}(N^*\Vert N)$", start=2, log=True),
    ]
    note = "mean over old classes; * marks real statistics; all memories are on the networks of the same run"
    drawing = memory_curves(groups, TRACKED, chosen, distances_of_old_classes, note)
    paper = {quantity: -in_figures("Fig. adaptation distances")[key] for quantity, key in keys.items()}
    if len(groups) == 1:
        (runs,) = groups.values()
        for axes, (quantity, change) in zip(drawing.figure.axes, paper.items(), strict=True):
            axes.set_title(f"against EFC's: {against_efc(runs, quantity):+.0%} (paper {change:+.0%})", fontsize="small")
    stated = paper_rows({f"{quantity}: against EFC's": change for quantity, change in paper.items()})
    return drawing._replace(rows=[*drawing.rows, *stated])


def has_distances(run: Run) -> bool:
    """Whether the run has old classes and statistics of them."""
    return run.done > 1 and "real.distances" in run.tables


def distances_of_old_classes(run: Run, memory: str) -> dict[str, Numbers]:
    """Each distance of one memory, after each task from the second: mean over the classes of earlier tasks."""
    table, old = run.table("real.distances")[:, :, TRACKED.index(memory)], np.cumsum(run.sizes)
    curves = np.stack([table[task, : old[task - 1]].mean(0) for task in range(1, run.done)])
    return {quantity: curves[:, column] for column, quantity in enumerate(DISTANCES)}


def against_efc(runs: Sequence[Run], quantity: str) -> float:
    """Relative change of a distance from EFC's update to the run's own, mean over tasks and runs."""
    own, efc = (
        np.nanmean(plot.mean_and_deviation([distances_of_old_classes(run, memory)[quantity] for run in runs])[0])
        for memory in (OWN, EFC_UPDATE)
    )
    return float(own / efc - 1)


@register_study(Quantity.REAL)
def oracle(groups: Groups) -> Drawing:
    """Accuracy with real statistics of old classes.

    The gap to the real statistics is the most that a better drift compensation could gain on these networks.
    """
    needs = "runs whose classifier follows from the memory, such as bayes"
    groups = select(groups, lambda run: "real.accuracy" in run.tables, needs)
    chosen = [Panel("accuracy", "accuracy on all seen classes, %", scale=100)]

    def accuracies(run: Run, bank: str) -> dict[str, Numbers]:
        return {"accuracy": run.table("real.accuracy")[:, BANKS.index(bank)]}

    return memory_curves(groups, BANKS, chosen, accuracies, "all memories are on the networks of the same run")


@register_study(Quantity.SHRINK)
def shrink(groups: Groups) -> Drawing:
    """Shrinkage of stored covariances.

    With anti-collapse no shrinkage is best (60.2 on CIFAR-100); accuracy falls as γ grows.
    """
    first = next(iter(groups.values()))[0]
    amounts = [f"{amount:g}" for amount in first.table("shrink.amounts")]

    def sweep(run: Run) -> dict[str, Numbers]:
        accuracy = 100 * run.table("shrink.accuracy")
        return {"A_inc": accuracy.mean(1), "A_last": accuracy[:, -1]}

    chosen = [Panel(quantity, f"{quantity}, %", "γ", "γ", start=0, limits=(0, 102)) for quantity in ("A_inc", "A_last")]
    figure, values, _ = draw_curves(chosen, lines_of(groups, sweep))
    rows: list[Row] = [{**row, "γ": amounts[int(row["γ"])]} for row in values]
    for axes in figure.axes:
        axes.set_xticks(range(len(amounts)), amounts)
    paper = in_figures("Fig. shrink sweep")["value"]
    if first.config.stream.dataset == "cifar100":
        figure.axes[0].plot(0, paper, "*", color=plot.GREY, markersize=7)
    rows.append({"group": "paper", "γ": "0", "quantity": "A_inc, L_AC, CIFAR-100", "value": paper})
    note = "Σ + γ·mean(diag Σ)·I when stored and after every adaptation, in addition to the run's own shrinkage; "
    note += f"the axis of γ is not linear; paper, L_AC, γ = 0: A_inc {paper:.1f} (CIFAR-100)"
    return Drawing(figure, rows, note)


# Pictures of the latent space.

FROZEN, NOT_ADAPTED, ADAPTED = "frozen after task 1", "trained, not adapted", "trained, adapted"


@register_study(Quantity.REAL)
def motivation(groups: Groups) -> Drawing:
    """Frozen, not adapted, adapted.

    Training moves the features away from the memorised Gaussians; adapting the memory follows them.
    """
    groups = select(
        groups,
        lambda run: (
            has_distances(run) and {"real.plane_means", "real.frozen_means", "real.accuracy"} <= run.tables.keys()
        ),
        "runs of two tasks or more that store covariances, with a classifier that follows from the memory",
    )
    label, runs = next(iter(groups.items()))
    values: dict[str, dict[str, list[float]]] = {
        "A_last, %": {FROZEN: [100 * float(run.table("real.frozen_accuracy")[0]) for run in runs]},
        "symmetric KL": {FROZEN: [0.0] * len(runs)},
    }
    for case, memory in ((NOT_ADAPTED, UNMOVED), (ADAPTED, OWN)):
        values["A_last, %"][case] = [100 * float(run.table("real.accuracy")[-1, BANKS.index(memory)]) for run in runs]
        values["symmetric KL"][case] = [float(distances_of_old_classes(run, memory)["kl"][-1]) for run in runs]
    figure, (pictures, (*bars, names)) = panels(3, 2)
    _latent_spaces(pictures, runs[0])
    for index, place in enumerate(runs[0].table("real.plane_classes").astype(int)):
        name = f"{shown(runs[0].labels[place], 14)} (task {runs[0].task_of_class[place] + 1})"
        names.plot([], [], "s", color=colour(index), label=name)
    names.set_axis_off()
    names.legend(loc="center")
    for axes, (quantity, cases) in zip(bars, values.items(), strict=True):
        plot.draw_bars(axes, cases, quantity)
    bars[1].set_yticklabels([])
    chosen = f"of the configuration {label}; " if len(groups) > 1 else ""
    note = (
        f"{chosen}solid: memorised, dashed: real (2σ), in the two principal directions between the real means; "
        f"pictures of seed {runs[0].seed}; KL: mean of old classes; the Gaussians of the frozen network are exact"
    )
    rows = [{"group": label, **row} for row in value_rows({label: runs}, values, "case")]
    return Drawing(figure, rows, note)


def _latent_spaces(pictures: Sequence[Axes], run: Run) -> None:
    real, own, unmoved = zip(run.table("real.plane_means"), run.table("real.plane_covariances"), strict=True)
    frozen = run.table("real.frozen_means"), run.table("real.frozen_covariances")
    cases = {FROZEN: (frozen, frozen), NOT_ADAPTED: (unmoved, real), ADAPTED: (own, real)}
    for axes, (case, (memorised, truth)) in zip(pictures, cases.items(), strict=True):
        for (means, covariances), dashes, dot in ((truth, "--", "x"), (memorised, "-", "o")):
            for index, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
                variances, vectors = np.linalg.eigh(covariance)
                width, height = 4 * np.sqrt(np.maximum(variances, 0))
                angle = float(np.degrees(np.arctan2(vectors[1, 0], vectors[0, 0])))
                look: dict[str, Any] = {"fill": False, "edgecolor": colour(index), "linestyle": dashes}
                axes.add_patch(Ellipse(mean, width, height, angle=angle, **look))
                axes.plot(*mean, dot, color=colour(index))
        axes.set(title=case, xlabel="first direction")
        axes.autoscale_view()
        axes.set_aspect("equal", adjustable="datalim")
    pictures[0].set_ylabel("second direction")
