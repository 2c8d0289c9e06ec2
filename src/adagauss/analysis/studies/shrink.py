"""Accuracy against the shrinkage of stored covariances, with and without anti-collapse."""

from __future__ import annotations

import numpy as np

from adagauss.analysis.measured import Measured, Quantity
from adagauss.analysis.measured.quantities import Numbers
from adagauss.analysis.studies.base import Drawing, Groups, Row, register_study
from adagauss.analysis.studies.lines import Mean, colour, legend, marker, name, panels
from adagauss.experiments.paper import in_figures

PAPERS = "paper, L_AC, γ = 0: A_inc {:.1f} (CIFAR-100)"


@register_study(
    "shrink",
    title="Shrinkage of stored covariances",
    paper="shrink sweep",
    claim="With anti-collapse no shrinkage is best (60.2 on CIFAR-100); accuracy falls as γ grows.",
    needs=[Quantity.SHRINK],
)
def shrink(groups: Groups) -> Drawing:
    """A_last and A_inc with Σ + γ·mean(diag Σ)·I stored, on the networks of the same runs."""
    paper = in_figures("Fig. shrink sweep")["value"]
    figure, axes = panels(2, [*groups, PAPERS])
    rows: list[Row] = []
    for index, (label, runs) in enumerate(groups.items()):
        amounts = runs[0].table("shrink.amounts")
        for one, quantity in zip(axes, ("A_inc", "A_last"), strict=True):
            curves = [sweep(run, quantity) for run in runs]
            for run, values in zip(runs, curves, strict=True):
                rows += [
                    {"group": label, "seed": run.seed, "γ": float(amount), "quantity": quantity, "value": float(value)}
                    for amount, value in zip(amounts, values, strict=True)
                ]
            summary = Mean.of(curves)
            places = np.arange(len(amounts))
            one.plot(places, summary.mean, marker=marker(index), markersize=4, color=colour(index), label=name(label))
            if np.isfinite(summary.deviation).any():
                low, high = summary.mean - summary.deviation, summary.mean + summary.deviation
                one.fill_between(places, low, high, color=colour(index), alpha=0.15, linewidth=0)
            one.set_xticks(places, [f"{amount:g}" for amount in amounts])
            one.set_xlabel("γ of Σ + γ·mean(diag Σ)·I, when stored and after every adaptation")
            one.set_ylabel(f"{quantity}, %")
            one.grid(alpha=0.3, linewidth=0.6)
    for one in axes:
        one.xaxis.label.set_fontsize(8)
    note = "besides the shrinkage of the run's own classifier; the axis of γ is not linear"
    if next(iter(groups.values()))[0].config.stream.dataset == "cifar100":
        axes[1].plot([], [], "*", color=colour(6), markersize=9, label=PAPERS.format(paper))
        axes[0].plot(0, paper, "*", color=colour(6), markersize=9)
    else:
        note += f"; {PAPERS.format(paper)}"
    rows.append({"group": "paper", "γ": 0.0, "quantity": "A_inc, L_AC, CIFAR-100", "value": paper})
    legend(axes[1])
    return Drawing(figure, rows, note)


def sweep(run: Measured, quantity: str) -> Numbers:
    """Accuracy in percent for each γ."""
    accuracy = 100 * run.table("shrink.accuracy")
    chosen: Numbers = accuracy[:, -1] if quantity == "A_last" else accuracy.mean(1)
    return chosen
