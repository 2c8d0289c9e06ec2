"""IncrementalClassifier: a learner of images in scikit-learn's manner, imported when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adagauss.estimator.answers import Prediction
from adagauss.estimator.choices import default_method
from adagauss.estimator.plain import PlainClassifier

if TYPE_CHECKING:
    from adagauss.estimator.classifier import IncrementalClassifier

__all__ = ["IncrementalClassifier", "PlainClassifier", "Prediction", "default_method"]


def __getattr__(name: str) -> Any:
    if name == "IncrementalClassifier":
        from adagauss.estimator.classifier import IncrementalClassifier

        return IncrementalClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
