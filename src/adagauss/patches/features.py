"""The module that turns images into pooled, thresholded products with a dictionary of patches."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator
from torch import Tensor

from adagauss.core.config import Config
from adagauss.core.state import State
from adagauss.errors import ConfigError, DataError
from adagauss.patches.dictionary import CONTRAST_FLOOR, check_fits, windows

FILTERS = 128
"""Filters multiplied at once: with `NUMBERS`, what lies between product and pooling stays in a core's cache."""
NUMBERS = 1 << 18
DEVIATION_FLOOR = 1e-3
USUAL_SIDE, USUAL_SIZE, LEAST_SIZE = 32, 6, 3
"""Patches of 6 pixels were best on images of 32; smaller images have smaller patches, down to 3."""


class PatchSettings(Config):
    """How a dictionary of patches is learned and used."""

    dictionary_from: Literal["photographs", "first_task"] = "photographs"
    """Images that patches are drawn from: photographs that are the same everywhere, so that features depend on no task,
    or the first task's, which are better by up to 2.5 points and make features, and whether learners can be merged,
    depend on what came first."""
    filters: PositiveInt = 2000
    """Directions of all patch sizes together; every one gives two features in each cell of the grid."""
    patch_sizes: tuple[PositiveInt, ...] | None = None
    """Sides of the patches in pixels; the filters are divided evenly between them. None: 6, less for small images."""
    scales: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of patch sizes, two pixels apart, where none are set: 3 gives patches of 4, 6 and 8 pixels."""
    stride: PositiveInt = 1
    grid: PositiveInt = 2
    """Cells per side over which products are averaged."""
    threshold: NonNegativeFloat = 0.25
    """α of the soft threshold max(0, ±s − α)."""
    epsilon: PositiveFloat = 0.1
    """Added to the eigenvalues when patches are whitened: less is better on photographs, worse on drawings."""
    energy: Annotated[float, Field(gt=0, le=1)] = 0.98
    """Share of the whitened variance that is kept: 0.98 halves the components, and with them the time of a product."""
    power: PositiveFloat = 0.5
    """Exponent of the pooled values: the square root evens out how strongly and how often a filter answers."""
    patches: PositiveInt = 100_000
    """Patches of each size the dictionary is learned from."""
    rounds: PositiveInt = 8
    """Rounds of k-means."""

    @field_validator("patch_sizes")
    @classmethod
    def _some_sizes(cls, sizes: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if (sizes is not None and not sizes) or (sizes and len(set(sizes)) != len(sizes)):
            raise ValueError("name one patch size at least, and none twice")
        return sizes

    def sizes(self, shape: tuple[int, int, int]) -> tuple[int, ...]:
        """Patch sizes for images of a shape: as they are set, or in the proportion that served 32 pixels best."""
        if self.patch_sizes:
            return self.patch_sizes
        side = min(shape[1:])
        most = side - (self.grid - 1) * self.stride  # with which one patch at least begins in every cell
        usual = min(USUAL_SIZE, max(LEAST_SIZE, round(side * USUAL_SIZE / USUAL_SIDE)), max(2, most))
        largest = max(usual, most)
        around = (usual + 2 * (number - (self.scales - 1) // 2) for number in range(self.scales))
        return tuple(sorted({min(max(size, 2), largest) for size in around}))

    def shares(self, sizes: int) -> list[int]:
        """Filters of each of so many patch sizes."""
        if self.filters < sizes:
            raise ConfigError(f"{self.filters} filters cannot be divided between {sizes} patch sizes: use more filters")
        return [self.filters // sizes + (index < self.filters % sizes) for index in range(sizes)]


class PatchFeatures(State):
    """Images in 0..1 to pooled answers of a dictionary: nothing in it is trained.

    For a patch p and direction d: s = zca(normalise_contrast(p))·d. A feature is the mean of max(0, s − α) or of
    max(0, −s − α) over the patches of a grid cell, to the power ½, standardised over the images of the dictionary.
    """

    def __init__(self, settings: PatchSettings, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.settings = settings
        self.shape = shape
        channels, height, width = shape
        self.sizes = settings.sizes(shape)
        for size, filters in zip(self.sizes, settings.shares(len(self.sizes)), strict=True):
            numbers = size * size * channels
            if numbers < 2:
                raise ConfigError("a patch of one grey pixel has no contrast: choose patch sizes of 2 or more")
            check_fits(size, height, width)
            self.set_dictionary(size, torch.zeros(numbers, 1), torch.zeros(1), torch.zeros(filters, 1))
            self.register_buffer(f"cells_{size}", _cells(shape, size, settings), persistent=False)
        self.width = 2 * settings.filters * settings.grid**2
        self.register_buffer("mean", torch.zeros(self.width))
        self.register_buffer("deviation", torch.ones(self.width))
        self.mean: Tensor
        self.deviation: Tensor

    def set_dictionary(self, size: int, weight: Tensor, bias: Tensor, directions: Tensor) -> None:
        """Take over the whitening (see `fold`) and the unit directions of one patch size."""
        self.register_buffer(f"weight_{size}", weight.float().contiguous())
        self.register_buffer(f"bias_{size}", bias.float().contiguous())
        self.register_buffer(f"directions_{size}", directions.float().mT.contiguous())

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) images in 0..1 to (B, width) features."""
        return (self.pooled(images) - self.mean) / (self.deviation + DEVIATION_FLOOR)

    def pooled(self, images: Tensor) -> Tensor:
        """Features before they are standardised."""
        if images.ndim != 4 or tuple(images.shape[1:]) != self.shape:
            raise DataError(
                f"this dictionary takes images of shape {self.shape} (channels, height, width); "
                f"got {tuple(images.shape[1:])}: resize them"
            )
        # Blocks of images only save time, and an exported program must not fix their number.
        blocks = [images] if torch.compiler.is_exporting() else torch.split(images, self._images_at_once())
        return torch.cat([self._block(block) for block in blocks]) if len(blocks) > 1 else self._block(blocks[0])

    def _images_at_once(self) -> int:
        positions = max(self.get_buffer(f"cells_{size}").shape[1] for size in self.sizes)
        return max(1, NUMBERS // (positions * min(FILTERS, self.settings.filters)))

    def _block(self, images: Tensor) -> Tensor:
        """Features of some images: all their patches in one matrix, and some filters at a time."""
        # Filters sum to zero, so that an offset changes nothing but the rounding of the variance.
        pixels = 255 * images - 127.5
        features = []
        for size in self.sizes:
            patches, cells = self._patches(pixels, size), self.get_buffer(f"cells_{size}")
            blocks = torch.split(self.get_buffer(f"directions_{size}"), FILTERS, 1)
            sums = torch.cat([self._sums(patches, some, cells) for some in blocks], 3)
            above, below = (sums / cells.sum(1, keepdim=True)).unbind(1)
            features += [above.flatten(1), -below.flatten(1)]
        means = torch.cat(features, 1) - self.settings.threshold
        return means.clamp_min(0).pow(self.settings.power)

    def _patches(self, pixels: Tensor, size: int) -> Tensor:
        """(B, n, r): all patches, divided by their deviation √(var + 10) and whitened."""
        stride = self.settings.stride
        mean = F.avg_pool2d(pixels.mean(1, keepdim=True), size, stride)
        square = F.avg_pool2d(pixels.square().mean(1, keepdim=True), size, stride)
        scale = ((square - mean.square()).clamp_min(0) + CONTRAST_FLOOR).rsqrt()
        rows = windows(pixels, size, stride).flatten(3).flatten(1, 2)
        products = rows @ self.get_buffer(f"weight_{size}")
        return products * scale.flatten(1).unsqueeze(2) + self.get_buffer(f"bias_{size}")

    def _sums(self, patches: Tensor, directions: Tensor, cells: Tensor) -> Tensor:
        """(B, 2, cells, K): sums over cells of max(s, α) = max(0, s − α) + α, and of min(s, −α)."""
        threshold = self.settings.threshold
        products = patches @ directions
        return torch.stack([cells @ products.clamp(min=threshold), cells @ products.clamp(max=-threshold)], 1)


def _cells(shape: tuple[int, int, int], size: int, settings: PatchSettings) -> Tensor:
    """(grid², n) matrix of ones where a patch lies in a cell; cells overlap by a patch where they do not divide."""
    _, height, width = shape
    rows, columns = ((side - size) // settings.stride + 1 for side in (height, width))
    if min(rows, columns) < settings.grid:
        raise ConfigError(
            f"{rows}×{columns} patches of {size} pixels cannot fill a grid of {settings.grid}×{settings.grid} cells: "
            "use a smaller grid, stride or patch size"
        )
    cells = torch.zeros(settings.grid, settings.grid, rows, columns)
    for i, down in enumerate(_ranges(rows, settings.grid)):
        for j, across in enumerate(_ranges(columns, settings.grid)):
            cells[i, j, down, across] = 1
    return cells.flatten(2).flatten(0, 1)


def _ranges(length: int, parts: int) -> list[slice]:
    return [slice(part * length // parts, -(-(part + 1) * length // parts)) for part in range(parts)]
