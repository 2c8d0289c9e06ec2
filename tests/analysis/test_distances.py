"""Distances between Gaussians against torch.distributions and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from adagauss.analysis.measure import DISTANCES, class_spectra, distances
from adagauss.core.gaussians import ClassGaussians, CovarianceKind


def bank(seed: int, covariance: CovarianceKind = "full", classes: int = 5) -> ClassGaussians:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(classes * 30, 4, generator=generator) @ torch.randn(4, 4, generator=generator) + seed
    return ClassGaussians.from_features(features, [f"c{row % classes}" for row in range(len(features))], covariance)


def test_every_distance_is_what_it_says() -> None:
    memory, real = bank(1), bank(2)
    found = distances(memory, real)
    assert found.shape == (5, len(DISTANCES))
    for row, label in enumerate(memory.labels):
        mine, theirs = memory.select([label]), real.select([label])
        one = MultivariateNormal(mine.means[0], mine.covariances[0])
        two = MultivariateNormal(theirs.means[0], theirs.covariances[0])
        apart = np.linalg.norm(one.loc.numpy() - two.loc.numpy())
        wide = np.linalg.norm(mine.covariances[0].numpy() - theirs.covariances[0].numpy())
        expected = [apart, wide, float(kl_divergence(one, two) + kl_divergence(two, one))]
        assert found[row].tolist() == pytest.approx(expected, rel=1e-6)


def test_distances_are_nan_where_the_memory_has_no_covariances() -> None:
    found = distances(bank(1, "none"), bank(2))
    assert bool(torch.isfinite(found[:, 0]).all())
    assert bool(torch.isnan(found[:, 1:]).all())
    assert bool(torch.isnan(distances(bank(1), bank(2), comparable=False)[:, 2]).all())


def test_a_thousand_classes_come_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, real = bank(1), bank(2)
    whole = distances(memory, real), class_spectra(memory)
    monkeypatch.setattr("adagauss.core.gaussians.BLOCK_BYTES", 2 * 8 * 4 * 4)
    assert len(list(memory.blocks())) == 3
    torch.testing.assert_close((distances(memory, real), class_spectra(memory)), whole)


def test_an_empty_memory_has_no_distances() -> None:
    empty = ClassGaussians(4)
    assert distances(empty, bank(2)).shape == (0, len(DISTANCES))
    assert class_spectra(empty).shape == (0, 4)
