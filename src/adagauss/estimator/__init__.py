"""IncrementalClassifier: a learner of images in scikit-learn's manner."""

from __future__ import annotations

from adagauss.estimator.answers import Prediction
from adagauss.estimator.choices import default_method
from adagauss.estimator.classifier import IncrementalClassifier

__all__ = ["IncrementalClassifier", "Prediction", "default_method"]
