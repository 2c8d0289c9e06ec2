"""What Bayes' rule over Gaussians is computed with, by the kind of covariance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.core import linalg, low_rank
from adagauss.core.state import Scorer


class Placed(Scorer):
    """A scorer of points that are first raised to a power and scaled to unit length, if so."""

    def __init__(self, tukey: float | None, normalize: bool) -> None:
        super().__init__()
        self.tukey = tukey
        self.normalize = normalize

    @property
    def power(self) -> float | None:
        return self.tukey

    def placed(self, features: Tensor) -> Tensor:
        """Points in the space where distances are measured."""
        return placed(features, self.tukey, self.normalize)


class BayesScorer(Placed):
    """−½‖L_c⁻¹x − L_c⁻¹μ_c‖² + b_c, b_c = −½ log|Σ_c| + log p(c), each term only if it is switched on."""

    axes: ClassVar[Mapping[str, str]] = {"matrices": "css", "offsets": "cs", "bias": "c"}
    contents: ClassVar[str] = "the mean and the inverse covariance of each class, as the classifier uses them"

    def __init__(self, whitening: linalg.Whitening, bias: Tensor, tukey: float | None, normalize: bool) -> None:
        super().__init__(tukey, normalize)
        self.register_buffer("matrices", whitening.matrices)
        self.register_buffer("offsets", whitening.offsets)
        self.register_buffer("bias", bias)
        self.matrices: Tensor
        self.offsets: Tensor
        self.bias: Tensor

    def forward(self, features: Tensor) -> Tensor:
        whitening = linalg.Whitening(self.matrices, self.offsets, self.bias)
        return -0.5 * linalg.squared_distances(self.placed(features), whitening) + self.bias


class SharedBayesScorer(Placed):
    """(x − m)·Σ⁻¹(μ_c − m) + b_c, b_c = −½(μ_c − m)ᵀΣ⁻¹(μ_c − m) + log p(c), m the mean of the means.

    With one covariance of all classes, what is quadratic in x is common to all: one product, as of a linear head.
    """

    axes: ClassVar[Mapping[str, str]] = {"centre": "s", "weight": "cs", "bias": "c"}
    contents: ClassVar[str] = "the mean of each class through the inverse covariance of all, as the classifier uses it"

    def __init__(self, centre: Tensor, weight: Tensor, bias: Tensor, tukey: float | None, normalize: bool) -> None:
        super().__init__(tukey, normalize)
        self.register_buffer("centre", centre)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.centre: Tensor
        self.weight: Tensor
        self.bias: Tensor

    @classmethod
    def of(
        cls, means: Tensor, covariance: Tensor, dtype: torch.dtype, tukey: float | None, normalize: bool
    ) -> SharedBayesScorer:
        """From placed means and the one covariance, factored in float64."""
        centre = means.double().mean(0)
        away = means.double() - centre
        weight = torch.cholesky_solve(away.T, linalg.safe_cholesky(covariance).factor).T
        bias = -0.5 * torch.linalg.vecdot(away, weight)
        return cls(centre.to(dtype), weight.to(dtype).contiguous(), bias.to(dtype), tukey, normalize)

    def forward(self, features: Tensor) -> Tensor:
        return torch.addmm(self.bias, self.placed(features).to(self.centre) - self.centre, self.weight.T)


class LowRankBayesScorer(Placed):
    """−½(x − μ_c)ᵀ(diag(d_c) + F_cᵀF_c)⁻¹(x − μ_c) + b_c by Woodbury's identity (see `low_rank`)."""

    axes: ClassVar[Mapping[str, str]] = {
        "centre": "s",
        "precisions": "cs",
        "lines": "cs",
        "constants": "c",
        "projections": "crs",
        "offsets": "cr",
        "bias": "c",
    }
    contents: ClassVar[str] = "the mean and few directions of the inverse covariance of each class"

    def __init__(
        self, whitening: low_rank.FactoredWhitening, bias: Tensor, tukey: float | None, normalize: bool
    ) -> None:
        super().__init__(tukey, normalize)
        for name, buffer in whitening._replace(log_det=bias)._asdict().items():
            self.register_buffer("bias" if name == "log_det" else name, buffer)
        self.bias: Tensor

    def forward(self, features: Tensor) -> Tensor:
        whitening = low_rank.FactoredWhitening(*(self.get_buffer(name) for name in self.axes))
        return -0.5 * low_rank.squared_distances(self.placed(features), whitening) + self.bias


def placed(points: Tensor, tukey: float | None, normalize: bool) -> Tensor:
    """Points or means in the space where distances are measured."""
    if tukey is not None:
        # Methods with this transform have non-negative features; rounding may leave −0.0 or tiny negative values.
        points = points.clamp_min(0).pow(tukey)
    return F.normalize(points, dim=1) if normalize else points
