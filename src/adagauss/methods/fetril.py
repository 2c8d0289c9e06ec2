"""FeTrIL (WACV 2023): old classes are represented by features of new classes, translated to the old means.

    task 1: train F with L_CE, then freeze it                            representation
    every task:
        for every new class c: μ_c, the mean of its features             memory
        for every old class p: n(p) = the new class with nearest mean,
            pseudo-features F(x) − μ_n(p) + μ_p of all x in n(p)         classifier (pseudo_features)
        linear classifier on new features and old pseudo-features        classifier (svm, or fc)

The preset ``fc`` is FeTrIL-fc as in later implementations: a trained layer, and cosine similarity. The training of the
first task also follows them (the paper adds a second training with AugMix).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from adagauss.backbones import BackboneConfig
from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import State, as_state
from adagauss.core.task import CurrentTask
from adagauss.core.train import Recipe, TensorBatches, train
from adagauss.data.augment import Augmentation
from adagauss.methods.base import Method, register_method
from adagauss.parts.classifiers import Classifier, HeadObjective, LinearClassifier, LinearScorer
from adagauss.parts.memory import MeanMemory
from adagauss.parts.representation import Representation
from adagauss.parts.terms import CrossEntropy

Similarity = Literal["euclidean", "cosine"]


def nearest_classes(means: Tensor, candidates: Tensor, similarity: Similarity = "euclidean") -> Tensor:
    """n(p) of each row p of ``means``: the position of the most similar candidate."""
    if similarity == "cosine":
        return (F.normalize(means, dim=1) @ F.normalize(candidates, dim=1).T).argmax(1)
    return torch.cdist(means, candidates).argmin(1)


def pseudo_features(
    features: Tensor, targets: Tensor, old_means: Tensor, similarity: Similarity = "euclidean"
) -> tuple[Tensor, Tensor]:
    """f̂ = f − μ_n(p) + μ_p for each old class p and every feature f of its most similar new class n(p).

    Returns the pseudo-features and, for each, the position p of its old class.
    """
    by_class = [features[targets == target] for target in range(int(targets.max()) + 1)]
    new_means = torch.stack([rows.mean(0) for rows in by_class])
    chosen = nearest_classes(old_means, new_means, similarity).tolist()
    moved = [by_class[near] - new_means[near] + mean for near, mean in zip(chosen, old_means, strict=True)]
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
    similarity: Similarity = "euclidean"
    """How near a new class is to an old one: distance of means (the paper) or cosine (later implementations)."""
    cost: PositiveFloat = 1.0
    tolerance: PositiveFloat = 1e-4

    def empty_state(self) -> LinearScorer:
        return LinearScorer(torch.zeros(0, 0), torch.zeros(0), normalize=True)

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> LinearScorer:
        features, targets = _all_classes(memory, now, self.similarity)
        weight, bias = linear_svm(F.normalize(features, dim=1), targets, len(memory), self.cost, self.tolerance)
        return LinearScorer(weight.float(), bias.float(), normalize=True)


class TranslatedLinear(LinearClassifier):
    """A layer trained with cross-entropy on new features, and on translated ones in place of the old classes."""

    kind = "translated_linear"
    requires: ClassVar[frozenset[Requirement]] = frozenset({Requirement.MEANS})
    cheap = False
    similarity: Similarity = "euclidean"
    """How near a new class is to an old one: distance of means (the paper) or cosine (later implementations)."""
    recipe: Recipe = Field(
        default_factory=lambda: Recipe(
            epochs=50, batch_size=128, learning_rate=0.05, schedule="cosine", drop_last=False
        )
    )
    """How the layer is trained; it starts from its rows of the previous task."""

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> LinearScorer:
        features, targets = _all_classes(memory, now, self.similarity)
        with now.runtime.seeded(now.name, "linear initialisation"):
            layer = nn.Linear(features.shape[1], len(memory)).to(now.runtime.device)
        if (known := as_state(before, LinearScorer)) is not None:
            with torch.no_grad():
                layer.weight[: len(known.bias)] = known.weight
                layer.bias[: len(known.bias)] = known.bias
        recipe = self.recipe
        batches = TensorBatches(features.float(), targets, batch_size=recipe.batch_size, drop_last=recipe.drop_last)
        train(HeadObjective(layer), batches, recipe, now.runtime, f"{now.name}: linear head")
        return LinearScorer(layer.weight.detach(), layer.bias.detach())


def _all_classes(memory: ClassGaussians, now: CurrentTask, similarity: Similarity) -> tuple[Tensor, Tensor]:
    """Features and score columns of every seen class: pseudo-features of classes known before, then current ones."""
    new = now.features("test").double()
    pseudo, owners = pseudo_features(new, now.targets, memory.means[: len(now.known)], similarity)
    return torch.cat([pseudo, new]), torch.cat([owners, now.column_targets])


@register_method(
    "fetril",
    title="FeTrIL",
    family="frozen extractor",
    stores="mean of each class",
    paper="Petit et al., WACV 2023, arXiv 2211.13131",
    presets={"fc": {"classifier.kind": "translated_linear", "classifier.similarity": "cosine"}},
)
def fetril() -> Method:
    """The method of the paper, with support vector machines."""
    return Method(
        backbone=BackboneConfig(features=None),
        augmentation=Augmentation(brightness=63 / 255, policy="autoaugment"),
        representation=Representation(
            first=Recipe(epochs=200, batch_size=128, schedule="cosine"),
            later=None,
            terms={"cross_entropy": CrossEntropy()},
        ),
        memory=MeanMemory(),
        classifier=TranslatedSVM(similarity="euclidean", cost=1.0),
    )
