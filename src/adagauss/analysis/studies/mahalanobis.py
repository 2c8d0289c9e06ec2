"""Mahalanobis distance and mean logit by task, over all test images: flat curves mean no bias."""

from __future__ import annotations

from adagauss.analysis.measured import Measured, Quantity
from adagauss.analysis.measured.quantities import Numbers
from adagauss.analysis.studies.base import Drawing, Groups, register_study
from adagauss.analysis.studies.lines import curve, legend, longest, panels, task_axis, task_rows
from adagauss.analysis.studies.variants import only

PANELS = {
    "published": "mean squared Mahalanobis distance,\nΣ shrunk by 3 and normalised (the paper's)",
    "plain": "mean squared Mahalanobis distance,\nΣ as memorised",
    "logit": "mean logit of a linear head\ntrained on samples of the Gaussians",
}


@register_study(
    "mahalanobis",
    title="Distance and logit of all test images by task",
    paper="Mahalanobis distance and mean logit by task",
    claim="Classes of early tasks seem farther away and get smaller logits: flat curves would mean no bias.",
    needs=[Quantity.REAL],
)
def mahalanobis(groups: Groups) -> Drawing:
    """After the last task: mean over all test images and over the classes of each task."""
    groups = only(groups, lambda run: "real.logits" in run.tables, "it needs runs that remember covariances")
    figure, axes = panels(3, groups)
    rows = []
    for index, (label, runs) in enumerate(groups.items()):
        measured = [by_task(run) for run in runs]
        for run, values in zip(runs, measured, strict=True):
            rows += task_rows(label, run, values)
        for one, quantity in zip(axes, PANELS, strict=True):
            curve(one, [values[quantity] for values in measured], label, index)
    for one, (quantity, words) in zip(axes, PANELS.items(), strict=True):
        one.set_ylabel(words)
        task_axis(one, longest(groups), "task that the classes were learned in")
        if quantity != "logit":
            one.set_yscale("log")
    legend(axes[2])
    return Drawing(figure, rows, "features as they are, not scaled to unit length")


def by_task(run: Measured) -> dict[str, Numbers]:
    """The three curves of a run."""
    published, plain = run.table("real.mahalanobis")
    values = {"published": published, "plain": plain, "logit": run.table("real.logits")}
    return {quantity: run.by_task(numbers) for quantity, numbers in values.items()}
