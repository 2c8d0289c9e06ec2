"""By what images left out should choose the strength of a ridge: `python -m benchmarks.criteria [DATASET ...]`.

Twenty classes at random, of patches and of a pretrained network; as many other *training* images to judge the choice as
to learn from. Some of the images that were learned, each left out in turn, choose between strengths: by likelihood, by
hits, or by both as `adagauss.sums.Choice` does. Printed is by how much the choice is worse than the best strength, in
points, on average over many draws of the images that choose.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from adagauss.analytic.moments import MomentSums
from adagauss.analytic.selection import HIT_WEIGHT_IMAGES, STRENGTHS, RidgeSpec, Standardizer
from adagauss.backbones.patches import PatchSettings, fit_patches
from adagauss.core.calibration import nll
from adagauss.core.learn import Learner
from adagauss.data.images import ArrayImages
from adagauss.methods import make_method

from .dictionaries import halves, views

NUMBERS = {"cifar100": (10, 40, 200), "tiny": (10, 40, 200), "cub": (5, 15)}
JUDGES = (50, 200, 1000)
DRAWS = 60
CRITERIA: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "likelihood": lambda surprise, hits, judges: surprise,
    "hits": lambda surprise, hits, judges: -hits + 1e-6 * surprise,
    "both": lambda surprise, hits, judges: surprise - hits * judges / HIT_WEIGHT_IMAGES,
}
"""What is to be small, from the sums over the images that choose."""


class Tried(NamedTuple):
    """How each strength did: (K, N) hits and (K, N, T) surprises of images left out, and its accuracy on others."""

    hits: Tensor
    surprise: Tensor
    accuracy: Tensor


def features(kind: str, learned: list[Tensor], judging: list[Tensor], seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """(N, width) features of each class, to learn from and to judge."""
    if kind == "patches":
        found = fit_patches(ArrayImages(learned[0]), PatchSettings(filters=200), torch.Generator().manual_seed(seed))
        first, second = ([views(found, pixels, True).mean(0) for pixels in half] for half in (learned, judging))
        return first, second
    channels, height, width = learned[0].shape[1:]
    shape = (channels, height, width)
    learner = Learner(make_method("exact-pretrained"), shape, (0.5,) * channels, (0.25,) * channels)
    first, second = ([learner.features(ArrayImages(pixels)) for pixels in half] for half in (learned, judging))
    return first, second


def tried(learned: list[Tensor], judging: list[Tensor]) -> Tried:
    """Every strength on the images of all classes."""
    shown, asked = torch.cat(learned), torch.cat(judging)
    targets, truths = (
        torch.arange(len(half)).repeat_interleave(torch.tensor([len(part) for part in half]))
        for half in (learned, judging)
    )
    sums = MomentSums(shown.shape[1]).add_(shown, targets)
    weighed = Standardizer(sums).at([1.0])
    hits, surprise, accuracy = [], [], []
    for images in STRENGTHS:
        rule = RidgeSpec(images, intercept=True).rule(int(sums.images))
        scores = weighed.left_out(rule, shown[None], targets)
        hits.append((scores.argmax(1) == targets).double())
        surprise.append(nll(scores, targets)[0])
        accuracy.append(100 * (weighed.solve(rule)(asked).argmax(1) == truths).double().mean())
    return Tried(torch.stack(hits), torch.stack(surprise), torch.stack(accuracy))


def losses(found: Tried, judges: int, generator: torch.Generator) -> list[float]:
    """Points below the best strength, of each criterion, if so many images choose."""
    number = found.hits.shape[1]
    total = torch.zeros(len(CRITERIA), dtype=torch.float64)
    for _ in range(DRAWS):
        drawn = torch.randperm(number, generator=generator)[:judges]
        surprise = found.surprise[:, drawn].sum(1).min(1).values
        hits = found.hits[:, drawn].sum(1)
        chosen = [int(small(surprise, hits, len(drawn)).argmin()) for small in CRITERIA.values()]
        total += found.accuracy.max() - found.accuracy[chosen]
    return (total / DRAWS).tolist()


def cases(names: list[str], seed: int) -> Iterator[tuple[str, Tried]]:
    """All features of all datasets in all numbers."""
    for name in names:
        for number in NUMBERS[name]:
            parts = halves(name, seed, number)
            for kind in ("patches", "network"):
                if kind == "patches" or number < max(NUMBERS[name]):  # the network takes its time
                    yield f"{name}, {number} each, {kind}", tried(*features(kind, *parts, seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", default=list(NUMBERS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(options.seed)
    print("| images | images that choose | " + " | ".join(CRITERIA) + " |")
    print("|---|---|" + "---|" * len(CRITERIA))
    means = {judges: torch.zeros(len(CRITERIA), dtype=torch.float64) for judges in JUDGES}
    number = 0
    for name, found in cases(options.datasets, options.seed):
        number += 1
        for judges in JUDGES:
            lost = losses(found, judges, generator)
            means[judges] += torch.tensor(lost, dtype=torch.float64)
            print(f"| {name} | {judges} | " + " | ".join(f"{value:.2f}" for value in lost) + " |", flush=True)
    for judges, total in means.items():
        print(
            f"| mean of {number} | {judges} | " + " | ".join(f"{value / number:.2f}" for value in total.tolist()) + " |"
        )


if __name__ == "__main__":
    main()
