"""What parts need of each other. A method whose parts cannot work together is refused when it is made."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import ClassVar, Protocol

from adagauss.errors import ConfigError


class Need(Enum):
    """Something that one part of a method needs and another provides, with the way to get it."""

    MEANS = ("the mean of each class", "set memory.kind=means or memory.kind=gaussians")
    COVARIANCES = ("the covariance of each class", "set memory.kind=gaussians")
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
        "features that stand still after the first task",
        "set representation.later=null, which freezes the network",
    )

    @property
    def what(self) -> str:
        """In words."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """What to set."""
        return self.value[1]


class Needy(Protocol):
    """What `check_needs` looks at."""

    role: ClassVar[str]
    kind: ClassVar[str]

    @property
    def requires(self) -> frozenset[Need]:
        """What it cannot work without."""

    @property
    def provides(self) -> frozenset[Need]:
        """What others may rely on."""


def check_needs(parts: Iterable[Needy], given: frozenset[Need] = frozenset()) -> None:
    """Refuse parts that need what none of them provides; ``given`` is provided by what is no part."""
    parts = list(parts)
    provided = given.union(*(part.provides for part in parts))
    for part in parts:
        for need in sorted(part.requires - provided, key=lambda need: need.name):
            raise ConfigError(f"{part.role} {part.kind!r} needs {need.what}, and nothing provides it: {need.remedy}")
