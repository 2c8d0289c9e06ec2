"""What mirror images are good for: `python -m benchmarks.mirrors [DATASET ...]`.

Twenty classes at random in tasks of five, a dictionary of patches of photographs, as many other *training* images to
judge as to learn from. Mirror images are learned not at all, as images of their own, or by the mean of their features
with those of the image; answers always come from that mean.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from adagauss.backbones.patches import PatchSettings, fit_patches
from adagauss.data.images import ArrayImages

from .dictionaries import arguments, halves, right, taught, views

DATASETS = ("cifar100", "tiny", "cub")
NUMBERS = {"cub": (5, 15)}
USUAL = (10, 40, 200)
WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "not at all": lambda both: both[:1],
    "as images of their own": lambda both: both,
    "by the mean with the image": lambda both: both.mean(0, keepdim=True),
}
"""What is learned, of the features of images and their mirror images."""


def accuracies(name: str, filters: int, number: int, seed: int) -> list[float]:
    """Of each way, in percent."""
    learned, judging = halves(name, seed, number)
    settings = PatchSettings(filters=filters)
    features = fit_patches(ArrayImages(learned[0]), settings, torch.Generator().manual_seed(seed))
    first, second = ([views(features, pixels, True) for pixels in half] for half in (learned, judging))
    return [right(taught([way(both) for both in first]), second) for way in WAYS.values()]


def main() -> None:
    options = arguments(__doc__, DATASETS)
    print("| dataset | images each | " + " | ".join(WAYS) + " |")
    print("|---|---|" + "---|" * len(WAYS))
    for name in options.datasets:
        for number in NUMBERS.get(name, USUAL):
            found = [accuracies(name, options.filters, number, seed) for seed in options.seeds]
            cells = [", ".join(f"{value:.1f}" for value in column) for column in zip(*found, strict=True)]
            print(f"| {name} | {number} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
