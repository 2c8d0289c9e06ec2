"""FeTrIL's classifier: a linear one over new features and over old classes played by translated new ones."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from adagauss.classifiers.linear import HeadObjective, LinearClassifier
from adagauss.gaussians import ClassGaussians
from adagauss.task import CurrentTask
from adagauss.training import Recipe, TensorBatches, train

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

    if classes == 1:  # nothing to tell apart
        return features.new_zeros(1, features.shape[1]), features.new_zeros(1)
    machine = LinearSVC(C=cost, tol=tolerance, dual=False).fit(features.cpu().numpy(), targets.cpu().numpy())
    weight, bias = torch.from_numpy(machine.coef_), torch.from_numpy(machine.intercept_)
    if classes == 2:  # one machine: its mirror image is the other
        weight, bias = torch.cat([-weight, weight]), torch.cat([-bias, bias])
    # Row-major, so that products with it round alike before and after a trip through a file.
    return weight.to(features).contiguous(), bias.to(features)


class TranslatedLinear(LinearClassifier):
    """A linear classifier of all seen classes, fitted anew after each task from old means and new features."""

    kind = "translated"
    head: Literal["svm", "fc"] = "svm"
    """``svm``: support vector machines on unit vectors; ``fc``: a layer trained with cross-entropy on raw features."""
    similarity: Similarity = "euclidean"
    """How near a new class is to an old one: distance of means (the paper) or cosine (later implementations)."""
    cost: PositiveFloat = 1.0
    tolerance: PositiveFloat = 1e-4
    recipe: Recipe = Field(
        default_factory=lambda: Recipe(
            epochs=50, batch_size=128, learning_rate=0.05, schedule="cosine", drop_last=False
        )
    )
    """How the ``fc`` layer is trained; it starts from its rows of the task before."""

    def fit(self, memory: ClassGaussians, now: CurrentTask) -> None:
        old = len(memory) - len(now.classes)
        new = now.features("test").double()
        pseudo, owners = pseudo_features(new, now.targets, memory.means[:old], self.similarity)
        features, targets = torch.cat([pseudo, new]), torch.cat([owners, now.targets + old])
        if self.head == "fc":
            self._weight, self._bias = self._train(features.float(), targets, len(memory), now)
            return
        weight, bias = linear_svm(F.normalize(features, dim=1), targets, len(memory), self.cost, self.tolerance)
        self._weight, self._bias = weight.float(), bias.float()

    def _train(self, features: Tensor, targets: Tensor, classes: int, now: CurrentTask) -> tuple[Tensor, Tensor]:
        torch.manual_seed(now.runtime.seed_for(now.name, "linear initialisation"))
        layer = nn.Linear(features.shape[1], classes).to(now.runtime.device)
        known = len(self._bias)
        with torch.no_grad():
            if known:
                layer.weight[:known] = self._weight
                layer.bias[:known] = self._bias
        batches = TensorBatches(features, targets, batch_size=self.recipe.batch_size, drop_last=self.recipe.drop_last)
        train(HeadObjective(layer), batches, self.recipe, now.runtime, f"{now.name}: linear head")
        return layer.weight.detach(), layer.bias.detach()

    def scores(self, features: Tensor) -> Tensor:
        return super().scores(F.normalize(features, dim=1) if self.head == "svm" else features)
