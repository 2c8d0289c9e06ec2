"""How strong a ridge should be: chosen on images that are held out while they arrive, and added afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagauss.errors import ConfigError, DataError
from adagauss.sums.ridge import RidgeSums

IMAGES = (30.0, 100.0, 300.0, 1000.0, 3000.0)


def hold_out(targets: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A mask that is true for about ``share`` of each class's images, and never for all images of a class."""
    if not 0 < share < 1:
        raise ConfigError(f"the share of images held out lies between 0 and 1; got {share}")
    mask = torch.zeros(len(targets), dtype=torch.bool)
    for target in torch.unique(targets).tolist():
        members = (targets == target).nonzero().flatten()
        some = torch.randperm(len(members), generator=generator)[: int(share * len(members) + 0.5)]
        mask[members[some[: len(members) - 1]]] = True
    return mask


class StrengthChoice(nn.Module):
    """Candidates for a ridge's strength, and how well each did on held-out images of all tasks so far.

    A candidate is a number of images ν: λ = ν/n after n images, so that ρ = λ·mean(diag A) stays what it is while A
    grows. The best ν hardly moves from task to task, the best λ does, and evidence adds up. A candidate that trails the
    best by more hits than √(images held out so far) is tried no more: of two candidates that disagree on a tenth of the
    images, that is three standard deviations of the difference, and every candidate costs a factorisation a task.
    """

    def __init__(self, candidates: Sequence[float] = IMAGES) -> None:
        super().__init__()
        if not candidates or min(candidates) <= 0:
            raise ConfigError(f"strengths are positive numbers, one at least; got {list(candidates)}")
        self.register_buffer("candidates", torch.tensor(sorted(candidates), dtype=torch.float64))
        self.register_buffer("hits", torch.zeros(len(candidates), dtype=torch.float64))
        self.register_buffer("loss", torch.zeros(len(candidates), dtype=torch.float64))
        self.register_buffer("tried", torch.ones(len(candidates), dtype=torch.bool))
        self.register_buffer("images", torch.zeros((), dtype=torch.long))
        self.candidates: Tensor
        self.hits: Tensor
        self.loss: Tensor
        self.tried: Tensor
        self.images: Tensor

    @torch.no_grad()
    def observe(self, sums: RidgeSums, features: Tensor, targets: Tensor, intercept: bool = False) -> None:
        """Score every candidate that is still tried, solved from ``sums``, on images that are not in them."""
        if len(targets) == 0:
            return
        one_hot = F.one_hot(targets, sums.classes).to(features)
        for index in self.tried.nonzero().flatten().tolist():
            strength = float(self.candidates[index]) / int(sums.images)
            scores = sums.solve(strength, intercept, refine=False)(features)
            self.hits[index] += (scores.argmax(1) == targets).sum()
            self.loss[index] += (scores - one_hot).square().sum().double()
        self.images += len(targets)
        self.tried &= self.hits >= self.hits[self.tried].max() - float(self.images) ** 0.5

    def best(self, number: int) -> float:
        """λ for sums over ``number`` images: of the candidate with most hits; the smaller loss decides a tie."""
        if int(self.images) == 0:
            raise DataError("no strength has been tried yet: hold out some images first")
        tried = self.tried.nonzero().flatten().tolist()
        best = min(tried, key=lambda index: (-float(self.hits[index]), float(self.loss[index])))
        return float(self.candidates[best]) / number
