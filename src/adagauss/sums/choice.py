"""How strong a ridge should be: chosen on images that are held out while they arrive, and added afterwards."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import product
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.errors import ConfigError
from adagauss.state import Groups, Learned
from adagauss.sums.ridge import Linear, RidgeSums

IMAGES = (30.0, 100.0, 300.0, 1000.0, 3000.0)
TEMPERATURES = tuple(2.0 ** (power / 2) for power in range(-16, 17))
"""From 1/256, for regressions on one-hot labels, whose scores a softmax makes too equal, to 256."""


def hold_out(targets: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A mask, true for about ``share`` of the images of each class: one at least where there are two, and never all."""
    if not 0 < share < 1:
        raise ConfigError(f"the share of images held out lies between 0 and 1; got {share}")
    mask = torch.zeros(len(targets), dtype=torch.bool)
    for target in torch.unique(targets).tolist():
        members = (targets == target).nonzero().flatten()
        number = min(max(1, int(share * len(members) + 0.5)), len(members) - 1)
        mask[members[torch.randperm(len(members), generator=generator)[:number]]] = True
    return mask


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


class Calibration(Learned):
    """How truthful scores are as probabilities at each temperature, on held-out images of all tasks so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("surprise", torch.zeros(len(TEMPERATURES), dtype=torch.float64))
        self.register_buffer("spread", torch.zeros(len(TEMPERATURES), dtype=torch.float64))
        self.register_buffer("images", torch.zeros((), dtype=torch.long))
        self.surprise: Tensor
        self.spread: Tensor
        self.images: Tensor

    @torch.no_grad()
    def observe(self, scores: Tensor, targets: Tensor) -> None:
        """Take in the scores of images that were held out when the weights were solved."""
        right, spread = surprises(scores, targets)
        self.surprise += right.to(self.surprise)
        self.spread += spread.to(self.spread)
        self.images += len(targets)

    def regrouped(self, groups: Groups) -> Self:
        """What was found out is about all classes together."""
        return self

    def merged(self, other: Self, columns: tuple[int, ...]) -> Self:
        both = copy.deepcopy(self)
        both.surprise += other.surprise.to(both.surprise)
        both.spread += other.spread.to(both.spread)
        both.images += other.images.to(both.images)
        return both

    @property
    def temperature(self) -> float:
        """The best one; 1 where nothing was held out."""
        return best_temperature(self.surprise, self.spread, int(self.images))


class RidgeChoice(Learned):
    """Candidates for how a ridge regression is set, and how well each did on held-out images of all tasks so far.

    A candidate is a strength and a weight for each group of features. The strength is a number of images ν: λ = ν/n
    after n images, so that ρ = λ·mean(diag A) stays what it is while A grows. The best ν hardly moves between tasks,
    and evidence adds up. A candidate that trails the best by more hits than √(images held out so far) is tried no more:
    of two candidates that disagree on a tenth of the images, that is three standard deviations of the
    difference, and every candidate costs a factorisation per task.

    Scores become probabilities by a softmax at a temperature, which is chosen alike: by the likelihood of the held-out
    images under the candidate.
    """

    def __init__(
        self,
        strengths: Sequence[float] = IMAGES,
        weights: Sequence[Sequence[float]] = ((1.0,),),
        intercept: bool = False,
    ) -> None:
        super().__init__()
        self.intercept = intercept
        if not strengths or min(strengths) <= 0:
            raise ConfigError(f"strengths are positive numbers, one at least; got {list(strengths)}")
        pairs = list(product(sorted(strengths), weights))
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

    @torch.no_grad()
    def observe(self, sums: RidgeSums, features: Tensor, targets: Tensor, groups: Sequence[int] | None = None) -> None:
        """Try every candidate that is left, solved from ``sums``, on images that are not in them.

        ``groups`` are the sizes of the groups of features, in their order; None: all are one group.
        """
        if len(targets) == 0:
            return
        for index in self.tried.nonzero().flatten().tolist():
            scores = self._solved(index, sums, groups, refine=False)(features).double()
            self.hits[index] += (scores.argmax(1) == targets.to(scores.device)).sum()
            right, spread = surprises(scores, targets)
            self.surprise[index] += right.to(self.surprise)
            self.spread[index] += spread.to(self.spread)
        self.images += len(targets)
        self.tried &= self.hits >= self.hits[self.tried].max() - float(self.images) ** 0.5

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
        """At which the best candidate's scores are most truthful as probabilities; 1 where nothing was held out."""
        best = self.best
        return best_temperature(self.surprise[best], self.spread[best], int(self.images))

    def solve(self, sums: RidgeSums, groups: Sequence[int] | None = None) -> Linear:
        """The regression of the best candidate, its scores divided by the temperature."""
        return self._solved(self.best, sums, groups, refine=True).divided_by(self.temperature)

    def _solved(self, index: int, sums: RidgeSums, groups: Sequence[int] | None, refine: bool) -> Linear:
        strength = float(self.strengths[index]) / int(sums.images)
        return sums.solve(strength, self.intercept, refine, self._scale(index, sums, groups))

    def _scale(self, index: int, sums: RidgeSums, groups: Sequence[int] | None) -> Tensor | None:
        weights = self.weights[index]
        if len(weights) == 1:
            return None
        sizes = torch.tensor([sums.width] if groups is None else list(groups))
        if len(sizes) != len(weights):
            raise ConfigError(f"there are {len(sizes)} groups of features, but weights for {len(weights)}")
        return torch.repeat_interleave(weights.cpu(), sizes)
