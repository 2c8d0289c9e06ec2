"""adagauss: exemplar-free class-incremental learning.

>>> from adagauss import IncrementalClassifier

Names are imported when first used, so that ``import adagauss`` and ``adagauss --help`` stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adagauss.backbones import Backbone as Backbone
    from adagauss.backbones import BackboneSpec as BackboneSpec
    from adagauss.backbones import register_backbone as register_backbone
    from adagauss.bayes import GaussianBayes as GaussianBayes
    from adagauss.classifier import IncrementalClassifier as IncrementalClassifier
    from adagauss.core.gaussians import ClassGaussians as ClassGaussians
    from adagauss.core.learn import Learner as Learner
    from adagauss.core.state import SharedState as SharedState
    from adagauss.core.state import State as State
    from adagauss.core.task import CurrentTask as CurrentTask
    from adagauss.data.dataset import Dataset as Dataset
    from adagauss.data.dataset import ReadOptions as ReadOptions
    from adagauss.data.dataset import register_dataset as register_dataset
    from adagauss.data.images import ArrayImages as ArrayImages
    from adagauss.data.images import LabelledImages as LabelledImages
    from adagauss.experiments.metrics import Evaluation as Evaluation
    from adagauss.experiments.metrics import register_metric as register_metric
    from adagauss.methods import Method as Method
    from adagauss.methods import make_method as make_method
    from adagauss.methods import register_method as register_method
    from adagauss.parts.drift import Drift as Drift

__version__ = "0.3.0"

_HOMES = {
    "ArrayImages": "adagauss.data.images",
    "Backbone": "adagauss.backbones",
    "BackboneSpec": "adagauss.backbones",
    "ClassGaussians": "adagauss.core.gaussians",
    "CurrentTask": "adagauss.core.task",
    "Dataset": "adagauss.data.dataset",
    "Drift": "adagauss.parts.drift",
    "Evaluation": "adagauss.experiments.metrics",
    "GaussianBayes": "adagauss.bayes",
    "IncrementalClassifier": "adagauss.classifier",
    "LabelledImages": "adagauss.data.images",
    "Learner": "adagauss.core.learn",
    "Method": "adagauss.methods",
    "ReadOptions": "adagauss.data.dataset",
    "SharedState": "adagauss.core.state",
    "State": "adagauss.core.state",
    "make_method": "adagauss.methods",
    "register_backbone": "adagauss.backbones",
    "register_dataset": "adagauss.data.dataset",
    "register_method": "adagauss.methods",
    "register_metric": "adagauss.experiments.metrics",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'adagauss' has no attribute {name!r}")
