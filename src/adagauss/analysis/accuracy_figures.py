"""Figures of predictions: accuracy, confusion, task-recency bias, losses and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from adagauss.analysis import plotting as plot
from adagauss.analysis.plotting import Line, Panel, Row, colour, draw_curves, lines_of, panels
from adagauss.analysis.studies import (
    DISTILLATIONS,
    NO_DISTILLATION,
    Drawing,
    Groups,
    NotDrawableError,
    check_axis,
    register_study,
    select,
)
from adagauss.experiments.paper import in_figures
from adagauss.experiments.run import Numbers, Results, Run
from adagauss.methods import Method
from adagauss.parts.terms import AntiCollapse, CrossEntropy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BY_TASK = "task that the classes were learned in"
MOST_NAMES = 120
"""Classes up to which each row has a name."""
MOST_MATRICES = 4
LOSSES = {"L_CE": "cross-entropy", "L_KD": "distillation L_PKD, without λ", "L_AC": "anti-collapse L_AC, without α"}
BETA_SETTINGS = ("representation.terms.anti_collapse.beta", "drift.beta")
DISTILLATION_SETTINGS = (
    "representation.terms.distillation",
    "representation.terms.anti_collapse",
    "representation.heads",
    "representation.train_old_heads",
    "drift.anti_collapse",
)
MINUTES, BYTES = "training, minutes", "stored without the network, bytes"
DATASETS = {"CIFAR-100": "cifar100", "ImageNet-Subset": "imagenet_subset", "CUB200": "cub200"}


# Figures of a run or a comparison.


def accuracy_curve(results: Results, title: str = "") -> Figure:
    """Accuracy on all seen classes after each task: one line per method, the best first, with its deviation."""
    last = {label: 100 * float(np.mean([run.curve[-1] for run in runs])) for label, runs in results.items()}
    ranked = {f"{label}  {last[label]:.1f}": results[label] for label in sorted(results, key=lambda one: -last[one])}
    return _draw_accuracy(ranked, title or next(iter(results.values()))[0].protocol.title, "A_last, %")[0]


def _draw_accuracy(groups: Groups, title: str, names: str) -> tuple[Figure, list[Row]]:
    lines = lines_of(groups, lambda run: {"accuracy": np.array(run.curve)})
    figure, axes = panels(1, groups, max(3.8, 1.4 + 0.2 * len(lines)), 6.0)
    panel = Panel("accuracy", "accuracy on all seen classes, %", scale=100, limits=(0, 102), xlabel="tasks learned")
    _, _, rows = draw_curves([panel], lines, names, axes)
    plot.set_title(axes[0], title)
    return figure, rows


def confusion_figure(
    counts: npt.ArrayLike, names: Sequence[object], tasks: Sequence[int] = (), title: str = ""
) -> Figure:
    """Shares of the images of each true class (row) that are predicted as each class (column), in percent.

    Classes are in the order of ``names``; ``tasks`` are the numbers of classes per task, separated by lines.
    """
    values = np.array(counts, dtype=np.float64)
    size = len(values)
    side = min(13.0, max(3.2, 0.42 * size if size <= plot.MOST_NUMBERS else 3.0 + 0.1 * size))
    figure = plot.new_figure(side + 2.6, side + 1.8)
    axes = figure.add_subplot()
    image = plot.draw_matrix(axes, _percent(values), root=True, names=names if size <= MOST_NAMES else ())
    for edge in list(accumulate(tasks))[:-1]:
        axes.axhline(edge - 0.5, color="white", linewidth=0.8)
        axes.axvline(edge - 0.5, color="white", linewidth=0.8)
    axes.set(xlabel="predicted class", ylabel="true class")
    plot.set_title(axes, title)
    figure.colorbar(image, label="% of the true class", shrink=0.7, ticks=[0, 1, 5, 10, 25, 50, 100])
    return figure


def _percent(counts: Numbers) -> Numbers:
    shares: Numbers = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return shares


# Studies of predictions.


@register_study(
    "accuracy",
    title="Accuracy on all seen classes",
    claim="A method that compensates drift and has no task-recency bias loses least after later tasks.",
)
def accuracy(groups: Groups) -> Drawing:
    """Accuracy on all seen classes after each task, every task weighted equally."""
    return Drawing(*_draw_accuracy(groups, "", ""))


@register_study(
    "recency",
    title="Share of predictions by task",
    claim="Without bias each task gets its share of the predictions; a rise to the right is the task-recency bias.",
)
def recency(groups: Groups) -> Drawing:
    """After the last task: predictions that fall on each task, over the task's share of the test images."""
    ratio, late = "share of predictions / share of images", "share of errors that fall on the newest task"
    errors = "% of errors on old tasks\nthat are predicted as the newest task"
    chosen = [
        Panel(ratio, f"{ratio}\n(1: no bias)", "task", "task predicted, after the last task", limits=(0, None)),
        Panel(late, errors, start=2, scale=100, limits=(0, 102)),
    ]
    lines = lines_of(groups, lambda run: {ratio: share_over_fair(run), late: late_errors(run)})
    figure, axes, rows = draw_curves(chosen, lines)
    axes[0].axhline(1, color="black", linewidth=0.8, linestyle=(0, (4, 3)))
    return Drawing(figure, rows)


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


@register_study(
    "confusion",
    title="Confusion by task",
    claim="Bright columns at the right are the task-recency bias; the diagonal holds confusion within a task.",
)
def confusion(groups: Groups) -> Drawing:
    """Shares of the images of each true task, in percent, after the last task, over all seeds."""
    drawn = list(groups)[:MOST_MATRICES]
    figure, grid = panels(len(drawn), height=3.6, width=3.7)
    rows: list[Row] = []
    for label, runs in groups.items():
        furthest = [run for run in runs if run.done == max(one.done for one in runs)]
        member = (furthest[0].task_of_class[:, None] == np.arange(furthest[0].done)).astype(np.float64)
        counts = sum((member.T @ run.confusion @ member for run in furthest), np.zeros(()))
        values = _percent(counts)
        for (row, column), value in np.ndenumerate(values):
            tasks: Row = {"true": f"task {row + 1}", "predicted": f"task {column + 1}", "%": value}
            rows.append({"group": label, "of": "tasks", **tasks})
        if label in drawn:
            axes = grid[drawn.index(label)]
            image = plot.draw_matrix(axes, values, root=True)
            axes.set(xlabel="predicted task", ylabel="true task")
            plot.set_title(axes, label, 38)
    bar = figure.colorbar(image, ax=grid, shrink=0.8, fraction=0.04, pad=0.02, ticks=[0, 1, 5, 10, 25, 50, 100])
    bar.set_label("% of the true task", fontsize=plot.points(9))
    return Drawing(figure, rows, others(groups, MOST_MATRICES))


def others(groups: Groups, most: int) -> str:
    """A note on groups for which there is no room."""
    return f"{len(groups) - most} more groups are in the CSV file" if len(groups) > most else ""


@register_study(
    "pareto",
    title="Accuracy against time and memory",
    claim="On the line no other method is both better and cheaper.",
)
def pareto(groups: Groups) -> Drawing:
    """A_last against training time and against the stored bytes, mean over seeds; the Pareto front of each."""
    figure, axes = panels(2, height=3.6, width=4.0)
    points = {label: np.array([[*cost(run), 100 * run.curve[-1]] for run in runs]) for label, runs in groups.items()}
    order = sorted(groups, key=lambda label: -points[label][:, 2].mean())
    rows: list[Row] = [
        {"group": label, "seed": run.seed, "A_last, %": float(score), MINUTES: float(minutes), BYTES: float(size)}
        for label, runs in groups.items()
        for run, (minutes, size, score) in zip(runs, points[label], strict=True)
    ]
    means = np.array([points[label].mean(0) for label in order])
    looks = dict(zip(groups, plot.places(groups), strict=True))
    for place, one in enumerate(axes):
        for label, mean in zip(order, means, strict=True):
            look: dict[str, Any] = {"color": colour(looks[label]), "markersize": plot.points(6), "ls": ""}
            text = f"{plot.shown(label)}  {mean[2]:.1f}"
            one.plot(mean[place], mean[2], plot.marker(looks[label]), label=text, **look)
        line = means[:, [place, 2]][front(means[:, [place, 2]])]
        one.plot(*line.T, color="#999999", linewidth=1, zorder=0, drawstyle="steps-post")
        one.margins(0.1)
        if (means[:, place] > 0).all():
            plot.set_log_scale(one, "x")
        plot.set_labels(one, (f"{MINUTES}, all tasks", BYTES)[place], "A_last, %", 2)
    plot.legend(axes[1], "A_last, %")
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


# Studies that compare settings.


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


def _scores(run: Run) -> dict[str, float]:
    return {"A_last": 100 * run.metrics["a_last"], "A_inc": 100 * run.metrics["a_inc"]}


def _score_rows(groups: Groups) -> list[Row]:
    return [
        {"group": label, "seed": run.seed, "quantity": quantity, "value": value}
        for label, runs in groups.items()
        for run in runs
        for quantity, value in _scores(run).items()
    ]


@register_study(
    "distillation",
    title="Accuracy by distillation",
    paper="distillation comparison",
    claim="Projected distillation beats logit distillation by 1.4 (CIFAR-100), 0.9 and 4.0 points of A_last.",
)
def distillation(groups: Groups) -> Drawing:
    """A_last and A_inc of none, feature, logit and projected distillation."""
    variants = by_variant(groups)
    figure, axes = panels(2, height=3.6)
    for one, quantity in zip(axes, ("A_last", "A_inc"), strict=True):
        values = {variant: [_scores(run)[quantity] for run in runs] for variant, runs in variants.items()}
        plot.draw_bars(one, values, f"{quantity}, %")
    gains = {name: in_figures("Fig. distillation comparison")[key] for name, key in DATASETS.items()}
    paper: list[Row] = [
        {"group": "paper", "quantity": f"projected - logit, {name}", "value": gain} for name, gain in gains.items()
    ]
    note = f"projected over logit KD in the paper, A_last: {', '.join(f'{k} {v:+.1f}' for k, v in gains.items())}"
    return Drawing(figure, [*_score_rows(variants), *paper], note)


@register_study(
    "beta",
    title="β of the anti-collapse loss",
    paper="β sweep with its losses",
    claim="β = 1 is best, and L_AC saturates at -1; a larger β raises the other losses, 0.1 leaves the bias.",
)
def beta(groups: Groups) -> Drawing:
    """A_last and A_inc against β, and the mean of each loss in every epoch."""
    groups = select(groups, lambda run: beta_of(run.config.method) is not None, "runs with L_AC")
    betas = {label: beta_of(runs[0].config.method) or 0.0 for label, runs in groups.items()}
    if len(set(betas.values())) < 2:
        raise NotDrawableError(f"it compares values of β, but all runs have β = {next(iter(betas.values())):g}")
    check_axis(groups, BETA_SETTINGS)
    groups = {label: groups[label] for label in sorted(groups, key=betas.__getitem__)}
    unique = len(set(betas.values())) == len(betas)
    figure, axes = panels(4, [f"β = {value:g}" for value in betas.values()])
    rows: list[Row] = [{**row, "β": betas[str(row["group"])]} for row in _score_rows(groups)]
    for quantity, dashes in (("A_last", "-"), ("A_inc", "--")):
        means = [np.mean([_scores(run)[quantity] for run in runs]) for runs in groups.values()]
        axes[0].plot(
            list(map(betas.__getitem__, groups)), means, dashes, color=plot.GREY, label=plot.typeset(quantity), zorder=1
        )
        for index, (label, runs) in enumerate(groups.items()):
            points = [_scores(run)[quantity] for run in runs]
            axes[0].plot(
                [betas[label]] * len(runs), points, plot.marker(index), color=colour(index), markersize=plot.points(5)
            )
    axes[0].set(xscale="log", xlabel="β", ylabel="accuracy, %")
    axes[0].legend(fontsize=plot.points(7))
    lines = [
        Line(
            f"β = {betas[label]:g}" if unique else label,
            runs,
            [losses(run) for run in runs],
            index,
            "",
            {"group": label, "β": betas[label]},
        )
        for index, (label, runs) in enumerate(groups.items())
    ]
    chosen = [Panel(loss, text, "epoch", "epoch (its mean), all tasks") for loss, text in LOSSES.items()]
    _, _, more = draw_curves(chosen, lines, axes=axes[1:])
    for one in axes[1:]:
        for edge in np.cumsum([len(task.history) for task in lines[0].runs[0].facts])[:-1]:
            one.axvline(edge + 0.5, color="#bbbbbb", linewidth=0.6, zorder=0)
    swept = ", ".join(f"{value:g}" for value in in_figures("Fig. beta sweep")["values"])
    return Drawing(figure, rows + more, f"vertical lines: a new task; β in the paper: {swept}")


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
