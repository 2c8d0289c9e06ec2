"""Classes: how well each is recognised over all seeds, the worst first, and what they are taken for."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adagauss.data.images import Label
from adagauss.report.grouping import Group, Section
from adagauss.report.html import Markup, details, join, name, table, tag

WORST = 10
MOST_ROWS = 2500
"""Rows of all tables of classes together; beyond that each table shows only its worst classes."""
FEWEST = 50
CONFUSED = 3


@dataclass(frozen=True)
class OfClass:
    """The test images of one class in all runs of a group."""

    label: Label
    task: str
    images: int
    """In one run."""
    accuracies: Sequence[float]
    taken_for: Sequence[tuple[Label, float]]
    """The classes most often answered instead, and their share of the images of this class."""

    @property
    def accuracy(self) -> float:
        return statistics.fmean(self.accuracies)


def by_class(section: Section) -> Markup:
    """The worst classes of each method, and all classes."""
    room = max(FEWEST, MOST_ROWS // len(section.groups))
    return tag(
        "div",
        tag("h3", "Accuracy by class"),
        tag(
            "p",
            "After the last task, over all seeds; the worst first, with the classes that are answered instead.",
            class_="quiet",
        ),
        *(
            details(name(group.label), _tables(group, room), opened=place == 0)
            for place, group in enumerate(section.groups)
        ),
        class_="card",
    )


def classes_of(group: Group) -> list[OfClass]:
    """Each class, the one with the lowest accuracy first; runs may have learned them in different orders."""
    found: dict[Label, list[tuple[int, float, int, dict[Label, float]]]] = {}
    for run in group.runs:
        counts = run.confusion
        shown = counts.sum(1)
        task_of = np.repeat(np.arange(1, run.done + 1), run.sizes)
        for place, label in enumerate(run.labels):
            row = counts[place]
            others = (other for other in np.flatnonzero(row).tolist() if other != place)
            wrong = {run.labels[other]: row[other] / shown[place] for other in others}
            found.setdefault(label, []).append(
                (int(task_of[place]), row[place] / shown[place] if shown[place] else 0.0, int(shown[place]), wrong)
            )
    made = [_of_class(label, parts) for label, parts in found.items()]
    return sorted(made, key=lambda one: (one.accuracy, str(one.label)))


def _of_class(label: Label, parts: Sequence[tuple[int, float, int, dict[Label, float]]]) -> OfClass:
    tasks, accuracies, images, wrongs = zip(*parts, strict=True)
    total: dict[Label, float] = {}
    for wrong in wrongs:
        for other, share in wrong.items():
            total[other] = total.get(other, 0.0) + share / len(wrongs)
    ranked = sorted(total.items(), key=lambda item: (-item[1], str(item[0])))
    places = ", ".join(map(str, sorted(set(tasks))))
    return OfClass(label, places, images[0], accuracies, ranked[:CONFUSED])


def _tables(group: Group, room: int) -> Markup:
    classes = classes_of(group)
    several = len(group.runs) > 1
    worst = _table(classes[:WORST], several, f"worst classes: {group.label}")
    if len(classes) <= WORST:
        return worst
    kept = classes[:room]
    title = f"All {len(classes)} classes" if len(kept) == len(classes) else f"The {len(kept)} worst of {len(classes)}"
    every = tag("div", _table(kept, several, f"classes: {group.label}"), class_="tall")
    return join([worst, details(title, every)])


def _table(classes: Sequence[OfClass], several: bool, label: str) -> Markup:
    heads = ["class", "task", "accuracy, %", *(["worst and best seed, %"] if several else []), "images", "taken for"]
    rows = [
        [
            name(one.label, 40),
            one.task,
            tag("td", _bar(one.accuracy), f"{100 * one.accuracy:.1f}", class_="number"),
            *([f"{100 * min(one.accuracies):.0f} – {100 * max(one.accuracies):.0f}"] if several else []),
            one.images,
            join((join([name(other, 30), f" ({100 * share:.0f} %)"]) for other, share in one.taken_for), ", ") or "–",
        ]
        for one in classes
    ]
    return table(heads, rows, label=label, words=(0, len(heads) - 1))


def _bar(share: float) -> Markup:
    return tag("span", tag("i", style=f"--v:{100 * share:.0f}"), class_="share", aria_hidden="true")
