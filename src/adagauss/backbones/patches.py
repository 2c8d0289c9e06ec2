"""Patch features: single-layer features of a fixed dictionary of image patches (Coates, Lee and Ng, 2011).

The dictionary is learned once, without labels, from two photographs that come with scikit-learn or from the first
task: patches are contrast-normalised, whitened and clustered by signed spherical k-means. Features are thresholded
products with its directions, pooled over a grid. Nothing is trained by gradient descent.
"""

from __future__ import annotations

import copy
import io
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator
from torch import Tensor

from adagauss.backbones.extractor import ResizedImages
from adagauss.backbones.registry import Backbone, BackboneSpec, register_backbone
from adagauss.core.config import Config
from adagauss.core.state import State
from adagauss.data.images import ArrayImages, Images, evenly_spaced
from adagauss.errors import ConfigError, DataError

NAMES = ("china.jpg", "flower.jpg")
ZOOMS = (1.5, 2.1, 2.9, 4.1, 5.7, 8.0)
"""Pixels of the photograph in one pixel of a crop: images of objects are mostly reduced photographs."""
CROPS = 2000
"""Patches near each other are alike: there are more crops than there are patches in each."""


@lru_cache(maxsize=1)
def photographs() -> tuple[Tensor, ...]:
    """The photographs as (3, H, W) floats on the scale 0..255."""
    spec = find_spec("sklearn")  # only its folder: an import takes longer than this function
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "datasets" / "images"
    found = []
    for name in NAMES:
        try:
            encoded = (folder / name).read_bytes()
        except OSError as error:
            raise DataError(
                f"scikit-learn was installed without its photograph {name}, from which patches are drawn: "
                "reinstall it, or draw them from the first task (dictionary_from=first_task)"
            ) from error
        pixels = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"), dtype=np.float32)
        found.append(torch.from_numpy(pixels).permute(2, 0, 1))
    return tuple(found)


def photograph_crops(shape: tuple[int, int, int], generator: torch.Generator, count: int = CROPS) -> ArrayImages:
    """Images of a shape (channels, height, width), cut at random places from the photographs in several sizes.

    Colour channels are shuffled, because two photographs do not show all colours; grey images are their mean, and other
    numbers of channels are random mixtures of them.
    """
    channels, height, width = shape
    sources = [_reduced(picture, zoom, height, width) for picture in photographs() for zoom in ZOOMS]
    crops = torch.empty(count, channels, height, width, dtype=torch.uint8)
    for crop, number in zip(crops, torch.randint(len(sources), (count,), generator=generator).tolist(), strict=True):
        source = sources[number]
        top, left = (
            int(torch.randint(have - need + 1, (), generator=generator))
            for have, need in zip(source.shape[1:], (height, width), strict=True)
        )
        crop.copy_(_in_channels(source[:, top : top + height, left : left + width], channels, generator))
    return ArrayImages(crops)


def _in_channels(cut: Tensor, channels: int, generator: torch.Generator) -> Tensor:
    """A piece of a photograph with another number of channels."""
    if channels == 3:
        return cut[torch.randperm(3, generator=generator)]
    if channels == 1:
        return cut.float().mean(0, keepdim=True).round()
    shares = torch.rand(channels, 3, generator=generator)
    return torch.einsum("kc,chw->khw", shares / shares.sum(1, keepdim=True), cut.float()).round()


def _reduced(picture: Tensor, zoom: float, height: int, width: int) -> Tensor:
    """A photograph at another size, at least that of the crops."""
    tall, wide = picture.shape[1:]
    zoom = min(zoom, tall / height, wide / width)
    size = max(height, round(tall / zoom)), max(width, round(wide / zoom))
    smaller = F.interpolate(picture[None], size, mode="bilinear", antialias=True)[0]
    return smaller.round().clamp(0, 255).to(torch.uint8)


CONTRAST_FLOOR = 10.0
"""Added to a patch's variance, on the scale 0..255: flat patches are not blown up to noise."""
IMAGES = 256
"""Images read at once."""
POINTS = 4096
"""Patches compared with the dictionary at once."""


def windows(pixels: Tensor, size: int, stride: int = 1) -> Tensor:
    """(B, C, H, W) images to a view (B, rows, columns, size, size, C) of all their patches."""
    return (
        pixels.permute(0, 2, 3, 1)
        .contiguous()
        .unfold(1, size, stride)
        .unfold(2, size, stride)
        .permute(0, 1, 2, 4, 5, 3)
    )


def draw_patches(images: Images, size: int, count: int, generator: torch.Generator) -> Tensor:
    """About ``count`` patches at random places: the same number from each image, one at least from those drawn."""
    order = torch.randperm(len(images), generator=generator)[:count]
    each = -(-count // len(order))
    drawn = []
    for some in torch.split(order, IMAGES):
        view = windows(images.batch(some), size)
        rows = torch.randint(view.shape[1], (len(some), each), generator=generator)
        columns = torch.randint(view.shape[2], (len(some), each), generator=generator)
        drawn.append(view[torch.arange(len(some)).unsqueeze(1), rows, columns].flatten(0, 1).flatten(1))
    return torch.cat(drawn)[:count].float()


def normalise_contrast(patches: Tensor) -> Tensor:
    """(p − mean p) / √(var p + 10), patch by patch."""
    variance, mean = torch.var_mean(patches, 1, correction=0, keepdim=True)
    return (patches - mean) / (variance + CONTRAST_FLOOR).sqrt()


def inverse_deviation(pixels: Tensor, size: int, stride: int = 1) -> Tensor:
    """1/√(var p + 10) of all patches p of (B, C, H, W) images."""
    mean = F.avg_pool2d(pixels.mean(1, keepdim=True), size, stride)
    square = F.avg_pool2d(pixels.square().mean(1, keepdim=True), size, stride)
    return ((square - mean.square()).clamp_min(0) + CONTRAST_FLOOR).rsqrt()


class Whitening(NamedTuple):
    """The map q ↦ (q − mean)·matrix from normalised patches to their whitened main components."""

    mean: Tensor
    matrix: Tensor

    def __call__(self, patches: Tensor) -> Tensor:
        return (patches - self.mean.to(patches)) @ self.matrix.to(patches)


def whiten_patches(patches: Tensor, epsilon: float, energy: float = 1.0) -> Whitening:
    """U(Λ + ε)^(−1/2) of the patches' covariance UΛUᵀ, in float64.

    ZCA, which is this map times Uᵀ, gives the same products with directions that live in its space: a rotation changes
    none. Components are selected from the largest on until they hold ``energy`` of the whitened variance Σλ/(λ + ε).
    """
    points = patches.double()
    mean = points.mean(0)
    centred = points - mean
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(points))
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    if not float(values[0]) > 1e-8:
        raise DataError(
            "all patches of the images are equal, so no dictionary can be learned: "
            "use images with some contrast, or draw more patches (backbone.options.patches)"
        )
    share = (values / (values + epsilon)).cumsum(0)
    kept = 1 + int((share < energy * share[-1] * (1 - 1e-9)).sum())
    return Whitening(mean, (vectors / (values + epsilon).sqrt())[:, :kept])


def signed_kmeans(points: Tensor, count: int, rounds: int, generator: torch.Generator) -> Tensor:
    """(count, d) unit directions: spherical k-means in which a direction also stands for its opposite.

    A point x belongs to the direction with the largest |x·d|, and each direction becomes the normalised sum of
    sign(x·d)·x over its points. It starts from points drawn at random (Gaussian directions where there are fewer points
    than directions); a direction that is left without points starts again from a random one.
    """
    length = points.norm(dim=1)
    points = points[length > 1e-6 * length.amax()]
    directions = torch.randn(count, points.shape[1], generator=generator, dtype=points.dtype)
    chosen = points[torch.randperm(len(points), generator=generator)[:count]]
    directions[: len(chosen)] = chosen
    directions = F.normalize(directions, dim=1)
    for _ in range(rounds):
        sums, members = torch.zeros_like(directions), torch.zeros(count, dtype=torch.long)
        for block in torch.split(points, POINTS):
            products = block @ directions.T
            nearest = products.abs().argmax(1)
            signs = products.gather(1, nearest.unsqueeze(1)).sign()
            sums.index_add_(0, nearest, signs * block)
            members += torch.bincount(nearest, minlength=count)
        again = points[torch.randint(len(points), (count,), generator=generator)]
        directions = F.normalize(torch.where(members.unsqueeze(1) > 0, sums, again), dim=1)
    return directions


def fold(whitening: Whitening) -> tuple[Tensor, Tensor]:
    """Weight V and bias b with (p/dev)·V + b = whitening(normalise_contrast(p)), dev = √(var p + 10).

    V is the whitening's matrix, centred over the numbers of a patch: this stands for subtracting the patch's mean.
    """
    matrix = whitening.matrix
    return matrix - matrix.mean(0), -whitening.mean @ matrix


FILTERS = 128
"""Filters multiplied at once: with `NUMBERS`, what lies between product and pooling stays in a core's cache."""
NUMBERS = 1 << 18
DEVIATION_FLOOR = 1e-3
USUAL_SIDE, USUAL_SIZE, LEAST_SIZE = 32, 6, 3
"""Patches of 6 pixels were best on images of 32; smaller images have smaller patches, down to 3."""


class DictionarySettings(Config):
    """How directions are learned from patches, and products with them are thresholded."""

    threshold: NonNegativeFloat = 0.25
    """α of the soft threshold max(0, ±s − α)."""
    epsilon: PositiveFloat = 0.1
    """Added to the eigenvalues when patches are whitened: less is better on photographs, worse on drawings."""
    patches: PositiveInt = 100_000
    """Patches of each size the dictionary is learned from."""
    rounds: PositiveInt = 8
    """Rounds of k-means."""


def learn_dictionary(
    images: Images, size: int, count: int, settings: DictionarySettings, generator: torch.Generator, energy: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """The whitening of patches as weight and bias (see `fold`), and ``count`` unit directions of whitened patches."""
    patches = normalise_contrast(draw_patches(images, size, settings.patches, generator))
    whitening = whiten_patches(patches, settings.epsilon, energy)
    return *fold(whitening), signed_kmeans(whitening(patches), count, settings.rounds, generator)


class PatchSettings(DictionarySettings):
    """How a dictionary of patches is learned and used."""

    dictionary_from: Literal["photographs", "first_task"] = "photographs"
    """Images that patches are drawn from: photographs that are the same everywhere, so that features depend on no task,
    or the first task's images. These are better by up to 2.5 points, but features depend on the first task, and
    learners with different first tasks cannot be merged."""
    filters: PositiveInt = 2000
    """Directions of all patch sizes together; every one gives two features in each cell of the grid."""
    patch_sizes: tuple[PositiveInt, ...] | None = None
    """Sides of the patches in pixels; the filters are divided evenly between them. None: 6, less for small images."""
    scales: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of patch sizes, two pixels apart, where none are set: 3 gives patches of 4, 6 and 8 pixels."""
    stride: PositiveInt = 1
    grid: PositiveInt = 2
    """Cells per side over which products are averaged."""
    energy: Annotated[float, Field(gt=0, le=1)] = 0.98
    """Share of the whitened variance that is kept: 0.98 halves the components, and with them the time of a product."""
    power: PositiveFloat = 0.5
    """Exponent of the pooled values: the square root reduces the differences between strong and weak responses."""

    @field_validator("patch_sizes")
    @classmethod
    def _some_sizes(cls, sizes: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if (sizes is not None and not sizes) or (sizes and len(set(sizes)) != len(sizes)):
            raise ValueError("name one patch size at least, and none twice")
        return sizes

    def sizes(self, shape: tuple[int, int, int]) -> tuple[int, ...]:
        """Patch sizes for images of a shape: as they are set, or in the proportion that is best for 32 pixels."""
        if self.patch_sizes:
            return self.patch_sizes
        side = min(shape[1:])
        most = side - (self.grid - 1) * self.stride  # so that a patch begins in every cell
        usual = min(USUAL_SIZE, max(LEAST_SIZE, round(side * USUAL_SIZE / USUAL_SIDE)), max(2, most))
        largest = max(usual, most)
        around = (usual + 2 * (number - (self.scales - 1) // 2) for number in range(self.scales))
        return tuple(sorted({min(max(size, 2), largest) for size in around}))

    def shares(self, sizes: int) -> list[int]:
        """Number of filters of each patch size."""
        if self.filters < sizes:
            raise ConfigError(f"{self.filters} filters cannot be divided between {sizes} patch sizes: use more filters")
        return [self.filters // sizes + (index < self.filters % sizes) for index in range(sizes)]


class PatchFeatures(State):
    """Images in 0..1 to pooled responses of a dictionary: nothing in it is trained.

    For a patch p and direction d: s = zca(normalise_contrast(p))·d. A feature is the mean of max(0, s − α) or of
    max(0, −s − α) over the patches of a grid cell, to the power ½, standardised over the images of the dictionary.
    """

    def __init__(self, settings: PatchSettings, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.settings = settings
        self.shape = shape
        self.sizes = settings.sizes(shape)
        for size, filters in zip(self.sizes, settings.shares(len(self.sizes)), strict=True):
            self.set_dictionary(size, torch.zeros(size * size * shape[0], 1), torch.zeros(1), torch.zeros(filters, 1))
            self.register_buffer(f"cells_{size}", _cells(shape, size, settings), persistent=False)
        self.width = 2 * settings.filters * settings.grid**2
        self.register_buffer("mean", torch.zeros(self.width))
        # Divides by 1 until `fit_patches`.
        self.register_buffer("deviation", torch.full((self.width,), 1 - DEVIATION_FLOOR))

    def set_dictionary(self, size: int, weight: Tensor, bias: Tensor, directions: Tensor) -> None:
        """Take over the whitening (see `fold`) and the unit directions of one patch size."""
        self.register_buffer(f"weight_{size}", weight.float().contiguous())
        self.register_buffer(f"bias_{size}", bias.float().contiguous())
        self.register_buffer(f"directions_{size}", directions.float().mT.contiguous())

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) images in 0..1 to (B, width) features."""
        if images.ndim != 4 or tuple(images.shape[1:]) != self.shape:
            raise DataError(
                f"this dictionary takes images of shape {self.shape} (channels, height, width); "
                f"got {tuple(images.shape[1:])}: resize them"
            )
        # Blocks of images only save time, and an exported program must not fix their number.
        positions = max(self.get_buffer(f"cells_{size}").shape[1] for size in self.sizes)
        at_once = max(1, NUMBERS // (positions * min(FILTERS, self.settings.filters)))
        blocks = [images] if torch.compiler.is_exporting() else torch.split(images, at_once)
        pooled = torch.cat([self._block(block) for block in blocks]) if len(blocks) > 1 else self._block(blocks[0])
        return (pooled - self.mean) / (self.deviation + DEVIATION_FLOOR)

    def _block(self, images: Tensor) -> Tensor:
        """Features of some images: all their patches in one matrix, and some filters at a time."""
        stride, threshold = self.settings.stride, self.settings.threshold
        # Filters sum to zero, so that an offset changes nothing but the rounding of the variance.
        pixels = 255 * images - 127.5
        features = []
        for size in self.sizes:
            rows = windows(pixels, size, stride).flatten(3).flatten(1, 2)
            products = rows @ self.get_buffer(f"weight_{size}")
            scale = inverse_deviation(pixels, size, stride).flatten(1).unsqueeze(2)
            # (B, n, r): all patches, divided by their deviation √(var + 10) and whitened.
            patches = products * scale + self.get_buffer(f"bias_{size}")
            cells, sums = self.get_buffer(f"cells_{size}"), []
            for directions in torch.split(self.get_buffer(f"directions_{size}"), FILTERS, 1):
                responses = patches @ directions
                # (B, 2, cells, K): sums of max(s, α) = max(0, s − α) + α, and of min(s, −α).
                above, below = cells @ responses.clamp(min=threshold), cells @ responses.clamp(max=-threshold)
                sums.append(torch.stack([above, below], 1))
            above, below = (torch.cat(sums, 3) / cells.sum(1, keepdim=True)).unbind(1)
            features += [above.flatten(1), -below.flatten(1)]
        return (torch.cat(features, 1) - threshold).clamp_min(0).pow(self.settings.power)


def _cells(shape: tuple[int, int, int], size: int, settings: PatchSettings) -> Tensor:
    """(grid², n) matrix of ones where a patch lies in a cell; cells overlap by a patch where they do not divide."""
    _, height, width = shape
    rows, columns = ((side - size) // settings.stride + 1 for side in (height, width))
    if min(rows, columns) < settings.grid:
        raise ConfigError(
            f"images of {height}×{width} pixels have too few patches of {size}×{size} for a grid of "
            f"{settings.grid}×{settings.grid} cells: use a smaller grid, stride or patch size, or resize the images"
        )
    if torch.get_default_device().type == "meta":  # only the size counts, and torch would import its compiler
        return torch.zeros(settings.grid**2, rows * columns)
    # The cells of adaptive pooling: a position belongs to those in whose mean it counts.
    down, across = (F.adaptive_avg_pool1d(torch.eye(side), settings.grid).T > 0 for side in (rows, columns))
    return torch.kron(down.float(), across.float()).contiguous()


STANDARD = 256
"""Images that features are standardised by; the classifier standardises them again."""


def fit_patches(
    images: Images, settings: PatchSettings, generator: torch.Generator, device: torch.device | str = "cpu"
) -> PatchFeatures:
    """Features whose dictionary (first pass) and standardisation (second pass) come from ``images``.

    If the settings say so, crops of photographs take their place: then only the shape of ``images`` counts.
    """
    if settings.dictionary_from == "photographs":
        state = generator.get_state().numpy().tobytes()
        return copy.deepcopy(_of_photographs(settings, images.shape, state)).to(device)
    return _learned(images, settings, generator, evenly_spaced(len(images), STANDARD), device)


@lru_cache(maxsize=8)
def _of_photographs(settings: PatchSettings, shape: tuple[int, int, int], state: bytes) -> PatchFeatures:
    """The features of photographs, which are the same for all learners with the same settings and random numbers."""
    generator = torch.Generator().set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return _learned(photograph_crops(shape, generator), settings, generator, torch.arange(STANDARD))


@torch.no_grad()
def _learned(
    images: Images,
    settings: PatchSettings,
    generator: torch.Generator,
    sample: Tensor,
    device: torch.device | str = "cpu",
) -> PatchFeatures:
    """Features with the dictionary of some images, standardised over a ``sample`` of them."""
    features = PatchFeatures(settings, images.shape)
    for size, filters in zip(features.sizes, settings.shares(len(features.sizes)), strict=True):
        features.set_dictionary(size, *learn_dictionary(images, size, filters, settings, generator, settings.energy))
    pixels = images.batch(sample).to(device).float() / 255
    deviation, mean = torch.std_mean(features.to(device)(pixels).double(), 0, correction=0)
    features.mean.copy_(mean)
    features.deviation.copy_(deviation)
    return features


SIDE = 32
"""Larger images are resized to this size by default, the best scale for patches of photographs."""


class PatchBackbone(Backbone):
    """Images in 0..1 to the pooled responses of a dictionary. It has no parameters: nothing is ever trained."""

    size_setting = "backbone.options.filters"

    def __init__(self, settings: PatchSettings, shape: tuple[int, int, int], input_size: int | None) -> None:
        features = PatchFeatures(settings, shape)
        super().__init__(features.width)
        self.features = features
        self.shape = shape
        self.input_size = input_size
        self.mean, self.std = (0.0,) * shape[0], (1.0,) * shape[0]  # the dictionary has a contrast of its own

    def prepare(self, images: Images, generator: torch.Generator) -> None:
        seen = ResizedImages(images, self.input_size)
        self.features = fit_patches(seen, self.features.settings, generator, self.features.mean.device)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.features(images)
        return features


@register_backbone(
    "patches",
    summary="a dictionary of whitened patches, learned without labels and never trained",
    options=PatchSettings,
)
def patches(spec: BackboneSpec) -> Backbone:
    """Single-layer features after Coates, Lee and Ng (2011)."""
    assert isinstance(spec.options, PatchSettings)
    return patch_backbone(spec, spec.options)


def patch_backbone(spec: BackboneSpec, settings: PatchSettings) -> PatchBackbone:
    """The dictionary for images of a shape; larger images are resized to `SIDE` pixels."""
    height, width = spec.shape
    side = spec.input_size or (SIDE if min(height, width) > SIDE else None)
    return PatchBackbone(settings, (spec.channels, side or height, side or width), side)
