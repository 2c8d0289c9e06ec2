"""The anti-collapse term of AdaGauss."""

from __future__ import annotations

from pydantic import PositiveFloat
from torch import Tensor

from adagauss.losses import anti_collapse
from adagauss.representation.step import Step, Term


class AntiCollapse(Term):
    """α · L_AC of the features (eq. 2); ``weight`` is α, ``beta`` the target standard deviation of every direction."""

    kind = "anti_collapse"
    beta: PositiveFloat = 1.0

    def loss(self, step: Step) -> Tensor:
        return anti_collapse(step.features, self.beta)
