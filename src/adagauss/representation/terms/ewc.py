"""Elastic weight consolidation: weights that matter for earlier tasks are held where they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, PrivateAttr
from torch import Tensor
from torch.func import functional_call

from adagauss.config import State
from adagauss.gaussians import ClassGaussians
from adagauss.representation.fisher import fisher_diagonal, quadratic_penalty
from adagauss.representation.step import Step, Term
from adagauss.representation.terms.cross_entropy import seen_targets
from adagauss.task import CurrentTask, ImageBatches


class ElasticWeights(Term):
    """(λ/2) Σ_i F_i (θ_i − θ*_i)² over the extractor's weights; ``weight`` is λ.

    θ* are the weights of the network before the task, F the diagonal Fisher information after it, merged over tasks.
    F is measured with the network in evaluation mode, so that images do not mix in batch norm, whose statistics stay
    as they are. By default it is the Fisher information as defined: the mean over images of squared gradients of
    log p(y|x) under the current task's outputs, y drawn from p(·|x).
    """

    kind = "ewc"
    weight: NonNegativeFloat = 40.0
    gradients: Literal["image", "batch"] = "image"
    """Square the gradient of every image, or of every batch's mean: smaller by about ``batch_size``."""
    labels: Literal["sampled", "true", "predicted"] = "sampled"
    """y drawn from the network (Fisher), the image's own class (empirical Fisher), or the likeliest class."""
    over: Literal["current", "seen"] = "current"
    """Outputs that p(y|x) is over."""
    old_share: Annotated[float, Field(ge=0, le=1)] | None = 0.5
    """α of F ← αF + (1 − α)F_new; None: the share of classes that were learned earlier."""
    limit: PositiveFloat | None = None
    """Largest entry of F_new."""
    batch_size: PositiveInt = 128
    images: PositiveInt | None = None
    """Measure F on about so many images, drawn at random; None: on all of the task."""
    _fisher: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _classes: int = PrivateAttr(0)

    def loss(self, step: Step) -> Tensor | None:
        if step.now.previous is None or not self._fisher:
            return None
        parameters = dict(step.now.network.extractor.named_parameters())
        return quadratic_penalty(parameters, dict(step.now.previous.extractor.named_parameters()), self._fisher)

    def end(self, now: CurrentTask, memory: ClassGaussians) -> None:
        if not self.weight:
            return
        fisher = self.fisher(now)
        classes = self._classes + len(now.classes)
        if self._fisher:
            share = self._classes / classes if self.old_share is None else self.old_share
            fisher = {name: share * self._fisher[name] + (1 - share) * value for name, value in fisher.items()}
        self._fisher, self._classes = fisher, classes

    def fisher(self, now: CurrentTask) -> dict[str, Tensor]:
        """F of the current task alone, by names of the extractor's parameters."""
        extractor = now.network.extractor

        def loss(parameters: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
            features: Tensor = functional_call(extractor, parameters, (images,))
            return F.cross_entropy(self._logits(now, features), labels)

        was_training = extractor.training
        extractor.eval()
        parameters = dict(extractor.named_parameters())
        values = fisher_diagonal(loss, parameters, self._batches(now), self.gradients == "image")
        extractor.train(was_training)
        return values if self.limit is None else {name: value.clamp(max=self.limit) for name, value in values.items()}

    def _logits(self, now: CurrentTask, features: Tensor) -> Tensor:
        head = now.network.head
        return head.current(features) if self.over == "current" else head.seen(features, auxiliary=True)

    def _batches(self, now: CurrentTask) -> Iterator[tuple[Tensor, Tensor]]:
        generator = now.runtime.generator(now.name, "fisher")
        batches = ImageBatches(now.data, now.augmentation, now.runtime, self.batch_size, drop_last=False)
        seen = 0
        for images, targets in batches.epoch(generator):
            if self.images is not None and seen >= self.images:
                return
            seen += len(images)
            if self.labels == "true":
                yield images, targets if self.over == "current" else seen_targets(now.network.head, targets)
                continue
            with torch.no_grad():
                logits = self._logits(now, now.network.extractor(images))
            if self.labels == "predicted":
                yield images, logits.argmax(1)
            else:
                drawn = torch.multinomial(logits.softmax(1).cpu(), 1, generator=generator)
                yield images, drawn.flatten().to(images.device)

    def state_dict(self) -> State:
        if not self._fisher:
            return {}
        state = {f"fisher.{name}": value for name, value in self._fisher.items()}
        return {**state, "classes": torch.tensor(self._classes)}

    def load_state_dict(self, state: State) -> None:
        prefix = "fisher."
        self._fisher = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
        self._classes = int(state["classes"]) if state else 0
