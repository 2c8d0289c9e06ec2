"""What one more class costs an exact learner that knows many: `python -m benchmarks.one_more_class`.

Features are drawn at random, since their values do not matter; extracting them is not counted. A class of 100 images is
added to the sums, the strengths still compared are judged, and the regression is solved for all classes.
"""

from __future__ import annotations

import argparse
import time

import torch

from adagauss.analytic.moments import MomentSums
from adagauss.analytic.selection import ModelSelection, RidgeSpec, Standardizer

IMAGES = 100
ROUNDS = 3


def seconds(width: int, classes: int, images: int) -> float:
    """The best of some rounds, for a learner of ``classes`` classes with so many images in each."""
    generator = torch.Generator().manual_seed(0)
    sums = MomentSums(width)
    for start in range(0, classes, 10):
        targets = torch.arange(start, min(start + 10, classes)).repeat_interleave(images)
        sums.add_(torch.randn(len(targets), width, generator=generator), targets, classes)
    choice = ModelSelection([RidgeSpec(100.0), RidgeSpec(300.0)])
    features, targets = torch.randn(IMAGES, width, generator=generator), torch.full((IMAGES,), classes)
    times = []
    for _ in range(ROUNDS):
        now = sums.copy()
        started = time.perf_counter()
        now.add_(features, targets)
        weighing = Standardizer(now)
        choice.observe(weighing, features.unsqueeze(0), targets)
        choice.solve(weighing)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[1280, 4000])
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100, 300, 1000])
    parser.add_argument("--images", type=int, nargs="+", default=[10, 100], help="images per class before")
    options = parser.parse_args()
    print(
        "| features | images per class before | " + " | ".join(f"{number} classes" for number in options.classes) + " |"
    )
    print("|---|---|" + "---|" * len(options.classes))
    for width in options.widths:
        for images in options.images:
            cells = [f"{seconds(width, classes, images):.2f} s" for classes in options.classes]
            print(f"| {width} | {images} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
