"""How the extractor learns a task without losing the old ones."""

from adagauss.representation import mixtures, parallel_convolutions, terms  # noqa: F401  (registers the parts)
from adagauss.representation.base import Representation
from adagauss.representation.label_augmentation import LabelAugmentation, NoLabelAugmentation, Rotations
from adagauss.representation.live import Live
from adagauss.representation.mixtures import Mixtures
from adagauss.representation.parallel_convolutions import ParallelConvolutions
from adagauss.representation.reparameterisation import NoReparameterisation, Reparameterisation
from adagauss.representation.step import LiveTerm, Step, Term

__all__ = [
    "LabelAugmentation", "Live", "LiveTerm", "Mixtures", "NoLabelAugmentation", "NoReparameterisation",
    "ParallelConvolutions", "Reparameterisation", "Representation", "Rotations", "Step", "Term",
]  # fmt: skip
