"""Learning a dictionary from photographs or from the first task's images, in two passes over them."""

from __future__ import annotations

import copy
from functools import lru_cache

import torch

from adagauss.data.images import Images, Subset
from adagauss.errors import DataError
from adagauss.patches.dictionary import IMAGES, draw_patches, fold, normalise_contrast, signed_kmeans, whiten_patches
from adagauss.patches.features import PatchFeatures, PatchSettings
from adagauss.patches.photographs import photograph_crops

STANDARD = 256
"""Crops of photographs that features are standardised by: the classifier has units of its own in any case."""


def fit_patches(
    images: Images, settings: PatchSettings, generator: torch.Generator, device: torch.device | str = "cpu"
) -> PatchFeatures:
    """Features whose dictionary (first pass) and standardisation (second pass) come from ``images``.

    If the settings say so, crops of photographs take their place: then only the shape of ``images`` counts.
    """
    if len(images) == 0:
        raise DataError("a dictionary of patches is learned with the first task's images, and there are none")
    if settings.dictionary_from == "photographs":
        state = generator.get_state().numpy().tobytes()
        return copy.deepcopy(_of_photographs(settings, images.shape, state)).to(device)
    features = _learned(images, settings, generator).to(device)
    _standardise(features, images)
    return features


@lru_cache(maxsize=8)
def _of_photographs(settings: PatchSettings, shape: tuple[int, int, int], state: bytes) -> PatchFeatures:
    """The features of photographs, which are the same for all learners with the same settings and random numbers."""
    generator = torch.Generator().set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    crops = photograph_crops(shape, generator)
    features = _learned(crops, settings, generator)
    _standardise(features, Subset(crops, torch.arange(STANDARD)))
    return features


def _learned(images: Images, settings: PatchSettings, generator: torch.Generator) -> PatchFeatures:
    """Features with the dictionary of some images, not standardised yet."""
    features = PatchFeatures(settings, images.shape)
    for size, filters in zip(features.sizes, settings.shares(len(features.sizes)), strict=True):
        patches = normalise_contrast(draw_patches(images, size, settings.patches, generator))
        whitening = whiten_patches(patches, settings.epsilon, settings.energy)
        directions = signed_kmeans(whitening(patches), filters, settings.rounds, generator)
        features.set_dictionary(size, *fold(whitening), directions)
    return features


@torch.no_grad()
def _standardise(features: PatchFeatures, images: Images) -> None:
    """Mean and deviation of the pooled features over ``images``, summed about the first image for precision."""
    device = features.mean.device
    total = torch.zeros(features.width, dtype=torch.float64, device=device)
    squares = torch.zeros_like(total)
    origin: torch.Tensor | None = None
    for some in torch.split(torch.arange(len(images)), IMAGES):
        values = features.pooled(images.batch(some).to(device).float() / 255).double()
        origin = values[0] if origin is None else origin
        values = values - origin
        total += values.sum(0)
        squares += values.square().sum(0)
    assert origin is not None
    mean = total / len(images)
    features.mean.copy_(origin + mean)
    features.deviation.copy_((squares / len(images) - mean.square()).clamp_min(0).sqrt())
