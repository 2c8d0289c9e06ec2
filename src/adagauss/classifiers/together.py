"""Two classifiers in one: of features that move, which drift compensation follows, and of features that stand still."""

from __future__ import annotations

import copy
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from adagauss.backbones import Network
from adagauss.classifiers.base import Classifier, MemoryClassifier, Scorer
from adagauss.classifiers.exact import ExactClassifier, ExactRidge, ExactScorer
from adagauss.classifiers.gaussian import Bayes
from adagauss.config import part_of
from adagauss.gaussians import ClassGaussians
from adagauss.needs import Need
from adagauss.runtime import Runtime
from adagauss.state import Common, Learned, recalled
from adagauss.sums.choice import TEMPERATURES, best_temperature, surprises
from adagauss.task import CurrentTask, Upkeep

SHARES = tuple(step / 20 for step in range(21))
"""Weights of the still part that are compared; the rest is that of the moving part."""


class Blend(Common):
    """How much each part has to say, by the likelihood of images that neither was taught; evidence adds up over tasks.

    Scores are ((1 − w)·log p_moving + w·log p_still) / T. The temperature of p_moving is chosen first, on the same
    images; the still part brings its own. Where nothing was judged yet, both parts weigh alike.
    """

    def __init__(self) -> None:
        super().__init__()
        number, temperatures = len(SHARES), len(TEMPERATURES)
        self.register_buffer("moving_right", torch.zeros(temperatures, dtype=torch.float64))
        self.register_buffer("moving_spread", torch.zeros(temperatures, dtype=torch.float64))
        self.register_buffer("right", torch.zeros(number, temperatures, dtype=torch.float64))
        self.register_buffer("spread", torch.zeros(number, temperatures, dtype=torch.float64))
        self.register_buffer("images", torch.zeros((), dtype=torch.long))
        self.moving_right: Tensor
        self.moving_spread: Tensor
        self.right: Tensor
        self.spread: Tensor
        self.images: Tensor

    @torch.no_grad()
    def observe(self, moving: Tensor, still: Tensor, targets: Tensor) -> None:
        """Count images that neither part was taught: (N, C) scores of each part, and the right columns."""
        self.images += len(targets)
        right, spread = surprises(moving, targets)
        self.moving_right += right.to(self.right)
        self.moving_spread += spread.to(self.right)
        of_moving, of_still = torch.log_softmax(moving.double() / self.moving_temperature, 1), still.double()
        of_still = torch.log_softmax(of_still, 1)
        for index, share in enumerate(SHARES):
            right, spread = surprises((1 - share) * of_moving + share * of_still, targets)
            self.right[index] += right.to(self.right)
            self.spread[index] += spread.to(self.right)

    @property
    def moving_temperature(self) -> float:
        """At which the scores of the moving part are most truthful as probabilities."""
        return best_temperature(self.moving_right, self.moving_spread, int(self.images))

    @property
    def best(self) -> int:
        """The position in `SHARES` under which the right classes were least surprising, at its best temperature."""
        if not int(self.images):
            return len(SHARES) // 2
        return int((self.right + self.spread / int(self.images)).min(1).values.argmin())

    @property
    def share(self) -> float:
        """w, what the still part has to say."""
        return SHARES[self.best]

    @property
    def temperature(self) -> float:
        """T of the sum."""
        return best_temperature(self.right[self.best], self.spread[self.best], int(self.images))


class TogetherScorer(Scorer):
    """((1 − w)·log p_moving(x) + w·log p_still(z)) / T of features [x | z], and the evidence for w and T."""

    def __init__(self, moving: Scorer, still: ExactScorer, blend: Blend) -> None:
        super().__init__()
        self.moving = moving
        self.still = still
        self.blend = blend
        self.register_buffer("share", torch.tensor(blend.share))
        self.register_buffer("moving_temperature", torch.tensor(blend.moving_temperature))
        self.register_buffer("temperature", torch.tensor(blend.temperature))
        self.share: Tensor
        self.moving_temperature: Tensor
        self.temperature: Tensor

    def parts(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the moving part and of the still one."""
        width = self.still.width
        return self.moving(features[:, :-width]), self.still(features[:, -width:])

    def forward(self, features: Tensor) -> Tensor:
        moving, still = self.parts(features)
        of_moving = torch.log_softmax(moving / self.moving_temperature, 1)
        of_still = torch.log_softmax(still, 1).to(of_moving)
        return ((1 - self.share) * of_moving + self.share * of_still) / self.temperature


class Together(Classifier):
    """A classifier of the memory and one of sums over still features, weighed by images that neither was taught."""

    kind = "together"
    moving: Annotated[MemoryClassifier, part_of("classifier", "classifier.moving")] = Field(default_factory=Bayes)
    """Of the features that the memory is about."""
    still: Annotated[ExactClassifier, part_of("classifier", "classifier.still")] = Field(default_factory=ExactRidge)
    """Of the features of the network's companion."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the images of each class that the network is not trained on, and that judge both parts."""

    @property
    def requires(self) -> frozenset[Need]:
        return self.moving.requires | (self.still.requires - {Need.STILL_FEATURES}) | {Need.COMPANION}

    @property
    def holds_out(self) -> float:
        return self.held_out

    def empty_state(self) -> TogetherScorer:
        return TogetherScorer(self.moving.empty_state(), self.still.empty_state(), Blend())

    def check(self, network: Network, classes: int, runtime: Runtime) -> None:
        self.still.check(network.of_companion(), classes, runtime)

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: Learned | None) -> TogetherScorer:
        known = recalled(before, TogetherScorer)
        blend = Blend().to(now.runtime.device) if known is None else known.blend
        if known is not None and now.held_out:
            # The scorer so far was made for the present network, from the other images of the task.
            blend = copy.deepcopy(blend)
            blend.observe(*known.parts(now.prediction_features()), now.column_targets)
        still = self.still.fit(memory, now.of_companion(), None if known is None else known.still)
        return TogetherScorer(self.moving.of_memory(memory, now), still, blend).to(now.runtime.device)

    def regrouped(self, memory: ClassGaussians, now: Upkeep, before: Scorer) -> TogetherScorer:
        assert isinstance(before, TogetherScorer)
        still = self.still.regrouped(memory, now.of_companion(), before.still)
        return TogetherScorer(self.moving.regrouped(memory, now, before.moving), still, before.blend)
