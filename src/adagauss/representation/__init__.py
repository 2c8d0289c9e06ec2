"""How the extractor learns a task without losing the old ones."""

from adagauss.representation import terms  # noqa: F401  (registers the terms)
from adagauss.representation.adapters import ConvAdapters
from adagauss.representation.expansion import Expansion, NoExpansion, Rotations
from adagauss.representation.mixtures import Mixtures
from adagauss.representation.step import Step, Term
from adagauss.representation.trained import Representation
from adagauss.representation.tuning import FullTuning, Tuning

__all__ = [
    "ConvAdapters", "Expansion", "FullTuning", "Mixtures", "NoExpansion", "Representation", "Rotations", "Step",
    "Term", "Tuning",
]  # fmt: skip
