"""Calibration of probabilities and prediction sets: `python -m benchmarks.calibration --keep FOLDER`.

Tasks of a few classes are learned; all test images are classified after the last one. ECE is the expected calibration
error over 15 bins of confidence; ``floor`` is the ECE of a perfectly calibrated model on a test set of this size.

``--bursts`` teaches the default classifier five copies of each image, all held out alone, or with their near-duplicates
(the default), or with the copies of the same image (``groups=``).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss import IncrementalClassifier
from adagauss.analytic.classifier import AnalyticClassifier
from adagauss.analytic.moments import MomentSums
from adagauss.analytic.selection import ModelSelection, Standardizer
from adagauss.core.calibration import CalibrationStats
from adagauss.core.learn import Learner
from adagauss.core.ood import margin_score
from adagauss.data.dataset import load_dataset
from adagauss.data.images import ArrayImages
from adagauss.methods import make_method

from .frozen_features import SIZES, Part, frozen_features, some
from .real_data import read

BINS = 15
DRAWS = 20
LDA = AnalyticClassifier(strengths=(), shrinkages=(None, 0.3, 0.6, 0.85))
RIDGE = AnalyticClassifier(intercept=False)
BEST = AnalyticClassifier(shrinkages=(None, 0.3, 0.85))
FROZEN: tuple[tuple[str, str, int, int, int, int, AnalyticClassifier], ...] = (
    ("cub", "analytic-pretrained", 40, 30, 30, 8, LDA),
    ("cub", "analytic-pretrained", 40, 30, 30, 8, BEST),
    ("cifar100", "analytic-pretrained", 40, 100, 50, 10, LDA),
    ("cifar100", "analytic-patches", 40, 200, 50, 10, RIDGE),
    ("tiny", "analytic-pretrained", 50, 100, 50, 10, LDA),
    ("tiny", "analytic-pretrained", 50, 100, 50, 10, AnalyticClassifier()),
    ("omniglot", "analytic-patches", 100, 15, 5, 10, RIDGE),
)
"""Dataset, method whose features are taken, classes, training and test images per class, tasks, classifier."""
DIGITS: tuple[tuple[str, dict[str, Any], int | None], ...] = (
    ("analytic-patches", {"backbone.options.filters": 50}, None),
    ("fecam", {"backbone.name": "convnet"}, 5),
    ("adagauss+", {"backbone.name": "convnet"}, 5),
    ("adagauss+", {"backbone.name": "convnet", "evidence.train_holdout": 0.1}, 5),
)
"""Method, settings, epochs; five tasks of two digits."""


def calibration_error(probabilities: Tensor, targets: Tensor) -> float:
    """Σ_b n_b/n · |accuracy − confidence| over bins of the largest probability."""
    confidence, winners = probabilities.max(1)
    hits = (winners == targets).double()
    places = (confidence * BINS).long().clamp_max(BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, places, confidence.double() - hits)
    return float(gaps.abs().sum() / len(targets))


def floor(probabilities: Tensor) -> float:
    """The error if the classes were drawn from the probabilities."""
    generator = torch.Generator().manual_seed(0)
    draws = [torch.multinomial(probabilities, 1, generator=generator).squeeze(1) for _ in range(DRAWS)]
    return sum(calibration_error(probabilities, one) for one in draws) / DRAWS


def row(name: str, raw: Tensor, evidence: CalibrationStats, targets: Tensor, typical: Tensor) -> str:
    """One line of the table, from the scorer's scores of all test images."""
    scores = evidence.calibration(raw.double())
    calibrated, plain = (torch.softmax(one, 1) for one in (scores, raw.double()))
    accuracy = float((scores.argmax(1) == targets).double().mean())
    cells = [
        f"{100 * accuracy:.1f}",
        f"{100 * float(plain.amax(1).mean()):.1f}",
        f"{100 * float(calibrated.amax(1).mean()):.1f}",
        f"{100 * calibration_error(plain, targets):.1f}",
        f"{100 * calibration_error(calibrated, targets):.1f}",
        f"{100 * floor(calibrated):.1f}",
    ]
    for coverage in (0.8, 0.9, 0.95):
        inside = evidence.sets(scores, coverage)
        hits = float(inside.gather(1, targets.unsqueeze(1)).double().mean())
        cells.append(f"{100 * hits:.1f} ({float(inside.sum(1).double().mean()):.1f})")
    cells.append(f"{100 * float((evidence.p_value(typical) < 0.05).double().mean()):.1f}")
    return f"| {name} | " + " | ".join(cells) + " |"


def frozen_row(dataset: str, method: str, sizes: tuple[int, int, int], tasks: int, part: Any, keep: Path) -> str:
    """Learn task by task on frozen features, as `AnalyticClassifier` does."""
    classes, images, tests = sizes
    train, test = frozen_features(dataset, method, classes, images, tests, keep)
    sums, choice, evidence = MomentSums(train.features.shape[1]), ModelSelection(part.rules), CalibrationStats()
    for task in divided(train, classes, tasks):
        sums.add_(task.features, task.targets, int(task.targets.max()) + 1)
        held_out = torch.randperm(len(task.targets), generator=torch.Generator().manual_seed(0))[: part.loo_images]
        scores, scored = choice.observe(Standardizer(sums), task.features[held_out], task.targets[held_out])
        evidence.observe(scores, task.targets[held_out][scored], margin_score(scores))
    raw = choice.solve(Standardizer(sums))(test.features)
    unscaled = raw * choice.temperature
    name = f"{dataset}, {method} features, {part.kind}, {tasks} tasks"
    line = row(name, raw, evidence, test.targets, margin_score(raw))
    plain = torch.softmax(unscaled.double(), 1)
    cells = line.split(" | ")
    cells[2] = f"{100 * float(plain.amax(1).mean()):.1f}"
    cells[4] = f"{100 * calibration_error(plain, test.targets):.1f}"
    return " | ".join(cells)


def divided(train: Part, classes: int, tasks: int) -> Iterator[Part]:
    for task in range(tasks):
        first, last = classes * task // tasks, classes * (task + 1) // tasks
        chosen = (train.targets >= first) & (train.targets < last)
        yield Part(train.features[chosen], train.targets[chosen])


def digits_row(method: str, settings: dict[str, Any], epochs: int | None) -> str:
    dataset = load_dataset("digits")
    learner = Learner(
        make_method(method, settings=settings, epochs=epochs), dataset.train.images.shape, dataset.mean, dataset.std
    )
    for start in range(0, 10, 2):
        learner.learn(dataset.train.of_classes(dataset.classes[start : start + 2]))
    test = dataset.test.of_classes(learner.classes)
    known, features = learner.state, learner.features(test.images)
    raw, typical = known.scorer(features).detach(), margin_score(known.scorer(features).detach())
    kind = "left out" if known.evidence.held_out else "training images"
    return row(f"digits, {method}, 5 tasks, evidence of {kind}", raw, known.evidence, test.targets, typical)


COPIES = 5
BURSTS = (("cub", "quick", 20, 10, 20), ("cub", "good", 20, 10, 20), ("digits", "good", 10, 12, 60))
"""Dataset, effort, classes, images with copies and test images per class."""


def edited(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Copies of images: shifted by up to 8 %, turned by up to 8 degrees, and up to 25 % darker or brighter."""
    copies = pixels.repeat_interleave(COPIES, 0).float()
    angle, shift, light = (2 * torch.rand(size, len(copies), generator=generator) - 1 for size in (1, 2, 1))
    angle = angle[0] * 8 * torch.pi / 180
    across = torch.stack([angle.cos(), -angle.sin(), 0.16 * shift[0]], 1)
    down = torch.stack([angle.sin(), angle.cos(), 0.16 * shift[1]], 1)
    grid = F.affine_grid(torch.stack([across, down], 1), list(copies.shape), align_corners=False)
    moved = F.grid_sample(copies, grid, padding_mode="reflection", align_corners=False)
    return (moved * (1 + 0.25 * light[0]).view(-1, 1, 1, 1)).clamp(0, 255).round().to(torch.uint8)


def shifted(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Copies of images, shifted by up to one pixel."""
    copies = F.pad(pixels.repeat_interleave(COPIES, 0), (1, 1, 1, 1))
    steps = torch.randint(-1, 2, (len(copies), 2), generator=generator).tolist()
    return torch.stack([copy.roll(tuple(step), (1, 2)) for copy, step in zip(copies, steps, strict=True)])[
        :, :, 1:-1, 1:-1
    ]


def burst_rows(name: str, effort: str, classes: int, images: int, tests: int) -> Iterator[str]:
    """A line for each way to hold the copies out."""
    dataset = read(name, SIZES.get(name))
    order = torch.randperm(len(dataset.classes), generator=torch.Generator().manual_seed(0))[:classes].tolist()
    names = tuple(dataset.classes[index] for index in order)
    train, test = some(dataset.train, names, images), some(dataset.test, names, tests)
    pixels, shown = (part.images.batch(torch.arange(len(part))) for part in (train, test))
    copies = (shifted if name == "digits" else edited)(pixels, torch.Generator().manual_seed(0))
    labels = [label for label in train.labels for _ in range(COPIES)]
    numbers = list(range(len(labels)))
    ways = {"alone": numbers, "near-duplicates": None, "groups": [number // COPIES for number in numbers]}
    for way, groups in ways.items():
        classifier = IncrementalClassifier(effort=effort).fit(copies.permute(0, 2, 3, 1).numpy(), labels, groups=groups)
        found, truth = classifier.learner_.predictions(ArrayImages(shown)), test.labels
        hits = np.mean([label == true for label, true in zip(found.labels().tolist(), truth, strict=True)])
        estimates = [one.expected_accuracy or 0.0 for one in classifier.summary()]
        cells = [hits, found.probabilities.max(1).mean(), np.mean(estimates)]
        for coverage in (0.9, 0.95):
            sets = found.prediction_sets(coverage)
            cells.append(np.mean([true in one for one, true in zip(sets, truth, strict=True)]))
        cells += [found.is_unknown(rate).mean() for rate in (0.05, 0.1)]
        yield f"| {name}, {effort}, {way} | " + " | ".join(f"{100 * float(cell):.1f}" for cell in cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, default=Path("features"), help="folder where features are kept")
    parser.add_argument("--bursts", action="store_true", help="show copies of images instead")
    options = parser.parse_args()
    if options.bursts:
        print("| copies held out | accuracy | probability | estimate | 90 % sets | 95 % sets | FPR at 5 % | at 10 % |")
        print("|---" * 8 + "|")
        for burst in BURSTS:
            for line in burst_rows(*burst):
                print(line, flush=True)
        return
    titles = "accuracy | confidence before | after | ECE before | after | floor"
    print(f"| what | {titles} | 80 % sets | 90 % sets | 95 % sets | alarms at 5 % |")
    print("|---" * 11 + "|")
    for method, settings, epochs in DIGITS:
        print(digits_row(method, settings, epochs), flush=True)
    for dataset, features, classes, images, tests, tasks, part in FROZEN:
        print(frozen_row(dataset, features, (classes, images, tests), tasks, part, options.keep), flush=True)


if __name__ == "__main__":
    main()
