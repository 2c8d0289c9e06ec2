"""Calibration of probabilities and prediction sets: `python -m benchmarks.calibration --keep FOLDER`.

Tasks of a few classes are learned; all test images are classified after the last one. ECE is the expected calibration
error over 15 bins of confidence; ``floor`` is the ECE of a perfectly calibrated model on a test set of this size.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adagauss.analytic.classifier import AnalyticClassifier
from adagauss.analytic.moments import MomentSums
from adagauss.analytic.selection import ModelSelection, Standardizer
from adagauss.core.calibration import CalibrationStats, margin_score
from adagauss.core.learn import Learner
from adagauss.data.dataset import load_dataset
from adagauss.methods import make_method

from .frozen_features import Part, frozen_features

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
    for some in divided(train, classes, tasks):
        sums.add_(some.features, some.targets, int(some.targets.max()) + 1)
        held_out = torch.randperm(len(some.targets), generator=torch.Generator().manual_seed(0))[: part.loo_images]
        scores, targets = choice.observe(Standardizer(sums), some.features[held_out], some.targets[held_out])
        evidence.observe(scores, targets, margin_score(scores))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, default=Path("features"), help="folder where features are kept")
    options = parser.parse_args()
    titles = "accuracy | confidence before | after | ECE before | after | floor"
    print(f"| what | {titles} | 80 % sets | 90 % sets | 95 % sets | alarms at 5 % |")
    print("|---" * 11 + "|")
    for method, settings, epochs in DIGITS:
        print(digits_row(method, settings, epochs), flush=True)
    for dataset, features, classes, images, tests, tasks, part in FROZEN:
        print(frozen_row(dataset, features, (classes, images, tests), tasks, part, options.keep), flush=True)


if __name__ == "__main__":
    main()
