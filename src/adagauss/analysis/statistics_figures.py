"""Figures of class statistics: eigenvalues, ranks, shifts, distances to real statistics, and their effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from adagauss.analysis import plotting as plot
from adagauss.analysis.accuracy_figures import BY_TASK, MOST_MATRICES, by_variant, others
from adagauss.analysis.measure import BANKS, DISTANCES, EFC_UPDATE, OWN, TRACKED, UNMOVED, Quantity
from adagauss.analysis.plotting import Line, Panel, Row, colour, draw_curves, lines_of, panels
from adagauss.analysis.studies import Drawing, Groups, register_study, select
from adagauss.core import linalg
from adagauss.experiments.paper import in_figures
from adagauss.experiments.run import Numbers, Run

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

"""Classes in the figure of Gaussians."""
MOST_NAMES = 60
"""Classes up to which each row of a map has a name."""
ABSOLUTE, RELATIVE, EFFECTIVE = "rank, λ > 0.01", "rank, λ > 0.001·λ₁", "effective rank"
RANKS: Mapping[str, Callable[[Tensor], Tensor]] = {
    ABSOLUTE: linalg.absolute_rank,
    RELATIVE: linalg.relative_rank,
    EFFECTIVE: linalg.effective_rank,
    "‖Σ⁻¹‖_F": linalg.inverse_norm,
}
RANK_PANELS = (
    Panel(ABSOLUTE, "mean rank, λ > 0.01 (the paper's)", "task", BY_TASK, limits=(0, None)),
    Panel(RELATIVE, "mean rank, λ > 0.001·λ₁ (scale-free)", "task", BY_TASK, limits=(0, None)),
    Panel(EFFECTIVE, "mean effective rank, exp(entropy of λ)", "task", BY_TASK, limits=(0, None)),
)
ACCURACY = "accuracy"
PAPER_SHRINK = "paper, L_AC, γ = 0: A_inc {:.1f} (CIFAR-100)"
FROZEN, NOT_ADAPTED, ADAPTED = "frozen after task 1", "trained, not adapted", "trained, adapted"


def with_covariances(groups: Groups) -> Groups:
    """The groups whose runs store covariances."""
    return select(groups, lambda run: "memory.spectra" in run.tables, "runs that store covariances")


def memory_lines(
    groups: Groups, memories: Sequence[str], values: Callable[[Run, str], Mapping[str, Numbers]]
) -> list[Line]:
    """One line per group and memory: the colour shows the memory, the dashes the group."""
    alone = len(groups) == 1
    return [
        Line(
            memory if alone else f"{memory}, {label}",
            runs,
            [values(run, memory) for run in runs],
            place,
            plot.DASHES[number % len(plot.DASHES)],
            {"group": label, "memory": memory},
        )
        for number, (label, runs) in enumerate(groups.items())
        for place, memory in enumerate(memories)
    ]


def memory_entries(groups: Groups, memories: Sequence[str]) -> list[Artist]:
    """Entries of a legend for several groups: the colours of the memories, then the dashes of the groups."""
    from matplotlib.lines import Line2D

    if len(groups) == 1:
        return []
    colours = [
        Line2D([], [], color=colour(place), marker=plot.marker(place), markersize=plot.points(4), label=memory)
        for place, memory in enumerate(memories)
    ]
    dashes = [
        Line2D([], [], color="black", linestyle=plot.DASHES[place % len(plot.DASHES)], label=plot.shown(label))
        for place, label in enumerate(groups)
    ]
    return [*colours, *dashes]


# Memory.


@register_study(
    "ranks",
    title="Rank and inverse norm of memorised covariances",
    paper="rank and inverse norm by task",
    claim="Covariances of early tasks have lower ranks, and so larger inverses: the task-recency bias.",
    needs=[Quantity.MEMORY],
)
def ranks(groups: Groups) -> Drawing:
    """Mean over the classes of each task, after the last task, of four functions of the eigenvalues."""
    inverse = Panel("‖Σ⁻¹‖_F", "mean ‖Σ⁻¹‖ (Frobenius), without shrinkage", "task", BY_TASK, log=True)
    figure, _, rows = draw_curves([*RANK_PANELS, inverse], lines_of(with_covariances(groups), rank_by_task))
    return Drawing(figure, rows)


def rank_by_task(run: Run) -> dict[str, Numbers]:
    """Each of `RANKS` of the covariances after the last finished task, mean over the classes of each task."""
    values = torch.from_numpy(run.table("memory.spectra")[-1])
    return {name: run.by_task(function(values).double().numpy()) for name, function in RANKS.items()}


@register_study(
    "ranks-by-distillation",
    title="Ranks of memorised covariances by distillation",
    paper="ranks per distillation",
    claim="Only projected distillation with anti-collapse has full rank (64 of 64) in every task.",
    needs=[Quantity.MEMORY],
)
def ranks_by_distillation(groups: Groups) -> Drawing:
    """Mean over the classes of each task after the last one, with the same tolerance for all."""
    variants = by_variant(with_covariances(groups))
    figure, axes, rows = draw_curves(RANK_PANELS, lines_of(variants, rank_by_task))
    size = max(run.table("memory.spectra").shape[2] for runs in variants.values() for run in runs)
    for one in axes:
        one.set_ylim(0, 1.12 * size)
    paper = in_figures("Fig. rank per task")["value"]
    plot.annotate_line(axes[0], f"paper, projected KD + L_AC: full rank ({paper} of {paper})", size)
    rows.append({"group": "paper", "quantity": "rank, projected KD + L_AC, of 64", "value": float(paper)})
    return Drawing(figure, rows)


@register_study(
    "spectrum",
    title="Eigenvalues of memorised covariances",
    paper="eigenvalue spectrum with and without anti-collapse",
    claim="Anti-collapse keeps the smallest eigenvalues up: largest over smallest is about 84 instead of 120,000.",
    needs=[Quantity.MEMORY],
)
def spectrum(groups: Groups) -> Drawing:
    """λ_i sorted in each class and averaged over classes after the last task: absolute, and relative to the largest."""
    lines = lines_of(with_covariances(groups), spectra)
    chosen = [
        Panel("mean eigenvalue", "mean eigenvalue λᵢ over classes", "i", "i, the largest eigenvalue first", log=True),
        Panel("λᵢ / λ₁", "λᵢ / λ₁ (scale-free)", "i", "i, the largest eigenvalue first", log=True),
    ]
    figure, axes, rows = draw_curves(chosen, lines)
    for line in lines:
        for run, values in zip(line.runs, line.values, strict=True):
            ratio = 1 / max(float(values["λᵢ / λ₁"][-1]), np.finfo(float).tiny)
            rows.append({"group": line.label, "seed": run.seed, "quantity": "largest / smallest", "value": ratio})
    paper = in_figures("Fig. eigenvalue spectrum")
    for which in ("without_l_ac", "with_l_ac"):
        text = f"paper's smallest, {which.replace('_l_ac', ' L_AC')}: 1/{paper[which]:,.0f}"
        plot.annotate_line(axes[1], text, 1 / paper[which])
        rows.append({"group": "paper", "quantity": f"largest / smallest, {which}", "value": float(paper[which])})
    return Drawing(figure, rows)


def spectra(run: Run) -> dict[str, Numbers]:
    """The mean eigenvalues after the last finished task."""
    values: Numbers = run.table("memory.spectra")[-1].mean(0)
    return {"mean eigenvalue": values, "λᵢ / λ₁": values / values[0]}


@register_study(
    "shift",
    title="Predicted shift of the class means",
    paper="predicted shift, class by task",
    claim="Shifts differ between classes and tasks, so one shift for all classes is not enough.",
    needs=[Quantity.MEMORY],
)
def shift(groups: Groups) -> Drawing:
    """‖μ_c after the drift of task t − μ_c before‖₂, mean over seeds, for every class c and task t."""
    groups = select(groups, lambda run: run.done > 1, "runs of two tasks or more")
    rows: list[Row] = []
    means: dict[str, Numbers] = {}
    for label, runs in groups.items():
        tasks, classes = max(run.done for run in runs), max(len(run.labels) for run in runs)
        padded = np.full((len(runs), tasks, classes), np.nan)
        for number, run in enumerate(runs):
            table = run.table("memory.shift")
            padded[number, : run.done, : len(run.labels)] = table[:, :, 0]
            for task, place in np.argwhere(np.isfinite(table[:, :, 0])).tolist():
                known: Row = {"group": label, "seed": run.seed, "class": str(run.labels[place]), "task": task + 1}
                moved, relative = table[task, place].tolist()
                rows.append({**known, "shift": moved, "shift / √tr Σ": relative})
        means[label] = plot.mean_and_deviation(list(padded.reshape(len(runs), -1)))[0].reshape(tasks, classes)
    drawn = list(groups)[:MOST_MATRICES]
    height = min(9.0, max(3.4, 1.2 + 0.14 * min(max(means[label].shape[1] for label in drawn), MOST_NAMES)))
    figure, grid = panels(len(drawn), height=height, width=3.4)
    largest = max(float(np.nanmax(means[label])) for label in drawn)
    for axes, label in zip(grid, drawn, strict=True):
        tasks, classes = means[label].shape
        axes.grid(visible=False)
        axes.set_facecolor("#e6e6e6")
        extent = (1.5, tasks + 0.5, classes - 0.5, -0.5)
        image = axes.imshow(means[label][1:].T, aspect="auto", vmin=0, vmax=largest, extent=extent)
        axes.set_xticks(range(2, tasks + 1, -(-(tasks - 1) // 10)))
        if classes <= MOST_NAMES:
            names = [plot.shown(name, 20) for name in groups[label][0].labels]
            axes.set_yticks(range(len(names)), names, fontsize=plot.points(6.5))
        else:
            axes.set_ylabel("class, in the order learned")
        axes.set_xlabel("after task")
        plot.set_title(axes, label, 38)
    figure.colorbar(image, ax=grid, fraction=0.04, pad=0.02, label="‖μ after − μ before‖₂, mean over seeds")
    notes = ["grey: not learned yet, or learned in this task", others(groups, MOST_MATRICES)]
    return Drawing(figure, rows, "; ".join(filter(None, notes)))


# Real statistics.


@register_study(
    "strength",
    title="Representation strength",
    paper="representation strength per distillation",
    claim="Projected distillation lets features spread over more directions than feature or logit distillation.",
    needs=[Quantity.REAL],
)
def strength(groups: Groups) -> Drawing:
    """After each task, from the covariance of all features, classes together."""
    directions, together = "directions below 95 % of the variance", "features of all seen tasks together"
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
        Panel(seen, f"directions with cumulative variance < 95 %,\n{together}", limits=(0, None)),
        Panel(mean, "the same of each seen task,\nmean over tasks", limits=(0, None)),
        Panel(effective, f"effective rank, exp(entropy of λ),\n{together}", limits=(0, None)),
    ]
    figure, _, rows = draw_curves(chosen, lines_of(groups, strengths))
    return Drawing(figure, rows, "one direction more than counted is needed to reach 95 %")


@register_study(
    "mahalanobis",
    title="Distance and logit of all test images by task",
    paper="Mahalanobis distance and mean logit by task",
    claim="Classes of early tasks have larger distances and smaller logits; without bias the curves are flat.",
    needs=[Quantity.REAL],
)
def mahalanobis(groups: Groups) -> Drawing:
    """After the last task: mean over all test images and over the classes of each task."""
    groups = select(groups, lambda run: "real.logits" in run.tables, "runs that store covariances")

    def by_task(run: Run) -> dict[str, Numbers]:
        published, plain = map(run.by_task, run.table("real.mahalanobis"))
        return {"published": published, "plain": plain, "logit": run.by_task(run.table("real.logits"))}

    distance, axis = "mean squared Mahalanobis distance,\n", ("task", BY_TASK)
    chosen = [
        Panel("published", f"{distance}Σ shrunk by 3 and normalised (the paper's)", *axis, log=True),
        Panel("plain", f"{distance}Σ as memorised", *axis, log=True),
        Panel("logit", "mean logit of a linear head\ntrained on samples of the Gaussians", *axis),
    ]
    figure, _, rows = draw_curves(chosen, lines_of(groups, by_task))
    return Drawing(figure, rows, "features are not scaled to unit length")


@register_study(
    "distances",
    title="Memorised and real statistics of old classes",
    paper="adaptation distances: means, covariances, symmetric KL",
    claim="Adapting means and covariances lowers all distances, compared with EFC's update by 29, 39 and 72 %.",
    needs=[Quantity.REAL],
)
def distances(groups: Groups) -> Drawing:
    """Mean over old classes after each task from the second, on the same networks for all three memories."""
    groups = select(groups, has_distances, "runs of two tasks or more with statistics per class")
    alone = len(groups) == 1
    lines = memory_lines(groups, TRACKED, distances_of_old_classes)
    names = {"mean": "‖μ − μ*‖₂", "covariance": "‖Σ − Σ*‖_F", "kl": "KL(N‖N*) + KL(N*‖N)"}
    mean = "mean over old classes"
    chosen = [Panel(key, f"{text},\n{mean}", start=2, log=key == "kl") for key, text in names.items()]
    figure, axes, rows = draw_curves(chosen, lines, entries=memory_entries(groups, TRACKED))
    paper = in_figures("Fig. adaptation distances")
    for one, quantity, key in zip(axes, names, ("mean_l2", "cov_l2", "sym_kl"), strict=True):
        if quantity != "kl":
            one.set_ylim(bottom=0)
        if alone:
            change = against_efc(next(iter(groups.values())), quantity)
            one.set_title(f"as run against EFC's: {change:+.0%} (paper {-paper[key]:+.0%})", fontsize=plot.points(8))
        rows.append({"group": "paper", "quantity": f"{quantity}: against EFC's", "value": -paper[key]})
    return Drawing(figure, rows, "* marks real statistics; all memories are on the networks of the same run")


def has_distances(run: Run) -> bool:
    """Whether the run has old classes and statistics of them."""
    return run.done > 1 and bool(np.isfinite(run.table("real.distances")[1:, :, :, 0]).any())


def distances_of_old_classes(run: Run, memory: str) -> dict[str, Numbers]:
    """Each distance of one memory, after each task from the second: mean over the classes of earlier tasks."""
    table, old = run.table("real.distances")[:, TRACKED.index(memory)], np.cumsum(run.sizes)
    curves = np.stack([table[task, : old[task - 1]].mean(0) for task in range(1, run.done)])
    return {quantity: curves[:, column] for column, quantity in enumerate(DISTANCES)}


def against_efc(runs: Sequence[Run], quantity: str) -> float:
    """Relative change of a distance from EFC's update to the run's own, mean over tasks and runs."""
    own, efc = (
        np.nanmean(plot.mean_and_deviation([distances_of_old_classes(run, memory)[quantity] for run in runs])[0])
        for memory in (OWN, EFC_UPDATE)
    )
    return float(own / efc - 1)


@register_study(
    "oracle",
    title="Accuracy with real statistics of old classes",
    claim="The gap to the real statistics is the most that a better drift compensation could gain on these networks.",
    needs=[Quantity.REAL],
)
def oracle(groups: Groups) -> Drawing:
    """The classifier of the run after each task, with the memories of `BANKS` on the same networks."""
    groups = select(
        groups,
        lambda run: bool((run.table("real.accuracy") >= 0).any()),
        "runs whose classifier follows from the memory, such as bayes",
    )
    lines = memory_lines(groups, BANKS, lambda run, bank: {ACCURACY: run.table("real.accuracy")[:, BANKS.index(bank)]})
    figure, axes = panels(1, BANKS if len(groups) == 1 else (), 3.8, 6.0)
    chosen = [Panel(ACCURACY, "accuracy on all seen classes, %", scale=100)]
    _, _, rows = draw_curves(chosen, lines, axes=axes, entries=memory_entries(groups, BANKS))
    return Drawing(figure, rows)


@register_study(
    "shrink",
    title="Shrinkage of stored covariances",
    paper="shrink sweep",
    claim="With anti-collapse no shrinkage is best (60.2 on CIFAR-100); accuracy falls as γ grows.",
    needs=[Quantity.SHRINK],
)
def shrink(groups: Groups) -> Drawing:
    """A_last and A_inc with Σ + γ·mean(diag Σ)·I stored, on the networks of the same runs."""
    amounts = [f"{amount:g}" for amount in next(iter(groups.values()))[0].table("shrink.amounts")]

    def sweep(run: Run) -> dict[str, Numbers]:
        accuracy = 100 * run.table("shrink.accuracy")
        return {"A_inc": accuracy.mean(1), "A_last": accuracy[:, -1]}

    xlabel = "γ of Σ + γ·mean(diag Σ)·I,\nwhen stored and after every adaptation"
    chosen = [Panel(quantity, f"{quantity}, %", "γ", xlabel, start=0) for quantity in ("A_inc", "A_last")]
    figure, axes, rows = draw_curves(chosen, lines_of(groups, sweep))
    for row in rows:
        row["γ"] = amounts[int(row["γ"])]
    for one in axes:
        one.set_xticks(range(len(amounts)), amounts)
    paper = in_figures("Fig. shrink sweep")["value"]
    if next(iter(groups.values()))[0].config.stream.dataset == "cifar100":
        axes[0].plot(0, paper, "*", color=plot.GREY, markersize=plot.points(9))
    note = "in addition to the shrinkage of the run's own classifier; the axis of γ is not linear"
    rows.append({"group": "paper", "γ": "0", "quantity": "A_inc, L_AC, CIFAR-100", "value": paper})
    return Drawing(figure, rows, f"{note}; {PAPER_SHRINK.format(paper)}")


# Pictures of the latent space.


@register_study(
    "motivation",
    title="Frozen, not adapted, adapted",
    paper="motivation: latent space, accuracy and KL divergence",
    claim="Training moves the features away from the memorised Gaussians; adapting the memory follows them.",
    needs=[Quantity.REAL, Quantity.FROZEN],
)
def motivation(groups: Groups) -> Drawing:
    """Ellipses of some classes in each case, A_last, and the mean divergence of old classes, of one configuration."""
    groups = select(
        groups,
        lambda run: has_distances(run) and "real.plane_means" in run.tables,
        "runs of two tasks or more that store covariances",
    )
    label, runs = next(iter(groups.items()))
    figure = plot.new_figure(14.5, 3.4, 5)
    axes = list(figure.subplots(1, 5, width_ratios=(1.3, 1.3, 1.3, 1, 1)))
    for one in axes:
        plot.style(one)
    _latent_spaces(axes[:3], runs[0])
    accuracy = {FROZEN: [100 * float(run.table("frozen.accuracy")[0]) for run in runs]}
    divergence = {FROZEN: [0.0] * len(runs)}
    for case, memory in ((NOT_ADAPTED, UNMOVED), (ADAPTED, OWN)):
        accuracy[case] = [100 * float(run.table("real.accuracy")[-1, BANKS.index(memory)]) for run in runs]
        divergence[case] = [float(distances_of_old_classes(run, memory)["kl"][-1]) for run in runs]
    rows: list[Row] = []
    for one, quantity, text, values in (
        (axes[3], "A_last, %", "A_last, %", accuracy),
        (axes[4], "symmetric KL", "symmetric KL, mean of old classes", divergence),
    ):
        plot.draw_bars(one, dict(zip(("frozen", "not adapted", "adapted"), values.values(), strict=True)), text)
        for case, numbers in values.items():
            for run, value in zip(runs, numbers, strict=True):
                rows.append({"group": label, "seed": run.seed, "case": case, "quantity": quantity, "value": value})
    chosen = f"of the configuration {label}; " if len(groups) > 1 else ""
    note = (
        f"{chosen}solid: memorised, dashed: real (2σ), in the two principal directions "
        f"between the real means; pictures of seed {runs[0].seed}; the Gaussians of the frozen network are exact"
    )
    return Drawing(figure, rows, note)


def _latent_spaces(axes: Sequence[Axes], run: Run) -> None:
    real, own, unmoved = zip(run.table("real.plane_means"), run.table("real.plane_covariances"), strict=True)
    frozen = run.table("frozen.plane_means"), run.table("frozen.plane_covariances")
    pairs = {FROZEN: (frozen, frozen), NOT_ADAPTED: (unmoved, real), ADAPTED: (own, real)}
    for one, (case, (memorised, truth)) in zip(axes, pairs.items(), strict=True):
        for index, place in enumerate(run.table("real.plane_classes").astype(int)):
            for (means, covariances), dashes, dot in ((truth, "--", "x"), (memorised, "-", "o")):
                plot.draw_ellipse(one, means[index], covariances[index], colour(index), dashes)
                one.plot(*means[index], dot, color=colour(index), markersize=plot.points(3))
            text = f"{plot.shown(run.labels[place], 14)} (task {run.task_of_class[place] + 1})"
            one.plot([], [], "s", color=colour(index), label=text)
        one.set_title(case, fontsize=plot.points(9))
        one.autoscale_view()
        plot.set_labels(one, "first direction", "second direction" if one is axes[0] else "", 5)
        one.set_aspect("equal", adjustable="datalim")
    plot.legend_below(axes[-1], axes[-1].get_legend_handles_labels()[0])
