"""SSRE (CVPR 2022): later tasks train 1×1 convolutions that are folded in; similarity to old classes weights losses.

first task: train as PASS does, with rotations as classes; fold batch norm into convolutions   reparameterisation
for task t = 2 … T:
    add a 1×1 convolution parallel to each 3×3 one, fix all else of F                          reparameterisation
    s(x) = max over old classes of cos(F_t(x), μ_c)
    train with mean of (1 − s)·CE over all classes (logits / 0.1)                              cross-entropy
        + 10 · CE of μ_c for random old classes c                                              prototypes
        + Σ over the batch of s·‖F_t(x) − F_{t−1}(x)‖₂                                         distillation
    fold the 1×1 convolutions into the 3×3 ones                                                reparameterisation
for every new class c: μ_c of its augmented images                                             memory
predict the largest of the C outputs                                                           classifier

The authors have not released their training of the first task: that of PASS, with rotations, is a guess (PyCIL trains
without rotations).
"""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from adagauss.backbones import BackboneConfig, Extractor
from adagauss.core.config import Requirement
from adagauss.core.state import State
from adagauss.core.task import CurrentTask
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation
from adagauss.distributed.batch_norm import batch_norms
from adagauss.errors import ConfigError
from adagauss.methods.base import Method, register_method
from adagauss.methods.pass_ import RECIPE as PASS_RECIPE
from adagauss.parts.memory import MeanMemory
from adagauss.parts.representation import Reparameterisation, Representation, Rotations, Step, Term
from adagauss.parts.terms import CrossEntropy, PrototypeReplay


class ParallelConvolutions(Reparameterisation):
    """The first task trains the whole extractor and folds its batch norms into the convolutions.

    Each later task trains only a zero-initialised 1×1 convolution parallel to each 3×3 convolution of the blocks,
    and then adds it to the centre of the 3×3 kernel: between tasks the network has its original size.
    """

    kind = "parallel_convolutions"

    def start(self, now: CurrentTask) -> nn.Module:
        extractor = now.network.extractor
        convolutions = adaptable(extractor)
        if not convolutions:
            raise ConfigError("parallel_convolutions need 3x3 convolutions, and this backbone has none: use resnet18")
        if extractor.fixed:
            raise ConfigError("parallel_convolutions change the backbone: set backbone.train_blocks=all")
        if not extractor.freeze_norm and batch_norms(extractor):
            raise ConfigError("parallel_convolutions need fixed convolutions: set backbone.batch_norm=frozen")
        return nn.Module() if now.first else _Parallel(now, convolutions)

    def settle(self, now: CurrentTask, live: nn.Module) -> None:
        if isinstance(live, _Parallel):
            live.fold()
        else:
            fold_norms(now.network.extractor)


class _Parallel(nn.Module):
    """The parallel convolutions of a later task."""

    def __init__(self, now: CurrentTask, convolutions: list[nn.Conv2d]) -> None:
        super().__init__()
        now.network.extractor.requires_grad_(False)
        self.adapters = nn.ModuleList(
            nn.Conv2d(one.in_channels, one.out_channels, 1, one.stride, bias=False)  # type: ignore[arg-type]
            for one in convolutions
        )
        for parameter in now.runtime.place(self.adapters).parameters():
            nn.init.zeros_(parameter)
        # Tuples, so that torch does not register the network's convolutions as submodules.
        self._pairs = tuple(zip(convolutions, self.adapters, strict=True))
        self._hooks = [
            convolution.register_forward_hook(lambda _, inputs, output, added=adapter: output + added(inputs[0]))
            for convolution, adapter in self._pairs
        ]

    def fold(self) -> None:
        """Add the 1×1 convolutions to the 3×3 ones."""
        for hook in self._hooks:
            hook.remove()
        for convolution, adapter in self._pairs:
            fold_parallel(convolution, adapter.get_parameter("weight"))


def adaptable(extractor: Extractor) -> list[nn.Conv2d]:
    """The 3×3 convolutions in the trunk's blocks into which a 1×1 convolution can be folded."""
    return [
        module
        for block in extractor.trunk.blocks()
        for module in block.modules()
        if isinstance(module, nn.Conv2d)
        and (module.kernel_size, module.padding, module.dilation, module.groups) == ((3, 3), (1, 1), (1, 1), 1)
    ]


@torch.no_grad()
def fold_parallel(convolution: nn.Conv2d, kernel: Tensor) -> None:
    """W₃ₓ₃ ← W₃ₓ₃ + W₁ₓ₁ padded with zeros: a 1×1 convolution is the centre of a 3×3 one."""
    convolution.weight[:, :, 1, 1] += kernel[:, :, 0, 0]


@torch.no_grad()
def fold_norms(extractor: Extractor) -> None:
    """Scale every convolution by the batch norm that follows it in the same module; it then only adds a bias.

    W ← W·γ/σ and b = β + (b_conv − μ)·γ/σ, σ² = variance + ε. The norm module is kept (with zero mean, σ = 1 and γ =
    1), so that the parameter names do not change. Norms that follow no convolution are unchanged.
    """
    for parent in extractor.modules():
        for convolution, norm in pairwise(parent.children()):
            if not isinstance(convolution, nn.Conv2d) or not isinstance(norm, nn.BatchNorm2d) or not norm.affine:
                continue
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


class SelectiveCrossEntropy(CrossEntropy):
    """mean over the batch of (1 − s(x)) · CE(x), s the similarity to the nearest old mean (0 in the first task)."""

    kind = "selective_cross_entropy"

    @property
    def requires(self) -> frozenset[Requirement]:
        return super().requires | frozenset({Requirement.MEANS})

    def loss(self, step: Step, before: State | None = None) -> Tensor:
        logits, targets = self.outputs(step)
        losses = F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing, reduction="none")
        return ((1 - similarity(step)) * losses).mean()


class SelectiveDistillation(Term):
    """Σ over the batch of s(x) · ‖F_t(x) − F_{t−1}(x)‖₂: a sum, so the weight depends on the batch size."""

    kind = "selective_distillation"
    requires: ClassVar[frozenset[Requirement]] = frozenset({Requirement.MEANS})
    weight: NonNegativeFloat = 1.0

    def loss(self, step: Step, before: State | None = None) -> Tensor | None:
        if not len(step.memory):
            return None
        # The networks are equal when a task begins; a vector's norm has gradient zero there.
        moved: Tensor = torch.linalg.vector_norm(step.features - step.previous_features, dim=1)
        return (similarity(step) * moved).sum()


def similarity(step: Step) -> Tensor:
    """(B,) s(x) = max over old classes of cos(F_t(x), μ_c), clamped to 0..1 since cosines may be negative.

    Gradients flow through it, as in the published code.
    """
    if not len(step.memory):
        return step.features.new_zeros(len(step.features))
    means = F.normalize(step.memory.means, dim=1).to(step.features.dtype)
    return (F.normalize(step.features, dim=1) @ means.T).amax(1).clamp(0, 1)


LATER = Recipe(
    epochs=60,
    batch_size=128,
    optimizer="adam",
    learning_rate=2e-4,
    weight_decay=5e-4,
    milestones=(45 / 60,),
    drop_last=False,
)


@register_method(
    "ssre",
    title="SSRE",
    family="prototype replay",
    stores="mean of each class",
    paper="Zhu et al., CVPR 2022, arXiv 2203.06359",
    recipe="authors; first task ours",
)
def ssre() -> Method:
    """Self-sustaining representation expansion."""
    return Method(
        backbone=BackboneConfig(features=None, batch_norm="frozen"),
        augmentation=Augmentation(brightness=63 / 255),
        representation=Representation(
            first=PASS_RECIPE,
            later=LATER,
            heads="keep",
            train_old_heads=True,
            label_augmentation=Rotations(when="first"),
            reparameterisation=ParallelConvolutions(),
            terms={
                "cross_entropy": SelectiveCrossEntropy(over="seen", temperature=0.1),
                "prototypes": PrototypeReplay(weight=10.0, temperature=0.1, noise=0.0),
                "distillation": SelectiveDistillation(weight=1.0),
            },
        ),
        memory=MeanMemory(augmented=True),
    )
