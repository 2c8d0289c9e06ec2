"""DPCR's classifier: ridge regression over all seen classes, computed from the statistics of each class."""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor

from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import mean_diagonal, solve_ridge
from adagauss.core.task import FitContext
from adagauss.parts.classifiers import LinearClassifier, LinearScorer, MemoryClassifier


def ridge_from_statistics(memory: ClassGaussians, gamma: float, relative: bool = False) -> Tensor:
    """(S, C) weights W = (Σ_c Φ_c + γI)⁻¹[n_1μ_1 … n_Cμ_C], the regression of one-hot labels on all features ever seen.

    Φ_c = Σ_i f_i f_iᵀ is the uncentred second moment of class c; with ``relative``, γ is in units of the mean diagonal
    of ΣΦ_c, so that one value suits any number, size and scale of features.
    """
    gram = memory.second_moment
    right = (memory.counts.double().unsqueeze(1) * memory.means).T
    return solve_ridge(gram, right, gamma * float(mean_diagonal(gram)) if relative else gamma)


class Ridge(LinearClassifier, MemoryClassifier):
    """argmax_c f·w_c, with unit columns w_c if ``normalize_columns``, and no bias."""

    kind = "ridge"
    gamma: PositiveFloat = 200.0
    relative: bool = False
    """Whether γ is in units of the features' mean square, summed over images (then 0.01 to 0.1 is usual)."""
    normalize_columns: bool = True
    """Unit columns: a class then has no advantage from more images or larger features."""

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.MEANS, Requirement.SPREAD})

    def of_memory(self, memory: ClassGaussians, now: FitContext) -> LinearScorer:
        weight = ridge_from_statistics(memory, self.gamma, self.relative).T
        if self.normalize_columns:
            weight = F.normalize(weight, dim=1)
        weight = weight.float().contiguous()
        return LinearScorer(weight, weight.new_zeros(len(memory)))
