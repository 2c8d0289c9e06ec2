"""`--jobs 2` against `--jobs 1`: seconds, speed-up and the largest difference of what comes out.

`python -m benchmarks.jobs` compares methods on scikit-learn's digits, and gathers shards of random pictures, both with
one worker process and with two, of one thread each. Seconds are those of the whole command, with the start of the
processes. `--epochs`, `--images` make it shorter or longer.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from adagauss.analytic.batches import gather
from adagauss.core.learn import Learner
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.data.stream import StreamConfig
from adagauss.experiments.grid import run_grid
from adagauss.experiments.workers import WorkerProcesses
from adagauss.methods import make_method

METHODS, SEEDS = "adagauss,lwf", (0, 1)
STREAM = StreamConfig(dataset="digits", tasks=5)
SIDE, CLASSES, SHARDS = 32, 10, 8
SETTINGS = {"backbone.options.filters": 200, "backbone.options.patches": 2000}


def compared(jobs: int, folder: Path, epochs: int) -> Tensor:
    """The metrics of a comparison."""
    with WorkerProcesses(jobs) as executor:
        grid = run_grid(METHODS, SEEDS, STREAM, folder, epochs=epochs, executor=executor, most=jobs)
    return torch.tensor([list(one.metrics.values()) for results in grid.results.values() for one in results])


def pictures(number: int, seed: int) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], list[int]]:
    """Random noise, brighter from class to class."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, CLASSES, number)
    noise = draw.integers(0, 128, (number, SIDE, SIDE, 3))
    return (noise + 12 * labels[:, None, None, None]).astype(np.uint8), labels.tolist()


def write_shards(folder: Path, images: int) -> list[Path]:
    """The shards of all pictures."""
    paths = [folder / f"{index}.npz" for index in range(SHARDS)]
    for index, path in enumerate(paths):
        pixels, labels = pictures(images // SHARDS, index)
        np.savez(path, images=pixels, labels=np.array(labels))
    return paths


def prepared() -> Learner:
    """A learner that has its features and no classes."""
    learner = Learner(make_method("exact", settings=SETTINGS), (3, SIDE, SIDE), (0.5,) * 3, (0.25,) * 3)
    pixels, labels = pictures(500, SHARDS)
    images = ArrayImages(torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous())
    learner.learn(LabelledImages.from_labels(images, labels))
    return learner.empty_like()


def gathered(jobs: int, learner: Learner, paths: list[Path], folder: Path) -> Tensor:
    """The sums over all shards."""
    with WorkerProcesses(jobs) as executor:
        gather(learner, paths, folder, executor=executor, most=2 * jobs)
    sums = learner.state.scorer.class_sums
    assert sums is not None
    return sums


def line(what: str, work: Callable[[int], Tensor]) -> str:
    """One line of the table."""
    times, made = [], []
    for jobs in (1, 2):
        started = perf_counter()
        made.append(work(jobs))
        times.append(perf_counter() - started)
    error = float((made[1] - made[0]).abs().max() / made[0].abs().max())
    return f"| {what} | {times[0]:.1f} s | {times[1]:.1f} s | {times[0] / times[1]:.2f} | {error:.0e} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--images", type=int, default=8000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        learner, paths = prepared(), write_shards(place, given.images)
        print("| work | one process | two | speed-up | largest difference |\n|---|---|---|---|---|")
        runs = f"`compare`: {len(SEEDS)} runs each of `{METHODS}`, digits, 5 tasks, {given.epochs} epochs"
        print(line(runs, lambda jobs: compared(jobs, place / f"runs-{jobs}", given.epochs)), flush=True)
        sums = f"`gather`: {SHARDS} shards, {given.images:,} images of {SIDE}×{SIDE}, `exact`"
        print(line(sums, lambda jobs: gathered(jobs, learner.empty_like(), paths, place / f"sums-{jobs}")))


if __name__ == "__main__":
    main()
