"""What test images say about memories: accuracy with each, distances and logits by task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from adagauss.analysis.measured.quantities import (
    BANKS,
    OWN,
    REAL_BOTH,
    REAL_COVARIANCES,
    REAL_MEANS,
)
from adagauss.analysis.visits import task_mean
from adagauss.core import linalg
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.task import FitContext
from adagauss.parts.classifiers import Classifier, MemoryClassifier, SampledLinear

HEAD = SampledLinear(recipe=SampledLinear().recipe.with_changes(batch_size=512))
"""The published code's linear head, 30 epochs of 10,000 samples, in larger batches: a quarter of the steps will do."""
SHRINKAGE = 3.0
"""Of the published code's classifier, which the distances of the paper's figure are those of."""


def with_real(memories: Mapping[str, ClassGaussians], real: ClassGaussians) -> dict[str, ClassGaussians]:
    """The memories, and the run's own with real means, real covariances, or both."""
    own = memories[OWN]
    found = {**memories, REAL_MEANS: own.with_statistics(real.means, None)}
    if own.covariance != "none":
        found[REAL_COVARIANCES] = own.with_statistics(own.means, real.covariances)
        found[REAL_BOTH] = own.with_statistics(real.means, real.covariances)
    return found


def accuracies(
    classifier: Classifier,
    banks: Mapping[str, ClassGaussians],
    features: Tensor,
    targets: Tensor,
    sizes: Sequence[int],
    now: FitContext,
) -> Tensor:
    """(6,) accuracy of the run's classifier with each of `BANKS`; NaN if it does not follow from the memory alone."""
    found = torch.full((len(BANKS),), torch.nan, dtype=torch.float64)
    if not isinstance(classifier, MemoryClassifier) or not classifier.cheap:
        return found
    for place, name in enumerate(BANKS):
        if name in banks:
            scorer = classifier.of_memory(banks[name], now)
            with torch.inference_mode():
                found[place] = task_mean(linalg.by_rows(scorer, features), targets, sizes)
    return found


def squared_distances_by_class(bank: ClassGaussians, features: Tensor, *, published: bool) -> Tensor:
    """(C,): mean over all images of (x − μ_c)ᵀ M_c (x − μ_c), on raw features.

    M_c is Σ_c⁻¹ or, as ``published``, the inverse of the correlation matrix of Σ_c + 3·mean(diag Σ_c)·I.
    """
    matrices = bank.covariances
    if published:
        matrices = linalg.correlation(linalg.shrink_to_identity(matrices, SHRINKAGE))
    whitening = linalg.whiten(bank.means, matrices, torch.float64)
    return _mean_rows(lambda some: linalg.squared_distances(some, whitening), features)


def logits_by_class(bank: ClassGaussians, features: Tensor, now: FitContext) -> Tensor:
    """(C,): mean over all images of the logits of a linear head trained on samples of the Gaussians."""
    scorer = HEAD.of_memory(bank, now)
    with torch.inference_mode():
        return _mean_rows(lambda some: scorer(some.float()).double(), features)


def _mean_rows(function: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
    total = sum((function(some).sum(0) for some in torch.split(features.double(), linalg.ROWS)), torch.zeros(()))
    return (total / len(features)).cpu()
