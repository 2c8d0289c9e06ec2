"""EFC (ICLR 2024), elastic feature consolidation: features may move in directions that do not affect the old outputs.

    for task t = 1 … T:
        t = 1: cross-entropy over classes and their rotations                           representation
        t > 1: L_CE(new classes) + Δᵀ(λE + ηI)Δ + L_PR-ACE, batch norm frozen           representation
               (Δ: drift of the features; L_PR-ACE: old prototypes and new images,
               over all outputs)
        t > 1: μ_c ← μ_c + EFM-weighted mean drift, for every old class c               drift
        for every new class c: μ_c, Σ_c of the features of its augmented images         memory
        predict the largest of all outputs                                              classifier
        E = mean of Wᵀ(diag p − ppᵀ)W over task t                                       representation (finish)

Settings are those for CIFAR-100, where the published code pads whole images before the resized crop (here: a shifted
window is cropped). On ImageNet-Subset later tasks train the backbone at 1e-5 and the outputs at 1e-4.

EFC++ (2025) has two phases, first the backbone, then the outputs; it changes these lines:

    t > 1: L_CE(new classes) + Δᵀ(λE + ηI)Δ; old outputs are fixed                      representation
    for every new class c: μ_c, Σ_c, n_c of its augmented images                        memory
    t > 1: all outputs trained on task t and n_c draws of every old class               classifier
    E = mean of Wᵀ(diag p − ppᵀ)W over task t, W re-balanced                            representation (finish)

The re-balanced outputs are stored in the network: the next task starts from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from adagauss.backbones import BackboneConfig
from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import SharedState, State, as_state
from adagauss.core.task import CurrentTask
from adagauss.core.train import Recipe, Sampler, TensorBatches, train
from adagauss.data.augment import Augmentation
from adagauss.methods.base import Method, register_method
from adagauss.methods.pass_ import IMAGENET_RECIPE
from adagauss.parts.classifiers import Classifier, HeadObjective, LinearScorer
from adagauss.parts.drift import Drift
from adagauss.parts.memory import GaussianMemory
from adagauss.parts.representation import Representation, Rotations, Step, Term
from adagauss.parts.terms import CrossEntropy


def feature_matrix(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """E = mean_x Wᵀ(diag p − ppᵀ)W, p = softmax(Wf(x) + b): how outputs react to a change of the features.

    It equals mean_x Σ_c p_c g_c g_cᵀ with g_c = Wᵀ(e_c − p), the gradient of log p_c; averaging p and ppᵀ over the
    images before multiplying by W leaves one C × C matrix to compute.
    """
    weight = weight.double()
    p = torch.softmax(features.double() @ weight.T + bias.double(), dim=1)
    spread = torch.diag(p.mean(0)) - p.T @ p / len(p)
    return weight.T @ spread @ weight


class FeatureMatrix(Term):
    """mean_x Δᵀ(λE + ηI)Δ with Δ = F_t(x) − F_{t−1}(x) and E from the end of the previous task.

    E is measured on the current images at the very end of a task, so with the outputs used for prediction. During a
    task the drift reads the previous E.
    """

    kind = "feature_matrix"
    requires: ClassVar[frozenset[Requirement]] = frozenset({Requirement.KEPT_HEADS, Requirement.LINEAR_HEAD})
    provides: ClassVar[frozenset[Requirement]] = frozenset({Requirement.FEATURE_MATRIX})
    importance: NonNegativeFloat = 10.0
    """λ."""
    damping: NonNegativeFloat = 0.1
    """η."""

    def empty_state(self) -> MeasuredMatrix:
        return MeasuredMatrix()

    def loss(self, step: Step, before: State | None = None) -> Tensor | None:
        known = as_state(before, MeasuredMatrix)
        if known is None:
            return None
        metric = self.importance * known.matrix + self.damping * torch.eye(
            *known.matrix.shape, device=known.matrix.device
        )
        delta = step.features - step.previous_features
        return ((delta @ metric.to(delta)) * delta).sum(1).mean()

    def finish(self, now: CurrentTask, memory: ClassGaussians, before: State | None) -> MeasuredMatrix:
        return MeasuredMatrix(matrix=feature_matrix(now.features(0), *now.network.head.class_parameters()).float())


class MeasuredMatrix(SharedState):
    """E at the end of a task, over all outputs of that time."""

    dims: ClassVar[Mapping[str, str]] = {"matrix": "ss"}


class PrototypeCrossEntropy(Term):
    """Cross-entropy over all classes, on as many samples as the batch has, old and new in proportion to their classes.

    Old classes are draws of N(μ_c, Σ_c + εI), given only to the outputs: no gradient reaches the backbone. New classes
    are images of the previous batch, forwarded again. The first batch of an epoch has no previous batch and uses only
    prototypes (published code: only the first batch of a task; but resuming at an epoch must not change the result).
    The published code draws at most two samples per class, 40 in task 2 and 60 in task 3 of ten tasks of ten classes;
    from task 4 on as many as the batch has, 64. How many of them are old is random there, and fixed here.
    """

    kind = "pr_ace"
    requires: ClassVar[frozenset[Requirement]] = frozenset(
        {Requirement.COVARIANCES, Requirement.KEPT_HEADS, Requirement.NEW_CLASSES}
    )
    jitter: NonNegativeFloat = 1e-5
    """ε."""

    def start(self, now: CurrentTask, memory: ClassGaussians) -> nn.Module | None:
        return _LivePrototypes(Sampler(memory, self.jitter)) if len(memory) else None


class _LivePrototypes(nn.Module):
    """Draws of the old classes and images of the previous batch."""

    def __init__(self, sampler: Sampler) -> None:
        super().__init__()
        self.sampler = sampler
        self._last: Step | None = None

    def forward(self, step: Step) -> Tensor:
        old, new, size = len(step.memory), len(step.now.classes), len(step.targets)
        wanted = min(round(size * new / (old + new)), size - 1)
        last = None if step.starts_epoch else self._last
        self._last = replace(step)  # a copy, which does not keep the features alive
        fresh = None
        if last is not None and (last.targets < new).any() and wanted:  # auxiliary labels come after the classes
            fresh = last.only(torch.nonzero(last.targets < new).flatten()[:wanted])
        count = size - (len(fresh.targets) if fresh is not None else 0)
        # Labels cycle through the old classes from a random start: as balanced as possible.
        start = int(torch.randint(old, (1,), generator=step.generator))
        labels = (torch.arange(count) + start) % old
        features = self.sampler.draw(labels, step.generator)
        targets = labels.to(features.device)
        if fresh is not None:
            features = torch.cat([features, fresh.features])
            targets = torch.cat([targets, fresh.targets + old])
        return F.cross_entropy(step.now.network.head.seen(features), targets)


def metric_weights(means: Tensor, points: Tensor, matrix: Tensor, sigma: float) -> Tensor:
    """(C, N) weights exp(s_ci / 2σ²), each row summing to 1.

    s_ci = −(x_i − μ_c)ᵀE(x_i − μ_c), scaled to 0..1 over the whole matrix; expanding the square keeps memory at C·N.
    """
    mapped = points @ matrix
    distances = (mapped * points).sum(1) - 2 * means @ mapped.T + ((means @ matrix) * means).sum(1, keepdim=True)
    spread = (distances.max() - distances.min()).clamp_min(torch.finfo(distances.dtype).tiny)
    return torch.softmax((distances.max() - distances) / spread / (2 * sigma**2), dim=1)


class EFC(Drift):
    """μ_c ← μ_c + Σ_i w_ci (F_t(x_i) − F_{t−1}(x_i)), w_ci a kernel in the metric of the Empirical Feature Matrix.

    The matrix was measured at the end of the previous task; the state of the term ``feature_matrix`` holds
    it. Covariances are unchanged.
    """

    kind = "efc"
    requires: ClassVar[frozenset[Requirement]] = frozenset({Requirement.MEANS, Requirement.FEATURE_MATRIX})
    sigma: PositiveFloat = 0.2
    views: PositiveInt = 1
    """Number of augmented copies of the task."""

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        old, new = now.pairs(self.views)
        old, new = old.double(), new.double()
        matrix = next(state.matrix for state in now.term_states.values() if isinstance(state, MeasuredMatrix))
        weights = metric_weights(memory.means, old, matrix.double(), self.sigma)
        return memory.with_statistics(memory.means + weights @ (new - old), None)


class Rebalanced(Classifier):
    """All outputs, trained on features of the current images and, per old class, as many draws as it had images.

    The classifier comes after drift and memory, so the draws come from Gaussians that have followed the extractor. The
    trained outputs are written back into the network: the next task starts and distils from them, and what a term
    measures at the end of the task (EFC's feature matrix) is measured with them. The first task needs no balancing.
    """

    kind = "rebalanced"
    requires: ClassVar[frozenset[Requirement]] = frozenset(
        {Requirement.COVARIANCES, Requirement.KEPT_HEADS, Requirement.LINEAR_HEAD, Requirement.NEW_CLASSES}
    )
    cheap = False
    changes_network = True
    recipe: Recipe = Field(
        default_factory=lambda: Recipe(
            epochs=50, batch_size=256, learning_rate=1e-3, schedule="constant", drop_last=False
        )
    )
    views: PositiveInt = 4
    """Augmented copies of the task; each epoch uses one of them, chosen at random."""
    jitter: NonNegativeFloat = 1e-5
    """ε of N(μ_c, Σ_c + εI)."""

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> LinearScorer:
        head = now.network.head
        new = set(now.classes)
        old = memory.select([label for label in memory.labels if label not in new])
        if len(old):
            weight, bias = head.class_parameters()
            with now.runtime.seeded(now.name, "re-balancing"):  # the layer draws weights, which are replaced
                layer = nn.Linear(head.features, head.classes, head.bias).to(weight)
            layer.load_state_dict({"weight": weight, "bias": bias} if head.bias else {"weight": weight})
            sampler = Sampler(old, self.jitter)
            drawn = torch.arange(len(old)).repeat_interleave(old.counts.cpu())
            targets = torch.cat([drawn.to(now.targets.device), now.targets + len(old)])

            def mixture(epoch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
                view = int(torch.randint(self.views, (1,), generator=generator))
                return torch.cat([sampler.draw(drawn, generator), now.features(view)]), targets

            batches = TensorBatches(mixture, len(targets), self.recipe)
            train(HeadObjective(layer), batches, self.recipe, now.runtime, f"{now.name}: re-balancing")
            head.set_class_parameters(layer.weight, layer.bias)
        return LinearScorer(*head.class_parameters())


DATASETS: dict[str, dict[str, Any]] = {
    "tiny": {"augmentation.resized_crop": False},
    "imagenet": {"representation.first": IMAGENET_RECIPE.model_dump(), "representation.later_trunk_rate": 0.1},
}


@register_method(
    "efc",
    title="EFC",
    family="drift compensation",
    stores="mean and covariance of each class, outputs of each task, one feature matrix",
    paper="Magistri et al., ICLR 2024, arXiv 2402.03917",
    recipe="authors",
    datasets=DATASETS,
)
def efc() -> Method:
    """The method of the paper."""
    later = Recipe(
        epochs=100,
        batch_size=64,
        optimizer="adam",
        learning_rate=1e-4,
        weight_decay=2e-4,
        schedule="constant",
        drop_last=False,
    )
    return Method(
        backbone=BackboneConfig(features=None, batch_norm="frozen"),
        augmentation=Augmentation(crop_padding=4, resized_crop=True, flip=True),
        representation=Representation(
            # 64 images and the three rotations of each.
            first=later.with_changes(batch_size=256, learning_rate=1e-3, schedule="milestones", milestones=(0.45, 0.9)),
            later=later,
            heads="keep",
            train_old_heads=True,
            head_bias=False,
            label_augmentation=Rotations(when="first"),
            terms={
                "cross_entropy": CrossEntropy(over="current"),
                "feature_matrix": FeatureMatrix(importance=10.0, damping=0.1),
                "pr_ace": PrototypeCrossEntropy(),
            },
        ),
        memory=GaussianMemory(covariance="full", augmented=True),
        drift=EFC(sigma=0.2),
    )


@register_method(
    "efc++",
    title="EFC++",
    family="drift compensation",
    stores="mean, covariance and count of each class, outputs of each task, one feature matrix",
    paper="Magistri et al., 2025, arXiv 2503.10439",
    recipe="authors",
    datasets=DATASETS,
)
def efcpp() -> Method:
    """EFC without rehearsal during training, and with re-balancing after it."""
    method = efc()
    terms = {name: term for name, term in method.representation.terms.items() if name != "pr_ace"}
    representation = method.representation.with_changes(terms=terms, train_old_heads=False)
    return method.with_changes(representation=representation, classifier=Rebalanced())
