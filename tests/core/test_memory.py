"""The memory part on known classes: statistics of a class in pieces are those of the whole class."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from adagauss.core.gaussians import ClassGaussians
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.errors import DataError
from adagauss.parts.memory import GaussianMemory, MeanMemory, Memory

CovarianceKind = Literal["full", "diagonal"]


def features(rows: int = 40, seed: int = 0) -> torch.Tensor:
    return torch.rand(rows, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same(one: ClassGaussians, other: ClassGaussians) -> None:
    assert one.labels == other.labels
    assert one.counts.tolist() == other.counts.tolist()
    torch.testing.assert_close(one.means, other.means)
    torch.testing.assert_close(one.packed, other.packed)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize(("shrinkage", "off"), [(0.0, 0.0), (0.7, 0.0), (0.7, 0.4)])
def test_a_class_in_two_pieces_is_stored_as_in_one(covariance: CovarianceKind, shrinkage: float, off: float) -> None:
    part = GaussianMemory(covariance=covariance, shrinkage=shrinkage, off_diagonal_shrinkage=off)
    points, labels = features(), ["cat"] * 25 + ["dog"] * 15
    first, second = list(range(0, 40, 3)), [row for row in range(40) if row % 3]
    pieces = [
        part.shrunk(ClassGaussians.from_features(points[rows], [labels[row] for row in rows], covariance))
        for rows in (first, second)
    ]
    whole = part.shrunk(ClassGaussians.from_features(points, labels, covariance))
    before = pieces[0].copy()
    assert_same(part.joined(*pieces), whole)
    assert_same(pieces[0], before)


def test_with_tukey_the_spread_between_pieces_is_that_between_powers_of_their_means() -> None:
    part = GaussianMemory(tukey=0.5)
    one, other = (ClassGaussians(2, "full") for _ in range(2))
    one.add(torch.tensor([[4.0, 9.0], [4.0, 9.0]]), ["cat"] * 2)
    other.add(torch.tensor([[16.0, 9.0], [16.0, 9.0]]), ["cat"] * 2)
    # √4 and √16 are 2 apart; two and two images: 2·2/4 · 2² / 3.
    expected = torch.tensor([[[4 / 3, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    torch.testing.assert_close(part.joined(one, other).covariances, expected)


@pytest.mark.parametrize("part", [MeanMemory(), GaussianMemory(), GaussianMemory(shrinkage=0.5)])
def test_joined_classes_have_the_statistics_of_all_their_images(part: Memory) -> None:
    covariance = part.empty(5).covariance
    points, labels = features(), ["a"] * 10 + ["b"] * 12 + ["c"] * 8 + ["d"] * 10
    bank = part.empty(5)
    bank.merge(ClassGaussians.from_features(points, labels, covariance))
    bank = part.shrunk(bank) if isinstance(part, GaussianMemory) else bank
    new = ["c" if label in "ad" else label for label in labels]
    whole = ClassGaussians.from_features(points, new, covariance).select(["b", "c"])
    whole = part.shrunk(whole) if isinstance(part, GaussianMemory) else whole
    assert_same(part.remap_classes(bank, ((1,), (2, 0, 3))), whole)


def test_a_known_class_may_bring_a_single_image_and_a_new_one_may_not() -> None:
    data = LabelledImages(ArrayImages(torch.zeros(3, 1, 2, 2, dtype=torch.uint8)), torch.tensor([0, 0, 1]), ("a", "b"))
    GaussianMemory().check(data, ["b"])
    with pytest.raises(DataError, match="'b' has a single image"):
        GaussianMemory().check(data, ["a"])
