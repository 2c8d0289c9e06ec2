"""The mean eigenvalue spectrum of the memorised covariances after the last task."""

from __future__ import annotations

import numpy as np

from adagauss.analysis.measured import Measured, Quantity
from adagauss.analysis.measured.quantities import Numbers
from adagauss.analysis.studies.base import Drawing, Groups, register_study
from adagauss.analysis.studies.lines import colour, curve, legend, panels, task_axis, task_rows
from adagauss.analysis.studies.variants import beta_of, with_covariances
from adagauss.experiments.paper import in_figures


@register_study(
    "spectrum",
    title="Eigenvalues of memorised covariances",
    paper="eigenvalue spectrum with and without anti-collapse",
    claim="Anti-collapse keeps the smallest eigenvalues up: largest over smallest is about 84 instead of 120,000.",
    needs=[Quantity.MEMORY],
)
def spectrum(groups: Groups) -> Drawing:
    """λ_i sorted in each class and averaged over classes, as they are and over the largest."""
    groups = with_covariances(groups)
    paper = in_figures("Fig. eigenvalue spectrum")
    figure, (left, right) = panels(2, [f"{label} {'0' * 8}" for label in groups])
    rows = []
    for index, (label, runs) in enumerate(groups.items()):
        spectra = [mean_spectrum(run) for run in runs]
        ratios = [float(values[0] / max(values[-1], np.finfo(float).tiny)) for values in spectra]
        for run, values, ratio in zip(runs, spectra, ratios, strict=True):
            rows += task_rows(label, run, {"mean eigenvalue": values}, "i")
            rows.append({"group": label, "seed": run.seed, "quantity": "largest / smallest", "value": ratio})
        curve(left, spectra, label, index)
        curve(right, [values / values[0] for values in spectra], f"{label}  {np.mean(ratios):.3g}", index)
    for which, place in (("without_l_ac", 0), ("with_l_ac", 1)):
        right.axhline(1 / paper[which], color=colour(6), linestyle=(0, (2, 2)), linewidth=1)
        words = "paper's smallest, without L_AC" if place == 0 else "paper's smallest, with L_AC"
        right.annotate(
            f"{words}: 1/{paper[which]:,.0f}",
            (0.02, 1 / paper[which]),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=7,
            color=colour(6),
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6},  # curves cross it
        )
        rows.append({"group": "paper", "quantity": f"largest / smallest, {which}", "value": paper[which]})
    size = max(len(mean_spectrum(runs[0])) for runs in groups.values())
    left.set_ylabel("mean eigenvalue λᵢ over classes")
    right.set_ylabel("λᵢ / λ₁ (scale-free)")
    for axes in (left, right):
        axes.set_yscale("log")
        task_axis(axes, size, "i, the largest eigenvalue first")
    legend(right, "λ₁ / λₛ")
    kinds = {beta_of(run.config.method) is None for runs in groups.values() for run in runs}
    note = "" if len(kinds) == 2 else "the paper's figure compares runs with and without L_AC: these are only one kind"
    return Drawing(figure, rows, note)


def mean_spectrum(run: Measured) -> Numbers:
    """Mean over classes of the sorted eigenvalues after the last finished task."""
    values: Numbers = run.table("memory.spectra")[-1].mean(0)
    return values
