"""What parts need from each other. A method whose parts cannot work together is refused when it is made."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import ClassVar, Protocol

from adagauss.errors import ConfigError


class Need(Enum):
    """Something that one part of a method needs and another provides, with the way to get it."""

    MEANS = ("the mean of each class", "set memory.kind=means or memory.kind=gaussians")
    COVARIANCES = (
        "the covariance of each class",
        "set memory.kind=gaussians with memory.covariance=full (Bayes' rule with one covariance of all classes is "
        "classifier.covariance=shared)",
    )
    FACTORS = (
        "the covariance of each class as few factors and a diagonal",
        "set memory.kind=gaussians and memory.covariance=low_rank",
    )
    SPREAD = ("the covariance of each class, or one of all classes", "set memory.kind=gaussians")
    KEPT_HEADS = (
        "trained outputs of every task",
        "set representation.heads=keep (and train later tasks: representation.later must not be null)",
    )
    LINEAR_HEAD = ("linear outputs", "set representation.head=linear")
    FEATURE_MATRIX = (
        "the empirical feature matrix",
        "add the term with representation.terms.feature_matrix.kind=feature_matrix",
    )
    NON_NEGATIVE = (
        "features that are never negative",
        "use a network that ends in a rectifier, without a linear bottleneck (backbone.name=resnet18, "
        "backbone.features=null), or switch the transform off (memory.tukey=null, classifier.tukey=null)",
    )
    STILL_FEATURES = (
        "features that are fixed after the first task",
        "set representation.later=null, which freezes the network",
    )
    COMPANION = (
        "features of a second network that is never trained",
        "set backbone.companion.name=patches and backbone.companion.features=null",
    )

    @property
    def what(self) -> str:
        """The need in words."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """The setting that fulfils it."""
        return self.value[1]


SECOND_OUTPUT = "needs one trained output for each class, and a class that comes again would get a second one"
"""Why parts that rely on the outputs of every task take no images of known classes."""


class Needy(Protocol):
    """The interface that `check_needs` uses."""

    role: ClassVar[str]
    kind: ClassVar[str]

    @property
    def requires(self) -> frozenset[Need]:
        """Needs that another part must provide."""

    @property
    def provides(self) -> frozenset[Need]:
        """Needs that this part provides to others."""


def check_needs(parts: Iterable[Needy], given: frozenset[Need] = frozenset()) -> None:
    """Refuse parts with needs that none of them provides; ``given`` is what the network provides."""
    parts = list(parts)
    provided = given.union(*(part.provides for part in parts))
    for part in parts:
        for need in sorted(part.requires - provided, key=lambda need: need.name):
            raise ConfigError(f"{part.role} {part.kind!r} needs {need.what}, and nothing provides it: {need.remedy}")
