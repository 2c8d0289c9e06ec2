"""Histograms, margins and p-values of out-of-distribution scores."""

from __future__ import annotations

import math

import pytest
import torch

from adagauss.core.calibration import CalibrationStats
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import oas_shrinkage
from adagauss.core.ood import (
    BINS,
    EDGES,
    MarginScore,
    PValue,
    bin_of,
    margin_score,
    quantile,
    share_above,
    smallest_with,
)
from adagauss.core.train import Sampler
from adagauss.errors import ConfigError


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 90])
def test_shares_lie_between_0_and_1(share: float) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        CalibrationStats(2).gap(share)


def test_values_above_all_bins_have_the_last_edge_as_quantile() -> None:
    histogram = torch.zeros(BINS, dtype=torch.float64)
    histogram[-1] = 60  # margins of a network whose features are not normalised
    assert quantile(histogram, 0.5) == float(EDGES[-1])
    stats = PValue(histogram, histogram, histogram)
    assert torch.isfinite(stats(torch.tensor([1.0, 1e9]), torch.tensor([1e9, 1.0]))).all()


def test_bins_bound_quantiles_from_the_right_side() -> None:
    values = torch.rand(5000, generator=torch.Generator().manual_seed(0)).exp()
    histogram = torch.bincount(bin_of(values), minlength=BINS).double()
    upper = smallest_with(histogram, 0.8, 5000)
    assert 0.8 <= float((values <= upper).double().mean()) < 0.88
    above = share_above(histogram, values, 5000)
    exact = torch.tensor([float((values > value).double().mean()) for value in values[:50]])
    torch.testing.assert_close(above[:50], exact.double(), atol=0.02, rtol=0)
    assert bin_of(torch.tensor([0.0, math.inf])).tolist() == [0, BINS - 1]


def bank(classes: int = 4, size: int = 6) -> ClassGaussians:
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(classes, size, generator=generator)
    features = centres.repeat_interleave(50, 0) + torch.randn(classes * 50, size, generator=generator)
    return ClassGaussians.from_features(features, [index // 50 for index in range(classes * 50)])


def test_discriminants_are_log_ratios_of_gaussian_densities_with_one_covariance() -> None:
    memory = bank()
    points = torch.randn(20, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    margin = MarginScore.of(memory)
    assert margin.weight is not None
    assert margin.bias is not None
    within = memory.covariances.mean(0)
    amount = oas_shrinkage(float(within.trace()), float(within.square().sum()), 6, 200)
    shrunk = (1 - amount) * within + amount * within.diagonal().mean() * torch.eye(6, dtype=torch.float64)
    densities = [
        torch.distributions.MultivariateNormal(mean, shrunk).log_prob(points)  # type: ignore[no-untyped-call]
        for mean in (*memory.means, memory.means.mean(0))
    ]
    expected = torch.stack(densities[:-1], 1) - densities[-1].unsqueeze(1)
    torch.testing.assert_close(points.float() @ margin.weight + margin.bias, expected.float(), rtol=1e-4, atol=1e-4)


def test_the_margin_is_low_between_the_classes() -> None:
    memory = bank()
    margin = MarginScore.of(memory)
    known = Sampler(memory).draw(torch.arange(400) // 100, torch.Generator().manual_seed(2))
    middle = memory.means.mean(0).float().expand(100, -1) + 0.5 * torch.randn(100, 6)
    scores = torch.zeros(400, 4)
    assert float(margin(known, scores).quantile(0.1)) > float(margin(middle, scores[:100]).quantile(0.9))


def test_without_covariances_the_margin_is_that_of_the_scores() -> None:
    means = ClassGaussians.from_features(torch.randn(10, 3), [0] * 5 + [1] * 5, "none")
    scores = torch.randn(7, 2)
    assert torch.equal(MarginScore.of(means)(torch.randn(7, 3), scores), margin_score(scores))
