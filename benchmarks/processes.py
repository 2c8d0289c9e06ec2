"""Two processes against one, on one machine: seconds, speed-up and the largest relative difference.

`python -m benchmarks.processes --images 512` learns one task of random pictures: a trained network (training, features
of its images), and sums over the features of a dictionary of patches.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.learner import Learner
from adagauss.methods import make_method
from adagauss.parallel import Processes
from adagauss.parallel.launching import Layout, together
from adagauss.runtime import Runtime, RuntimeConfig

CPU = RuntimeConfig(device="cpu")
SIDE, CLASSES = 32, 4
TRAINED = {
    "backbone.name": "resnet32",
    "representation.first.epochs": 1,
    "representation.first.batch_size": 64,
    "representation.first.learning_rate": 1e-4,  # or rounding grows: noise teaches a network nothing but noise
}
SUMMED = {"backbone.options.filters": 200, "backbone.options.patches": 2000}

Found = dict[str, tuple[float, Tensor]]
"""Seconds of each kind of work, and a tensor that it has made."""


def pictures(number: int) -> LabelledImages:
    """Random noise, brighter from class to class."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(number) % CLASSES
    noise = torch.randint(0, 128, (number, 3, SIDE, SIDE), generator=generator)
    return LabelledImages.from_labels(ArrayImages((noise + 30 * targets.view(-1, 1, 1, 1)).byte()), targets.tolist())


def measured(processes: Processes, number: int) -> Found:
    """What learning takes, and what comes out."""
    data, found = pictures(number), {}
    for name, settings in (("adagauss", TRAINED), ("exact", SUMMED)):
        runtime = Runtime(CPU, processes=processes)
        learner = Learner(make_method(name, None, settings), data.images.shape, (0.5,) * 3, (0.25,) * 3, runtime)
        report = learner.learn(data)
        if name == "adagauss":
            found["training"] = report.seconds["representation"], learner.memory.means
            started = perf_counter()
            features = learner.features(data.images)
            found["features"] = perf_counter() - started, features
        else:
            sums = learner.knowledge.scorer.class_sums
            assert sums is not None
            found["sums"] = report.seconds["classifier"], sums
    return found


def compare(processes: Processes, number: int, path: Path) -> None:
    """Measure the first process by itself while the other waits, and then both."""
    one = measured(Processes(), number) if processes.first else {}
    processes.sum_(torch.zeros(1))
    two = measured(processes, number)
    if processes.first:
        rows = {}
        for name, (seconds, made) in one.items():
            error = float((two[name][1] - made).abs().max() / made.abs().max())
            rows[name] = {"one": seconds, "two": two[name][0], "error": error}
        path.write_text(json.dumps(rows), encoding="utf-8")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=512)
    number = parser.parse_args().images
    with tempfile.TemporaryDirectory() as folder:
        together(compare, Layout(devices=2), CPU, number, Path(folder, "rows"))
        rows = json.loads(Path(folder, "rows").read_text(encoding="utf-8"))
    print("| work | one process | two | speed-up | largest difference |\n|---|---|---|---|---|")
    for name, row in rows.items():
        times = f"{row['one']:.1f} s | {row['two']:.1f} s | {row['one'] / row['two']:.2f}"
        print(f"| {name} | {times} | {row['error']:.0e} |")


if __name__ == "__main__":
    main()
