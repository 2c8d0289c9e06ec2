"""Learning as addition: running sums from which ridge regression and LDA of everything seen are solved exactly."""

from adagauss.sums.choice import Choice, Strength
from adagauss.sums.discriminant import Discriminant
from adagauss.sums.grouped import GroupSums
from adagauss.sums.linear import Linear, Rule
from adagauss.sums.ridge import Ridge
from adagauss.sums.totals import FeatureSums
from adagauss.sums.weighing import Weighing

__all__ = [
    "Choice",
    "Discriminant",
    "FeatureSums",
    "GroupSums",
    "Linear",
    "Ridge",
    "Rule",
    "Strength",
    "Weighing",
]
