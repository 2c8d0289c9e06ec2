"""Which of several methods suits some images: each is tried on images that it has not learned."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import torch

from adagauss.data.images import LabelledImages, Subset
from adagauss.data.listing import seeded_split
from adagauss.learner import Learner
from adagauss.methods import Method
from adagauss.progress import Reporter

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
    """The candidate that recognises most of a fifth of the images after learning the others; of equals, the first.

    The first candidate is taken untried if there are no others, or too few images or classes to tell.
    """
    first = next(iter(candidates.values()))
    if len(candidates) == 1 or len(data.classes) < 2 or int(data.counts().min()) < 2:
        return first
    learned, held_out = _split(data)
    if len(held_out) < LEAST:
        return first
    shares: dict[str, float] = {}
    with reporter.progress("trying methods", len(candidates)) as advance:
        for name, method in candidates.items():
            learner = learner_of(method)
            learner.learn(learned)
            guesses = learner.predict(held_out.images)
            hits = sum(guess == truth for guess, truth in zip(guesses, held_out.labels, strict=True))
            shares[name] = hits / len(held_out)
            advance(f"{name}: {shares[name]:.1%}")
    best = max(shares, key=shares.__getitem__)
    found = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    logger.info("of %d held-out images are recognised: %s", len(held_out), found)
    reporter.message(f"{best} is kept; of {len(held_out)} held-out images are recognised: {found}")
    return candidates[best]


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
