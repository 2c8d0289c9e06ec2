"""FeTrIL (WACV 2023): old classes are represented by features of new classes, translated to the old means.

    task 1: train F with L_CE, then freeze it                            representation
    every task:
        for every new class c: μ_c, the mean of its features             memory
        for every old class p: n(p) = the new class with nearest mean,
            pseudo-features F(x) − μ_n(p) + μ_p of all x in n(p)         classifier (pseudo_features)
        linear SVM on unit vectors of new and pseudo-features            classifier (svm)

The training of the first task follows later implementations (the paper adds a second training with AugMix). The nearest
mean is that of least distance, as in the authors' code; PyCIL takes the largest cosine.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor

from adagauss.backbones import BackboneConfig
from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import State
from adagauss.core.task import CurrentTask
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation
from adagauss.methods.base import Method, register_method
from adagauss.parts.classifiers import Classifier, LinearScorer
from adagauss.parts.memory import MeanMemory
from adagauss.parts.representation import Representation
from adagauss.parts.terms import CrossEntropy


def pseudo_features(features: Tensor, targets: Tensor, old_means: Tensor) -> tuple[Tensor, Tensor]:
    """f̂ = f − μ_n(p) + μ_p for each old class p and every feature f of the new class n(p) with the nearest mean.

    Returns the pseudo-features and, for each, the position p of its old class.
    """
    by_class = [features[targets == target] for target in range(int(targets.max()) + 1)]
    new_means = torch.stack([rows.mean(0) for rows in by_class])
    nearest = torch.cdist(old_means, new_means).argmin(1).tolist()
    moved = [by_class[near] - new_means[near] + mean for near, mean in zip(nearest, old_means, strict=True)]
    owners = [torch.full((len(rows),), old, device=features.device) for old, rows in enumerate(moved)]
    return torch.cat([features[:0], *moved]), torch.cat([targets[:0], *owners])


def linear_svm(
    features: Tensor, targets: Tensor, classes: int, cost: float = 1.0, tolerance: float = 1e-4
) -> tuple[Tensor, Tensor]:
    """Weights (C, S) and biases (C,) of one-vs-rest support vector machines with squared hinge loss."""
    from sklearn.svm import LinearSVC

    if classes == 1:  # nothing to separate
        return features.new_zeros(1, features.shape[1]), features.new_zeros(1)
    machine = LinearSVC(C=cost, tol=tolerance, dual=False).fit(features.cpu().numpy(), targets.cpu().numpy())
    weight, bias = torch.from_numpy(machine.coef_), torch.from_numpy(machine.intercept_)
    if classes == 2:  # one machine: the other one is its negative
        weight, bias = torch.cat([-weight, weight]), torch.cat([-bias, bias])
    # Row-major, so that products with it round the same way before and after saving and loading.
    return weight.to(features).contiguous(), bias.to(features)


class TranslatedSVM(Classifier):
    """Support vector machines for all seen classes on unit vectors, fitted per task from old means and new features."""

    kind = "translated_svm"
    requires: ClassVar[frozenset[Requirement]] = frozenset({Requirement.MEANS})
    cheap = False
    cost: PositiveFloat = 1.0
    tolerance: PositiveFloat = 1e-4

    def empty_state(self) -> LinearScorer:
        return LinearScorer(normalize=True)

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> LinearScorer:
        new = now.features("test").double()
        pseudo, owners = pseudo_features(new, now.targets, memory.means[: len(now.known)])
        features, targets = torch.cat([pseudo, new]), torch.cat([owners, now.column_targets])
        weight, bias = linear_svm(F.normalize(features, dim=1), targets, len(memory), self.cost, self.tolerance)
        return LinearScorer(weight.float(), bias.float(), normalize=True)


@register_method(
    "fetril",
    title="FeTrIL",
    family="frozen extractor",
    stores="mean of each class",
    paper="Petit et al., WACV 2023, arXiv 2211.13131",
    recipe="PyCIL",
)
def fetril() -> Method:
    """The method of the paper, with support vector machines."""
    return Method(
        backbone=BackboneConfig(features=None),
        augmentation=Augmentation(brightness=63 / 255, policy="autoaugment", cutout=16),
        representation=Representation(
            first=Recipe(epochs=200, batch_size=128, schedule="cosine", drop_last=False),
            later=None,
            terms={"cross_entropy": CrossEntropy()},
        ),
        memory=MeanMemory(),
        classifier=TranslatedSVM(cost=1.0),
    )
