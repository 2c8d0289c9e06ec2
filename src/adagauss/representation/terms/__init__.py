"""Loss terms, one file each."""

from adagauss.representation.terms.anti_collapse import AntiCollapse
from adagauss.representation.terms.cross_entropy import CrossEntropy
from adagauss.representation.terms.distillation import Distillation

__all__ = ["AntiCollapse", "CrossEntropy", "Distillation"]
