"""Tasks: what is still known of each, and how often its classes are answered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adagauss.report.grouping import Group, Section
from adagauss.report.html import Markup, details, join, name, table, tag

MOST_TASKS = 30
"""Tasks up to which each has its own row and column; of more, evenly spaced ones are shown."""
MOST_OPEN = 1


def by_task(section: Section) -> Markup:
    """Accuracy matrices, and the share of predictions that go to each task."""
    return tag(
        "div",
        tag("h3", "Accuracy by task"),
        tag(
            "p",
            "Row: after which task; column: accuracy on the classes of that task, in %. The diagonal is what was "
            "learned, the last row what is left.",
            class_="quiet",
        ),
        *(
            details(name(group.label), _matrix(group), opened=place < MOST_OPEN)
            for place, group in enumerate(section.groups)
        ),
        class_="card",
    )


def recency(section: Section) -> Markup:
    """How often the classes of each task are answered, against how often they are shown."""
    longest = max((group.first for group in section.groups), key=lambda run: run.done)
    chosen = spaced(longest.done)
    heads = ["share of predictions, %", *(f"task {task + 1}" for task in chosen)]
    fair = tag("th", "shown (no bias)", scope="row")
    shown = _shown_share(longest.evaluations[-1].true.numpy(), longest.sizes)
    rows: list[list[object]] = [[fair, *(f"{100 * shown[task]:.1f}" for task in chosen)]]
    rows += [[name(group.label), *_shares(group, chosen)] for group in section.groups]
    return tag(
        "div",
        tag("h3", "Recency: which tasks are answered"),
        tag(
            "p",
            "Of all test images, the share that is answered with a class of each task, after the last task. Without "
            "bias it is the share of images that show the task. Orange: answered too often; blue: too seldom.",
            class_="quiet",
        ),
        table(heads, rows, label=f"share of predictions by task: {section.title}", class_="ratio"),
        class_="card",
    )


def spaced(count: int, most: int = MOST_TASKS) -> list[int]:
    """Positions 0..count-1, or if they are too many, evenly spaced ones with the first and the last.

    >>> spaced(3), spaced(10, 4)
    ([0, 1, 2], [0, 3, 6, 9])
    """
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})


def _matrix(group: Group) -> Markup:
    size = group.first.done
    mean = np.full((size, size), np.nan)
    for row in range(size):
        mean[row, : row + 1] = np.mean([run.matrix[row] for run in group.runs], axis=0)
    chosen = spaced(size)
    heads = ["after", *(f"task {task + 1}" for task in chosen)]
    rows = [[f"task {row + 1}", *(_heat(mean[row, column]) for column in chosen)] for row in chosen]
    seeds = f", mean over {len(group.runs)} seeds" if len(group.runs) > 1 else ""
    left = f" {len(chosen)} of {size} tasks are shown." if len(chosen) < size else ""
    return join(
        [
            table(heads, rows, label=f"accuracy by task: {group.label}", class_="heat"),
            tag("p", f"{group.label}{seeds}.{left}", class_="quiet"),
        ]
    )


def _heat(share: float) -> Markup:
    if np.isnan(share):
        return tag("td", class_="number")
    return tag("td", f"{100 * share:.0f}", class_="number", style=f"--v:{100 * share:.0f}")


def _shares(group: Group, chosen: Sequence[int]) -> list[object]:
    run = group.first
    shares = np.mean([one.evaluations[-1].prediction_share() for one in group.runs], axis=0)
    shown = _shown_share(run.evaluations[-1].true.numpy(), run.sizes)
    return [_ratio(shares[task], shown[task]) if task < run.done else "–" for task in chosen]


def _ratio(share: float, fair: float) -> Markup:
    """A cell whose colour grows with the logarithm of share / fair, full from a factor of four on."""
    factor = np.log2(max(share, 1e-6) / max(fair, 1e-6)) / 2
    side = "over" if factor > 0 else "under"
    strength = round(100 * min(abs(factor), 1))
    return tag("td", f"{100 * share:.1f}", class_=f"number {side}", style=f"--v:{strength}")


def _shown_share(true: np.ndarray[tuple[int], np.dtype[np.int64]], sizes: Sequence[int]) -> list[float]:
    """The share of test images that show classes of each task."""
    edges = np.cumsum([0, *sizes])
    counts, _ = np.histogram(true, bins=edges)
    shares: list[float] = (counts / len(true)).tolist()
    return shares
