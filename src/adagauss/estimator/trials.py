"""Which of several methods suits some images: each is tried on images that it has not learned."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from adagauss.core.learn import Learner
from adagauss.data.folders import seeded_split
from adagauss.data.images import LabelledImages, Subset
from adagauss.errors import AdagaussError
from adagauss.methods import Method
from adagauss.utils.progress import Reporter

logger = logging.getLogger(__name__)

HELD_OUT = 0.2
LEAST = 10
"""Held-out images without which a trial says too little."""


def best_method(
    candidates: Mapping[str, Method],
    data: LabelledImages,
    learner_of: Callable[[Method], Learner],
    reporter: Reporter,
) -> Method:
    """The candidate that recognises most of a fifth of the images after learning the others, in two tasks if it can.

    Of a method that trains, the second task shows what the first loses by it. A later candidate takes the place of an
    earlier one only if it is clearly better: if w images are recognised by it alone and l by the other alone,
    w − l > √(w + l), one standard deviation of chance. The first candidate is taken untried if there are no others, or
    too few images or classes to tell; none is tried after one that recognises all.
    """
    first = next(iter(candidates.values()))
    if len(candidates) == 1 or len(data.classes) < 2 or int(data.counts().min()) < 2:
        return first
    learned, held_out = _split(data)
    if len(held_out) < LEAST:
        return first
    hits: dict[str, Tensor] = {}
    best = next(iter(candidates))
    with reporter.progress("trying methods", len(candidates)) as advance:
        for name, method in candidates.items():
            try:
                hits[name] = _recognised(learner_of(method), learned, held_out, reporter)
            except AdagaussError as error:
                if name == best:
                    raise
                # One that cannot learn such images is no loss: it was only to be tried.
                reporter.message(f"{name} cannot be tried: {error}")
                advance()
                continue
            best = name if clearly_better(hits[name], hits[best]) else best
            advance(f"{name}: {_share(hits[name])}")
            if bool(hits[best].all()):  # nothing can be better
                break
    found = ", ".join(f"{name} {_share(right)}" for name, right in hits.items())
    logger.info("of %d held-out images are recognised: %s", len(held_out), found)
    reporter.message(f"{best} is kept; of {len(held_out)} held-out images are recognised: {found}")
    return candidates[best]


def _recognised(learner: Learner, learned: LabelledImages, held_out: LabelledImages, reporter: Reporter) -> Tensor:
    """Which images are recognised by a learner that learns the others, half of the classes after the other half."""
    learner.runtime.reporter = reporter
    half = len(learned.classes) // 2
    for classes in (learned.classes[:half], learned.classes[half:]) if half > 1 else (learned.classes,):
        learner.learn(learned.of_classes(classes))
    guesses = learner.predict(held_out.images)
    return torch.tensor([a == b for a, b in zip(guesses, held_out.labels, strict=True)])


def clearly_better(right: Tensor, other: Tensor) -> bool:
    """Whether answers are better than others to the same images, beyond one standard deviation of chance.

    >>> clearly_better(torch.tensor([True, True, True]), torch.tensor([True, False, False]))
    True
    >>> clearly_better(torch.tensor([True, True, True]), torch.tensor([True, True, False]))
    False
    """
    won, lost = int((right & ~other).sum()), int((other & ~right).sum())
    return won - lost > math.sqrt(won + lost)


def _share(right: Tensor) -> str:
    return f"{float(right.double().mean()):.1%}"


def _split(data: LabelledImages) -> tuple[LabelledImages, LabelledImages]:
    """Images to learn and images held out, of every class; the same for the same images."""
    learned: list[int] = []
    held_out: list[int] = []
    for target in range(len(data.classes)):
        members = torch.nonzero(data.targets == target).flatten().tolist()
        here, out = seeded_split(len(members), HELD_OUT, seed=target)
        learned += [members[index] for index in here]
        held_out += [members[index] for index in out]
    return _some(data, learned), _some(data, held_out)


def _some(data: LabelledImages, positions: list[int]) -> LabelledImages:
    chosen = torch.tensor(positions)
    return LabelledImages(Subset(data.images, chosen), data.targets[chosen], data.classes)
