"""How the memory follows the extractor when it moves."""

from adagauss.drift.adapter import Adapter
from adagauss.drift.base import Drift, NoDrift

__all__ = ["Adapter", "Drift", "NoDrift"]
