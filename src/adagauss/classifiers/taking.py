"""The images of a task on their way into sums, and out of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from adagauss.core.task import CurrentTask, divided_batches, feature_batches
from adagauss.data.images import Label
from adagauss.distributed.processes import Sharding
from adagauss.errors import DataError
from adagauss.sums import FeatureSums, GroupSums
from adagauss.sums.packed import diagonal

Sums = TypeVar("Sums", FeatureSums, GroupSums)
logger = logging.getLogger(__name__)

SAME_EACH, SAME_ALL = 1e-4, 0.1
"""Two sums are over the same images if they differ by less than this share of each image, or of one image."""
LOST = 1e-3
"""Share of the squared length of an image that rounding may take from a direction, or `SAME_EACH` of every image taken
out if that is more. Of 150 photographs, 15 taken out took less than 1e-6; one that was never added takes 0.16."""
TELLING = 2
"""Images for each feature up to which foreign ones show themselves."""
MOST_NAMED = 5
"""Classes that a warning names."""
Expansion = Callable[[Tensor], Tensor]
"""Makes what the sums are over from features."""


def as_they_are(features: Tensor) -> Tensor:
    """Sums over the features themselves."""
    return features


def take_in(
    sums: Sums,
    now: CurrentTask,
    flips: bool,
    judged: int,
    expanded: Expansion = as_they_are,
) -> tuple[Tensor, Tensor]:
    """Add the current images to the sums, with their mirror images if ``flips``.

    Several processes sum over their share of the images each, and then add the sums up. Returned are the features of
    every view of ``judged`` random images, (V, N, width), and the columns of their classes: these images may judge,
    each left out in turn.
    """
    columns, classes = torch.tensor(now.columns), len(now.all_classes)
    before = (sums.cross.clone(), sums.counts.clone())
    judges = torch.zeros(len(now.data), dtype=torch.bool)
    order = torch.randperm(len(now.data), generator=now.runtime.generator(now.name, "judges"))
    judges[order[:judged]] = True
    processes = now.runtime.processes
    own = sums if processes.alone else sums.empty_like(classes)
    waiting = [torch.zeros(0, 2 if flips else 1, sums.width, device=now.runtime.device)]
    for rows, views in now.blocks(flips, divided=True):
        targets, chosen = columns[now.data.targets[rows]], judges[rows]
        summed = torch.stack([expanded(view) for view in views])
        for view in summed:
            own.add_(view, targets, classes)
        waiting.append(summed[:, chosen].transpose(0, 1))
    if own is not sums:
        for buffer in own.buffers():
            processes.sum_(buffer)
        sums.merge_(own)
    _warn_of_repeats(sums, now, *before)
    division = divided_batches(feature_batches(now.data.images), now.runtime)
    held = Sharding(division.owners[judges], processes)
    return held.all_gather(torch.cat(waiting)).transpose(0, 1).contiguous(), columns[now.data.targets[judges]]


def take_out(sums: FeatureSums | GroupSums, now: CurrentTask, flips: bool, expanded: Expansion = as_they_are) -> None:
    """Remove images that were added; those of a class that were all added several times go as often.

    Of a class whose images are all given, nothing must be left in its sum. Where only some are given, what is left must
    still be a sum of squares, which it is not without a direction that only other images have; among many more images
    than features there is none, and this is not looked at. Otherwise these are other images, and the sums would be
    wrong from then on.
    """
    columns, given, views_each = torch.tensor(now.columns), now.data.counts(), 2 if flips else 1
    there = sums.counts[columns.to(sums.counts.device)].cpu() // views_each
    for label, number, known in zip(now.classes, given.tolist(), there.tolist(), strict=True):
        if number > known:
            raise DataError(
                f"class {label!r} was learned from {known} images, and {number} are to be taken out again: give "
                "only images that it was learned from"
            )
    size, before = _typical(sums), sums.cross[:, columns].clone()
    squares = [(int(part.images), diagonal(part.strips()).double()) for part in _parts(sums)]
    _remove(sums, now, flips, expanded, torch.ones_like(given))
    again = torch.zeros_like(given)
    for row, (column, number, known) in enumerate(zip(now.columns, given.tolist(), there.tolist(), strict=True)):
        left = sums.cross[:, column]
        times = known // max(number, 1) - 1
        if known == (times + 1) * number and _is_rounding(left - times * (before[:, row] - left), size, known):
            again[row] = times
    _remove(sums, now, flips, expanded, again)
    remaining = sums.counts[columns.to(sums.counts.device)].tolist()
    for row, (label, column) in enumerate(zip(now.classes, now.columns, strict=True)):
        if not remaining[row] and not _vanishes(sums.cross[:, column], size, int(there[row]) * views_each):
            raise _others(label)
    some = [row for row, number in enumerate(remaining) if number]
    amount = max(LOST, SAME_EACH * int(given.sum()) * views_each) * size**2
    if some and not all(part.holds(amount) for part in _parts(sums) if part.images <= TELLING * part.width):
        raise _others(*(now.classes[row] for row in some))
    for part, (images, all_squares) in zip(_parts(sums), squares, strict=True):
        part.clear_(all_squares, images)
    for row in some:
        logger.warning(
            "class %r was learned from %d images, and %d are given: of the others, the scatter about their mean "
            "stays in the sums",
            now.classes[row],
            there[row],
            given[row],
        )


def _others(*labels: Label) -> DataError:
    return DataError(
        f"these are not the images that class {' or '.join(map(repr, labels))} was learned from, so they cannot be "
        "taken out again: give the same files, or none, and their mean and number go without them"
    )


def _remove(sums: FeatureSums | GroupSums, now: CurrentTask, flips: bool, expanded: Expansion, times: Tensor) -> None:
    """Remove the images of each class so many times."""
    if not times.any():
        return
    columns = torch.tensor(now.columns)
    for rows, views in now.blocks(flips):
        targets = now.data.targets[rows]
        often = torch.arange(len(rows)).repeat_interleave(times[targets])
        for view in views:
            sums.remove_(expanded(view[often.to(view.device)]), columns[targets[often]])


def _warn_of_repeats(sums: FeatureSums | GroupSums, now: CurrentTask, cross: Tensor, counts: Tensor) -> None:
    """Say so if known classes were given the very images that they were learned from."""
    repeated, size = [], _typical(sums)
    for label, column in zip(now.classes, now.columns, strict=True):
        number = int(counts[column]) if column < len(counts) else 0
        times, rest = divmod(number, max(1, int(sums.counts[column]) - number))
        if times and not rest:
            difference = cross[:, column] - times * (sums.cross[:, column] - cross[:, column])
            repeated += [label] if _is_rounding(difference, size, number) else []
    if repeated and len(repeated) == int((sums.counts > 0).sum()):
        logger.warning(
            "all these images seem to have been learned before: each counts again now. If that is a mistake, "
            "make the learner anew: delete its file, and teach it once"
        )
    elif repeated:
        logger.warning(
            "the images of class %s%s seem to be those learned before: each counts again now. If that is a mistake, "
            "forget these classes in one go, with their images, which takes out all of it, and teach them once",
            ", ".join(map(repr, repeated[:MOST_NAMED])),
            f" and {len(repeated) - MOST_NAMED} more" if len(repeated) > MOST_NAMED else "",
        )


def _typical(sums: FeatureSums | GroupSums) -> float:
    """Length of the features of an image: the root of the mean of its square."""
    return math.sqrt(sum(float(part.mean_square().sum()) for part in _parts(sums)))


def _parts(sums: FeatureSums | GroupSums) -> Sequence[FeatureSums]:
    return sums.each() if isinstance(sums, GroupSums) else [sums]


def _is_rounding(difference: Tensor, size: float, number: int) -> bool:
    """Whether two sums over the very same ``number`` images of such length, added in two ways, differ by that only."""
    return float(difference.norm()) <= size * SAME_EACH * number


def _vanishes(difference: Tensor, size: float, number: int) -> bool:
    """Whether two sums over ``number`` images of such length differ by rounding only."""
    return float(difference.norm()) <= size * max(SAME_ALL, SAME_EACH * number)
