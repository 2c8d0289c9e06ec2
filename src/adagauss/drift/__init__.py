"""How the memory follows the extractor: one file per kind of drift, registered by importing this package."""

from adagauss.drift.adapter import Adapter
from adagauss.drift.affine import AffineMap
from adagauss.drift.base import Drift, Moved, NoDrift
from adagauss.utils.registry import import_submodules

__all__ = ["Adapter", "AffineMap", "Drift", "Moved", "NoDrift"]

import_submodules(__name__)
