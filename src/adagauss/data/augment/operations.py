"""One drawn operation per image: images are grouped by operation, so that each operation runs once per batch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor

from adagauss.data.augment import colour, geometry

MATRICES: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "shear_x": geometry.shear_x_matrices,
    "shear_y": geometry.shear_y_matrices,
    "translate_x": geometry.translate_x_matrices,
    "translate_y": geometry.translate_y_matrices,
    "rotate": geometry.rotate_matrices,
}
TABLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": lambda images, magnitudes: colour.brightness_tables(images, 1 + magnitudes),
    "contrast": lambda images, magnitudes: colour.contrast_tables(images, 1 + magnitudes),
    "posterize": colour.posterize_tables,
    "solarize": colour.solarize_tables,
    "autocontrast": lambda images, _: colour.autocontrast_tables(images),
    "equalize": lambda images, _: colour.equalize_tables(images),
    "invert": lambda images, _: colour.invert_tables(images),
}
MIXTURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "color": lambda images, magnitudes: colour.color(images, 1 + magnitudes),
    "sharpness": lambda images, magnitudes: colour.sharpness(images, 1 + magnitudes),
}
OPERATIONS = ("identity", *MATRICES, *TABLES, *MIXTURES)
"""Names of all operations; an operation's number is its position here."""

SIGNED = frozenset({*MATRICES, *MIXTURES, "brightness", "contrast"})
"""Operations whose magnitude may also be negative."""


def apply_operations(images: Tensor, operations: Tensor, magnitudes: Tensor) -> Tensor:
    """Image ``i`` under operation number ``operations[i]`` of strength ``magnitudes[i]``.

    Args:
        images: uint8 ``(B, C, H, W)``.
        operations: whole numbers ``(B,)`` on the CPU, positions in `OPERATIONS`.
        magnitudes: ``(B,)`` on the CPU: a slope, pixels, degrees, a factor minus one, bits or a threshold.
    """
    order = torch.argsort(operations, stable=True)
    counts = torch.bincount(operations, minlength=len(OPERATIONS)).tolist()
    groups = Groups(images.index_select(0, order.to(images.device)), magnitudes[order], counts)
    unchanged = groups.of(["identity"])[0]
    mixed = [mixture(*groups.of([name])) for name, mixture in MIXTURES.items()]
    grouped = torch.cat((unchanged, _warp(groups), _look_up(groups), *mixed))
    return grouped.index_select(0, torch.argsort(order).to(images.device))


@dataclass(frozen=True)
class Groups:
    """Images and magnitudes sorted by operation, with the number of images of each operation."""

    images: Tensor
    magnitudes: Tensor
    counts: list[int]

    def of(self, names: Collection[str]) -> tuple[Tensor, Tensor]:
        """Images and magnitudes, as views, of operations that follow each other in `OPERATIONS`."""
        first = OPERATIONS.index(next(iter(names)))
        start = sum(self.counts[:first])
        stop = start + sum(self.counts[first : first + len(names)])
        return self.images[start:stop], self.magnitudes[start:stop]


def _warp(groups: Groups) -> Tensor:
    """All geometric operations as one affine resampling."""
    images, _ = groups.of(MATRICES)
    height, width = images.shape[-2:]
    matrices = [matrix(groups.of([name])[1], height, width) for name, matrix in MATRICES.items()]
    return geometry.affine(images, torch.cat(matrices))


def _look_up(groups: Groups) -> Tensor:
    """All operations on single grey levels as one table lookup."""
    images, _ = groups.of(TABLES)
    tables = [table(*groups.of([name])).expand(-1, images.shape[1], -1) for name, table in TABLES.items()]
    return colour.lookup(images, torch.cat(tables))


_TRIVIAL_BINS = 31
_TRIVIAL_OPERATIONS = torch.tensor([i for i, name in enumerate(OPERATIONS) if name != "invert"])
_AUTO_BINS = 10

_SIGNED = torch.tensor([name in SIGNED for name in OPERATIONS])

Operations = tuple[Tensor, Tensor]
"""One operation per image, by number, and its strength."""
Step = tuple[str, float, int]
"""Operation, probability and strength bin (0 if the operation has no strength)."""

_AUTO_PAIRS: tuple[tuple[Step, Step], ...] = (
    (("invert", 0.1, 0), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 0), ("equalize", 0.9, 0)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 0), ("equalize", 0.5, 0)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 0), ("autocontrast", 0.4, 0)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 0)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 0), ("equalize", 0.6, 0)),
    (("color", 0.9, 9), ("equalize", 0.6, 0)),
    (("autocontrast", 0.8, 0), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 0)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 0), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 0), ("invert", 0.1, 0)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 0)),
)
_AUTO_OPERATIONS = torch.tensor([[OPERATIONS.index(step[0]) for step in pair] for pair in _AUTO_PAIRS])
_AUTO_PROBABILITIES = torch.tensor([[step[1] for step in pair] for pair in _AUTO_PAIRS])
_AUTO_LEVELS = torch.tensor([[step[2] for step in pair] for pair in _AUTO_PAIRS])


def draw_trivial(count: int, generator: torch.Generator) -> list[Operations]:
    """One operation per image, all equally likely, with uniformly drawn strength and sign."""
    operations = _TRIVIAL_OPERATIONS[torch.randint(len(_TRIVIAL_OPERATIONS), (count,), generator=generator)]
    bins = torch.randint(_TRIVIAL_BINS, (count,), generator=generator)
    return [(operations, _trivial_strengths()[operations, bins] * _draw_signs(operations, generator))]


def draw_auto(count: int, size: tuple[int, int], generator: torch.Generator) -> list[Operations]:
    """One of the 25 pairs per image; each of its two operations is applied with its own probability."""
    pairs = torch.randint(len(_AUTO_PAIRS), (count,), generator=generator)
    strengths = _auto_strengths(*size)
    drawn = []
    for step in range(2):
        operations, bins = _AUTO_OPERATIONS[pairs, step], _AUTO_LEVELS[pairs, step]
        magnitudes = strengths[operations, bins] * _draw_signs(operations, generator)
        applied = torch.rand(count, generator=generator) < _AUTO_PROBABILITIES[pairs, step]
        drawn.append((operations * applied, magnitudes))  # number 0 is the identity
    return drawn


def _draw_signs(operations: Tensor, generator: torch.Generator) -> Tensor:
    """±1 with probability 0.5 each for operations with a direction, 1 for the others."""
    signs = 2 * torch.randint(2, operations.shape, generator=generator) - 1
    return torch.where(_SIGNED[operations], signs, 1)


@cache
def _trivial_strengths() -> Tensor:
    return _strengths(_TRIVIAL_BINS, slope=0.99, shift=(32, 32), degrees=135, change=0.99, lost_bits=6)


@lru_cache(maxsize=8)
def _auto_strengths(height: int, width: int) -> Tensor:
    # the search was run with shifts of up to 150 pixels on images of 331
    shift = (150 / 331 * width, 150 / 331 * height)
    return _strengths(_AUTO_BINS, slope=0.3, shift=shift, degrees=30, change=0.9, lost_bits=4)


def _strengths(
    bins: int, slope: float, shift: tuple[float, float], degrees: float, change: float, lost_bits: int
) -> Tensor:
    """Magnitudes ``(operation, bin)``: equal steps from no effect at bin 0 to the strongest at the last."""
    ends = {"shear_x": slope, "shear_y": slope, "translate_x": shift[0], "translate_y": shift[1]}
    ends |= {
        "rotate": degrees,
        "brightness": change,
        "color": change,
        "contrast": change,
        "sharpness": change,
    }
    rows = {name: torch.linspace(0, end, bins) for name, end in ends.items()}
    rows["posterize"] = 8 - (torch.arange(bins) / ((bins - 1) / lost_bits)).round()
    rows["solarize"] = torch.linspace(255, 0, bins)
    return torch.stack([rows.get(name, torch.zeros(bins)) for name in OPERATIONS])
