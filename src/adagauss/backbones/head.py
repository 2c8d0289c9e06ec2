"""The classification head that cross-entropy needs: one linear block a task, and the network it sits on."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from adagauss.backbones.extractor import Extractor


class IncrementalHead(nn.Module):
    """Linear blocks side by side, one a task, each with optional auxiliary outputs (rotations, mixtures).

    Class outputs of all tasks stand first and auxiliary outputs after them, so that labels of classes never move.
    """

    def __init__(self, features: int, bias: bool = True) -> None:
        super().__init__()
        self.features = features
        self.bias = bias
        self.blocks = nn.ModuleList()
        self.auxiliary = nn.ModuleList()

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """(classes, auxiliary outputs) of each block: what rebuilds an equal head."""
        return [(_outputs(b), _outputs(a)) for b, a in zip(self.blocks, self.auxiliary, strict=True)]

    @property
    def classes(self) -> int:
        """Class outputs of all blocks."""
        return sum(classes for classes, _ in self.sizes)

    def grow(self, classes: int, auxiliary: int = 0) -> None:
        """Add the block of a new task."""
        device = next((parameter.device for parameter in self.parameters()), torch.device("cpu"))
        self.blocks.append(nn.Linear(self.features, classes, self.bias).to(device))
        self.auxiliary.append(nn.Linear(self.features, auxiliary, self.bias).to(device) if auxiliary else nn.Identity())

    def clear(self) -> None:
        """Forget all blocks."""
        self.blocks = nn.ModuleList()
        self.auxiliary = nn.ModuleList()

    def drop_auxiliary(self) -> None:
        """Forget the auxiliary outputs."""
        self.auxiliary = nn.ModuleList(nn.Identity() for _ in self.auxiliary)

    def class_parameters(self, detach: bool = True) -> tuple[Tensor, Tensor]:
        """Weights (C, S) and biases (C,) of the class outputs of every task; for a loss, not detached."""
        linear = [block for block in self.blocks if isinstance(block, nn.Linear)]
        weight = torch.cat([block.weight for block in linear])
        bias = torch.cat([block.bias if self.bias else weight.new_zeros(block.out_features) for block in linear])
        return (weight.detach(), bias.detach()) if detach else (weight, bias)

    def set_class_parameters(self, weight: Tensor, bias: Tensor | None) -> None:
        """Put back what `class_parameters` gave, altered; the biases are not looked at where the head has none."""
        linear = [block for block in self.blocks if isinstance(block, nn.Linear)]
        sizes = [block.out_features for block in linear]
        with torch.no_grad():
            for block, rows in zip(linear, torch.split(weight, sizes), strict=True):
                block.weight.copy_(rows)
            if self.bias and bias is not None:
                for block, values in zip(linear, torch.split(bias, sizes), strict=True):
                    block.bias.copy_(values)

    def current(self, features: Tensor) -> Tensor:
        """Logits of the newest task: its classes, then its auxiliary outputs."""
        return torch.cat(_logits([self.blocks[-1], self.auxiliary[-1]], features), dim=1)

    def seen(self, features: Tensor, auxiliary: bool = False) -> Tensor:
        """Logits of the classes of every task, followed by all auxiliary outputs if asked for."""
        modules = [*self.blocks, *(self.auxiliary if auxiliary else [])]
        return torch.cat(_logits(modules, features), dim=1)


class Network(nn.Module):
    """What is trained: the extractor and the head on top of it."""

    def __init__(self, extractor: Extractor, head: IncrementalHead) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head

    def frozen_copy(self) -> Network:
        """A copy in evaluation mode that takes no gradients: F_{t−1} of the next task."""
        return copy.deepcopy(self).eval().requires_grad_(False)


def _outputs(module: nn.Module) -> int:
    return module.out_features if isinstance(module, nn.Linear) else 0


def _logits(modules: list[nn.Module], features: Tensor) -> list[Tensor]:
    return [module(features) for module in modules if isinstance(module, nn.Linear)]
