"""How features become labels: one file per family, registered by importing this package."""

from adagauss.classifiers.base import Classifier
from adagauss.classifiers.gaussian import Bayes, NearestMean
from adagauss.classifiers.linear import LearnedHead, SampledLinear
from adagauss.core.state import Scorer
from adagauss.utils.registry import import_submodules

__all__ = ["Bayes", "Classifier", "LearnedHead", "NearestMean", "SampledLinear", "Scorer"]

import_submodules(__name__)
