"""The classifier part: how features become labels."""

from __future__ import annotations

from typing import ClassVar

from adagauss.backbones import Network
from adagauss.core.calibration import Fitted, HoldoutFitter, no_holdout_fit
from adagauss.core.config import Part
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import Scorer, State
from adagauss.core.task import ClassEdit, CurrentTask, FitContext
from adagauss.utils.runtime import Runtime


class Classifier(Part):
    """Fits a scorer for all classes learned so far, in the order in which they were learned."""

    role: ClassVar[str] = "classifier"
    changes_network: ClassVar[bool] = False
    """Whether fitting changes the network, so that it cannot be repeated on the network of a finished run."""
    cheap: ClassVar[bool] = True
    """Whether it may be fitted a second time per task, without some images, to learn how truthful its scores are."""

    def empty_state(self) -> Scorer:
        """A scorer that knows no class yet, with this classifier's settings."""
        raise TypeError(f"{type(self).__name__} must define empty_state")

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> Scorer:
        """The scorer after a task, from the memory and the current task; data of old tasks is not available.

        ``before`` is the scorer after the last task. It must not be changed: other threads may still predict with it.
        """
        raise TypeError(f"{type(self).__name__} must define fit")

    def update(
        self, memory: ClassGaussians, now: CurrentTask, before: State | None, attempt: HoldoutFitter = no_holdout_fit
    ) -> Fitted:
        """As `fit`, with the answers to images that were left out if the classifier has them for nothing.

        ``attempt`` makes a scorer without some images by `fit`, for a classifier that is to be judged by these.
        """
        return Fitted(self.fit(memory, now, before))

    def check(self, network: Network, classes: int, runtime: Runtime) -> None:
        """Refuse, before anything is computed, what could not be fitted for so many classes."""

    def remap_classes(self, memory: ClassGaussians, now: ClassEdit, before: Scorer) -> Scorer:
        """The scorer after classes were forgotten or joined, which ``memory`` has followed already.

        ``before`` must not be changed. A classifier that keeps sums over images takes ``now.removed`` out of them.
        """
        return before.remap_classes(now.groups)

    def merged(
        self, memory: ClassGaussians, now: FitContext, one: Scorer, other: Scorer, columns: tuple[int, ...]
    ) -> Scorer:
        """The scorer of two learners with the same features as one; ``memory`` holds the classes of both.

        ``columns`` says where the classes of the other are. Neither scorer must be changed.
        """
        return one.merged(other, columns)


class MemoryClassifier(Classifier):
    """A classifier that is a function of the memory, whatever led to it."""

    def of_memory(self, memory: ClassGaussians, now: FitContext) -> Scorer:
        """The scorer of the remembered classes."""
        raise TypeError(f"{type(self).__name__} must define of_memory")

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> Scorer:
        return self.of_memory(memory, now)

    def remap_classes(self, memory: ClassGaussians, now: ClassEdit, before: Scorer) -> Scorer:
        return self.of_memory(memory, now)

    def merged(
        self, memory: ClassGaussians, now: FitContext, one: Scorer, other: Scorer, columns: tuple[int, ...]
    ) -> Scorer:
        return self.of_memory(memory, now)
