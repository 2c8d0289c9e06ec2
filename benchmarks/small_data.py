"""AdaGauss on few images: no drift, the adapter with few and with enough steps, and what replaces it if it fails.

`ADAGAUSS_DATA=data python -m benchmarks.small_data` learns a part of CIFAR-100 with a thin network, 60 images per
class, and prints the accuracy over all classes after the last task and the warnings.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from adagauss.core.learn import Learner
from adagauss.methods import make_method

from .real_data import read
from .still_features import some

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "no drift": ("reference", {"drift": {"kind": "none"}}),
    "adapter (preset reference)": ("reference", {}),
    "adapter, 500 steps at least": ("reference", {"drift.min_steps": 500}),
    "adapter or affine map (preset practical)": ("practical", {}),
    "affine map": ("reference", {"drift": {"kind": "affine", "residual_covariance": 1.0}}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cifar100")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--classes", type=int, default=12)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--images", type=int, default=60, help="training images per class")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    options = parser.parse_args()
    dataset = read(options.dataset, options.image_size)
    for name in options.variants:
        found, said = [], []
        for seed in range(options.seeds):
            order = torch.randperm(len(dataset.classes), generator=torch.Generator().manual_seed(seed))
            names = tuple(dataset.classes[index] for index in order[: options.classes].tolist())
            preset, settings = VARIANTS[name]
            network = {"backbone.name": "convnet", "backbone.features": None}
            method = make_method("adagauss", preset, {**network, **settings}, epochs=options.epochs)
            learner = Learner(method, dataset.train.images.shape, dataset.mean, dataset.std)
            learner.runtime.seed = seed
            per_task = options.classes // options.tasks
            for start in range(0, options.classes, per_task):
                report = learner.learn(some(dataset.train, names[start : start + per_task], options.images))
                said += report.warnings
            test = some(dataset.test, names, 50)
            right = learner.scores(learner.features(test.images)).argmax(1).cpu() == test.targets
            old = test.targets < options.classes - per_task
            found.append((100 * float(right.double().mean()), 100 * float(right[old].double().mean())))
        values = "; ".join(f"{all_:.1f} ({old:.1f})" for all_, old in found)
        mean = sum(one for one, _ in found) / len(found)
        print(f"| {name} | {mean:.1f} | {values} | {len(said)} |", flush=True)
        for sentence in sorted(set(said))[:2]:
            print(f"  {sentence}")


if __name__ == "__main__":
    main()
