"""The space that the features of few images span, found from their sums alone: rules cost less in its coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from adagauss.sums.linear import Linear
from adagauss.sums.packed import diagonal, some_rows
from adagauss.sums.totals import FeatureSums

MOST_IMAGES = 1024
"""More images are not worth a space of their own, and its rows would need memory of their own."""
SHARE = 0.4
"""Of the features: with more images than that, finding the space takes as long as it saves."""
PIVOTS = 64
"""Features taken up at once."""
ALIKE = 1e-3
"""What is left of features that were taken up together, relative to the most: directions with less wait."""
NOTHING = 1e-6
"""What is left of a feature, relative to the mean of all, that is rounding."""
FAR_FROM_ZERO = 1e4
"""Mean square of features, in units of their variance, of which sums of float32 features are too rough for this."""
MOST_LEFT = 1e-3
"""The same, that may be left of a feature in the end: with more, sums of float32 features are not exact enough."""
LEAST_PIVOT = 1e-10
"""Share of a direction that others must not explain: features of the weighed groups alone may span less than all do."""


def spanning_rows(matrix: list[Tensor], scale: Tensor, most: int, moving: float) -> Tensor | None:
    """R of at most ``most`` rows with RᵀR = SAS, S = diag(scale); None where it would take more.

    ``moving`` is the mean of how much the scaled features move, summed over images: what is left is compared with it.

    A Cholesky factorisation that takes up the features of which most is left, some at a time, and stops where nothing
    is left but rounding. It reads only the rows of A that it takes up: 2·width·rank² operations, and not width³/3.
    """
    space, number = scale.new_empty(most, len(scale)), 0
    left = diagonal(matrix).double() * scale.square()
    least = NOTHING * moving
    while number < most:
        found = space[:number]
        chosen = left.topk(min(PIVOTS, len(left), most - number)).indices
        chosen = chosen[left[chosen] > least]
        if len(chosen) == 0:
            break
        rows = some_rows(matrix, chosen).double()
        rows = torch.addmm(rows * torch.outer(scale[chosen], scale), found[:, chosen].mT, found, alpha=-1)
        values, vectors = torch.linalg.eigh(rows[:, chosen])
        strong = values > ALIKE * values[-1]
        last = number + int(strong.sum())
        new = torch.mm((vectors[:, strong] / values[strong].sqrt()).mT, rows, out=space[number:last])
        left, number = left - new.square().sum(0), last
    return space[:number] if float(left.amax()) <= MOST_LEFT * moving else None


class Place(NamedTuple):
    """Coordinates for one weight of each group of features, and the sums in them."""

    sums: FeatureSums
    into: Tensor
    """(rank, rank) lower factor L."""
    squares: Sequence[float]
    """u² of each group."""


class Span:
    """The space that the features of few images span, at any weights of groups of features.

    With SAS = RᵀR and U the weights of the features xS, all that a rule needs of xSU happens in the space of the rows
    of RU. With LLᵀ = RU²Rᵀ, z = L⁻¹RU²Sx are coordinates in an orthonormal basis of it: lengths and angles are those of
    xSU, and the sum of zzᵀ is LᵀL. Ridge regressions and discriminant analyses of z give the same scores.
    """

    def __init__(self, sums: FeatureSums, rows: Tensor, scale: Tensor, sizes: Sequence[int]) -> None:
        self.sums = sums
        self.scale = scale
        self.rows = torch.split(rows, list(sizes), 1)
        self.products = [part @ part.mT for part in self.rows]
        self._sums = self._before(torch.cat([sums.cross, sums.total.unsqueeze(1)], 1))
        self._seen: tuple[Tensor, list[Tensor]] | None = None

    @classmethod
    def of(cls, sums: FeatureSums, scale: Tensor, sizes: Sequence[int]) -> Self | None:
        """That of features in groups of some sizes; None where there are too many images."""
        images = int(sums.images)
        if not 0 < images <= min(MOST_IMAGES, SHARE * sums.width):
            return None
        moving = float((sums.variance() * scale.square()).mean())
        if float((sums.mean_square() * scale.square()).mean()) > FAR_FROM_ZERO * moving:
            return None
        rows = spanning_rows(sums.strips(), scale, images, moving * images)
        return cls(sums, rows, scale, sizes) if rows is not None and len(rows) else None

    def at(self, weights: Sequence[float], features: int) -> Place | None:
        """The coordinates for a weight of each group, which weigh so many features; None where precision is lost."""
        squares = [weight**2 for weight in weights]
        gram = _weighed(self.products, squares)
        lower, info = torch.linalg.cholesky_ex(gram)
        if int(info) != 0 or bool((lower.diagonal().square() < LEAST_PIVOT * gram.diagonal()).any()):
            return None
        sums = FeatureSums(len(lower), self.sums.classes).to(lower.device)
        sums.coordinates_of = features
        matrix = lower.mT @ lower
        start = 0
        for strip in sums.strips():
            strip.copy_(matrix[start : start + len(strip), start:])
            start += len(strip)
        found = _solved(lower, _weighed(self._sums, squares))
        sums.cross, sums.total = found[:, :-1].contiguous(), found[:, -1].contiguous()
        sums.counts, sums.images = self.sums.counts, self.sums.images
        return Place(sums, lower, squares)

    def coordinates(self, views: Tensor, place: Place) -> Tensor:
        """(…, width) features as coordinates; what does not depend on weights is kept for the next ones."""
        if self._seen is None or self._seen[0] is not views:
            self._seen = views, self._before(views.flatten(0, -2).mT.double())
        found = _solved(place.into, _weighed(self._seen[1], place.squares))
        return found.mT.reshape(*views.shape[:-1], -1).to(views.dtype)

    def linear(self, solution: Linear, place: Place) -> Linear:
        """Scores of coordinates as scores of features."""
        inner = torch.linalg.solve_triangular(place.into.mT, solution.weight.double(), upper=True)
        parts = [square * (rows.mT @ inner) for square, rows in zip(place.squares, self.rows, strict=True)]
        return Linear((torch.cat(parts) * self.scale.unsqueeze(1)).float(), solution.bias)

    def _before(self, columns: Tensor) -> list[Tensor]:
        """RSx, group by group."""
        pieces = torch.split(columns * self.scale.unsqueeze(1), [part.shape[1] for part in self.rows])
        return [rows @ piece for rows, piece in zip(self.rows, pieces, strict=True)]


def _weighed(parts: Sequence[Tensor], squares: Sequence[float]) -> Tensor:
    """The sum of what each group gives, times the square of its weight."""
    total = parts[0] * squares[0]
    for part, square in zip(parts[1:], squares[1:], strict=True):
        total = total + part * square
    return total


def _solved(lower: Tensor, right: Tensor) -> Tensor:
    """L⁻¹V."""
    solution: Tensor = torch.linalg.solve_triangular(lower, right, upper=False)
    return solution
