"""Images per second of the batched augmentation against one image at a time with Pillow.

Both do the same work: padded crop, flip, TrivialAugment (wide, bilinear) and normalisation of 32 × 32 colour
images, ending in a float batch of 256. They take turns within one run, and of each the fastest round counts,
as other work on the machine can only slow a round down. The batched pipeline is timed with one thread, like
Pillow, and with all threads.

    python benchmarks/input_pipeline.py
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from adagauss.data.augment import Augmentation

from .measure import Ratio

BATCH = 256
ROUNDS = 15
MEAN = torch.tensor([0.5071, 0.4867, 0.4408]).view(3, 1, 1)
STD = torch.tensor([0.2675, 0.2565, 0.2761]).view(3, 1, 1)


def run() -> list[Ratio]:
    """The batched pipeline compared with Pillow's, with one thread and with all."""
    threads = torch.get_num_threads()
    pixels = natural_like_images(BATCH)
    arrays = [image.permute(1, 2, 0).contiguous().numpy() for image in pixels]
    generator, draw = torch.Generator().manual_seed(0), random.Random(0)
    augmentation = Augmentation(policy="trivial")
    seconds: dict[str, list[float]] = {"pillow": [], "one thread": [], f"{threads} threads": []}
    for _ in range(ROUNDS):
        torch.set_num_threads(1)
        seconds["pillow"].append(timed(lambda: pillow_batch(arrays, draw), repeats=1))
        seconds["one thread"].append(timed(lambda: batched(augmentation, pixels, generator), repeats=4))
        torch.set_num_threads(threads)
        seconds[f"{threads} threads"].append(timed(lambda: batched(augmentation, pixels, generator), repeats=4))
    rates = {name: BATCH / min(times) for name, times in seconds.items()}
    pillow = rates.pop("pillow")
    return [
        Ratio(
            f"augmented images/s, crop, flip, TrivialAugment, normalise, {name}",
            f"{pillow:.0f} (Pillow, image by image)",
            f"{rate:.0f}",
            rate / pillow,
            ">= 5",
        )
        for name, rate in rates.items()
    ]


def timed(work: Callable[[], Tensor], repeats: int) -> float:
    """Seconds one call takes, averaged over ``repeats`` calls after a warming-up one."""
    work()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def natural_like_images(count: int) -> Tensor:
    """Random images with large smooth shapes and some noise."""
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand(count, 3, 5, 5, generator=generator)
    shapes = torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bicubic").clamp(0, 1)
    noise = 0.05 * torch.randn(count, 3, 32, 32, generator=generator)
    return ((shapes + noise).clamp(0, 1) * 255).to(torch.uint8)


def batched(augmentation: Augmentation, pixels: Tensor, generator: torch.Generator) -> Tensor:
    return augmentation(pixels, generator).sub_(MEAN).div_(STD)


def pillow_batch(arrays: list[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]], draw: random.Random) -> Tensor:
    return torch.stack([pillow_image(Image.fromarray(array), draw) for array in arrays])


def pillow_image(image: Image.Image, draw: random.Random) -> Tensor:
    left, top = draw.randint(-4, 4), draw.randint(-4, 4)
    image = image.crop((left, top, left + 32, top + 32))  # what lies outside is black: no padding needed
    if draw.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    image = PILLOW_OPERATIONS[draw.randrange(len(PILLOW_OPERATIONS))](
        image, draw.randrange(31) / 30, draw.choice((-1, 1))
    )
    values = torch.from_numpy(np.array(image)).permute(2, 0, 1).to(torch.float32).div_(255)
    return values.sub_(MEAN).div_(STD)


def warp(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


PillowOperation = Callable[[Image.Image, float, int], Image.Image]
PILLOW_OPERATIONS: tuple[PillowOperation, ...] = (
    lambda image, level, sign: image,
    lambda image, level, sign: warp(image, (1, 0.99 * level * sign, 0, 0, 1, 0)),
    lambda image, level, sign: warp(image, (1, 0, 0, 0.99 * level * sign, 1, 0)),
    lambda image, level, sign: warp(image, (1, 0, -int(32 * level * sign), 0, 1, 0)),
    lambda image, level, sign: warp(image, (1, 0, 0, 0, 1, -int(32 * level * sign))),
    lambda image, level, sign: image.rotate(135 * level * sign, Image.Resampling.BILINEAR),
    lambda image, level, sign: ImageEnhance.Brightness(image).enhance(1 + 0.99 * level * sign),
    lambda image, level, sign: ImageEnhance.Color(image).enhance(1 + 0.99 * level * sign),
    lambda image, level, sign: ImageEnhance.Contrast(image).enhance(1 + 0.99 * level * sign),
    lambda image, level, sign: ImageEnhance.Sharpness(image).enhance(1 + 0.99 * level * sign),
    lambda image, level, sign: ImageOps.posterize(image, 8 - round(6 * level)),
    lambda image, level, sign: ImageOps.solarize(image, round(255 * (1 - level))),
    lambda image, level, sign: ImageOps.autocontrast(image),
    lambda image, level, sign: ImageOps.equalize(image),
)


def report(result: dict[str, float]) -> None:
    for label, rate, ratio in (
        ("Pillow, one image at a time", result["pillow_images_per_s"], 1.0),
        ("batched, 1 thread", result["batched_one_thread_images_per_s"], result["ratio_one_thread"]),
        (f"batched, {result['threads']:.0f} threads", result["batched_images_per_s"], result["ratio"]),
    ):
        print(f"{label:30}{rate:10,.0f} images/s {ratio:6.1f} x Pillow")
