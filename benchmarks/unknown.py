"""Which score detects images of unknown classes: `ADAGAUSS_DATA=data python -m benchmarks.unknown --keep FOLDER`.

Half of the classes are taught, the others are unknown. Scores are chosen by images that were held out of the training
images (``held out``) and reported on test images (``test``). AUROC: how often an unknown image has a higher
score than a known one. FPR95: the share of unknown images that are accepted at a true-positive rate of 95 %.

``--far DATASET`` teaches the default classifier some classes and shows the AUROC of its OOD score against other classes
(near) and against other datasets, noise, one-colour images, text and upside-down photographs (far), and the share of
test images of known classes that are rejected at three target false-positive rates.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from adagauss import IncrementalClassifier
from adagauss.analytic.moments import MomentSums
from adagauss.analytic.ridge_lda import LDA, Ridge
from adagauss.core.calibration import CalibrationStats, holdout_mask
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import oas_shrinkage
from adagauss.core.ood import MarginScore, margin_score
from adagauss.parts.classifiers import Bayes

from .frozen_features import SIZES, Part, frozen_features, some
from .real_data import read

SPECS = (
    ("cub", "analytic-pretrained", 40, 30, 30),
    ("cifar100", "analytic-pretrained", 40, 100, 50),
    ("tiny", "analytic-pretrained", 50, 100, 50),
    ("omniglot", "analytic-patches", 100, 15, 5),
)
"""Dataset, method whose features are taken, classes, training and test images per class."""
DIRECTIONS = 64
OodScores = dict[str, Tensor]


def auroc(known: Tensor, unknown: Tensor) -> float:
    """The share of pairs in which the unknown image has the higher score."""
    order = torch.cat([known, unknown]).double().argsort()
    ranks = torch.empty(len(order), dtype=torch.float64)
    ranks[order] = torch.arange(1, len(order) + 1, dtype=torch.float64)
    above = ranks[len(known) :].sum() - len(unknown) * (len(unknown) + 1) / 2
    return float(above / (len(known) * len(unknown)))


def false_positives(known: Tensor, unknown: Tensor) -> float:
    """The share of unknown images below the 95th percentile of the known ones."""
    limit = known.double().quantile(0.95)
    return float((unknown.double() <= limit).double().mean())


def mahalanobis(train: Part) -> Callable[[Tensor], OodScores]:
    """The smallest distance with one covariance, and that less the distance with the covariance of all images.

    In coordinates whitened by Σ_w, with q the part of a point in the space of the class means and B its covariance
    between classes, (x − m)ᵀΣ_t⁻¹(x − m) = ‖z‖² − ‖q‖² + qᵀ(I + B)⁻¹q: what lies outside that space cancels.
    """
    rows, targets = train.features.double(), train.targets
    bank = ClassGaussians.from_features(rows, targets.tolist(), "none").select(range(int(targets.max()) + 1))
    centred = rows - bank.means[targets]
    within = centred.T @ centred / len(rows)
    size = len(within)
    amount = oas_shrinkage(float(within.trace()), float(within.square().sum()), size, len(rows))
    mean_variance = float(within.diagonal().mean())
    within.mul_(1 - amount).diagonal().add_(amount * mean_variance)
    factor, centre = torch.linalg.cholesky(within), rows.mean(0)

    def white(points: Tensor) -> Tensor:
        solution: Tensor = torch.linalg.solve_triangular(factor, (points.double() - centre).T, upper=False)
        return solution.T

    means = white(bank.means)
    basis = torch.linalg.qr(means.T)[0]
    inside = means @ basis
    between = (inside.T * (bank.counts.double() / len(rows))) @ inside
    total = torch.linalg.inv(torch.eye(len(between), dtype=torch.float64) + between)

    def ood_scores(points: Tensor) -> OodScores:
        z = white(points)
        q = z @ basis
        near = torch.cdist(q, inside).square().amin(1)
        outside = z.square().sum(1) - q.square().sum(1)
        return {"Mahalanobis": near + outside, "relative Mahalanobis": near - (q @ total * q).sum(1)}

    return ood_scores


def scorers(train: Part) -> dict[str, tuple[Callable[[Tensor], Tensor], MarginScore]]:
    """Each kind of classifier, and its margin score in a learner."""
    rows, targets = train
    sums = MomentSums(rows.shape[1]).add_(rows, targets)
    directions = torch.pca_lowrank(rows, DIRECTIONS, niter=4)[2]
    names = list(range(int(targets.max()) + 1))
    bank = ClassGaussians.from_features(rows @ directions, targets.tolist()).select(names)
    bayes, typical = Bayes(pooled_shrinkage=0.5, shrinkage=0.1).scorer(bank), MarginScore.of(bank)
    placed = MarginScore(directions @ typical.weight, typical.bias) if typical.weight is not None else typical
    return {
        "discriminant analysis": (LDA().solve(sums).__call__, MarginScore()),
        "ridge regression": (Ridge(300, intercept=True).solve(sums).__call__, MarginScore()),
        f"Gaussians, {DIRECTIONS} directions": (lambda points: bayes(points @ directions), placed),
    }


def ood_scores_from(scores: Tensor, features: Tensor, evidence: CalibrationStats, typical: MarginScore) -> OodScores:
    """All OOD scores; larger means less similar to the known classes."""
    calibrated = evidence.calibration(scores.double())
    found = {
        "largest probability": -torch.softmax(calibrated, 1).amax(1),
        "energy": -(scores.double() / evidence.calibration.temperature).logsumexp(1),
        "entropy": -(torch.softmax(calibrated, 1) * torch.log_softmax(calibrated, 1)).sum(1),
        "best less mean score": scores.mean(1) - scores.amax(1),
        "best less next ten": -margin_score(scores),
    }
    if typical.weight is not None:
        found["best less next ten, of one covariance"] = -typical(features, scores)
    return found


def measured(train: Part, known: Part, unknown: Part, seed: int) -> dict[tuple[str, str], tuple[float, float]]:
    """AUROC and FPR95 of each classifier and score."""
    chosen = holdout_mask(train.targets, 0.1, torch.Generator().manual_seed(seed))
    trial = scorers(Part(train.features[chosen], train.targets[chosen]))
    found: dict[tuple[str, str], tuple[float, float]] = {}
    distances = mahalanobis(train)
    both = [distances(part.features) for part in (known, unknown)]
    for name in both[0]:
        found["one covariance", name] = (
            auroc(both[0][name], both[1][name]),
            false_positives(both[0][name], both[1][name]),
        )
    for kind, (scorer, typical) in scorers(train).items():
        evidence = CalibrationStats()
        evidence.observe(trial[kind][0](train.features[~chosen]), train.targets[~chosen])
        found_scores = [
            ood_scores_from(scorer(part.features), part.features, evidence, typical) for part in (known, unknown)
        ]
        for name in found_scores[0]:
            pair = found_scores[0][name], found_scores[1][name]
            found[kind, name] = auroc(*pair), false_positives(*pair)
    return found


RATES = (0.01, 0.05, 0.1)
FAR_IMAGES = 80
OTHERS = ("cifar100", "tiny", "cub", "omniglot", "digits")


def resized(pixels: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """uint8 images of another shape."""
    if pixels.shape[1] != shape[0]:
        pixels = pixels.float().mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
    pixels = F.interpolate(pixels.float(), shape[1:], mode="bilinear", antialias=True)
    return pixels.round().clamp(0, 255).to(torch.uint8)


def written(number: int, side: int = 224) -> Tensor:
    """Images of text, some of them bright on dark."""
    images = []
    for index in range(number):
        dark = index % 4 == 0
        image = Image.new("RGB", (side, side), "black" if dark else "white")
        size = 10 + index % 20
        for line, top in enumerate(range(5, side, size + size // 3)):
            text = " ".join(WORDS[(7 * index + 3 * line + step) % len(WORDS)] for step in range(8))
            fill = "white" if dark else "black"
            ImageDraw.Draw(image).text((5, top), text, fill=fill, font=ImageFont.load_default(size))
        images.append(torch.from_numpy(np.array(image)).permute(2, 0, 1))
    return torch.stack(images)


WORDS = ["the", "image", "of", "a", "model", "known", "class", "page", "one", "total", "date", "hello", "world"]


def far_images(name: str, shape: tuple[int, int, int]) -> dict[str, Tensor]:
    """Images that have nothing to do with a dataset."""
    generator = torch.Generator().manual_seed(0)
    colours = torch.randint(256, (FAR_IMAGES, shape[0], 1, 1), generator=generator).to(torch.uint8)
    found = {
        "noise": torch.randint(256, (FAR_IMAGES, *shape), generator=generator).to(torch.uint8),
        "one colour": colours.expand(-1, *shape).contiguous(),
        "text": resized(written(FAR_IMAGES), shape),
    }
    for other in OTHERS:
        if other != name:
            images = read(other, SIZES.get(other)).test.images
            rows = torch.randperm(len(images), generator=generator)[:FAR_IMAGES]
            found[other] = resized(images.batch(rows), shape)
            if shape[0] == 3 and other in ("cub", "tiny"):
                found[f"{other}, upside down"] = found[other].flip(2)
    return found


def far_row(name: str, effort: str, classes: int, images: int, far: Mapping[str, Tensor] | None = None) -> str:
    """One row of the table: AUROC for each kind of unknown image, and false-positive rates."""
    dataset = read(name, SIZES.get(name))
    order = torch.randperm(len(dataset.classes), generator=torch.Generator().manual_seed(0)).tolist()
    names = [dataset.classes[index] for index in order]
    near_names = names[classes : classes + max(5, classes // 2)]
    train, test = some(dataset.train, tuple(names[:classes]), images), some(dataset.test, tuple(names[:classes]), 30)
    classifier = IncrementalClassifier(effort=effort, verbose=False)
    rows = torch.arange(len(train))
    layout = (0, 2, 3, 1)
    classifier.partial_fit(train.images.batch(rows).permute(layout).numpy(), train.labels)

    def ood_scores(pixels: Tensor) -> Tensor:
        return torch.from_numpy(classifier.ood_score(pixels.permute(layout).numpy()))

    known = ood_scores(test.images.batch(torch.arange(len(test))))
    near = some(dataset.test, tuple(near_names), 30)
    unknown = {"near": near.images.batch(torch.arange(len(near)))} if near_names else {}
    unknown |= far if far is not None else far_images(name, dataset.train.images.shape)
    cells = [f"{kind} {auroc(known, ood_scores(pixels)):.3f}" for kind, pixels in unknown.items()]
    cells += [f"{rate:.0%}: {float((known > 1 - rate).double().mean()):.1%}" for rate in RATES]
    return f"{name}, {effort}, {classes} classes of {images}: " + "; ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, default=Path("features"), help="folder where features are kept")
    parser.add_argument("--seed", type=int, default=0, help="of the division into known and unknown classes")
    parser.add_argument("--far", choices=OTHERS, help="teach classes of this dataset, and show far pairs as well")
    parser.add_argument("--effort", default="quick", choices=("quick", "good"))
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--images", type=int, default=25, help="per class")
    options = parser.parse_args()
    if options.far:
        print(far_row(options.far, options.effort, options.classes, options.images))
        return
    columns: dict[str, dict[tuple[str, str], tuple[float, float]]] = {}
    for dataset, method, classes, images, tests in SPECS:
        train, test = frozen_features(dataset, method, classes, images, tests, options.keep)
        order = torch.randperm(classes, generator=torch.Generator().manual_seed(options.seed))
        known, unknown = order[: classes // 2], order[classes // 2 :]
        taught = train.of(known)
        held = ~holdout_mask(taught.targets, 0.2, torch.Generator().manual_seed(options.seed))
        columns[f"{dataset}, held out"] = measured(
            Part(taught.features[~held], taught.targets[~held]),
            Part(taught.features[held], taught.targets[held]),
            train.of(unknown),
            options.seed,
        )
        columns[f"{dataset}, test"] = measured(taught, test.of(known), test.of(unknown), options.seed)
    print("| classifier | score | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 2) + "|")
    for kind, name in next(iter(columns.values())):
        cells = " | ".join("{:.3f} / {:.2f}".format(*column[kind, name]) for column in columns.values())
        print(f"| {kind} | {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
