"""Memory and scoring time over the number of classes, per kind of covariance: `python -m benchmarks.class_counts`.

Scoring is compared with a linear head of the same size in the same run. Numbers are random: neither bytes nor times
depend on them, and no class need be factored for it. `--classes 1000 --sizes 64` restricts the table.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Sequence
from itertools import product

import torch
from torch import Tensor

from adagauss.core.gaussians import CovarianceKind, new_bank
from adagauss.core.linalg import Whitening
from adagauss.parts.classifiers import BayesScorer, Placed, SharedBayesScorer

from .measure import best_times

CLASSES, SIZES = (1_000, 5_000, 21_841), (64, 512)
KINDS: tuple[CovarianceKind, ...] = ("shared", "full")
LIMIT = 4 * 2**30
BATCH, ROUNDS = 64, 5


def memory_bytes(kind: CovarianceKind, classes: int, size: int) -> int:
    """Bytes of the statistics, float64: what a file holds."""
    bank = new_bank(size, kind)
    rows = 1 if kind == "shared" else classes
    return 8 * (classes * (1 + size) + rows * bank.form.width)


def scorer_bytes(kind: CovarianceKind, classes: int, size: int) -> int:
    """Bytes of what scores are made with, float32."""
    per_class = {"shared": size + 1, "full": size * size + size + 1}
    return 4 * classes * per_class[kind]


def scorer(kind: CovarianceKind, classes: int, size: int) -> Placed:
    """Bayes' rule with random numbers."""
    bias = torch.zeros(classes)
    if kind == "shared":
        return SharedBayesScorer(torch.randn(size), torch.randn(classes, size), bias, None, False)
    dense = Whitening(torch.rand(classes, size, size), torch.rand(classes, size), bias)
    return BayesScorer(dense, bias, None, False)


def row(kind: CovarianceKind, classes: int, size: int, points: Tensor, head: Callable[[Tensor], Tensor]) -> str:
    """One line of the table."""
    kept, used = memory_bytes(kind, classes, size), scorer_bytes(kind, classes, size)
    start = f"| {classes:,} | {size} | {kind} | {_mebibytes(kept)} | {_mebibytes(used)} |"
    if kept + used > LIMIT:
        return f"{start} – | – | does not fit into 4 GiB, skipped |"
    rule = scorer(kind, classes, size)
    with torch.inference_mode():
        ours, linear = best_times([lambda: rule(points), lambda: head(points)], ROUNDS)
    times = [1e6 * seconds / len(points) for seconds in (ours, linear)]
    return f"{start} {times[0]:.1f} | {times[1]:.1f} | {ours / linear:.2f} |"


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, nargs="+", default=CLASSES)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    chosen = parser.parse_args(arguments)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}, batches of {BATCH}\n")
    print("| C | S | covariance | memory, MiB | scorer, MiB | µs per image | linear head, µs | ratio |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for size, classes in product(chosen.sizes, chosen.classes):
        points, head = torch.randn(BATCH, size), torch.nn.Linear(size, classes)
        for kind in KINDS:
            print(row(kind, classes, size, points, head), flush=True)


if __name__ == "__main__":
    main()
