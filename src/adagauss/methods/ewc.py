"""EWC, elastic weight consolidation (PNAS 2017): weights that matter for old tasks stay near their old values.

    keep one head per task, the old ones fixed                                 representation (heads)
    for task t = 1 … T:
        train F_t and head t with CE over the new classes                      cross-entropy
            + (λ/2) Σ_i F_i (θ_i − θ*_i)², θ* = θ_{t−1}                        ewc (from t = 2)
        F ← ½F + ½·diagonal Fisher information of task t                       ewc (after the task)
    predict the largest output of all heads                                    classifier

The settings are neither FACIL's nor PyCIL's. λ depends on how F is measured: this method squares the gradient of every
image; FACIL and PyCIL square the gradients of batches of 128, which are much smaller, with λ = 5000 and 1000. Only the
extractor is penalised: PyCIL also penalises the old outputs, which are fixed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor
from torch.func import functional_call, grad, vmap

from adagauss.backbones import BackboneConfig, Extractor
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import SharedState, State, as_state
from adagauss.core.task import CurrentTask, ImageBatches
from adagauss.core.train import Recipe
from adagauss.methods.base import Method, register_method
from adagauss.parts.representation import Representation, Step, Term
from adagauss.parts.terms import CrossEntropy

GRADIENT_NUMBERS = 1 << 26
"""Limit for the numbers in per-image gradients: it bounds the memory to 256 MB for any network."""


class ElasticWeights(Term):
    """(λ/2) Σ_i F_i (θ_i − θ*_i)² over the extractor's weights; ``weight`` is λ.

    θ* are the weights of the network before the task, F the diagonal Fisher information after it, merged over tasks. F
    is measured with the network in evaluation mode, so that images do not interact in batch norm and its statistics do
    not change. By default it is the Fisher information by its definition: the mean over images of squared gradients of
    log p(y|x) under the current task's outputs, y drawn from p(·|x).
    """

    kind = "ewc"
    weight: NonNegativeFloat = 40.0
    labels: Literal["sampled", "true", "predicted"] = "sampled"
    """y drawn from the network (Fisher), the image's own class (empirical Fisher), or the likeliest class."""
    old_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """α of F ← αF + (1 − α)F_new."""
    batch_size: PositiveInt = 128

    def empty_state(self) -> Importance:
        return Importance()

    def loss(self, step: Step, before: State | None = None) -> Tensor | None:
        known, previous = as_state(before, Importance), step.now.previous
        if known is None or previous is None:
            return None
        parameters = dict(step.now.network.extractor.named_parameters())
        anchors = dict(previous.extractor.named_parameters())
        parts = [
            (fisher * (parameters[name] - anchors[name]).square()).sum()
            for name, fisher in known.by_name(previous.extractor).items()
        ]
        return torch.stack(parts).sum() / 2

    def finish(self, now: CurrentTask, memory: ClassGaussians, before: State | None) -> Importance | None:
        if not self.weight:
            return None
        fisher = torch.cat([value.flatten() for value in self.measure(now).values()])
        if (known := as_state(before, Importance)) is not None:
            fisher = self.old_share * known.fisher + (1 - self.old_share) * fisher
        return Importance(fisher=fisher)

    def measure(self, now: CurrentTask) -> dict[str, Tensor]:
        """F_i = (1/N) Σ_n (∂ log p(y_n | x_n) / ∂θ_i)² over the current images, by parameter name of the extractor.

        Several processes each give their share of every batch, and get the F of all.
        """
        extractor, processes = now.network.extractor, now.runtime.processes
        was_training = extractor.training
        extractor.eval()
        points = {name: parameter.detach() for name, parameter in extractor.named_parameters()}
        at_once = max(1, GRADIENT_NUMBERS // max(1, sum(point.numel() for point in points.values())))

        def loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            features: Tensor = functional_call(extractor, parameters, (image.unsqueeze(0),))
            return F.cross_entropy(now.network.head.current(features), label.unsqueeze(0))

        gradients_of = vmap(grad(loss), in_dims=(None, 0, 0))
        sums = {name: torch.zeros_like(point, memory_format=torch.contiguous_format) for name, point in points.items()}
        total = 0
        for images, labels in self._batches(now):
            total += int(processes.sum_(torch.tensor(len(images), device=images.device)))
            if not len(images):  # this process has no share of a small batch
                continue
            for some, theirs in zip(torch.split(images, at_once), torch.split(labels, at_once), strict=True):
                for name, gradients in gradients_of(points, some, theirs).items():
                    sums[name] += gradients.detach().square().sum(0)
        extractor.train(was_training)
        return {name: processes.sum_(value) / max(1, total) for name, value in sums.items()}

    def _batches(self, now: CurrentTask) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the images, and y of each."""
        generator = now.runtime.generator(now.name, "fisher")
        batches = ImageBatches(now, self.batch_size, drop_last=False)
        for images, labels in batches.epoch(0, generator):
            division = now.runtime.processes.divide(len(labels))
            if self.labels != "true":
                with torch.no_grad():
                    logits = division.all_gather(now.network.head.current(now.network.extractor(images)))
                if self.labels == "predicted":
                    labels = logits.argmax(1)
                else:
                    drawn = torch.multinomial(logits.softmax(1).cpu(), 1, generator=generator)
                    labels = drawn.flatten().to(images.device)
            yield images, labels[division.rows.to(labels.device)]


class Importance(SharedState):
    """F of all tasks so far as one vector over the extractor's parameters."""

    dims: ClassVar[Mapping[str, str]] = {"fisher": "w"}
    non_negative = ("fisher",)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state_dict.pop(f"{prefix}classes", None)  # version 0.2.0 counted the classes
        super()._load_from_state_dict(state_dict, prefix, *args)

    def by_name(self, extractor: Extractor) -> dict[str, Tensor]:
        """F of each parameter, in its shape."""
        parameters = dict(extractor.named_parameters())
        pieces = torch.split(self.fisher, [parameter.numel() for parameter in parameters.values()])
        return {name: piece.view_as(p) for (name, p), piece in zip(parameters.items(), pieces, strict=True)}


@register_method(
    "ewc",
    title="EWC",
    family="regularisation",
    stores="the importance of each weight of the extractor",
    paper="Kirkpatrick et al., PNAS 2017, arXiv 1612.00796",
)
def ewc() -> Method:
    """A quadratic penalty weighted by the diagonal Fisher information."""
    recipe = Recipe(epochs=200, milestones=(0.3, 0.6, 0.9), clip_norm=1.0)
    return Method(
        backbone=BackboneConfig(features=None),
        representation=Representation(
            first=recipe,
            later=recipe,
            heads="keep",
            terms={"cross_entropy": CrossEntropy(over="current"), "ewc": ElasticWeights(weight=40.0)},
        ),
    )
