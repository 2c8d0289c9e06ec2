"""Symmetric matrices of many thousand rows, of which only the upper triangle is kept, in strips.

Strip k holds rows kb..kb+b of the matrix from column kb on; all strips lie one after the other in one vector of about
W²/2 numbers. Everything works on strips in place, so a factorisation needs no more memory than the matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 1024
"""Rows of a strip: large enough for fast products, small enough that little below the diagonal is kept."""
ROUNDING = 1e-4
"""Rounding of features and products may break an inequality that holds for exact sums by this share."""


def packed_numbers(width: int, block: int = BLOCK) -> int:
    """Numbers in all strips of a width × width matrix."""
    return sum(min(block, width - start) * (width - start) for start in range(0, width, block))


def strips(packed: Tensor, width: int, block: int = BLOCK) -> list[Tensor]:
    """Views of the strips in a vector of `packed_numbers`."""
    views, offset = [], 0
    for start in range(0, width, block):
        rows, columns = min(block, width - start), width - start
        views.append(packed[offset : offset + rows * columns].view(rows, columns))
        offset += rows * columns
    return views


def add_products(matrix: list[Tensor], rows: Tensor, weight: float = 1.0) -> None:
    """A ← A + weight·XᵀX, products in the precision of X and sums in that of A."""
    start = 0
    for strip in matrix:
        left, right = rows[:, start : start + len(strip)].mT, rows[:, start:]
        if rows.dtype == strip.dtype:
            strip.addmm_(left, right, alpha=weight)
        else:
            strip.add_(left @ right, alpha=weight)
        start += len(strip)


def add_diagonal(matrix: list[Tensor], amount: Tensor) -> None:
    """A ← A + diag(amount); one number, or one for each row."""
    pieces = torch.split(amount.expand(sum(map(len, matrix))), [len(strip) for strip in matrix])
    for strip, piece in zip(matrix, pieces, strict=True):
        strip.diagonal().add_(piece.to(strip))


def bound_products(matrix: list[Tensor], before: Tensor) -> None:
    """Cut |A_ij| at √(A_ii·A_jj), which no sum of products exceeds (Cauchy and Schwarz), where it does by rounding.

    ``before`` is the diagonal before images were removed, whose rounding is still there; what exceeds more, stays.
    """
    roots, first = diagonal(matrix).double().clamp_min(0).sqrt(), 0
    for strip in matrix:
        most = torch.outer(roots[first : first + len(strip)], roots[first:]).to(strip)
        cut = strip.clamp(-most, most)
        strip.copy_(torch.where((strip - cut).abs() <= ROUNDING * float(before.max()), cut, strip))
        first += len(strip)


def diagonal(matrix: list[Tensor]) -> Tensor:
    """The diagonal of A."""
    return torch.cat([strip.diagonal() for strip in matrix])


def square_norm(matrix: list[Tensor]) -> float:
    """Sum of all squared entries of A."""
    total = 0.0
    for strip in matrix:
        inside, beside = strip[:, : len(strip)], strip[:, len(strip) :]
        total += float(inside.square().sum() + 2 * beside.square().sum())
    return total


def some_rows(matrix: list[Tensor], rows: Tensor) -> Tensor:
    """Whole rows of A, of which what lies below the diagonal blocks is mirrored."""
    found = matrix[0].new_zeros(len(rows), sum(map(len, matrix)))
    start = 0
    for strip in matrix:
        stop = start + len(strip)
        here, later = (rows >= start) & (rows < stop), rows >= stop
        found[here, start:] = strip[rows[here] - start]
        found[later, start:stop] = strip.index_select(1, rows[later] - start).mT
        start = stop
    return found


def copy_block(matrix: list[Tensor], begin: int, into: list[Tensor]) -> None:
    """Copy the square block of A that begins at row and column ``begin`` into the strips of a matrix of its size."""
    width = sum(map(len, into))
    first = 0
    for target in into:
        start = 0
        for strip in matrix:
            low, high = max(start, begin + first), min(start + len(strip), begin + first + len(target))
            if low < high:
                left = max(start, begin + first)
                rows = strip[low - start : high - start, left - start : begin + width - start]
                target[low - begin - first : high - begin - first, left - begin - first :] = rows
            start += len(strip)
        # Rows of a later strip begin behind the diagonal block: what is missing is mirrored.
        square = target[:, : len(target)]
        square.copy_(square.triu() + square.triu(1).mT)
        first += len(target)


def multiply(matrix: list[Tensor], right: Tensor) -> Tensor:
    """A·V."""
    product = torch.zeros_like(right)
    start = 0
    for strip in matrix:
        stop = start + len(strip)
        product[start:stop] += strip @ right[start:]
        product[stop:] += strip[:, len(strip) :].mT @ right[start:stop]
        start = stop
    return product


def factorise(matrix: list[Tensor]) -> bool:
    """A ← U with A = UᵀU, strip by strip; False where A is not positive definite in this precision."""
    for index, strip in enumerate(matrix):
        size = len(strip)
        lower, info = torch.linalg.cholesky_ex(strip[:, :size])
        if int(info) != 0:
            return False
        strip[:, :size] = lower.mT
        beside = strip[:, size:]
        beside.copy_(torch.linalg.solve_triangular(lower, beside, upper=False))
        start = 0
        for later in matrix[index + 1 :]:
            left = beside[:, start : start + len(later)].mT
            later.addmm_(left, beside[:, start:], alpha=-1)
            start += len(later)
    return True


def solve_lower(factor: list[Tensor], right: Tensor) -> Tensor:
    """U⁻ᵀ·V from the strips of U, downwards."""
    solution = right.clone()
    start = 0
    for strip in factor:
        stop = start + len(strip)
        upper = strip[:, : len(strip)]
        solution[start:stop] = torch.linalg.solve_triangular(upper.mT, solution[start:stop], upper=False)
        solution[stop:] -= strip[:, len(strip) :].mT @ solution[start:stop]
        start = stop
    return solution


def solve_factorised(factor: list[Tensor], right: Tensor) -> Tensor:
    """A⁻¹·V from the strips of U: Uᵀy = V downwards, then Ux = y upwards."""
    solution = solve_lower(factor, right)
    start = len(solution)
    for strip in reversed(factor):
        stop, start = start, start - len(strip)
        known = solution[start:stop] - strip[:, len(strip) :] @ solution[stop:]
        solution[start:stop] = torch.linalg.solve_triangular(strip[:, : len(strip)], known, upper=True)
    return solution
