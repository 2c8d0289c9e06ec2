"""One training step: memory order, compilation, and the share of the anti-collapse loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagauss.backbones import BackboneConfig, build_extractor
from adagauss.parts.terms import anti_collapse

from .measure import Ratio, Work, best_times, milliseconds

BATCH = 128


def make_step(
    backbone: str, channels_last: bool, collapse: bool = False, compiled: bool = False, side: int = 32
) -> Work:
    torch.manual_seed(0)
    network: nn.Module = build_extractor(
        BackboneConfig(name=backbone, input_size=side), (3, side, side), (0.5,) * 3, (0.25,) * 3
    )
    head = nn.Linear(64, 10)
    images, targets = torch.rand(BATCH, 3, side, side), torch.randint(0, 10, (BATCH,))
    if channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = images.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD([*network.parameters(), *head.parameters()], 0.1, momentum=0.9, weight_decay=5e-4)
    extract: Callable[[Tensor], Tensor] = torch.compile(network) if compiled else network

    def step() -> None:
        features = extract(images)
        loss = F.cross_entropy(head(features), targets)
        if collapse:
            loss = loss + anti_collapse(features)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def forms(backbone: str) -> list[Work]:
    """Torch's usual memory order, ours, and ours compiled."""
    return [make_step(backbone, False), make_step(backbone, True), make_step(backbone, True, compiled=True)]


def run() -> list[Ratio]:
    plain, ours, compiled, collapse = best_times(
        [*forms("resnet18"), make_step("resnet18", channels_last=True, collapse=True)], rounds=4
    )
    narrow_plain, narrow, narrow_compiled = best_times(forms("resnet32"), rounds=4)
    features = torch.randn(256, 64, requires_grad=True)
    (loss_alone,) = best_times([lambda: torch.autograd.backward(anti_collapse(features))], rounds=20)
    return [
        Ratio(
            "training step, ResNet-18, 32 px, channels last",
            milliseconds(plain),
            milliseconds(ours),
            plain / ours,
            ">= 2",
        ),
        Ratio("the same, compiled", milliseconds(plain), milliseconds(compiled), plain / compiled, ">= 2"),
        Ratio(
            "training step, ResNet-32, 32 px, channels last",
            milliseconds(narrow_plain),
            milliseconds(narrow),
            narrow_plain / narrow,
            ">= 2",
        ),
        Ratio(
            "the same, compiled",
            milliseconds(narrow_plain),
            milliseconds(narrow_compiled),
            narrow_plain / narrow_compiled,
            ">= 2",
        ),
        Ratio(
            "anti-collapse loss, share of the step",
            milliseconds(ours),
            milliseconds(loss_alone),
            loss_alone / ours,
            "<= 0.05",
        ),
        Ratio(
            "step with anti-collapse / without", milliseconds(ours), milliseconds(collapse), collapse / ours, "<= 1.05"
        ),
    ]
