"""Loss terms, registered by importing this package."""

from adagauss.representation.terms.anti_collapse import AntiCollapse
from adagauss.representation.terms.cross_entropy import CrossEntropy
from adagauss.representation.terms.distillation import (
    FeatureDistillation,
    LogitDistillation,
    NormDistillation,
    ProjectedDistillation,
)
from adagauss.utils.registry import import_submodules

__all__ = [
    "AntiCollapse", "CrossEntropy", "FeatureDistillation", "LogitDistillation", "NormDistillation",
    "ProjectedDistillation",
]  # fmt: skip

import_submodules(__name__)
