"""The classification head that cross-entropy needs: one block of outputs per task, and the network it sits on."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagauss.backbones.extractor import Extractor

HeadKind = Literal["linear", "cosine"]


class CosineLinear(nn.Linear):
    """cos(x, w_c) for every class c: the product of unit vectors, without a bias."""

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(F.normalize(features, dim=1), F.normalize(self.weight, dim=1))


class IncrementalHead(nn.Module):
    """Blocks of outputs side by side, one per task, each with optional auxiliary outputs (rotations, mixtures).

    Class outputs of all tasks come first and auxiliary outputs after them, so that the label of a class never changes.
    Outputs are w·x + b or, with ``kind="cosine"``, σ·cos(x, w) with one learned σ for all of them, which starts at 1.
    """

    def __init__(self, features: int, bias: bool = True, kind: HeadKind = "linear") -> None:
        super().__init__()
        self.features = features
        self.bias = bias and kind == "linear"
        self.layer = nn.Linear if kind == "linear" else CosineLinear
        self.scale = nn.Parameter(torch.ones(())) if kind == "cosine" else None
        self.blocks = nn.ModuleList()
        self.auxiliary = nn.ModuleList()

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """(classes, auxiliary outputs) of each block: enough to rebuild an equal head."""
        return [(_outputs(b), _outputs(a)) for b, a in zip(self.blocks, self.auxiliary, strict=True)]

    @property
    def classes(self) -> int:
        """Number of class outputs of all blocks."""
        return sum(classes for classes, _ in self.sizes)

    def grow(self, classes: int, auxiliary: int = 0) -> None:
        """Add the block of a new task."""
        device = next((parameter.device for parameter in self.parameters()), torch.device("cpu"))
        for modules, outputs in ((self.blocks, classes), (self.auxiliary, auxiliary)):
            modules.append(self.layer(self.features, outputs, self.bias).to(device) if outputs else nn.Identity())

    def clear(self) -> None:
        """Remove all blocks."""
        self.blocks = nn.ModuleList()
        self.auxiliary = nn.ModuleList()

    def drop_auxiliary(self) -> None:
        """Remove the auxiliary outputs."""
        self.auxiliary = nn.ModuleList(nn.Identity() for _ in self.auxiliary)

    def select(self, rows: Sequence[Sequence[int]]) -> IncrementalHead:
        """A new head with some outputs of each block; a block that loses one loses its auxiliary outputs as well."""
        chosen = copy.deepcopy(self)
        chosen.clear()
        for block, auxiliary, kept in zip(self.blocks, self.auxiliary, rows, strict=True):
            assert isinstance(block, nn.Linear)
            if not kept:
                continue
            fewer = copy.deepcopy(block)
            fewer.out_features = len(kept)
            for name, values in block.named_parameters():
                setattr(fewer, name, nn.Parameter(values.detach()[list(kept)], values.requires_grad))
            chosen.blocks.append(fewer)
            chosen.auxiliary.append(auxiliary if len(kept) == block.out_features else nn.Identity())
        return chosen

    def class_parameters(self, detach: bool = True) -> tuple[Tensor, Tensor]:
        """Weights (C, S) and biases (C,) of the class outputs of every task; a loss needs ``detach=False``."""
        weight = torch.cat([block.get_parameter("weight") for block in self.blocks])
        bias = weight.new_zeros(len(weight))
        if self.bias:
            bias = torch.cat([block.get_parameter("bias") for block in self.blocks])
        return (weight.detach(), bias.detach()) if detach else (weight, bias)

    @torch.no_grad()
    def set_class_parameters(self, weight: Tensor, bias: Tensor | None) -> None:
        """Write back changed `class_parameters`; the biases are ignored if the head has none."""
        for name, values in (("weight", weight), ("bias", bias if self.bias else None)):
            rows = () if values is None else torch.split(values, [classes for classes, _ in self.sizes])
            for block, some in zip(self.blocks, rows, strict=False):
                block.get_parameter(name).copy_(some)

    def current(self, features: Tensor) -> Tensor:
        """Logits of the newest task: its classes, then its auxiliary outputs."""
        return self._logits([self.blocks[-1], self.auxiliary[-1]], features)

    def seen(self, features: Tensor, auxiliary: bool = False) -> Tensor:
        """Logits of the classes of every task, followed by all auxiliary outputs if requested."""
        return self._logits([*self.blocks, *(self.auxiliary if auxiliary else [])], features)

    def _logits(self, modules: list[nn.Module], features: Tensor) -> Tensor:
        outputs = torch.cat([module(features) for module in modules if isinstance(module, nn.Linear)], dim=1)
        return outputs if self.scale is None else self.scale * outputs


class Network(nn.Module):
    """The extractor and the head on top of it: the module that is trained."""

    def __init__(self, extractor: Extractor, head: IncrementalHead) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head

    def frozen_copy(self) -> Network:
        """A copy in evaluation mode that takes no gradients: F_{t−1} of the next task."""
        return copy.deepcopy(self).eval().requires_grad_(False)


def _outputs(module: nn.Module) -> int:
    return module.out_features if isinstance(module, nn.Linear) else 0
