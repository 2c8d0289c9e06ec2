"""Learning as addition: running sums from which ridge regression and LDA of everything seen are solved exactly."""

from adagauss.sums.choice import Calibration, RidgeChoice, hold_out
from adagauss.sums.covariance import SharedCovariance, oas_shrinkage
from adagauss.sums.ridge import Linear, RidgeSums
from adagauss.sums.totals import FeatureSums

__all__ = [
    "Calibration",
    "FeatureSums",
    "Linear",
    "RidgeChoice",
    "RidgeSums",
    "SharedCovariance",
    "hold_out",
    "oas_shrinkage",
]
