"""Figures of a section that need no data: confusion between classes, and memorised against real Gaussians."""

from __future__ import annotations

from adagauss.analysis.confusion import confusion_figure
from adagauss.analysis.figures import gaussians_figure
from adagauss.errors import AdagaussError
from adagauss.report.drawings import drawn, themed
from adagauss.report.gathering import Gathered
from adagauss.report.grouping import Group, Section
from adagauss.report.html import Markup, details, name, tag

MOST_MATRICES = 6


def figures(section: Section, prefix: str) -> Markup:
    """Confusion matrices of the best methods, and the Gaussians of those that keep some."""
    blocks = []
    for place, group in enumerate(section.groups[:MOST_MATRICES]):
        blocks.append(details(name(group.label), *_of_group(group, f"{prefix}g{place}"), opened=place == 0))
    left = len(section.groups) - len(blocks)
    more = tag("p", f"{left} more methods have no figures here.", class_="quiet") if left else None
    return tag("div", tag("h3", "Confusion and memory"), *blocks, more, class_="card")


def _of_group(group: Group, key: str) -> list[Markup]:
    run = group.first
    with themed():
        matrix = confusion_figure(run.confusion, run.labels, run.sizes, _title(run))
        found = [
            _figure(
                drawn(matrix, f"{key}c", f"confusion matrix: {group.label}"),
                "Rows are true classes, columns answers, ordered by task.",
            )
        ]
    memory = _gaussians(run, f"{key}m")
    return [*found, memory] if memory else found


def _gaussians(run: Gathered, key: str) -> Markup | None:
    """The memory beside the real statistics, if the run kept them; a damaged file only costs the figure."""
    last = run.done - 1
    if not (run.folder.task(last) / "real.safetensors").exists():
        return None
    learner = run.learner()
    if learner is None or not len(learner.memory) or learner.memory.covariance == "none":
        return None
    try:
        real, sample, targets = run.folder.real(last)
    except AdagaussError:
        return None
    with themed():
        picture = drawn(
            gaussians_figure(learner.memory, real, sample, targets, _title(run)), key, f"Gaussians: {_title(run)}"
        )
    return _figure(picture, "Remembered and real Gaussians of classes, in the plane in which their real means lie.")


def _figure(picture: Markup, words: str) -> Markup:
    return tag("figure", tag("figcaption", words), picture, class_="drawn", tabindex="0")


def _title(run: Gathered) -> str:
    return f"{run.config.method_name}, seed {run.config.seed}"
