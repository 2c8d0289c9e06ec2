"""Two classifiers in one: of features that move, which drift compensation follows, and of features that stand still."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from adagauss.backbones import Network
from adagauss.classifiers.base import Classifier, MemoryClassifier
from adagauss.classifiers.exact import ExactClassifier, ExactRidge, ExactScorer
from adagauss.classifiers.gaussian import Bayes
from adagauss.core.calibration import TEMPERATURES, Fitted, HoldoutFitter, best_temperature, nll, no_holdout_fit
from adagauss.core.config import Requirement, part_of
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import Scorer, SharedState, State, as_state
from adagauss.core.task import ClassEdit, CurrentTask
from adagauss.utils.runtime import Runtime

SHARES = tuple(step / 20 for step in range(21))
"""Weights of the still part that are compared; the rest is that of the moving part."""


class Blend(SharedState):
    """How much each part has to say, by the likelihood of images that neither was taught; evidence adds up over tasks.

    Scores are ((1 − w)·log p_moving + w·log p_still) / T. The temperature of p_moving is chosen first, on the same
    images; the still part brings its own. Where nothing was judged yet, both parts weigh alike.
    """

    axes: ClassVar[Mapping[str, str]] = {
        "moving_right": "t",
        "moving_second": "t",
        "right": "nt",
        "second": "nt",
        "images": "",
    }
    contents: ClassVar[str] = "how surprised each weight of the two parts was, over all classes together"

    def __init__(self) -> None:
        super().__init__()
        number, temperatures = len(SHARES), len(TEMPERATURES)
        self.register_buffer("moving_right", torch.zeros(temperatures, dtype=torch.float64))
        self.register_buffer("moving_second", torch.zeros(temperatures, dtype=torch.float64))
        self.register_buffer("right", torch.zeros(number, temperatures, dtype=torch.float64))
        self.register_buffer("second", torch.zeros(number, temperatures, dtype=torch.float64))
        self.register_buffer("images", torch.zeros((), dtype=torch.long))
        self.moving_right: Tensor
        self.moving_second: Tensor
        self.right: Tensor
        self.second: Tensor
        self.images: Tensor

    def check(self) -> None:
        """Raise a `DataError` if these cannot be sums over images."""
        super().check()
        self.require(self.right.shape == (len(SHARES), len(TEMPERATURES)), "it has other weights or temperatures")
        self.require(self.images >= 0, "fewer images than none have judged")

    @torch.no_grad()
    def observe(self, moving: Tensor, still: Tensor, targets: Tensor) -> None:
        """Count images that neither part was taught: (N, C) scores of each part, and the right columns."""
        self.images += len(targets)
        right, second = nll(moving, targets)
        self.moving_right += right.sum(0).to(self.right)
        self.moving_second += second.sum(0).to(self.right)
        of_moving = torch.log_softmax(moving.double() / self.moving_temperature, 1)
        of_still = torch.log_softmax(still.double(), 1)
        for index, share in enumerate(SHARES):
            right, second = nll((1 - share) * of_moving + share * of_still, targets)
            self.right[index] += right.sum(0).to(self.right)
            self.second[index] += second.sum(0).to(self.right)

    @property
    def moving_temperature(self) -> float:
        """At which the scores of the moving part are most truthful as probabilities; 1 where nothing was judged."""
        return self._best_temperature(self.moving_right, self.moving_second)

    @property
    def best(self) -> int:
        """The position in `SHARES` under which the right classes were least surprising, at its best temperature."""
        if not int(self.images):
            return len(SHARES) // 2
        return int((self.right + self.second / int(self.images)).min(1).values.argmin())

    @property
    def share(self) -> float:
        """w, what the still part has to say."""
        return SHARES[self.best]

    @property
    def temperature(self) -> float:
        """T of the sum; 1 where nothing was judged."""
        return self._best_temperature(self.right[self.best], self.second[self.best])

    def _best_temperature(self, right: Tensor, second: Tensor) -> float:
        images = int(self.images)
        return best_temperature(right, second, images)[0] if images else 1.0


class TogetherScorer(Scorer):
    """((1 − w)·log p_moving(x) + w·log p_still(z)) / T of features [x | z], and the evidence for w and T."""

    axes: ClassVar[Mapping[str, str]] = {"share": "", "moving_temperature": "", "temperature": ""}
    contents: ClassVar[str] = "a weight and two temperatures"

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

    def check(self) -> None:
        """Raise a `DataError` if the weight or a temperature cannot be one."""
        super().check()
        self.require((self.share >= 0) & (self.share <= 1), "its weight is not between 0 and 1")
        self.require((self.moving_temperature > 0) & (self.temperature > 0), "a temperature is not above zero")

    @property
    def power(self) -> float | None:
        return self.moving.power

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
    """A classifier of the memory and one of sums over still features, weighed by images that neither was taught.

    These are the images that the evidence part keeps from training (``evidence.of_training``).
    """

    kind = "together"
    moving: Annotated[MemoryClassifier, part_of("classifier", "classifier.moving")] = Field(default_factory=Bayes)
    """Of the features that the memory is about."""
    still: Annotated[ExactClassifier, part_of("classifier", "classifier.still")] = Field(default_factory=ExactRidge)
    """Of the features of the network's companion."""

    @property
    def requires(self) -> frozenset[Requirement]:
        return self.moving.requires | (self.still.requires - {Requirement.FROZEN_FEATURES}) | {Requirement.COMPANION}

    def empty_state(self) -> TogetherScorer:
        return TogetherScorer(self.moving.empty_state(), self.still.empty_state(), Blend())

    def check(self, network: Network, classes: int, runtime: Runtime) -> None:
        self.still.check(network.of_companion(), classes, runtime)

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> TogetherScorer:
        scorer = self._of(memory, now, now, before)
        if now.whole is None:
            return scorer
        left, blend = now.others(), copy.deepcopy(scorer.blend)
        blend.observe(*scorer.parts(left.prediction_features()), left.column_targets)
        return TogetherScorer(scorer.moving, scorer.still, blend).to(now.runtime.device)

    def update(
        self, memory: ClassGaussians, now: CurrentTask, before: State | None, attempt: HoldoutFitter = no_holdout_fit
    ) -> Fitted:
        trial = attempt()
        if trial is None:
            return Fitted(self._of(memory, now, now, before))
        # Sums only add up: the images that have judged come to those of the others.
        return Fitted(self._of(memory, now, trial.left, trial.scorer))

    def _of(self, memory: ClassGaussians, now: CurrentTask, new: CurrentTask, before: State | None) -> TogetherScorer:
        """The scorer of the memory and of the sums so far, to which the images ``new`` are added."""
        known = as_state(before, TogetherScorer)
        still = self.still.fit(memory, new.of_companion(), None if known is None else known.still)
        assert isinstance(still, ExactScorer)
        blend = Blend() if known is None else known.blend
        return TogetherScorer(self.moving.of_memory(memory, now), still, blend).to(now.runtime.device)

    def remap_classes(self, memory: ClassGaussians, now: ClassEdit, before: Scorer) -> TogetherScorer:
        assert isinstance(before, TogetherScorer)
        still = self.still.remap_classes(memory, now.of_companion(), before.still)
        return TogetherScorer(self.moving.remap_classes(memory, now, before.moving), still, before.blend)
