"""adagauss: exemplar-free class-incremental learning.

>>> from adagauss import IncrementalClassifier

Names are imported when first used, so that ``import adagauss`` and ``adagauss --help`` stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adagauss.bayes import GaussianBayes as GaussianBayes
    from adagauss.classifier import IncrementalClassifier as IncrementalClassifier
    from adagauss.core.gaussians import ClassGaussians as ClassGaussians
    from adagauss.core.learn import Learner as Learner
    from adagauss.core.task import CurrentTask as CurrentTask
    from adagauss.methods import Method as Method
    from adagauss.methods import make_method as make_method
    from adagauss.methods import register_method as register_method
    from adagauss.parts.drift import Drift as Drift

__version__ = "0.3.0"

_HOMES = {
    "ClassGaussians": "adagauss.core.gaussians",
    "CurrentTask": "adagauss.core.task",
    "Drift": "adagauss.parts.drift",
    "GaussianBayes": "adagauss.bayes",
    "IncrementalClassifier": "adagauss.classifier",
    "Learner": "adagauss.core.learn",
    "Method": "adagauss.methods",
    "make_method": "adagauss.methods",
    "register_method": "adagauss.methods",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'adagauss' has no attribute {name!r}")
