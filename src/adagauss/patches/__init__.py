"""Features that stand still: a dictionary of image patches, learned once and never trained again."""

from adagauss.patches.features import PatchFeatures, PatchSettings
from adagauss.patches.fit import fit_patches

__all__ = ["PatchFeatures", "PatchSettings", "fit_patches"]
