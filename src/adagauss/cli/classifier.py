"""The classifier behind the commands for models; it brings torch along, so it is imported when a model is opened."""

from __future__ import annotations

from dataclasses import replace

from adagauss.core.learn import Learner
from adagauss.estimator import PlainClassifier
from adagauss.inputs import Wanted


class Model(PlainClassifier):
    """A classifier whose errors name options of the command line."""

    def _wanted(self, learner: Learner | None) -> Wanted:
        return replace(super()._wanted(learner), skip_option="--skip-bad")
