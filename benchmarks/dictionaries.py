"""Where a dictionary of patches should come from: `python -m benchmarks.dictionaries [DATASET ...]`.

Twenty classes at random in tasks of five, at most 40 training images of each to learn from and as many other *training*
images to judge. The dictionary comes from photographs, from the first task, or from its first class alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor

from adagauss.analytic.moments import Linear, MomentSums
from adagauss.analytic.selection import STRENGTHS, ModelSelection, RidgeSpec, Standardizer
from adagauss.backbones.extractor import ResizedImages
from adagauss.backbones.patches import SIDE, PatchFeatures, PatchSettings, fit_patches
from adagauss.data.images import ArrayImages, Images, Subset

from .real_data import read
from .still_features import SIZES

DATASETS = ("cifar100", "tiny", "cub", "omniglot", "digits")
NOT_MIRRORED = ("omniglot", "digits")
CLASSES, TASK, IMAGES = 20, 5, 40
SOURCES = {"photographs": 0, "first task": TASK, "first class": 1}
"""Classes that the dictionary comes from."""


def halves(name: str, seed: int, most: int = IMAGES) -> tuple[list[Tensor], list[Tensor]]:
    """Pixels to learn from and pixels that judge, one tensor per class, of ``most`` images at most."""
    dataset, generator = read(name, SIZES.get(name)), torch.Generator().manual_seed(seed)
    order = torch.randperm(len(dataset.classes), generator=generator)[:CLASSES].tolist()
    part = dataset.train.of_classes([dataset.classes[index] for index in order])
    learned, judging = [], []
    for target in range(len(order)):
        places = (part.targets == target).nonzero().flatten()
        places = places[torch.randperm(len(places), generator=generator)]
        half = min(most, len(places) // 2)
        learned.append(_pixels(Subset(part.images, places[:half])))
        judging.append(_pixels(Subset(part.images, places[half : 2 * half])))
    return learned, judging


def _pixels(images: Images) -> Tensor:
    reduced = ResizedImages(images, SIDE if min(images.shape[1:]) > SIDE else None)
    return reduced.batch(torch.arange(len(reduced)))


@torch.inference_mode()
def views(features: PatchFeatures, pixels: Tensor, mirrored: bool) -> Tensor:
    """(V, N, width) features of images, and of their mirror images."""
    shown = [pixels, pixels.flip(3)] if mirrored else [pixels]
    return torch.stack([features(images.float() / 255) for images in shown]).clone()


def taught(classes: list[Tensor]) -> Linear:
    """The solution of sums over (V, N, width) features of each class, taught in tasks; these choose its strength."""
    sums, choice = MomentSums(classes[0].shape[2]), ModelSelection([RidgeSpec(images, True) for images in STRENGTHS])
    for start in range(0, len(classes), TASK):
        arriving = classes[start : start + TASK]
        counts = torch.tensor([part.shape[1] for part in arriving])
        targets = start + torch.arange(len(arriving)).repeat_interleave(counts)
        shown = torch.cat(arriving, 1)
        for view in shown:
            sums.add_(view, targets, start + len(arriving))
        choice.observe(Standardizer(sums), shown, targets)
    return choice.solve(Standardizer(sums))


def right(solution: Linear, judging: list[Tensor]) -> float:
    """Accuracy in percent on (V, N, width) features of each class, by the mean over views."""
    hits = [solution(part.mean(0)).argmax(1) == target for target, part in enumerate(judging)]
    return 100 * float(torch.cat(hits).float().mean())


def accuracy(name: str, settings: PatchSettings, seed: int, first_classes: int = 1, most: int = IMAGES) -> float:
    """Accuracy in percent on the images that judge; ``first_classes`` count if the dictionary comes from them."""
    learned, judging = halves(name, seed, most)
    mirrored = name not in NOT_MIRRORED
    first = ArrayImages(torch.cat(learned[:first_classes]))
    features = fit_patches(first, settings, torch.Generator().manual_seed(seed))
    shown, asked = (
        [views(features, pixels, mirrored).mean(0, keepdim=True) for pixels in half] for half in (learned, judging)
    )
    return right(taught(shown), asked)


def arguments(description: str | None, datasets: Sequence[str]) -> argparse.Namespace:
    """What both comparisons of patches take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", default=list(datasets))
    parser.add_argument("--filters", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    return parser.parse_args()


def main() -> None:
    options = arguments(__doc__, DATASETS)
    print("| dataset | " + " | ".join(SOURCES) + " |")
    print("|---|" + "---|" * len(SOURCES))
    sources = {
        number: PatchSettings(filters=options.filters, dictionary_from="first_task" if number else "photographs")
        for number in SOURCES.values()
    }
    for name in options.datasets:
        cells = [
            [accuracy(name, settings, seed, number or 1) for seed in options.seeds]
            for number, settings in sources.items()
        ]
        line = " | ".join(", ".join(f"{value:.1f}" for value in found) for found in cells)
        print(f"| {name} | {line} |", flush=True)


if __name__ == "__main__":
    main()
