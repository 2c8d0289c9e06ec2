"""Which rule to solve the sums by: chosen on the arriving images, each left out in turn."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from adagauss.core.calibration import TEMPERATURES, best_temperature, nll
from adagauss.core.state import Groups, State
from adagauss.errors import ConfigError, DataError, NumericalError
from adagauss.sums.discriminant import Discriminant
from adagauss.sums.linear import Linear, Rule
from adagauss.sums.ridge import Ridge
from adagauss.sums.totals import FeatureSums
from adagauss.sums.weighing import Weighed, Weighing

STRENGTHS = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Numbers of images ν (see `Strength`) that are compared unless others are asked for."""
TRAILING = 0.5
"""Hits, in units of √(images judged), by which a candidate may trail the best. On held-out training images of CUB,
TinyImageNet and Omniglot 1 gives the same accuracy, on CIFAR-100 0.4 less, and costs a third more."""
SOUND = 300
"""Images judged at which a hit counts as much as one nat of surprise, and less than that before."""


class Strength(NamedTuple):
    """A ridge regression whose strength is a number of images ν: λ = ν/n after n images.

    ρ = λ·mean(diag A) then stays what it is while A grows, and the best ν hardly moves between tasks.
    """

    images: float
    intercept: bool = False

    def rule(self, images: int) -> Ridge:
        """The regression after so many images."""
        return Ridge(self.images / max(1, images), self.intercept)


Candidates = Sequence[Strength | Discriminant]


class Choice(State):
    """Candidates for how scores are solved from the sums, and how well each did on the images of all tasks so far.

    A candidate is a rule and a weight for each group of features; all features are at one deviation within classes
    before they are weighed. Evidence adds up over tasks. A candidate that trails the best by more hits than half of
    √(images judged so far) is tried no more: of two candidates that disagree on a tenth of the images, that is one and
    a half standard deviations of the difference, and every candidate costs a factorisation per task.

    Scores are divided by a temperature, which is chosen alike, so that those of all rules have one scale and a change
    of rule between tasks is no change of scale. What is found out about probabilities beyond that is `Evidence`.
    """

    axes: ClassVar[Mapping[str, str]] = {
        "rule": "n",
        "weights": "ng",
        "hits": "n",
        "surprise": "nt",
        "second": "nt",
        "tried": "n",
        "images": "",
    }
    contents: ClassVar[str] = "how many images each rule got right, and how surprised it was, over all classes together"

    def __init__(self, rules: Candidates, weights: Sequence[Sequence[float]] = ((1.0,),)) -> None:
        super().__init__()
        if not rules:
            raise ConfigError("there is no rule to solve the sums by: name one at least")
        self.rules = tuple(rules)
        pairs = list(product(range(len(rules)), weights))
        number = len(pairs)
        self.register_buffer("rule", torch.tensor([rule for rule, _ in pairs]))
        self.register_buffer("weights", torch.tensor([list(weight) for _, weight in pairs], dtype=torch.float64))
        self.register_buffer("hits", torch.zeros(number, dtype=torch.float64))
        self.register_buffer("surprise", torch.zeros(number, len(TEMPERATURES), dtype=torch.float64))
        self.register_buffer("second", torch.zeros(number, len(TEMPERATURES), dtype=torch.float64))
        self.register_buffer("tried", torch.ones(number, dtype=torch.bool))
        self.register_buffer("images", torch.zeros((), dtype=torch.long))
        self.rule: Tensor
        self.weights: Tensor
        self.hits: Tensor
        self.surprise: Tensor
        self.second: Tensor
        self.tried: Tensor
        self.images: Tensor

    def check(self) -> None:
        """Raise a `DataError` if these cannot be candidates and their results."""
        super().check()
        self.require(self.surprise.shape[1] == len(TEMPERATURES), "it has results for other temperatures")
        self.require(self.weights.shape[1] > 0, "its candidates weigh nothing")
        self.require((self.rule >= 0) & (self.rule < len(self.rules)), "a candidate has a rule that is not among them")
        self.require((self.weights >= 0).all(1), "a candidate is weighted below zero")
        self.require((self.hits >= 0) & (self.hits <= self.images), "a candidate was right more often than tried")
        self.require(self.tried.any(), "no candidate is left")

    @torch.no_grad()
    def observe(self, weighing: Weighing, views: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Try every candidate that is left on images that are in the sums, each left out in turn.

        ``views`` are (V, N, width) features. Images that are alone in their class are passed over: without them it is
        not known. Returned are the scores of the others under the candidate that is now the best, at its temperature,
        and their targets.
        """
        sums = weighing.sums
        others = sums.counts.cpu()[targets] > len(views)
        views, targets = views[:, others], targets[others]
        if len(targets) == 0:
            return views.new_zeros(0, sums.classes), targets
        found: dict[int, Tensor] = {}
        for weighed, candidates in self._by_weights(weighing):
            for index in candidates:
                try:
                    found[index] = weighed.left_out(self._rule(index, sums), views, targets)
                except (DataError, NumericalError):
                    # There may be no covariance, or none with an inverse, where a regression does well.
                    self.tried[index] = False
        if not found:
            raise NumericalError(
                "no rule can be solved from these images: add others, if they are much alike, or choose usual "
                "strengths and shrinkages (classifier.strengths, classifier.shrinkages)"
            )
        for index, scores in found.items():
            self.hits[index] += (scores.argmax(1) == targets.to(scores.device)).sum()
            right, second = nll(scores, targets)
            self.surprise[index] += right.sum(0).to(self.surprise)
            self.second[index] += second.sum(0).to(self.second)
        self.images += len(targets)
        self.tried &= self.hits >= self.hits[self.tried].max() - TRAILING * float(self.images) ** 0.5
        return found[self.best] / self.temperature, targets

    def remap_classes(self, groups: Groups) -> Self:
        """What was found out is about all classes together."""
        return self

    def merged(self, other: Self, columns: tuple[int, ...]) -> Self:
        """Evidence of both adds up; candidates that either gave up are tried no more.

        Where none is left, what one found out cannot be compared with what the other did: the one that has judged more
        images has the say.
        """
        if not bool((self.tried & other.tried.to(self.tried.device)).any()):
            return copy.deepcopy(self if self.images >= other.images.to(self.images.device) else other)
        both = copy.deepcopy(self)
        for name in ("hits", "surprise", "second", "images"):
            both.get_buffer(name).add_(other.get_buffer(name).to(both.hits.device))
        both.tried &= other.tried.to(both.tried.device)
        return both

    @property
    def best(self) -> int:
        """Of each kind of rule the candidate that did best; of these, the one with most hits.

        Within a kind, surprise − hits·n/`SOUND` is compared, n the images judged. Likelihood tells candidates apart by
        fewer images than hits do; but regressions on one-hot labels give no log-probabilities, so that it prefers
        stronger ones than are right most often, and of many images hits have the say. Scores of two kinds cannot be
        compared by likelihood at all.
        """
        if int(self.images) == 0:
            # Classes of single images leave nothing to compare on: the middle of the regressions is no extreme.
            ridges = [index for index in range(len(self.rule)) if self._is_regression(index)]
            return ridges[len(ridges) // 2] if ridges else 0
        leading: dict[type, int] = {}
        for index in self._ranked():
            leading.setdefault(type(self.rules[int(self.rule[index])]), index)
        return max(leading.values(), key=lambda index: float(self.hits[index]))

    @property
    def best_rule(self) -> Strength | Discriminant:
        """The rule of the best candidate."""
        return self.rules[int(self.rule[self.best])]

    @property
    def temperature(self) -> float:
        """At which the best candidate's scores are most truthful as probabilities; 1 where nothing was judged."""
        return self._temperature(self.best)

    def _temperature(self, index: int) -> float:
        if int(self.images) == 0:
            return 1.0
        return best_temperature(self.surprise[index], self.second[index], int(self.images))[0]

    def solve(self, weighing: Weighing) -> Linear:
        """The scores of the best candidate, divided by the temperature.

        Where classes were forgotten, too little may be left for a covariance: then the best regression takes over.
        """
        best = self.best
        try:
            return self._solved(best, weighing)
        except (DataError, NumericalError):
            regressions = [index for index in self._ranked() if self._is_regression(index)]
            if not regressions or regressions[0] == best:
                raise
            return self._solved(regressions[0], weighing)

    def _solved(self, index: int, weighing: Weighing) -> Linear:
        weighed = weighing.at(self.weights[index].tolist())
        return weighed.solve(self._rule(index, weighing.sums)).divided_by(self._temperature(index))

    def _is_regression(self, index: int) -> bool:
        return isinstance(self.rules[int(self.rule[index])], Strength)

    def _ranked(self) -> list[int]:
        """Candidates still tried, the best of each kind before others of its kind."""
        tried: list[int] = self.tried.nonzero().flatten().tolist()
        loss = self.surprise.min(1).values - self.hits * (int(self.images) / SOUND)
        return sorted(tried, key=lambda index: float(loss[index]))

    def _rule(self, index: int, sums: FeatureSums) -> Rule:
        return self.rules[int(self.rule[index])].rule(int(sums.images))

    def _by_weights(self, weighing: Weighing) -> Iterator[tuple[Weighed, list[int]]]:
        """Candidates still tried, those with the same weights together."""
        alike: dict[tuple[float, ...], list[int]] = {}
        for index in self.tried.nonzero().flatten().tolist():
            alike.setdefault(tuple(self.weights[index].tolist()), []).append(index)
        for weights, candidates in alike.items():
            yield weighing.at(weights), candidates
