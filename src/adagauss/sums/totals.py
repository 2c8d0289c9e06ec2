"""The sums themselves: what is kept of all images ever seen, whatever their order and division into tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.core.linalg import summed_columns
from adagauss.core.state import Groups, State
from adagauss.errors import DataError
from adagauss.sums.packed import (
    BLOCK,
    ROUNDING,
    add_diagonal,
    add_products,
    bound_products,
    copy_block,
    diagonal,
    factorise,
    packed_numbers,
    strips,
)

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


class FeatureSums(State):
    """A = Σxxᵀ, one column Σx per class, the number of images of each class, and Σx over all images.

    ``images`` counts all whose scatter is in A: more than the classes have together, where one was dropped.

    Adding is exact up to rounding and knows no order: tasks may come in any order and division, and sums of several
    machines are merged by adding them. Methods that change the sums end in ``_`` and return them; ``copy()`` first if
    the old sums are still needed. Images that were added can be taken away again.
    """

    axes: ClassVar[Mapping[str, str]] = {"gram": "p", "cross": "ec", "counts": "c", "total": "e", "images": ""}
    contents: ClassVar[str] = (
        "the sum of the products of all features, over the images of all classes together; the number of images and "
        "the sum of the features of each class"
    )

    coordinates_of: int | None = None
    """Number of features, where these are sums over their coordinates in a smaller space; never saved."""

    def __init__(self, width: int, classes: int = 0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.register_buffer("gram", torch.zeros(packed_numbers(width), dtype=dtype))
        self.register_buffer("cross", torch.zeros(width, classes, dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.long))
        self.register_buffer("total", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("images", torch.zeros((), dtype=torch.long))
        self.gram: Tensor
        self.cross: Tensor
        self.counts: Tensor
        self.total: Tensor
        self.images: Tensor

    def check(self) -> None:
        """Raise a `DataError` if these cannot be sums over images."""
        super().check()
        self.require(len(self.gram) == packed_numbers(self.width), "its matrix does not belong to its features")
        self.require((self.counts >= 1) & (self.counts < 2**48), "a class has an image count below 1 or beyond belief")
        self.require(self.images >= self.counts.sum(), "the classes have more images than there are")
        if not self.width:
            return
        norms = diagonal(self.strips()).double()
        self.require(norms >= -ROUNDING * norms.max(), "a sum of squares is negative")
        norms = norms.clamp_min(0)
        # Cauchy and Schwarz, in place of a factorisation, which would take longer than learning.
        limits = (norms * (1 + ROUNDING)).sqrt() + norms.max().sqrt() * ROUNDING
        for first, strip in zip(range(0, self.width, BLOCK), self.strips(), strict=True):
            rows, columns = limits[first : first + len(strip)], limits[first:]
            self.require(strip.double().abs() <= torch.outer(rows, columns), "its matrix is no sum of products")
        counts = self.counts.double().sqrt()
        self.require(self.cross.abs() <= torch.outer(limits, counts), "the sum of a class does not fit its matrix")
        number = self.images.double().sqrt()
        self.require(self.total.abs() <= limits * number, "the sum over all images does not fit its matrix")

    def holds(self, amount: float) -> bool:
        """Whether A + amount·I is positive definite: no direction has lost more than this to images never added.

        This takes a copy of A in float64 and its Cholesky factorisation.
        """
        matrix = strips(self.gram.to(torch.float64, copy=True), self.width)
        add_diagonal(matrix, self.total.new_tensor(amount))
        return factorise(matrix)

    @torch.no_grad()
    def clear_(self, before: Tensor, images: int) -> Self:
        """Make sums of images again of what is left after some were removed, up to rounding.

        ``before`` are the sums of squares over all ``images`` images. The features of an image differ by rounding from
        batch to batch. What that leaves of a feature that no other image has would count as much as a real one: such a
        feature is set to zero. Products exceed what squares allow by rounding, and are cut there.
        """
        norms = diagonal(self.strips()).double()
        gone = norms.abs() <= self._rounding(before, (before - norms).clamp_min(0), images - int(self.images))
        for first, strip in zip(range(0, self.width, BLOCK), self.strips(), strict=True):
            strip[gone[first : first + len(strip)]] = 0
            strip[:, gone[first:]] = 0
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
        copied = type(self)(0, 0, self.gram.dtype)
        for name, values in self.named_buffers():
            setattr(copied, name, values.clone())
        return copied

    def empty_like(self, classes: int) -> Self:
        """Sums over no image of so many classes, to be merged with these."""
        return type(self)(self.width, classes, self.gram.dtype).to(self.gram.device)

    def strips(self) -> list[Tensor]:
        """The strips of A: views, so that changing them changes the sums."""
        return strips(self.gram, self.width)

    def variance(self) -> Tensor:
        """(width,) variance of each feature over all images of the classes."""
        number = self.counts.sum().clamp_min(1)
        return (diagonal(self.strips()).double() / number - (self.total / number).square()).clamp_min(0)

    def mean_square(self) -> Tensor:
        """(width,) mean of the square of each feature."""
        return diagonal(self.strips()).double() / self.images.clamp_min(1)

    def variance_within(self) -> Tensor:
        """(width,) variance of each feature about the means of the classes."""
        about = diagonal(self.strips()).double() - (self.cross.square() / self.counts.clamp_min(1)).sum(1)
        return about.clamp_min(0) / self.images.clamp_min(1)

    def part(self, start: int, stop: int) -> Self:
        """The sums over features ``start`` to ``stop`` alone."""
        some = type(self)(stop - start, self.classes, self.gram.dtype).to(self.gram.device)
        copy_block(self.strips(), start, some.strips())
        some.cross, some.total = self.cross[start:stop].clone(), self.total[start:stop].clone()
        some.counts, some.images = self.counts.clone(), self.images.clone()
        return some

    @torch.no_grad()
    def add_(self, features: Tensor, targets: Tensor, classes: int | None = None) -> Self:
        """Take in images: (N, width) features, one target per image, and how many classes there are from now on."""
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
    def merge_(self, other: FeatureSums, columns: Sequence[int] | None = None) -> Self:
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

    def drop_(self, target: int) -> Self:
        """Forget class ``target`` as far as that goes without its images.

        Its sum and its number of images go, and with them its mean from A. What remains in A is the scatter of its
        images about their mean, mixed with that of all other classes. Given its images, `remove_` leaves nothing.
        """
        if not 0 <= target < self.classes:
            raise DataError(f"there is no class {target} to drop: classes are 0..{self.classes - 1}")
        self._without([target])
        kept = [index for index in range(self.classes) if index != target]
        self.cross, self.counts = self.cross[:, kept].contiguous(), self.counts[kept]
        return self

    def regroup_(self, groups: Groups) -> Self:
        """Drop the classes in no group, and make one class of each group."""
        kept = {column for group in groups for column in group}
        self._without([column for column in range(self.classes) if column not in kept])
        self.cross, self.counts = summed_columns(self.cross, groups), summed_columns(self.counts, groups)
        return self

    def _without(self, columns: Sequence[int]) -> None:
        """Take the means of classes out of A and of the total; their columns stay."""
        there = [column for column in columns if int(self.counts[column])]
        if there:
            means = self.cross[:, there] / self.counts[there].double().sqrt()
            add_products(self.strips(), means.mT.to(self.gram), -1)
            self.total -= self.cross[:, there].sum(1)

    def _change(self, features: Tensor, targets: Tensor, sign: int) -> Self:
        if len(targets) == 0:
            return self
        matrix = self.strips()
        for rows, labels in zip(torch.split(features, ROWS), torch.split(targets, ROWS), strict=True):
            rows = rows.to(self.gram.device)
            exact = rows.double()
            # In float64: of images that look much alike, float32 products lose what tells them apart.
            add_products(matrix, exact.to(self.gram.dtype), sign)
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
        if len(features) and float(features.abs().max()) > LARGEST * torch.finfo(self.gram.dtype).max ** 0.5:
            raise DataError("features are too large for their squares to be summed: scale them down")
