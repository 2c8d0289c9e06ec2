"""Transport against its two matrix products; the adapter stage against running both extractors every epoch."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from adagauss.backbones import BackboneConfig, IncrementalHead, Network, build_extractor
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.task import CurrentTask
from adagauss.core.train import Recipe, mlp
from adagauss.data.augment import Augmentation
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.parts.drift import Adapter
from adagauss.utils.runtime import Runtime

from .measure import Ratio

CLASSES, SIZE, SAMPLES, HIDDEN = 90, 64, 10_000, 2048


def transport() -> Ratio:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(CLASSES * 200, SIZE, generator=generator)
    bank = ClassGaussians.from_features(features, [index // 200 for index in range(len(features))])
    adapter = mlp(SIZE, HIDDEN // SIZE)
    first, second = torch.randn(SIZE, HIDDEN), torch.randn(HIDDEN, SIZE)
    rows = torch.randn(4096, SIZE)

    def products() -> None:
        for _ in range(CLASSES * SAMPLES // len(rows)):
            (rows @ first) @ second

    def ours() -> None:
        bank.transport(adapter, SAMPLES, generator)

    times: list[list[float]] = [[], []]
    for _ in range(3):
        for index, work in enumerate((products, ours)):
            started = time.perf_counter()
            work()
            times[index].append(time.perf_counter() - started)
    alone, whole = min(times[0]), min(times[1])
    return Ratio(
        f"transport, {CLASSES} classes, N={SAMPLES:,}, hidden {HIDDEN}",
        f"{alone:.1f} s (products alone)",
        f"{whole:.1f} s",
        whole / alone,
        "<= 2",
    )


def adapter_stage(images: int = 1000, epochs: int = 100) -> Ratio:
    """Both forms cost the same per image, so a part of a task tells; the published form is scaled from 512 images."""
    runtime = Runtime()
    pixels = torch.randint(0, 256, (images, 3, 32, 32), dtype=torch.uint8)
    data = LabelledImages(ArrayImages(pixels), torch.arange(images) % 10, tuple(range(10)))

    def network() -> Network:
        extractor = build_extractor(BackboneConfig(name="resnet18"), (3, 32, 32), (0.5,) * 3, (0.25,) * 3)
        return runtime.place(Network(extractor, IncrementalHead(64))).eval()

    now = CurrentTask(1, data, network(), network(), Augmentation(), runtime)
    bank = ClassGaussians.from_features(torch.randn(500, 64), [index % 10 for index in range(500)])
    drift = Adapter(recipe=Recipe(epochs=epochs, learning_rate=0.01), views=4)
    started = time.perf_counter()
    drift.move(bank, now)
    ours = time.perf_counter() - started
    published = _rerunning_epoch_seconds(now, pixels[:512]) * images / 512 * epochs
    return Ratio(
        f"adapter stage, {images:,} images, ResNet-18, {epochs} epochs",
        f"{published:.0f} s (scaled from 512 images)",
        f"{ours:.0f} s",
        published / ours,
        ">= 10",
    )


def _rerunning_epoch_seconds(now: CurrentTask, pixels: Tensor) -> float:
    """Both extractors over augmented images, then a step of the adapter: what one epoch costs without a cache."""
    adapter = mlp(64, 32)
    optimizer = torch.optim.SGD(adapter.parameters(), 0.01, momentum=0.9)
    assert now.previous is not None
    started = time.perf_counter()
    for part in pixels.split(256):  # type: ignore[no-untyped-call]
        images = now.augmentation(part, torch.Generator().manual_seed(0)).contiguous(memory_format=torch.channels_last)
        with torch.inference_mode():
            old, new = now.previous.extractor(images), now.network.extractor(images)
        loss = torch.nn.functional.mse_loss(adapter(old.clone()), new.clone())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return time.perf_counter() - started


def run() -> list[Ratio]:
    return [transport(), adapter_stage()]
