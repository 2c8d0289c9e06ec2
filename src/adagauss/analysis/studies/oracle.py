"""The oracle study: what real means, real covariances, or both would give."""

from __future__ import annotations

import numpy as np

from adagauss.analysis.measured import Quantity
from adagauss.analysis.measured.quantities import BANKS
from adagauss.analysis.plotting import shown
from adagauss.analysis.studies.base import Drawing, Groups, Row, register_study
from adagauss.analysis.studies.lines import LEGEND_NAME, curve, legend, longest, panels, task_axis, task_rows
from adagauss.analysis.studies.variants import only

MOST = 4


@register_study(
    "oracle",
    title="Accuracy with real statistics of old classes",
    claim="The gap to the real statistics is all that a better drift compensation could give on these networks.",
    needs=[Quantity.REAL],
)
def oracle(groups: Groups) -> Drawing:
    """The run's classifier after each task, with the memories of `BANKS` on the same networks."""
    groups = only(
        groups,
        lambda run: bool((run.table("real.accuracy") >= 0).any()),
        "it needs runs whose classifier follows from the memory, such as bayes",
    )
    drawn = list(groups)[:MOST]
    figure, axes = panels(len(drawn), BANKS)
    rows: list[Row] = []
    for label, runs in groups.items():
        curves = {bank: [run.table("real.accuracy")[:, place] for run in runs] for place, bank in enumerate(BANKS)}
        for bank, values in curves.items():
            for run, one in zip(runs, values, strict=True):
                rows += [{**row, "memory": bank} for row in task_rows(label, run, {"accuracy": one}, "after task")]
        if label not in drawn:
            continue
        panel = axes[drawn.index(label)]
        for index, (bank, values) in enumerate(curves.items()):
            curve(panel, [100 * one for one in values], bank, index)
        panel.set_title(shown(label, LEGEND_NAME), fontsize=9)
        lowest = min(float(np.nanmin(one)) for values in curves.values() for one in values)
        panel.set_ylim(max(0, 10 * (10 * lowest // 1) - 5), 102)
        task_axis(panel, longest({label: runs}), "after task")
    axes[0].set_ylabel("accuracy on all seen classes, %")
    legend(axes[-1], "memory")
    more = f"{len(groups) - MOST} more groups are in the CSV file" if len(groups) > MOST else ""
    return Drawing(figure, rows, more)
