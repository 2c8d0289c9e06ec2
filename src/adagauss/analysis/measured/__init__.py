"""What is measured of a run for figures: once, in one pass per network, and kept beside the run."""

from adagauss.analysis.measured.measuring import kept_quantities, measure
from adagauss.analysis.measured.quantities import Measured, Quantity

__all__ = ["Measured", "Quantity", "kept_quantities", "measure"]
