"""Two processes against one, on one machine: seconds, speed-up and the largest relative difference.

On a busy machine wall times vary; the CPU time of each process shows how the work is divided.

`python -m benchmarks.processes --images 512` learns one task of random pictures: a trained network (training, features
of its images), and sums over the features of a dictionary of patches. `--network resnet18` trains a wider one.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adagauss.core.learn import Learner
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.distributed.launch import launch
from adagauss.distributed.processes import Processes
from adagauss.methods import make_method
from adagauss.utils.runtime import Runtime, RuntimeConfig

CPU = RuntimeConfig(device="cpu")
SIDE, CLASSES = 32, 4
TRAINED = {
    "representation.first.epochs": 1,
    "representation.first.batch_size": 64,
    "representation.first.learning_rate": 1e-4,  # or rounding grows: noise teaches a network nothing but noise
}
SUMMED = {"backbone.options.filters": 200, "backbone.options.patches": 2000}


class Took(NamedTuple):
    """What some work took this process, and a tensor that it has made."""

    seconds: float
    cpu: float
    made: Tensor


def pictures(number: int) -> LabelledImages:
    """Random noise, brighter from class to class."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(number) % CLASSES
    noise = torch.randint(0, 128, (number, 3, SIDE, SIDE), generator=generator)
    return LabelledImages.from_labels(ArrayImages((noise + 30 * targets.view(-1, 1, 1, 1)).byte()), targets.tolist())


def timed(work: Callable[[], Tensor]) -> Took:
    """Wall time and CPU time of a piece of work."""
    started, busy = perf_counter(), process_time()
    made = work()
    return Took(perf_counter() - started, process_time() - busy, made)


def measured(processes: Processes, number: int, network: str) -> dict[str, Took]:
    """What each kind of work takes, and what comes out."""
    data = pictures(number)

    def learner_of(name: str, settings: dict[str, Any]) -> Learner:
        runtime = Runtime(CPU, processes=processes)
        return Learner(make_method(name, None, settings), data.images.shape, (0.5,) * 3, (0.25,) * 3, runtime)

    def learned(learner: Learner) -> Tensor:
        learner.learn(data)
        sums = learner.state.scorer.class_sums
        return learner.memory.means if sums is None else sums

    trained = learner_of("adagauss", {**TRAINED, "backbone.name": network})
    summed = learner_of("analytic-patches", SUMMED)
    return {
        f"a task of `adagauss`, {network}": timed(lambda: learned(trained)),
        "features of its images": timed(lambda: trained.features(data.images)),
        "a task of `analytic-patches`, 200 patches": timed(lambda: learned(summed)),
    }


def compare(processes: Processes, number: int, network: str, path: Path) -> None:
    """Measure the first process by itself while the other waits, and then both."""
    one = measured(Processes(), number, network) if processes.first else {}
    processes.sum_(torch.zeros(1))
    two = measured(processes, number, network)
    if processes.first:
        lines = []
        for name, (seconds, cpu, made) in one.items():
            other = two[name]
            error = float((other.made - made).abs().max() / made.abs().max())
            numbers = f"{seconds:.1f} s | {other.seconds:.1f} s | {seconds / other.seconds:.2f} | {cpu / other.cpu:.2f}"
            lines.append(f"| {name} | {numbers} | {error:.0e} |")
        path.write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--network", default="resnet32")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        launch(compare, 2, CPU, given.images, given.network, Path(folder, "rows"))
        rows = Path(folder, "rows").read_text(encoding="utf-8")
    print("| work | one process | two | speed-up | CPU time of one / of each of two | largest difference |")
    print("|---|---|---|---|---|---|")
    print(rows)


if __name__ == "__main__":
    main()
