"""From images to a dictionary of directions: patches, their contrast, whitening and signed spherical k-means.

A patch is a row of P·P·C numbers in the order row, column, channel, on the scale 0..255. All functions are pure: what
is random takes its generator.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.data.images import Images
from adagauss.errors import ConfigError, DataError

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
    if len(images) == 0:
        raise DataError("there are no images to draw patches from: give one image at least")
    _, height, width = images.shape
    check_fits(size, height, width)
    order = torch.randperm(len(images), generator=generator)[:count]
    each = -(-count // len(order))
    drawn = []
    for some in torch.split(order, IMAGES):
        view = windows(images.batch(some), size)
        rows = torch.randint(view.shape[1], (len(some), each), generator=generator)
        columns = torch.randint(view.shape[2], (len(some), each), generator=generator)
        drawn.append(view[torch.arange(len(some)).unsqueeze(1), rows, columns].flatten(0, 1).flatten(1))
    return torch.cat(drawn)[:count].float()


def check_fits(size: int, height: int, width: int) -> None:
    """Raise where images are smaller than a patch."""
    if min(height, width) < size:
        raise ConfigError(
            f"images of {height}×{width} pixels hold no patch of {size}×{size}: "
            "choose smaller patch sizes or resize the images"
        )


def normalise_contrast(patches: Tensor) -> Tensor:
    """(p − mean p) / √(var p + 10), patch by patch."""
    variance, mean = torch.var_mean(patches, 1, correction=0, keepdim=True)
    return (patches - mean) / (variance + CONTRAST_FLOOR).sqrt()


class Whitening(NamedTuple):
    """The map q ↦ (q − mean)·matrix from normalised patches to their whitened main components."""

    mean: Tensor
    matrix: Tensor

    def __call__(self, patches: Tensor) -> Tensor:
        return (patches - self.mean.to(patches)) @ self.matrix.to(patches)


def whiten_patches(patches: Tensor, epsilon: float, energy: float = 1.0) -> Whitening:
    """U(Λ + ε)^(−1/2) of the patches' covariance UΛUᵀ, in float64.

    ZCA, which is this map times Uᵀ, gives the same products with directions that live in its space: a rotation changes
    none. Components are kept from the largest on until they hold ``energy`` of the whitened variance Σλ/(λ + ε).
    """
    points = patches.double()
    mean = points.mean(0)
    centred = points - mean
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(points))
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    if not float(values[0]) > 1e-8:
        raise DataError(
            "all patches of the images look alike, so there is nothing to build a dictionary from: "
            "give images with some contrast, or draw more patches (backbone.options.patches)"
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
    points = points[length > 1e-6 * length.amax().clamp_min(1e-30)]
    if len(points) == 0:
        raise DataError("k-means has no point that is not zero: give patches with some contrast")
    directions = torch.randn(count, points.shape[1], generator=generator, dtype=points.dtype)
    chosen = points[torch.randperm(len(points), generator=generator)[:count]]
    directions[: len(chosen)] = chosen
    directions = _unit(directions)
    for _ in range(rounds):
        sums, members = torch.zeros_like(directions), torch.zeros(count, dtype=torch.long)
        for block in torch.split(points, POINTS):
            products = block @ directions.T
            nearest = products.abs().argmax(1)
            signs = products.gather(1, nearest.unsqueeze(1)).sign()
            sums.index_add_(0, nearest, signs * block)
            members += torch.bincount(nearest, minlength=count)
        again = points[torch.randint(len(points), (count,), generator=generator)]
        directions = _unit(torch.where(members.unsqueeze(1) > 0, sums, again))
    return directions


def _unit(rows: Tensor) -> Tensor:
    return F.normalize(rows, dim=1)


def fold(whitening: Whitening) -> tuple[Tensor, Tensor]:
    """Weight V and bias b with (p/dev)·V + b = whitening(normalise_contrast(p)), dev = √(var p + 10).

    V is the whitening's matrix, centred over the numbers of a patch: this stands for subtracting the patch's mean.
    """
    matrix = whitening.matrix
    return matrix - matrix.mean(0), -whitening.mean @ matrix
