"""Which rule to solve the sums by: chosen on the arriving images, each left out in turn."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple, Self

import torch
from torch import Tensor

from adagauss.errors import ConfigError
from adagauss.state import Groups, Learned
from adagauss.sums.discriminant import Discriminant
from adagauss.sums.linear import Linear, Rule
from adagauss.sums.ridge import Ridge
from adagauss.sums.totals import FeatureSums
from adagauss.temperature import TEMPERATURES, best_temperature, surprises

IMAGES = (30.0, 100.0, 300.0, 1000.0, 3000.0)


class Rules(NamedTuple):
    """What is compared: ridge regressions of several strengths, discriminant analysis, or both."""

    strengths: tuple[float, ...] = IMAGES
    intercept: bool = False
    discriminant: Discriminant | None = None

    def numbers(self) -> list[float]:
        """A number for each rule: ν of a ridge regression, zero for discriminant analysis."""
        numbers = sorted(self.strengths) + [0.0] * (self.discriminant is not None)
        if not numbers or min(self.strengths, default=1.0) <= 0:
            raise ConfigError(f"strengths are positive numbers, one at least; got {list(self.strengths)}")
        return numbers

    def rule(self, number: float, images: int) -> Rule:
        """The rule of a number after so many images."""
        if number:
            return Ridge(number / max(1, images), self.intercept)
        assert self.discriminant is not None
        return self.discriminant


class Choice(Learned):
    """Candidates for how scores are solved from the sums, and how well each did on the images of all tasks so far.

    A candidate is a rule and a weight for each group of features. The strength of a ridge is a number of images ν:
    λ = ν/n after n images, so that ρ = λ·mean(diag A) stays what it is while A grows. The best ν hardly moves between
    tasks, and evidence adds up. A candidate that trails the best by more hits than √(images judged so far) is tried no
    more: of two candidates that disagree on a tenth of the images, that is three standard deviations of the difference,
    and every candidate costs a factorisation per task.

    Scores are divided by a temperature, which is chosen alike, so that those of all rules have one scale and a change
    of rule between tasks is no change of scale. What is found out about probabilities beyond that is `Evidence`.
    """

    def __init__(self, rules: Rules | None = None, weights: Sequence[Sequence[float]] = ((1.0,),)) -> None:
        super().__init__()
        self.rules = rules or Rules()
        pairs = list(product(self.rules.numbers(), weights))
        number = len(pairs)
        self.register_buffer("strengths", torch.tensor([strength for strength, _ in pairs], dtype=torch.float64))
        self.register_buffer("weights", torch.tensor([list(weight) for _, weight in pairs], dtype=torch.float64))
        self.register_buffer("hits", torch.zeros(number, dtype=torch.float64))
        self.register_buffer("surprise", torch.zeros(number, len(TEMPERATURES), dtype=torch.float64))
        self.register_buffer("second", torch.zeros(number, len(TEMPERATURES), dtype=torch.float64))
        self.register_buffer("tried", torch.ones(number, dtype=torch.bool))
        self.register_buffer("images", torch.zeros((), dtype=torch.long))
        self.strengths: Tensor
        self.weights: Tensor
        self.hits: Tensor
        self.surprise: Tensor
        self.second: Tensor
        self.tried: Tensor
        self.images: Tensor

    @torch.no_grad()
    def observe(
        self, sums: FeatureSums, views: Tensor, targets: Tensor, groups: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Try every candidate that is left on images that are in the sums, each left out in turn.

        ``views`` are (V, N, width) features; ``groups`` the sizes of the groups of features, in their order (None: all
        are one group). Images that are alone in their class are passed over: without them it is not known. Returned
        are the scores of the others under the candidate that is now the best, at its temperature, and their targets.
        """
        others = sums.counts.cpu()[targets] > len(views)
        views, targets = views[:, others], targets[others]
        if len(targets) == 0:
            return views.new_zeros(0, sums.classes), targets
        found = {}
        for index in self.tried.nonzero().flatten().tolist():
            rule = self.rules.rule(float(self.strengths[index]), int(sums.images))
            scores = rule.left_out(sums, views, targets, self._scale(index, sums, groups))
            self.hits[index] += (scores.argmax(1) == targets.to(scores.device)).sum()
            right, second = surprises(scores, targets)
            self.surprise[index] += right.sum(0).to(self.surprise)
            self.second[index] += second.sum(0).to(self.second)
            found[index] = scores
        self.images += len(targets)
        self.tried &= self.hits >= self.hits[self.tried].max() - float(self.images) ** 0.5
        return found[self.best] / self.temperature, targets

    def regrouped(self, groups: Groups) -> Self:
        """What was found out is about all classes together."""
        return self

    def merged(self, other: Self, columns: tuple[int, ...]) -> Self:
        """Evidence of both adds up; candidates that either gave up are tried no more, if any are left."""
        both = copy.deepcopy(self)
        for name in ("hits", "surprise", "second", "images"):
            both.get_buffer(name).add_(other.get_buffer(name).to(both.hits.device))
        left = self.tried & other.tried.to(self.tried.device)
        both.tried = left if bool(left.any()) else self.tried.clone()
        return both

    @property
    def best(self) -> int:
        """The candidate with most hits; of several, the one to which the right classes were least surprising."""
        if int(self.images) == 0:
            # Classes of single images leave nothing to compare on: the middle of the candidates is no extreme.
            return int((self.strengths >= self.strengths.median()).nonzero()[0])
        tried: list[int] = self.tried.nonzero().flatten().tolist()
        return min(tried, key=lambda index: (-float(self.hits[index]), float(self.surprise[index].min())))

    @property
    def temperature(self) -> float:
        """At which the best candidate's scores are most truthful as probabilities; 1 where nothing was judged."""
        best = self.best
        if int(self.images) == 0:
            return 1.0
        return best_temperature(self.surprise[best], self.second[best], int(self.images))[0]

    def solve(self, sums: FeatureSums, groups: Sequence[int] | None = None) -> Linear:
        """The scores of the best candidate, divided by the temperature."""
        best = self.best
        rule = self.rules.rule(float(self.strengths[best]), int(sums.images))
        return rule.solve(sums, self._scale(best, sums, groups)).divided_by(self.temperature)

    def _scale(self, index: int, sums: FeatureSums, groups: Sequence[int] | None) -> Tensor | None:
        weights = self.weights[index]
        if len(weights) == 1:
            return None
        sizes = torch.tensor([sums.width] if groups is None else list(groups))
        if len(sizes) != len(weights):
            raise ConfigError(f"there are {len(sizes)} groups of features, but weights for {len(weights)}")
        return torch.repeat_interleave(weights.cpu(), sizes)
