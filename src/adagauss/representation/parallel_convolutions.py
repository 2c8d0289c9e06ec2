"""SSRE's reparameterisation: later tasks train 1×1 convolutions beside the 3×3 ones, then fold them in."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from adagauss.backbones import Extractor
from adagauss.core.state import State
from adagauss.core.task import CurrentTask
from adagauss.data.augment import to_float
from adagauss.errors import ConfigError
from adagauss.representation.reparameterisation import LiveReparameterisation, Reparameterisation

Norm = nn.modules.batchnorm._BatchNorm


class ParallelConvolutions(Reparameterisation):
    """The first task trains the whole extractor and folds its batch norms into the convolutions.

    Each later task trains only a zero-initialised 1×1 convolution parallel to each 3×3 convolution of the blocks,
    and then adds it to the centre of the 3×3 kernel: between tasks the network has its original size.
    """

    kind = "parallel_convolutions"

    def start(self, now: CurrentTask, before: State | None) -> LiveReparameterisation:
        extractor = now.network.extractor
        convolutions = adaptable(extractor)
        if not convolutions:
            raise ConfigError("parallel_convolutions need 3x3 convolutions, and this backbone has none: use resnet18")
        if not extractor.freeze_norm and any(isinstance(module, Norm) for module in extractor.modules()):
            raise ConfigError("parallel_convolutions need fixed convolutions: set backbone.batch_norm=frozen")
        return _FoldNorms() if now.first else _Beside(now, convolutions)


class _FoldNorms(LiveReparameterisation):
    """The first task: the whole extractor learns, then the scales of batch norm are folded."""

    def settle(self, now: CurrentTask) -> None:
        fold_norms(now.network.extractor, _some_images(now))


class _Beside(LiveReparameterisation):
    """A later task: only the parallel convolutions learn."""

    def __init__(self, now: CurrentTask, convolutions: list[nn.Conv2d]) -> None:
        super().__init__()
        now.network.extractor.requires_grad_(False)
        self.beside = nn.ModuleList(now.runtime.place(parallel(convolution)) for convolution in convolutions)
        # A tuple, so that torch does not register the network's convolutions as submodules.
        self._convolutions = tuple(convolutions)
        self._hooks = [
            convolution.register_forward_hook(_add(one))
            for convolution, one in zip(convolutions, self._adapters(), strict=True)
        ]

    def settle(self, now: CurrentTask) -> None:
        for hook in self._hooks:
            hook.remove()
        for convolution, adapter in zip(self._convolutions, self._adapters(), strict=True):
            fold_parallel(convolution, adapter)

    def _adapters(self) -> list[nn.Conv2d]:
        return [one for one in self.beside if isinstance(one, nn.Conv2d)]


def adaptable(extractor: Extractor) -> list[nn.Conv2d]:
    """The 3×3 convolutions in the trunk's blocks into which a 1×1 convolution can be folded."""
    return [
        module
        for block in extractor.trunk.blocks()
        for module in block.modules()
        if isinstance(module, nn.Conv2d)
        and (module.kernel_size, module.padding, module.dilation, module.groups) == ((3, 3), (1, 1), (1, 1), 1)
    ]


def parallel(convolution: nn.Conv2d) -> nn.Conv2d:
    """A 1×1 convolution with the same inputs, outputs and stride, initialised to zero."""
    adapter = nn.Conv2d(convolution.in_channels, convolution.out_channels, 1, convolution.stride, bias=False)  # type: ignore[arg-type]
    nn.init.zeros_(adapter.weight)
    return adapter


@torch.no_grad()
def fold_parallel(convolution: nn.Conv2d, adapter: nn.Conv2d) -> None:
    """W₃ₓ₃ ← W₃ₓ₃ + W₁ₓ₁ padded with zeros: a 1×1 convolution is the centre of a 3×3 one."""
    convolution.weight[:, :, 1, 1] += adapter.weight[:, :, 0, 0]


@torch.no_grad()
def fold_norms(extractor: Extractor, images: Tensor) -> None:
    """Scale every convolution by the batch norm that follows it, which then only adds a bias.

    W ← W·γ/σ and b = β + (b_conv − μ)·γ/σ, σ² = variance + ε. The norm module is kept (with zero mean, σ = 1 and γ =
    1), so that the parameter names do not change. Norms that follow no convolution are unchanged.
    """
    for convolution, norm in _followed_by(extractor, images):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        convolution.weight.mul_(scale.view(-1, 1, 1, 1))
        offset = -norm.running_mean * scale
        if convolution.bias is not None:
            offset += convolution.bias * scale
            convolution.bias.zero_()
        norm.bias.add_(offset)
        norm.weight.fill_(1)
        norm.running_mean.zero_()
        norm.running_var.fill_(1 - norm.eps)


def _followed_by(extractor: Extractor, images: Tensor) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    """Pairs (convolution, batch norm) where the norm's input is the convolution's output, found by a forward pass."""
    outputs: dict[int, tuple[nn.Conv2d, Tensor]] = {}
    pairs: list[tuple[nn.Conv2d, nn.BatchNorm2d]] = []

    def leave(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        outputs[id(output)] = (module, output)  # a reference to the tensor keeps its id from being reused

    def enter(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, nn.BatchNorm2d)
        if id(inputs[0]) in outputs and module.affine and module.track_running_stats:
            pairs.append((outputs[id(inputs[0])][0], module))

    hooks = [m.register_forward_hook(leave) for m in extractor.modules() if isinstance(m, nn.Conv2d)]
    hooks += [m.register_forward_pre_hook(enter) for m in extractor.modules() if isinstance(m, nn.BatchNorm2d)]
    was_training = extractor.training
    extractor.eval()(images)
    extractor.train(was_training)
    for hook in hooks:
        hook.remove()
    return pairs


def _some_images(now: CurrentTask) -> Tensor:
    pixels = now.data.images.batch(torch.arange(min(2, len(now.data)))).to(now.runtime.device)
    return to_float(pixels)


def _add(adapter: nn.Conv2d) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        beside: Tensor = adapter(inputs[0])
        return output + beside

    return hook
