"""Which rule to solve the sums by: chosen on the arriving images, each left out in turn."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import product
from typing import ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.errors import ConfigError
from adagauss.state import Groups, Learned
from adagauss.sums.discriminant import Discriminant
from adagauss.sums.linear import Linear, Rule
from adagauss.sums.ridge import Ridge
from adagauss.sums.totals import FeatureSums

IMAGES = (30.0, 100.0, 300.0, 1000.0, 3000.0)
TEMPERATURES = tuple(2.0 ** (power / 2) for power in range(-16, 17))
"""From 1/256, for regressions on one-hot labels, whose scores a softmax makes too equal, to 256."""


def surprises(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over images of −log p, one for each temperature: p of the right class, and the mean over all classes."""
    right, spread = [], []
    labels = targets.to(scores.device)
    for temperature in TEMPERATURES:
        log_p = torch.log_softmax(scores.double() / temperature, dim=1)
        right.append(F.nll_loss(log_p, labels, reduction="sum"))
        spread.append(-log_p.mean(1).sum())
    return torch.stack(right), torch.stack(spread)


def best_temperature(right: Tensor, spread: Tensor, images: int) -> float:
    """The temperature at which scores are most truthful as probabilities, from sums of `surprises`.

    One image of a class drawn at random counts beside those held out: where all of these are right, the likelihood
    alone would ask for certainty.
    """
    return float(TEMPERATURES[int((right + spread / max(1, images)).argmin())]) if images else 1.0


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

    Scores become probabilities by a softmax at a temperature, which is chosen alike: by the likelihood of the images
    that were left out.
    """

    axes: ClassVar[Mapping[str, str]] = {
        "strengths": "n",
        "weights": "ng",
        "hits": "n",
        "surprise": "nt",
        "spread": "nt",
        "tried": "n",
        "images": "",
    }
    keeps: ClassVar[str] = "how many images each rule got right, and how surprised it was, over all classes together"

    def __init__(self, rules: Rules | None = None, weights: Sequence[Sequence[float]] = ((1.0,),)) -> None:
        super().__init__()
        self.rules = rules or Rules()
        pairs = list(product(self.rules.numbers(), weights))
        number = len(pairs)
        self.register_buffer("strengths", torch.tensor([strength for strength, _ in pairs], dtype=torch.float64))
        self.register_buffer("weights", torch.tensor([list(weight) for _, weight in pairs], dtype=torch.float64))
        self.register_buffer("hits", torch.zeros(number, dtype=torch.float64))
        self.register_buffer("surprise", torch.zeros(number, len(TEMPERATURES), dtype=torch.float64))
        self.register_buffer("spread", torch.zeros(number, len(TEMPERATURES), dtype=torch.float64))
        self.register_buffer("tried", torch.ones(number, dtype=torch.bool))
        self.register_buffer("images", torch.zeros((), dtype=torch.long))
        self.strengths: Tensor
        self.weights: Tensor
        self.hits: Tensor
        self.surprise: Tensor
        self.spread: Tensor
        self.tried: Tensor
        self.images: Tensor

    def check(self) -> None:
        """Raise a `DataError` if these cannot be candidates and their results."""
        super().check()
        self.require(self.surprise.shape[1] == len(TEMPERATURES), "it has results for other temperatures")
        self.require(self.weights.shape[1] > 0, "its candidates weigh nothing")
        self.require((self.strengths >= 0) & (self.weights >= 0).all(1), "a candidate is weighted below zero")
        self.require((self.hits >= 0) & (self.hits <= self.images), "a candidate was right more often than tried")
        self.require(self.tried.any(), "no candidate is left")

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
            right, spread = surprises(scores, targets)
            self.surprise[index] += right.to(self.surprise)
            self.spread[index] += spread.to(self.spread)
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
        for name in ("hits", "surprise", "spread", "images"):
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
        return best_temperature(self.surprise[best], self.spread[best], int(self.images))

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
