"""How a feature becomes a label."""

from adagauss.classifiers.base import Classifier
from adagauss.classifiers.gaussian import Bayes, NearestMean
from adagauss.classifiers.linear import LearnedHead, SampledLinear

__all__ = ["Bayes", "Classifier", "LearnedHead", "NearestMean", "SampledLinear"]
