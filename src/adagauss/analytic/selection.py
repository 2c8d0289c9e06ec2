"""Model selection by closed-form leave-one-out: standardised features, group weights, and the best of several rules."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise, product
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from adagauss.analytic.moments import Linear, MomentSums, in_row_space, row_space, unit_deviation
from adagauss.analytic.ridge_lda import LDA, Ridge
from adagauss.core.calibration import TEMPERATURES, best_temperature, nll
from adagauss.core.near_duplicates import group_sizes, rows_by_size
from adagauss.core.state import SharedState
from adagauss.errors import ConfigError, DataError, NumericalError

Rule = Ridge | LDA
LEAST_FACTOR = 1e-4
"""Features weighed less than this, between others, are as good as left out."""


class Standardized(NamedTuple):
    """Sums under some weights of groups of features."""

    sums: MomentSums
    scale: Tensor | None
    """Factors of the features in ``sums``; None: they are part of ``basis``."""
    features: slice
    """Those that take part."""
    width: int
    """Number of all features."""
    basis: Tensor | None = None
    """(width, rank): the sums are over coordinates x·basis of features x."""

    def inputs(self, features: Tensor) -> Tensor:
        """What the sums are over, of (N, width) features."""
        if self.basis is None:
            return features[:, self.features]
        return (features.to(self.basis) @ self.basis).to(features.dtype)

    def solve(self, rule: Rule) -> Linear:
        """The scores of a rule, over all features."""
        solution = rule.solve(self.sums, self.scale)
        if self.basis is not None:
            return Linear((self.basis @ solution.weight.to(self.basis)).float(), solution.bias)
        weight = solution.weight.new_zeros(self.width, self.sums.classes)
        weight[self.features] = solution.weight
        return Linear(weight, solution.bias)


class Standardizer:
    """Sums, to be solved under several weights of groups of features; what these have in common is found once.

    ``groups`` are the sizes of the groups of features, in their order (None: all are one group). The sums must not
    change meanwhile.
    """

    def __init__(self, sums: MomentSums, groups: Sequence[int] | None = None) -> None:
        self.sums = sums
        self.groups = [sums.width] if groups is None else list(groups)

    def at(self, weights: Sequence[float]) -> Standardized:
        """All features at one deviation within classes, times the weight of their group.

        A group weighs by its weight alone, however many features it has; those without weight at either end are left
        out of the sums. One weight alone is that of all features.
        """
        together, width = len(weights) == 1, self.sums.width
        if not together and len(self.groups) != len(weights):
            raise ConfigError(f"there are {len(self.groups)} groups of features, but weights for {len(weights)}")
        each = list(weights) * (len(self.groups) if together else 1)
        some = [index for index, (weight, size) in enumerate(zip(each, self.groups, strict=True)) if weight and size]
        if not some:
            raise ConfigError("all groups of features are weighed with nothing: give one a weight")
        pairs = zip(each, self.groups, strict=True)
        parts = [torch.full((size,), weight / max(1, width if together else size) ** 0.5) for weight, size in pairs]
        factors = torch.cat(parts).to(self._scale)
        start, stop = sum(self.groups[: some[0]]), sum(self.groups[: some[-1] + 1])
        if self._rows is not None:
            inside = in_row_space(self.sums, self._rows, self._scale, factors, stop - start)
            if inside is not None:
                return Standardized(inside[0], None, slice(start, stop), width, inside[1])
        sums = self.sums if stop - start == width else self.sums.part(start, stop)
        scale = (self._scale * factors.clamp_min(LEAST_FACTOR))[start:stop]
        return Standardized(sums, scale, slice(start, stop), width)

    @cached_property
    def _scale(self) -> Tensor:
        """Of each feature, by what is usual in its group."""
        bounds = [0, *accumulate(self.groups)]
        return torch.cat([unit_deviation(self.sums, slice(*ends)) for ends in pairwise(bounds)])

    @cached_property
    def _rows(self) -> Tensor | None:
        return row_space(self.sums, self._scale)


STRENGTHS = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Default numbers of images ν (see `Ridge`) to compare."""
PRUNE_MARGIN = 0.5
"""Hits, in units of √(scored images), by which a candidate may trail the best before it is pruned. On held-out
training images of CUB, TinyImageNet and Omniglot 1 gives the same accuracy, on CIFAR-100 0.4 less, and costs a third
more."""
HIT_WEIGHT_IMAGES = 300
"""Number of scored images at which one hit weighs as much as one nat of negative log-likelihood."""


class ModelSelection(SharedState):
    """Candidates for how scores are solved from the sums, and how well each did on the images of all tasks so far.

    A candidate is a rule and a weight for each group of features; all features are at one deviation within classes
    before they are weighed. Evidence adds up over tasks. A candidate that trails the best by more hits than half of
    √(scored images) is pruned: of two candidates that disagree on a tenth of the images, that is one and
    a half standard deviations of the difference, and every candidate costs a factorisation per task.

    Scores are divided by a temperature, which is chosen alike, so that those of all rules have one scale and a change
    of rule between tasks does not change the scale. Further calibration is `CalibrationStats`.
    """

    dims: ClassVar[Mapping[str, str]] = {
        "rule": "n",
        "weights": "ng",
        "hits": "n",
        "surprise": "nt",
        "second": "nt",
        "tried": "n",
        "images": "",
    }

    def __init__(self, rules: Sequence[Rule], weights: Sequence[Sequence[float]] = ((1.0,),)) -> None:
        if not rules:
            raise ConfigError("no rule is given. Name at least one")
        pairs = list(product(range(len(rules)), weights))
        likelihoods = torch.zeros(len(pairs), len(TEMPERATURES), dtype=torch.float64)
        super().__init__(
            rule=torch.tensor([rule for rule, _ in pairs]),
            weights=torch.tensor([list(weight) for _, weight in pairs], dtype=torch.float64),
            hits=torch.zeros(len(pairs), dtype=torch.float64),
            surprise=likelihoods.clone(),
            second=likelihoods,
            tried=torch.ones(len(pairs), dtype=torch.bool),
            images=torch.zeros((), dtype=torch.long),
        )
        self.rules = tuple(rules)

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
    def observe(
        self, weighing: Standardizer, features: Tensor, targets: Tensor, groups: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Score every remaining candidate on images in the sums, each left out with its group.

        ``features`` are (N, width). Images that are alone in their class are passed over: without them it is not known.
        Returned are scores under the candidate that is now the best, at its temperature, and which images they are of.
        """
        sums, groups = weighing.sums, torch.arange(len(targets)) if groups is None else groups
        others = sums.counts.cpu()[targets] > group_sizes(groups)
        features, targets, groups = features[others], targets[others], groups[others]
        if len(targets) == 0:
            return features.new_zeros(0, sums.classes), others
        together = [rows.to(features.device) for rows in rows_by_size(groups)]
        alike: dict[tuple[float, ...], list[int]] = {}
        for index in self.tried.nonzero().flatten().tolist():
            alike.setdefault(tuple(self.weights[index].tolist()), []).append(index)
        found: dict[int, Tensor] = {}
        for weights, candidates in alike.items():
            weighed = weighing.at(weights)
            inputs = weighed.inputs(features)
            for index in candidates:
                try:
                    rule = self._rule(index)
                    found[index] = rule.left_out(weighed.sums, inputs, targets, weighed.scale, together)
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
        self.tried &= self.hits >= self.hits[self.tried].max() - PRUNE_MARGIN * float(self.images) ** 0.5
        return found[self.best] / self.temperature, others

    def merged(self, other: Self, columns: tuple[int, ...]) -> Self:
        """Add the results of both; candidates that either has pruned stay pruned.

        If no candidate is left in both, the results cannot be combined, and the one with more scored images wins.
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

        Within a kind, NLL − hits·n/`HIT_WEIGHT_IMAGES` is compared, n the scored images. Likelihood separates
        candidates by fewer images than hits do; but regressions on one-hot labels give no log-probabilities, so that it
        prefers stronger ones than are right most often, and with many images hits decide. Scores of two kinds cannot
        be compared by likelihood at all.
        """
        if int(self.images) == 0:
            # Classes of single images have no leave-one-out scores: take the middle of the regressions.
            ridges = [index for index in range(len(self.rule)) if isinstance(self._rule(index), Ridge)]
            return ridges[len(ridges) // 2] if ridges else 0
        leading: dict[type, int] = {}
        for index in self._ranked():
            leading.setdefault(type(self._rule(index)), index)
        return max(leading.values(), key=lambda index: float(self.hits[index]))

    @property
    def temperature(self) -> float:
        """Temperature that calibrates the scores of the best candidate; 1 before any scores."""
        return self._temperature(self.best)

    def _temperature(self, index: int) -> float:
        if int(self.images) == 0:
            return 1.0
        return best_temperature(self.surprise[index], self.second[index], int(self.images))[0]

    def solve(self, weighing: Standardizer) -> Linear:
        """The scores of the best candidate, divided by the temperature.

        Where classes were forgotten, too little may be left for a covariance: then the best regression takes over.
        """
        best = self.best
        try:
            return self._solved(best, weighing)
        except (DataError, NumericalError):
            regressions = [index for index in self._ranked() if isinstance(self._rule(index), Ridge)]
            if not regressions or regressions[0] == best:
                raise
            return self._solved(regressions[0], weighing)

    def _solved(self, index: int, weighing: Standardizer) -> Linear:
        weighed = weighing.at(self.weights[index].tolist())
        weight, bias = weighed.solve(self._rule(index))
        return Linear(weight / (temperature := self._temperature(index)), bias / temperature)

    def _rule(self, index: int) -> Rule:
        return self.rules[int(self.rule[index])]

    def _ranked(self) -> list[int]:
        """Candidates still tried, the best of each kind before others of its kind."""
        tried: list[int] = self.tried.nonzero().flatten().tolist()
        loss = self.surprise.min(1).values - self.hits * (int(self.images) / HIT_WEIGHT_IMAGES)
        return sorted(tried, key=lambda index: float(loss[index]))
