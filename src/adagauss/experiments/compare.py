"""Tables that compare several methods and seeds under one protocol."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from adagauss.analysis.tables import Spread
from adagauss.experiments.metrics import METRICS
from adagauss.experiments.paper import published
from adagauss.experiments.run import Results, Run, protocol_title
from adagauss.methods import method_info

PAPER_COLUMN = "paper A_last / A_inc"
OTHER_PROTOCOL = "other protocol"
COMPARED = tuple(metric for metric in METRICS if metric.compared)


def summarise(results: Sequence[Run]) -> dict[str, Spread]:
    """The metrics of a comparison table for the runs of one method, by title."""
    return {
        metric.title: Spread.of([result.metrics[metric.name] for result in results], metric.percent)
        for metric in COMPARED
    }


def comparison_rows(results: Results, as_published: bool = False) -> list[dict[str, str]]:
    """Tabulate one row per method, the best first: metrics, the paper's numbers if comparable, and cost.

    Args:
        results: runs by method.
        as_published: whether the runs follow a protocol of the paper without changes.
    """
    rows = []
    for name in sorted(results, key=lambda name: _rank(results[name])):
        runs = results[name]
        one = runs[0]
        protocol = one.protocol
        quoted = published(method_info(name).title, name, protocol.dataset, protocol.tasks, protocol.scale)
        paper = quoted if as_published else None
        rows.append(
            {
                "method": name,
                "runs": str(len(runs)),
                **{column: str(spread) for column, spread in summarise(runs).items()},
                PAPER_COLUMN: f"{paper.a_last} / {paper.a_inc}" if paper else OTHER_PROTOCOL,
                "training, min": f"{statistics.fmean(run.cost.training_seconds for run in runs) / 60:.1f}",
                "inference, images/s": f"{statistics.fmean(run.cost.images_per_second for run in runs):.0f}",
                "bytes per class": f"{one.cost.bytes_per_class:,}",
                "other state, MiB": f"{one.cost.other_state_bytes / 2**20:.1f}",
                "config": one.digest,
            }
        )
    return rows


def _rank(runs: Sequence[Run]) -> float:
    """Smaller is better, by the first metric."""
    first = COMPARED[0]
    value = statistics.fmean(run.metrics[first.name] for run in runs)
    return -value if first.better == "higher" else value


def caption(results: Results, *notes: str) -> str:
    """What a comparison table shows, and in which columns lower is better."""
    low = ", ".join(metric.title for metric in COMPARED if metric.better == "lower")
    return "; ".join([protocol_title(results), *notes, f"lower is better: {low}"])
