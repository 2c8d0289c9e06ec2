"""The β sweep of the anti-collapse loss: accuracy, and the losses while training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adagauss.analysis.measured import Measured, Quantity
from adagauss.analysis.measured.quantities import Numbers
from adagauss.analysis.studies.base import Drawing, Groups, Row, register_study
from adagauss.analysis.studies.lines import DASHES, Mean, colour, legend, marker, panels, task_rows
from adagauss.analysis.studies.variants import DISTILLATIONS, beta_of, only
from adagauss.experiments.metrics import mean
from adagauss.experiments.paper import in_figures
from adagauss.parts.terms import AntiCollapse, CrossEntropy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOSSES = {
    "L_CE": "cross-entropy L_CE",
    "L_KD": "distillation L_PKD (without λ)",
    "L_AC": "anti-collapse L_AC (without α)",
}


@register_study(
    "beta",
    title="β of the anti-collapse loss",
    paper="β sweep with its losses",
    claim="β = 1 is best, and L_AC saturates at -1; a larger β raises the other losses, 0.1 leaves the bias.",
    needs=[Quantity.ANSWERS],
)
def beta(groups: Groups) -> Drawing:
    """A_last and A_inc against β, and the mean of each loss in every epoch."""
    groups = only(groups, lambda run: beta_of(run.config.method) is not None, "it needs runs with L_AC")
    groups = dict(sorted(groups.items(), key=lambda item: _beta(item[1][0])))
    betas = [_beta(runs[0]) for runs in groups.values()]
    names = _names(groups, betas)
    figure, axes = panels(4, names)
    rows: list[Row] = []
    for style, quantity in (("-", "A_last"), ("--", "A_inc")):
        values = {label: [_score(run, quantity) for run in runs] for label, runs in groups.items()}
        spread = Mean.of([np.array(column) for column in zip(*_filled(list(values.values())), strict=True)])
        axes[0].plot(betas, spread.mean, style, color=colour(6), label=quantity, linewidth=1.4, zorder=1)
        for index, (label, runs) in enumerate(groups.items()):
            axes[0].plot([betas[index]] * len(runs), values[label], marker(index), color=colour(index), markersize=5)
            for run, value in zip(runs, values[label], strict=True):
                row: Row = {"group": label, "seed": run.seed, "β": betas[index], "quantity": quantity, "value": value}
                rows.append(row)
    for index, (label, runs) in enumerate(groups.items()):
        histories = [losses(run) for run in runs]
        for run, history in zip(runs, histories, strict=True):
            rows += [{**row, "β": betas[index]} for row in task_rows(label, run, history, "epoch")]
        for one, quantity in zip(axes[1:], LOSSES, strict=True):
            curves = [history[quantity] for history in histories]
            one.plot(
                np.arange(1, len(curves[0]) + 1),
                Mean.of(curves).mean,
                DASHES[index % len(DASHES)],
                color=colour(index),
                label=names[index],
            )
    axes[0].set_xscale("log")
    axes[0].set_xlabel("β")
    axes[0].set_ylabel("accuracy, %")
    axes[0].legend(fontsize=7)
    axes[0].grid(alpha=0.3, linewidth=0.6)
    for one, words in zip(axes[1:], LOSSES.values(), strict=True):
        one.set_ylabel(words)
        one.set_xlabel("epoch (its mean), all tasks")
        one.locator_params(axis="x", integer=True)
        one.grid(alpha=0.3, linewidth=0.6)
        _task_lines(one, next(iter(groups.values()))[0])
    legend(axes[3])
    swept = ", ".join(f"{value:g}" for value in in_figures("Fig. beta sweep")["values"])
    note = f"vertical lines: a new task; the paper's sweep: β = {swept}"
    return Drawing(figure, rows, note + ("; these runs have only one β" if len(set(betas)) == 1 else ""))


def losses(run: Measured) -> dict[str, Numbers]:
    """Each loss without its weight in every epoch of all tasks; NaN where it does not apply, as in the first task."""
    terms = run.config.method.representation.terms
    keys = {
        "L_CE": [name for name, term in terms.items() if isinstance(term, CrossEntropy)],
        "L_KD": [name for name, term in terms.items() if term.kind in DISTILLATIONS],
        "L_AC": [name for name, term in terms.items() if isinstance(term, AntiCollapse)],
    }
    epochs = [epoch for task in run.facts for epoch in task.history]
    return {
        loss: np.array([_value(epoch, {name: terms[name].weight for name in names}) for epoch in epochs])
        for loss, names in keys.items()
    }


def _value(epoch: dict[str, float], weights: dict[str, float]) -> float:
    found = [epoch[name] / weight for name, weight in weights.items() if name in epoch and weight]
    return sum(found) if found else np.nan


def _beta(run: Measured) -> float:
    found = beta_of(run.config.method)
    assert found is not None, "runs without L_AC are left out"
    return found


def _score(run: Measured, quantity: str) -> float:
    return 100 * (run.accuracy[-1] if quantity == "A_last" else mean(run.accuracy))


def _filled(rows: list[list[float]]) -> list[list[float]]:
    """Rows of one length, NaN where a group has fewer runs."""
    length = max(len(row) for row in rows)
    return [row + [np.nan] * (length - len(row)) for row in rows]


def _names(groups: Groups, betas: list[float]) -> list[str]:
    """β alone where it tells the groups apart."""
    short = [f"β = {value:g}" for value in betas]
    return short if len(set(short)) == len(short) else list(groups)


def _task_lines(axes: Axes, run: Measured) -> None:
    for edge in np.cumsum([len(task.history) for task in run.facts])[:-1]:
        axes.axvline(edge + 0.5, color="#bbbbbb", linewidth=0.6, zorder=0)
