"""What lifts exact learning on patches, and what does not: `python -m benchmarks.lifting [VARIANT ...]`.

The first 30 classes of CIFAR-100 in the usual order, 250 training images of each to learn from, 100 other *training*
images of each to answer. Every variant changes one thing of a dictionary of photographs; the strength of the ridge is
chosen by 1,000 of the learned images, each left out in turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.analytic.classifier import RandomFeatures
from adagauss.analytic.moments import MomentSums
from adagauss.analytic.selection import STRENGTHS, ModelSelection, RidgeSpec, Standardizer
from adagauss.backbones.patches import PatchFeatures, PatchSettings, fit_patches, photograph_crops
from adagauss.data.images import ArrayImages, Images, LabelledImages
from adagauss.data.stream import class_order

from .exact_cifar import ranked
from .real_data import read

CLASSES, LEARNED, JUDGES = 30, 250, 1000
SHAPE = (3, 32, 32)
BLOCK = 128
"""Images whose features are computed at once."""
Features = Callable[[Tensor], Tensor]
"""(B, 3, 32, 32) images in 0..1 to (B, width) features."""
Variant = Callable[[torch.Generator], Features]


class Pixels(ArrayImages):
    """Images of any number of channels: the answers of a first layer have more channels than rows."""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels = pixels


def dictionary(generator: torch.Generator, **settings: object) -> Features:
    """One dictionary with some settings."""
    return _learned(photograph_crops(SHAPE, generator), generator, **settings)


def side_by_side(generator: torch.Generator, parts: tuple[Variant, ...]) -> Features:
    """The features of several dictionaries together."""
    found = [part(generator) for part in parts]
    return lambda images: torch.cat([part(images) for part in found], 1)


def seen_as(generator: torch.Generator, look: Features, **settings: object) -> Features:
    """A dictionary of images that are changed first."""
    crops = photograph_crops(SHAPE, generator)
    pixels = crops.batch(torch.arange(len(crops))).float() / 255
    changed = Pixels((255 * look(pixels)).round().clamp(0, 255).to(torch.uint8))
    features = _learned(changed, generator, **settings)
    return lambda images: features(look(images))


def brightness(images: Tensor) -> Tensor:
    """One channel, the mean of the colours."""
    return images.mean(1, keepdim=True)


def hue(images: Tensor) -> Tensor:
    """Two channels, what is orthogonal to brightness, in 0..1."""
    red, green, blue = images.unbind(1)
    return torch.stack([(red - green) / 2 + 0.5, (red + green - 2 * blue) / 4 + 0.5], 1)


def halved(images: Tensor) -> Tensor:
    """At half the size."""
    return F.avg_pool2d(images, 2)


def second_layer(generator: torch.Generator, first: int, filters: int, size: int) -> Features:
    """A dictionary of patches of the answers of a first one, which are means over 3 × 3 places."""
    layer = _learned(photograph_crops(SHAPE, generator), generator, filters=first, grid=9)

    def answers(images: Tensor) -> Tensor:
        cells = layer.pooled(images).view(len(images), 2, 9, 9, first)
        return cells.permute(0, 1, 4, 2, 3).flatten(1, 2)

    return seen_as(generator, answers, filters=filters, patch_sizes=(size,), patches=30_000)


def expanded(generator: torch.Generator, features: int, number: int) -> Features:
    """ReLU random features of a dictionary's features."""
    found = dictionary(generator, filters=features)
    random = RandomFeatures(int(torch.randint(2**31, (), generator=generator)), 8 * features, number)
    return lambda images: random(found(images))


BASE = 300
VARIANTS: dict[str, Variant] = {
    "base": partial(dictionary, filters=BASE),
    "power 1": partial(dictionary, filters=BASE, power=1.0),
    "power 0.35": partial(dictionary, filters=BASE, power=0.35),
    "power 0.25": partial(dictionary, filters=BASE, power=0.25),
    "threshold 0": partial(dictionary, filters=BASE, threshold=0.0),
    "threshold 0.5": partial(dictionary, filters=BASE, threshold=0.5),
    "threshold 1": partial(dictionary, filters=BASE, threshold=1.0),
    "sizes 4, 6, 8": partial(dictionary, filters=BASE, scales=3),
    "grid 3": partial(dictionary, filters=BASE, grid=3),
    "filters 675 (as many features as grid 3)": partial(dictionary, filters=675),
    "brightness and hue apart": partial(
        side_by_side,
        parts=(partial(seen_as, look=brightness, filters=150), partial(seen_as, look=hue, filters=150)),
    ),
    "half of the filters at half the size": partial(
        side_by_side, parts=(partial(dictionary, filters=150), partial(seen_as, look=halved, filters=150))
    ),
    "half of the filters in a second layer": partial(
        side_by_side, parts=(partial(dictionary, filters=150), partial(second_layer, first=50, filters=150, size=3))
    ),
    "filters 600": partial(dictionary, filters=600),
    "filters 300 and 300 in a second layer": partial(
        side_by_side, parts=(partial(dictionary, filters=300), partial(second_layer, first=50, filters=300, size=3))
    ),
    "4,800 random features of 300 filters": partial(expanded, features=300, number=4800),
    "filters 1200": partial(dictionary, filters=1200),
    "filters 2400": partial(dictionary, filters=2400),
}


def _learned(images: Images, generator: torch.Generator, **settings: object) -> PatchFeatures:
    chosen = PatchSettings.of({"dictionary_from": "first_task", **settings})
    return fit_patches(images, chosen, generator)


@torch.inference_mode()
def mirrored(features: Features, part: LabelledImages) -> Tensor:
    """Features of images: the mean over each and its mirror image."""
    found = []
    for rows in torch.split(torch.arange(len(part.targets)), BLOCK):
        images = part.images.batch(rows).float() / 255
        found.append((features(images) + features(images.flip(3))) / 2)
    return torch.cat(found).clone()


def accuracy(features: Features, learned: LabelledImages, asked: LabelledImages, seed: int) -> tuple[float, int]:
    """In percent, and the number of features."""
    shown, targets = mirrored(features, learned), learned.targets
    sums = MomentSums(shown.shape[1]).add_(shown, targets)
    judges = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))[:JUDGES]
    choice, weighing = ModelSelection([RidgeSpec(images, True) for images in STRENGTHS]), Standardizer(sums)
    choice.observe(weighing, shown[None, judges], targets[judges])
    answers = choice.solve(weighing)(mirrored(features, asked)).argmax(1)
    return 100 * float((answers == asked.targets).float().mean()), shown.shape[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", default=list(VARIANTS), metavar="VARIANT", help=", ".join(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    if unknown := sorted(set(options.variants) - set(VARIANTS)):
        parser.error(f"no variant is called {unknown[0]!r}; there are {', '.join(VARIANTS)}")
    dataset = read("cifar100")
    names = [dataset.classes[position] for position in class_order("icarl", range(100))[:CLASSES]]
    part = dataset.train.of_classes(names)
    learned, asked = ranked(part, 0, LEARNED), ranked(part, 400, 500)
    print("| change | features | accuracy, % | mean | processor seconds |\n|---|---|---|---|---|")
    for name in options.variants:
        started, found, width = time.process_time(), [], 0
        for seed in options.seeds:
            features = VARIANTS[name](torch.Generator().manual_seed(seed))
            right, width = accuracy(features, learned, asked, seed)
            found.append(right)
        seconds = (time.process_time() - started) / len(found)
        each = ", ".join(f"{value:.1f}" for value in found)
        print(f"| {name} | {width:,} | {each} | {sum(found) / len(found):.1f} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
