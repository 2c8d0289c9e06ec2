"""How the memory follows the extractor when it moves; one file a way, registered by importing this package."""

from adagauss.drift.adapter import Adapter
from adagauss.drift.base import Drift, NoDrift
from adagauss.plugins import import_submodules

__all__ = ["Adapter", "Drift", "NoDrift"]

import_submodules(__name__)
