"""Running sums in strips, compared with the plain form: a whole float64 matrix, factored as a whole."""

from __future__ import annotations

import torch
from torch import Tensor

from adagauss.analytic.moments import MomentSums
from adagauss.analytic.ridge_lda import Ridge
from adagauss.core.linalg import solve_ridge

from .measure import Ratio, best_times, mebibytes, milliseconds

WIDTH, IMAGES, CLASSES = 4096, 2048, 100
STRENGTH = 0.003


@torch.inference_mode()
def run() -> list[Ratio]:
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(IMAGES) % CLASSES
    features = (
        torch.randn(IMAGES, WIDTH, generator=generator) + torch.randn(CLASSES, WIDTH, generator=generator)[targets]
    )
    gram = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    sums = MomentSums(WIDTH, CLASSES).add_(features, targets)
    exact = features.double()
    whole, right = exact.mT @ exact, sums.cross
    shift = STRENGTH * float(whole.diagonal().mean())
    expected = solve_ridge(whole, right, shift)
    difference = Ridge(STRENGTH * int(sums.images)).solve(sums).weight - expected
    assert difference.norm() < 1e-3 * expected.norm()

    def add_whole() -> Tensor:
        return gram.addmm_(exact.mT, exact)

    def add_strips() -> MomentSums:
        return spare.add_(features, targets)

    def solve_whole() -> Tensor:
        return solve_ridge(whole, right, shift)

    def solve_strips() -> Tensor:
        return Ridge(STRENGTH * int(sums.images)).solve(sums).weight

    spare = MomentSums(WIDTH, CLASSES)
    add_slow, add_fast = best_times([add_whole, add_strips], rounds=3)
    solve_slow, solve_fast = best_times([solve_whole, solve_strips], rounds=3)
    return [
        Ratio(
            f"adding {IMAGES:,} images of {WIDTH:,} features to the sums",
            milliseconds(add_slow),
            milliseconds(add_fast),
            add_slow / add_fast,
            ">= 1.5",
        ),
        Ratio(
            f"ridge regression of {CLASSES} classes from them",
            milliseconds(solve_slow),
            milliseconds(solve_fast),
            solve_slow / solve_fast,
            ">= 1",
        ),
        Ratio(
            "what the sums take",
            mebibytes(whole.nbytes),
            mebibytes(sums.gram.nbytes),
            whole.nbytes / sums.gram.nbytes,
            ">= 1.5",
        ),
    ]
