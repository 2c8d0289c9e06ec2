"""Ranks of the memorised covariances by task, one line per distillation."""

from __future__ import annotations

from adagauss.analysis.measured import Quantity
from adagauss.analysis.studies.base import Drawing, Groups, register_study
from adagauss.analysis.studies.lines import colour, curve, legend, longest, panels, task_axis, task_rows
from adagauss.analysis.studies.ranks import AXIS, by_task
from adagauss.analysis.studies.variants import by_variant, with_covariances
from adagauss.experiments.paper import in_figures

PANELS = {
    "rank, λ > 0.01": "mean rank, λ > 0.01 (the paper's)",
    "rank, λ > 0.001·λ₁": "mean rank, λ > 0.001·λ₁ (scale-free)",
    "effective rank": "mean effective rank, exp(entropy of λ)",
}


@register_study(
    "ranks-by-distillation",
    title="Ranks of memorised covariances by distillation",
    paper="ranks per distillation",
    claim="Only projected distillation with anti-collapse keeps full rank (64 of 64) in every task.",
    needs=[Quantity.MEMORY],
)
def ranks_by_distillation(groups: Groups) -> Drawing:
    """Mean over the classes of each task after the last one, the same tolerance for all."""
    variants = by_variant(with_covariances(groups), least=2)
    figure, axes = panels(3, variants)
    rows = []
    size = 0
    for index, (variant, runs) in enumerate(variants.items()):
        measured = [by_task(run) for run in runs]
        size = max(size, runs[0].table("memory.spectra").shape[2])
        for run, values in zip(runs, measured, strict=True):
            rows += task_rows(variant, run, {name: values[name] for name in PANELS})
        for one, name in zip(axes, PANELS, strict=True):
            curve(one, [values[name] for values in measured], variant, index)
    paper = in_figures("Fig. rank per task")["value"]
    for one, words in zip(axes, PANELS.values(), strict=True):
        one.set_ylabel(words)
        one.set_ylim(0, 1.08 * size)
        task_axis(one, longest(variants), AXIS)
    axes[0].axhline(size, color=colour(6), linestyle=(0, (2, 2)), linewidth=1)
    axes[0].annotate(
        f"paper, projected KD + L_AC: full rank ({paper} of {paper})",
        (0.5, size),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        fontsize=7,
        color=colour(6),
    )
    rows.append({"group": "paper", "quantity": "rank, projected KD + L_AC, of 64", "value": float(paper)})
    legend(axes[2])
    return Drawing(figure, rows)
