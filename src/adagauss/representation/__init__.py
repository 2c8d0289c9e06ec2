"""How the extractor learns a task without losing the old ones."""

from adagauss.representation import terms  # noqa: F401  (registers the terms)
from adagauss.representation.expansion import Expansion, NoExpansion, Rotations
from adagauss.representation.step import Step, Term
from adagauss.representation.trained import Representation

__all__ = ["Expansion", "NoExpansion", "Representation", "Rotations", "Step", "Term"]
