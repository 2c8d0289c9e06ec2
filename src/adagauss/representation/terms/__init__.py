"""Loss terms, one file each; all are registered by importing this package."""

from adagauss.plugins import import_submodules
from adagauss.representation.terms.anti_collapse import AntiCollapse
from adagauss.representation.terms.cross_entropy import CrossEntropy
from adagauss.representation.terms.distillation import Distillation

__all__ = ["AntiCollapse", "CrossEntropy", "Distillation"]

import_submodules(__name__)
