"""DS-AL's classifier: a second ridge regression, with another activation, on what the first one leaves over."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from adagauss.classifiers.analytic import Analytic


class DualStream(Analytic):
    """argmax of ReLU(Z)·W_main + 𝒞·tanh(Z)·W_comp, with Z = f·B.

    The compensation stream learns the residual Y − ReLU(Z)·W_main of each task under the main weights that the task
    ends with, in the columns of the task's own classes alone (those of older classes are cleansed to zero). A second
    pass over the task takes it, so it depends neither on the order of images nor on how they are batched.
    """

    kind = "dual_stream"
    compensation: NonNegativeFloat = 0.6
    """𝒞; in 0..2, to be chosen on held-out training images of the first task."""
    gamma_compensation: PositiveFloat = 0.1

    def stream_names(self) -> tuple[str, ...]:
        return ("main", "compensation")

    def learn(self, features: Tensor, targets: Tensor, classes: int) -> None:
        super().learn(features, targets, classes)
        newest = self._streams["main"].weight[:, -classes:]

        def residuals() -> Iterator[tuple[Tensor, Tensor]]:
            for z, labels in self.blocks(features, targets, classes):
                yield z.tanh(), labels - z.relu() @ newest

        self._streams["compensation"].learn(residuals(), classes, self.gamma_compensation)

    def outputs(self, expanded: Tensor) -> Tensor:
        return super().outputs(expanded) + self.compensation * (expanded.tanh() @ self._streams["compensation"].weight)
