"""BiCyc (ICLR 2026): AdaGauss whose adapter is trained together with the network, tied to the distiller by cycles.

Two maps between the latent spaces of a task are trained with F_t: the distiller D: F_t(x) ↦ F_{t−1}(x) and the adapter
A: F_{t−1}(x) ↦ F_t(x). With z = F_t(x), o = F_{t−1}(x), sg = stop gradient and MSE over batch and dimensions:

    L_bi   = MSE(D(z), o) + MSE(A(o), sg z)
    L_cyc  = MSE(A(sg D(z)), sg z) + MSE(D(sg A(o)), o)
    L_pair = MSE of cosines within the batch, of A(o) and sg z, and of D(z) and o

    for task t = 1 … T:
        train F_t on task t with L_CE + α·L_AC                                     representation
            + λ_bi·L_bi + λ_cyc·L_cyc + λ_pair·L_pair                              (from t = 2)
        if t > 1:
            ψ = A, trained further on F_{t−1}(x) ↦ F_t(x), with L_AC               drift (training)
            for every old class c: draw N samples of N(μ_c, Σ_c),
                map them through ψ, re-estimate μ_c and Σ_c                        drift (transport)
        for every new class c: μ_c, Σ_c of the features of its images              memory
        predict argmax_c N(F_t(x); μ_c, Σ_c)                                       classifier

All other settings are those of AdaGauss' published code. The gradient of D(z) alone reaches F_t.
"""

from __future__ import annotations

import copy
from typing import ClassVar

import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.task import CurrentTask
from adagauss.core.train import mlp
from adagauss.errors import UnsupportedError
from adagauss.methods.adagauss import DATASETS
from adagauss.methods.base import Method, make_method, register_method
from adagauss.parts.drift import Adapter
from adagauss.parts.representation import Step, Term

PAIRED = 128
"""Images of a batch whose cosines are compared."""


def cosine_error(one: Tensor, other: Tensor) -> Tensor:
    """MSE between the cosines of all pairs of rows of ``one`` and those of ``other``."""
    one, other = F.normalize(one[:PAIRED], dim=1), F.normalize(other[:PAIRED], dim=1)
    return F.mse_loss(one @ one.T, other @ other.T)


class CycleDistillation(Term):
    """λ_bi·L_bi + λ_cyc·L_cyc + λ_pair·L_pair, see above."""

    kind = "cycle_distillation"
    provides: ClassVar[frozenset[Requirement]] = frozenset({Requirement.TRAINED_ADAPTER})
    both_ways: NonNegativeFloat = 5.0
    """λ_bi."""
    cycle: NonNegativeFloat = 2.0
    """λ_cyc of the published code; the text has 1."""
    pairs: NonNegativeFloat = 0.05
    """λ_pair."""
    width: PositiveInt = 32
    """d: the hidden layers of D and A are d·S wide."""

    def start(self, now: CurrentTask, memory: ClassGaussians) -> nn.Module | None:
        return None if now.previous is None else _Cycle(self, now.network.extractor.size)


class _Cycle(nn.Module):
    """D and A, trained with the network and dropped after the task."""

    def __init__(self, part: CycleDistillation, features: int) -> None:
        super().__init__()
        self.part = part
        self.distiller, self.adapter = mlp(features, part.width), mlp(features, part.width)

    def forward(self, step: Step) -> Tensor:
        new, old = step.features, step.previous_features
        target = new.detach()
        to_old, to_new = self.distiller(new), self.adapter(old)
        both_ways = F.mse_loss(to_old, old) + F.mse_loss(to_new, target)
        cycle = F.mse_loss(self.adapter(to_old.detach()), target) + F.mse_loss(self.distiller(to_new.detach()), old)
        pairs = cosine_error(to_new, target) + cosine_error(to_old, old)
        return self.part.both_ways * both_ways + self.part.cycle * cycle + self.part.pairs * pairs


class FineTunedAdapter(Adapter):
    """The adapter of `AdaGauss`, which starts as A and not at random; ``network`` and ``width`` are those of A."""

    kind = "fine_tuned_adapter"
    requires: ClassVar[frozenset[Requirement]] = frozenset({Requirement.MEANS, Requirement.TRAINED_ADAPTER})

    def initial_map(self, now: CurrentTask, size: int) -> nn.Module:
        found = [module for module in now.trained.values() if isinstance(module, _Cycle)]
        if not found:
            raise UnsupportedError(
                "the adapter of BiCyc is trained with the network and not stored, so its drift cannot be computed "
                "again: choose another one, e.g. drift.kind=adapter"
            )
        return copy.deepcopy(found[0].adapter)


@register_method(
    "bicyc",
    title="BiCyc",
    family="drift compensation",
    stores="mean and covariance of each class",
    paper="ICLR 2026, arXiv 2606.05675",
    recipe="authors",
    datasets=DATASETS,
)
def bicyc() -> Method:
    """AdaGauss as published, with two parts exchanged."""
    base = make_method("adagauss")
    terms = {**base.representation.terms, "distillation": CycleDistillation()}
    return base.with_changes(
        representation=base.representation.with_changes(terms=terms), drift=FineTunedAdapter(**dict(base.drift))
    )
