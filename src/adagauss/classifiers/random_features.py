"""A fixed random expansion of features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from adagauss.core.state import State


class RandomFeatures(State):
    """ReLU(f·B), B Gaussian and fixed (RanPAC). B is drawn anew from its seed when it is loaded, and not saved.

    A sum over B is: another release of torch may draw other numbers from the same seed, and is then noticed.
    """

    axes: ClassVar[Mapping[str, str]] = {"drawn": "d", "total": ""}
    contents: ClassVar[str] = "the seed of a random matrix"

    def __init__(self, seed: int = 0, features: int = 0, size: int = 0) -> None:
        super().__init__()
        self.register_buffer("drawn", torch.tensor([seed, features, size]))
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))
        self.register_buffer("matrix", torch.zeros(0, 0), persistent=False)
        self.drawn: Tensor
        self.total: Tensor
        self.matrix: Tensor
        self._draw()
        self.total = self.matrix.double().sum()

    def forward(self, features: Tensor) -> Tensor:
        return (features @ self.matrix).relu()

    def _draw(self) -> None:
        seed, features, size = self.drawn.tolist()
        generator = torch.Generator().manual_seed(seed)
        self.matrix = torch.randn(features, size, generator=generator).to(self.drawn.device)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._draw()
        if not torch.isclose(self.matrix.double().sum(), self.total, atol=1e-6):
            errors: list[str] = args[-1]
            errors.append("this torch draws other random features from the seed than the one that saved the learner")
