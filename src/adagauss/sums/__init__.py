"""Learning as addition: running sums from which ridge regression and LDA of everything seen are solved exactly."""

from adagauss.sums.covariance import SharedCovariance, oas_shrinkage
from adagauss.sums.ridge import Linear, RidgeSums
from adagauss.sums.strength import StrengthChoice, hold_out
from adagauss.sums.totals import FeatureSums

__all__ = [
    "FeatureSums",
    "Linear",
    "RidgeSums",
    "SharedCovariance",
    "StrengthChoice",
    "hold_out",
    "oas_shrinkage",
]
