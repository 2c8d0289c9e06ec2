"""Streaming moments of features, from which ridge regression and LDA are solved in closed form.

Symmetric matrices of many thousand rows are stored as the strips of their upper triangle.

Strip k holds rows kb..kb+b of the matrix from column kb on; all strips lie one after the other in one vector of about
W²/2 numbers. Everything works on strips in place, so a factorisation needs no more memory than the matrix.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.core.linalg import summed_columns
from adagauss.core.state import ClassMap, State
from adagauss.errors import ConfigError, DataError

BLOCK, OLD_BLOCK = 256, 1024
"""Rows of a strip, now and in files of version 0.2.0: large enough for fast products, small enough that little below
the diagonal is kept."""
PRODUCT_ROUNDING = 1e-4
"""Rounding of features and products may break an inequality that holds for exact sums by this share."""


def packed_size_strips(width: int, block: int = BLOCK) -> int:
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


def placed(matrix: list[Tensor]) -> Iterator[tuple[int, int, Tensor]]:
    """Each strip, with its first row and the row after its last one."""
    start = 0
    for strip in matrix:
        yield start, start + len(strip), strip
        start += len(strip)


def add_products(matrix: list[Tensor], rows: Tensor, weight: float = 1.0) -> None:
    """A ← A + weight·XᵀX, products in the precision of X and sums in that of A."""
    for start, stop, strip in placed(matrix):
        left, right = rows[:, start:stop].mT, rows[:, start:]
        if rows.dtype == strip.dtype:
            strip.addmm_(left, right, alpha=weight)
        else:
            strip.add_(left @ right, alpha=weight)


def add_diagonal(matrix: list[Tensor], amount: Tensor) -> None:
    """A ← A + diag(amount); one number, or one for each row."""
    amounts = amount.expand(sum(map(len, matrix)))
    for start, stop, strip in placed(matrix):
        strip.diagonal().add_(amounts[start:stop].to(strip))


def bound_products(matrix: list[Tensor], before: Tensor) -> None:
    """Cut |A_ij| at √(A_ii·A_jj), which no sum of products exceeds (Cauchy and Schwarz), where it does by rounding.

    ``before`` is the diagonal before images were removed, whose rounding is still there; what exceeds more, stays.
    """
    roots = diagonal(matrix).double().clamp_min(0).sqrt()
    for start, stop, strip in placed(matrix):
        most = torch.outer(roots[start:stop], roots[start:]).to(strip)
        cut = strip.clamp(-most, most)
        strip.copy_(torch.where((strip - cut).abs() <= PRODUCT_ROUNDING * float(before.max()), cut, strip))


def diagonal(matrix: list[Tensor]) -> Tensor:
    """The diagonal of A."""
    return torch.cat([strip.diagonal() for strip in matrix])


def square_norm(matrix: list[Tensor], factors: Tensor) -> float:
    """Sum of all squared entries of diag(f)·A·diag(f)."""
    squares, total = factors.square(), 0.0
    for start, stop, strip in placed(matrix):
        weights = squares[start:].clone()
        weights[len(strip) :] *= 2  # what lies right of the diagonal block also lies below it
        total += float(squares[start:stop] @ strip.square() @ weights)
    return total


def some_rows(matrix: list[Tensor], rows: Tensor) -> Tensor:
    """Whole rows of A, of which what lies below the diagonal blocks is mirrored."""
    found = matrix[0].new_zeros(len(rows), sum(map(len, matrix)))
    for start, stop, strip in placed(matrix):
        here, later = (rows >= start) & (rows < stop), rows >= stop
        found[here, start:] = strip[rows[here] - start]
        found[later, start:stop] = strip.index_select(1, rows[later] - start).mT
    return found


def copy_part(matrix: list[Tensor], start: int, part: list[Tensor]) -> None:
    """Copy A[s:s+w, s:s+w] into the strips of a w × w matrix, s = ``start``."""
    width = sum(map(len, part))
    for first, last, strip in placed(part):
        strip.copy_(some_rows(matrix, torch.arange(start + first, start + last))[:, start + first : start + width])


def multiply(matrix: list[Tensor], right: Tensor) -> Tensor:
    """A·V."""
    product = torch.zeros_like(right)
    for start, stop, strip in placed(matrix):
        product[start:stop] += strip @ right[start:]
        product[stop:] += strip[:, len(strip) :].mT @ right[start:stop]
    return product


def factorise(matrix: list[Tensor]) -> bool:
    """A ← U with A = UᵀU, strip by strip; False where A is not positive definite in this precision."""
    for index, strip in enumerate(matrix):
        size = len(strip)
        lower, info = torch.linalg.cholesky_ex(strip[:, :size])
        if int(info) != 0:
            return False
        strip[:, :size] = lower.mT
        right = strip[:, size:]
        right.copy_(torch.linalg.solve_triangular(lower, right, upper=False))
        add_products(matrix[index + 1 :], right, -1)
    return True


def solve_lower(factor: list[Tensor], right: Tensor) -> Tensor:
    """U⁻ᵀ·V from the strips of U, downwards."""
    solution = right.clone()
    for start, stop, strip in placed(factor):
        upper = strip[:, : len(strip)]
        solution[start:stop] = torch.linalg.solve_triangular(upper.mT, solution[start:stop], upper=False)
        solution[stop:] -= strip[:, len(strip) :].mT @ solution[start:stop]
    return solution


def solve_factorised(factor: list[Tensor], right: Tensor) -> Tensor:
    """A⁻¹·V from the strips of U: Uᵀy = V downwards, then Ux = y upwards."""
    solution = solve_lower(factor, right)
    for start, stop, strip in reversed([*placed(factor)]):
        known = solution[start:stop] - strip[:, len(strip) :] @ solution[stop:]
        solution[start:stop] = torch.linalg.solve_triangular(strip[:, : len(strip)], known, upper=True)
    return solution


def column_products(one: Tensor, other: Tensor) -> Tensor:
    """(G, k, l) scalar products of the columns of each group, of (width, G, k) and (width, G, l), in float64."""
    products: Tensor = torch.einsum("sgk,sgl->gkl", one, other)
    return products.double()


ROWS = 4096
"""Images added at once, which bounds memory."""

LEFT_BY_ROUNDING = 1e-11
"""Share of its sum of squares that adding and removing leaves of a feature, if the images come with the same bits."""
LEFT_UNSEEN = 3e-5
"""The same with other bits, where no class shows how much it is: 1.3e-5 at most with EfficientNet-Lite0, in batches of
other sizes."""
LARGEST = 1e-6
"""Of the root of the largest number: sums of squares of so large features stay far from it."""
NOISE = 16.0
"""How often the share that is left of a sum may be left of a sum of squares; both are sums of random signs."""


class MomentSums(State):
    """A = Σxxᵀ, one column Σx per class, the number of images of each class, and Σx over all images.

    ``images`` counts all whose scatter is in A: more than the classes have together, where one was dropped.

    Adding is exact up to rounding and knows no order: tasks may come in any order and division, and sums of several
    machines are merged by adding them. Methods that change the sums end in ``_`` and return them; ``copy()`` first if
    the old sums are still needed. Images that were added can be taken away again.
    """

    dims: ClassVar[Mapping[str, str]] = {"gram": "p", "cross": "ec", "counts": "c", "total": "e", "images": ""}

    cross: Tensor
    counts: Tensor
    coordinates_of: int | None = None
    """Number of features, where these are sums over their coordinates in a smaller space; never saved."""

    def __init__(self, width: int, classes: int = 0) -> None:
        super().__init__(
            gram=torch.zeros(packed_size_strips(width), dtype=torch.float64),
            cross=torch.zeros(width, classes, dtype=torch.float64),
            counts=torch.zeros(classes, dtype=torch.long),
            total=torch.zeros(width, dtype=torch.float64),
            images=torch.zeros((), dtype=torch.long),
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        gram, width = state_dict.get(f"{prefix}gram", self.gram), state_dict.get(f"{prefix}total", self.total).numel()
        if gram.shape == (packed_size_strips(width, OLD_BLOCK),) != (packed_size_strips(width),):
            state_dict[f"{prefix}gram"] = new = gram.new_empty(packed_size_strips(width))
            copy_part(strips(gram, width, OLD_BLOCK), 0, strips(new, width))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def check(self) -> None:
        """Raise a `DataError` if these cannot be sums over images."""
        super().check()
        self.require(len(self.gram) == packed_size_strips(self.width), "its matrix does not belong to its features")
        self.require((self.counts >= 1) & (self.counts < 2**48), "a class has an image count below 1 or above 2**48")
        self.require(self.images >= self.counts.sum(), "the classes have more images than there are")
        if not self.width:
            return
        norms = diagonal(self.strips())
        self.require(norms >= -PRODUCT_ROUNDING * norms.max(), "a sum of squares is negative")
        norms = norms.clamp_min(0)
        # Cauchy and Schwarz, in place of a factorisation, which would take longer than learning.
        limits = (norms * (1 + PRODUCT_ROUNDING)).sqrt() + norms.max().sqrt() * PRODUCT_ROUNDING
        for start, stop, strip in placed(self.strips()):
            most = torch.outer(limits[start:stop], limits[start:])
            self.require(strip.abs() <= most, "its matrix is not a sum of products")
        counts = self.counts.double().sqrt()
        self.require(self.cross.abs() <= torch.outer(limits, counts), "the sum of a class does not fit its matrix")
        number = self.images.double().sqrt()
        self.require(self.total.abs() <= limits * number, "the sum over all images does not fit its matrix")

    def holds(self, amount: float) -> bool:
        """Whether A + amount·I is positive definite: no direction has lost more than this to images never added.

        This takes a copy of A in float64 and its Cholesky factorisation.
        """
        matrix = strips(self.gram.clone(), self.width)
        add_diagonal(matrix, self.total.new_tensor(amount))
        return factorise(matrix)

    @torch.no_grad()
    def clear_(self, before: Tensor, images: int) -> Self:
        """Make sums of images again of what is left after some were removed, up to rounding.

        ``before`` are the sums of squares over all ``images`` images. The features of an image differ by rounding from
        batch to batch. What that leaves of a feature that no other image has would count as much as a real one: such a
        feature is set to zero. Products exceed what squares allow by rounding, and are cut there.
        """
        norms = diagonal(self.strips())
        gone = norms.abs() <= self._rounding(before, (before - norms).clamp_min(0), images - int(self.images))
        for start, stop, strip in placed(self.strips()):
            strip[gone[start:stop]] = 0
            strip[:, gone[start:]] = 0
        bound_products(self.strips(), before)
        self.cross[gone], self.total[gone] = 0, 0
        return self

    def _rounding(self, before: Tensor, removed: Tensor, images: int) -> Tensor:
        """(width,) what may be left of sums of squares by rounding, after ``images`` with such squares were removed.

        The sums of classes whose images are all gone show it: Σδ is left of them where nothing should be, and of the
        squares then about 2xΣδ, with x² the mean of those removed. A feature in which Σδ happens to be small counts by
        what is usual.
        """
        left = self.cross[:, self.counts == 0].abs()
        if not left.shape[1] or images <= 0:
            return LEFT_UNSEEN * before
        share = left.amax(1) / (removed * images).sqrt().clamp_min(1e-300)
        usual = share[removed > 0].median() if bool((removed > 0).any()) else share.new_zeros(())
        return LEFT_BY_ROUNDING * before + NOISE * removed * torch.where(removed > 0, share.clamp_min(usual), 0.0)

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.total)

    @property
    def features(self) -> int:
        """Number of features that a trace is the sum over: the width, unless these are sums over coordinates."""
        return self.width if self.coordinates_of is None else self.coordinates_of

    @property
    def classes(self) -> int:
        """Number of classes, including those without images."""
        return len(self.counts)

    def copy(self) -> Self:
        """Sums that can be changed without changing these."""
        return copy.deepcopy(self)

    def strips(self) -> list[Tensor]:
        """The strips of A: views, so that changing them changes the sums."""
        return strips(self.gram, self.width)

    def variance(self) -> Tensor:
        """(width,) variance of each feature over all images of the classes."""
        number = self.counts.sum().clamp_min(1)
        return (diagonal(self.strips()) / number - (self.total / number).square()).clamp_min(0)

    def mean_square(self) -> Tensor:
        """(width,) mean of the square of each feature."""
        return diagonal(self.strips()) / self.images.clamp_min(1)

    def variance_within(self) -> Tensor:
        """(width,) variance of each feature about the means of the classes."""
        about = diagonal(self.strips()) - (self.cross.square() / self.counts.clamp_min(1)).sum(1)
        return about.clamp_min(0) / self.images.clamp_min(1)

    def part(self, start: int, stop: int) -> Self:
        """The sums over features ``start`` to ``stop`` alone."""
        some = type(self)(stop - start, self.classes).to(self.gram.device)
        copy_part(self.strips(), start, some.strips())
        some.cross, some.total = self.cross[start:stop].clone(), self.total[start:stop].clone()
        some.counts, some.images = self.counts.clone(), self.images.clone()
        return some

    @torch.no_grad()
    def add_(self, features: Tensor, targets: Tensor, classes: int | None = None) -> Self:
        """Add images: (N, width) features, one target per image, and the new number of classes."""
        self._check(features, targets)
        highest = int(targets.max()) + 1 if len(targets) else 0
        wanted = max(self.classes, highest if classes is None else classes)
        if highest > wanted:
            raise DataError(f"targets reach {highest - 1}, but there are {wanted} classes: number them from 0")
        self._grow(wanted)
        return self._change(features, targets, 1)

    @torch.no_grad()
    def remove_(self, features: Tensor, targets: Tensor) -> Self:
        """Forget images that were added, given again: the sums are then as if they had never come."""
        self._check(features, targets)
        if len(targets) and int(targets.max()) >= self.classes:
            raise DataError(f"targets reach {int(targets.max())}, but only {self.classes} classes were ever added")
        missing = torch.bincount(targets, minlength=self.classes).to(self.counts) > self.counts
        if bool(missing.any()):
            raise DataError(
                f"class {int(missing.nonzero()[0])} has fewer images in the sums than are to be removed: "
                "remove only images that were added"
            )
        return self._change(features, targets, -1)

    @torch.no_grad()
    def merge_(self, other: MomentSums, columns: Sequence[int] | None = None) -> Self:
        """Add what another learner has summed over the same features; ``columns`` are those of its classes here."""
        if other.width != self.width:
            raise DataError(f"sums over {other.width} features cannot be added to sums over {self.width}")
        place = list(range(other.classes) if columns is None else columns)
        self._grow(max(place, default=-1) + 1)
        self.gram += other.gram.to(self.gram)
        self.cross[:, place] += other.cross.to(self.cross)
        self.counts[place] += other.counts.to(self.counts)
        self.total += other.total.to(self.total)
        self.images += other.images.to(self.images)
        return self

    def regroup_(self, groups: ClassMap) -> Self:
        """Drop the classes in no group, and make one class of each group.

        Of a dropped class, its sum, its number of images and its mean in A go. What remains in A is the scatter of its
        images about their mean. Given its images, `remove_` leaves nothing.
        """
        kept = {column for group in groups for column in group}
        dropped = [column for column in range(self.classes) if column not in kept and int(self.counts[column])]
        if dropped:
            means = self.cross[:, dropped] / self.counts[dropped].double().sqrt()
            add_products(self.strips(), means.mT, -1)
            self.total -= self.cross[:, dropped].sum(1)
        self.cross, self.counts = summed_columns(self.cross, groups), summed_columns(self.counts, groups)
        return self

    def _change(self, features: Tensor, targets: Tensor, sign: int) -> Self:
        if len(targets) == 0:
            return self
        matrix = self.strips()
        for rows, labels in zip(torch.split(features, ROWS), torch.split(targets, ROWS), strict=True):
            rows = rows.to(self.gram.device)
            exact = rows.double()
            # In float64: float32 products lose the differences between similar images.
            add_products(matrix, exact, sign)
            # Class by class along rows: a product with one-hot labels would cost as much as A for many classes.
            present, places = torch.unique(labels.to(rows.device), return_inverse=True)
            sums = exact.new_zeros(len(present), self.width).index_add_(0, places, exact)
            self.cross[:, present] += sign * sums.mT
            self.total.add_(exact.sum(0), alpha=sign)
        self.counts += sign * torch.bincount(targets, minlength=self.classes).to(self.counts)
        self.images += sign * len(targets)
        return self

    def _grow(self, classes: int) -> None:
        new = classes - self.classes
        if new > 0:
            self.cross = F.pad(self.cross, (0, new))
            self.counts = F.pad(self.counts, (0, new))

    def _check(self, features: Tensor, targets: Tensor) -> None:
        if features.ndim != 2 or features.shape[1] != self.width:
            raise DataError(f"these sums take features of shape (images, {self.width}); got {tuple(features.shape)}")
        if targets.shape != features.shape[:1]:
            raise DataError(f"{len(features)} images but targets of shape {tuple(targets.shape)}: give one per image")
        if len(targets) and int(targets.min()) < 0:
            raise DataError("targets are numbers of classes and cannot be negative")
        if not bool(torch.isfinite(features).all()):
            raise DataError("features hold NaN or infinite numbers: sums would never recover from them")
        if len(features) and float(features.abs().max()) > LARGEST * torch.finfo(torch.float64).max ** 0.5:
            raise DataError("features are too large for their squares to be summed: scale them down")


LEAST_VARIANCE = 1e-4
"""Added to variances, relative to the usual one: features that hardly move are not blown up."""
VARIANCE_ROUNDING = 1e-6
"""Added to variances, relative to the mean square of the feature: products of float32 features are not more exact."""
STILL_FACTOR = 1e-3
"""Of a feature that never moves, in units of the usual one: what is left of it is rounding."""


class Linear(NamedTuple):
    """Scores xW + b, one column per class."""

    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        return torch.addmm(self.bias.to(features), features, self.weight.to(features))


def unit_deviation(sums: MomentSums, features: slice = slice(None)) -> Tensor:
    """Factors that bring all features, or some, to a deviation of 1 within classes.

    The deviations come from the sums, so they are those of everything seen and not of the first task. Where no class
    has two images, the deviations over all images stand in. A feature that is the same in all images, such as that of a
    colour which no image has, counts almost nothing.
    """
    variance, overall = sums.variance_within()[features], sums.variance()[features]
    if not float(variance.sum()) > 0:
        variance = overall
    rounding = VARIANCE_ROUNDING * sums.mean_square()[features]
    moves = overall > rounding
    variance = variance + rounding
    usual = variance[moves].median() if bool(moves.any()) else variance.new_ones(())
    return torch.where(moves, (variance + LEAST_VARIANCE * usual).rsqrt(), STILL_FACTOR * usual.rsqrt())


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


def row_space(sums: MomentSums, scale: Tensor) -> Tensor | None:
    """(rank, width) R with RᵀR = SAS, S = diag(scale), the space that few images span; None for more images.

    A Cholesky factorisation that takes up the features of which most is left, some at a time, and stops where nothing
    is left but rounding. It reads only the rows of A that it takes up: 2·width·rank² operations, and not width³/3.
    """
    most, squares = int(sums.images), scale.square()
    if not 0 < most <= min(MOST_IMAGES, SHARE * sums.width):
        return None
    moving = float((sums.variance() * squares).mean())
    if float((sums.mean_square() * squares).mean()) > FAR_FROM_ZERO * moving:
        return None
    moving *= most
    space, number = scale.new_empty(most, len(scale)), 0
    left = diagonal(sums.strips()) * squares
    while number < most:
        found = space[:number]
        chosen = left.topk(min(PIVOTS, len(left), most - number)).indices
        chosen = chosen[left[chosen] > NOTHING * moving]
        if len(chosen) == 0:
            break
        rows = some_rows(sums.strips(), chosen) * torch.outer(scale[chosen], scale)
        rows = torch.addmm(rows, found[:, chosen].mT, found, alpha=-1)
        values, vectors = torch.linalg.eigh(rows[:, chosen])
        strong = values > ALIKE * values[-1]
        last = number + int(strong.sum())
        new = torch.mm((vectors[:, strong] / values[strong].sqrt()).mT, rows, out=space[number:last])
        left, number = left - new.square().sum(0), last
    return space[:number] if number and float(left.amax()) <= MOST_LEFT * moving else None


def in_row_space(
    sums: MomentSums, rows: Tensor, scale: Tensor, weights: Tensor, features: int
) -> tuple[MomentSums, Tensor] | None:
    """The sums of z = xB, the coordinates of features xSU in the `row_space`, and B; None where precision is lost.

    ``weights`` are the diagonal of U, not zero for so many ``features``. With LLᵀ = RU²Rᵀ, the rows of L⁻¹RU are an
    orthonormal basis: lengths and angles are those of xSU, so all rules give the same scores.
    """
    weighed = rows * weights
    gram = weighed @ weighed.mT
    lower, info = torch.linalg.cholesky_ex(gram)
    if int(info) != 0 or bool((lower.diagonal().square() < LEAST_PIVOT * gram.diagonal()).any()):
        return None
    basis = (torch.linalg.solve_triangular(lower, weighed, upper=False) * (scale * weights)).mT
    inside = MomentSums(len(lower), sums.classes).to(lower.device)
    inside.coordinates_of = features
    add_products(inside.strips(), lower)
    inside.cross, inside.total = basis.mT @ sums.cross, basis.mT @ sums.total
    inside.counts, inside.images = sums.counts, sums.images
    return inside, basis


COLUMNS, SCORES = 9, 10
"""Matrices with a column for each class held at once: of features, and of scores of the leave-one-out sample."""


def needed_bytes(width: int, classes: int, rows: int = 0) -> int:
    """Memory that a task takes at its peak with ``width`` features, of which the packed matrices take the most.

    The sums before and after it (the old ones stay until the task is done) and one factor of them; columns for each
    class in the sums before and after, and in all steps that refine W; and ``rows`` of features of the leave-one-out
    sample, unchanged, shifted and multiplied by the inverse of the factor, with the scores that rules give them.
    """
    return 8 * (3 * packed_size_strips(width) + COLUMNS * width * classes + rows * (3 * width + SCORES * classes))


def check_fits(width: int, classes: int, available: int | None, setting: str, rows: int = 0) -> None:
    """Refuse sums that do not fit into the memory ``available``; None is unknown, and nothing is refused.

    ``setting`` is the one that decides the number of features.
    """
    needed = needed_bytes(width, classes, rows)
    if available is not None and needed > available:
        most = bisect_right(range(1, width), available, key=lambda fewer: needed_bytes(fewer, classes, rows))
        advice = f"change {setting}; {most} features would fit" if most else "free some memory, or teach fewer classes"
        raise ConfigError(
            f"sums over {width} features and {classes} classes take {needed / 2**20:,.1f} MiB of memory, and "
            f"{available / 2**20:,.1f} MiB are available: {advice}"
        )
