"""One drawn operation per image: images are grouped by operation, so that each operation runs once per batch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

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
