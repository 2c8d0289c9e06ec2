"""Learned state as torch modules: buffers that torch saves, loads, moves and copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from adagauss.errors import DataError, UnsupportedError

ClassMap = tuple[tuple[int, ...], ...]
"""For each new score column the old columns it merges. A column in no group belongs to a forgotten class."""


def column_indices(groups: ClassMap, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The old columns that remain, and the new column of each.

    >>> column_indices(((2,), (0, 3)), torch.device("cpu"))
    (tensor([2, 0, 3]), tensor([0, 1, 1]))
    """
    pairs = [(before, after) for after, group in enumerate(groups) for before in group]
    before, after = torch.tensor(pairs, dtype=torch.long, device=device).reshape(-1, 2).T
    return before, after


class State(nn.Module):
    """A module whose buffers grow with the classes: loading adopts their sizes from the file, not axes and types.

    The constructor registers the buffers that ``dims`` names: those given, and empty ones.

    >>> class Means(State):
    ...     dims = {"means": "cs"}
    >>> means = Means()
    >>> means.load_state_dict({"means": torch.ones(2, 3)})
    <All keys matched successfully>
    >>> means.means.shape
    torch.Size([2, 3])
    """

    dims: ClassVar[Mapping[str, str]] = {}
    """Axes of the saved buffers, a letter each: equal letters have equal sizes.

    ``c`` stands for classes, ``s`` for features, ``e`` for expanded features, ``w`` for weights of a network, ``p`` for
    the packed half of a matrix of expanded features, ``q`` for pairs of classes.
    """

    non_negative: ClassVar[tuple[str, ...]] = ()
    """Saved buffers that hold no negative number."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Tensor: ...

    def __init__(self, **buffers: Tensor | None) -> None:
        super().__init__()
        for name, axes in self.dims.items():
            buffer = buffers.get(name)
            self.register_buffer(name, torch.zeros((0,) * len(axes)) if buffer is None else buffer)

    def check(self) -> None:
        """Raise a `DataError` if buffers from a file are not finite or do not match in size, here and in submodules."""
        sizes: dict[str, tuple[int, str]] = {}
        for name, letters in self.dims.items():
            buffer = self.get_buffer(name)
            if buffer.is_floating_point() and not bool(torch.isfinite(buffer).all()):
                raise DataError(f"{name} of {type(self).__name__} holds NaN or infinite numbers")
            if name in self.non_negative:
                self.require(buffer >= 0, f"{name} holds numbers below zero")
            for letter, size in zip(letters, buffer.shape, strict=True):
                known, other = sizes.setdefault(letter, (size, name))
                if known != size:
                    raise DataError(
                        f"{type(self).__name__} is inconsistent: {other} is made for {known} and {name} for {size}"
                    )
        for state in self.children():
            if isinstance(state, State):
                state.check()

    def require(self, fact: bool | torch.Tensor, problem: str) -> None:
        """Raise a `DataError` with this reason unless ``fact`` holds for all elements."""
        if not bool(fact.all() if isinstance(fact, torch.Tensor) else fact):
            raise DataError(f"{type(self).__name__}: {problem}")

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        for name, buffer in self._buffers.items():
            saved = state_dict.get(prefix + name)
            # Torch reports a different number of axes as a mismatch; only sizes are adopted.
            if buffer is not None and saved is not None and saved.ndim == buffer.ndim:
                self._buffers[name] = buffer.new_empty(saved.shape)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def remap_classes(self, groups: ClassMap) -> Self:
        """Return the state after classes were forgotten or merged; this one is not changed."""
        names = "forgotten" if all(len(group) == 1 for group in groups) else "merged"
        raise UnsupportedError(
            f"classes cannot be {names}: {type(self).__name__} does not store them separately; train a new learner "
            "with the classes you want"
        )

    def merged(self, other: Self, columns: tuple[int, ...]) -> Self:
        """Merge with the state of another learner with the same features; neither is changed.

        ``columns`` are the score columns of the other's classes in the merged state.
        """
        raise UnsupportedError(
            f"learners of this method cannot be merged, because {type(self).__name__} cannot; teach one of them the "
            "classes of the other"
        )


class SharedState(State):
    """A state of all classes together, such as the importance of weights: class edits do not change it."""

    def remap_classes(self, groups: ClassMap) -> Self:
        return self

    def merged(self, other: Self, columns: tuple[int, ...]) -> Self:
        return self


class Scorer(State):
    """Maps features to scores. It has only buffers and no control flow over the batch, so it can be exported."""

    power: float | None = None
    """λ of Tukey's transform, if features enter as f^λ."""

    def forward(self, features: Tensor) -> Tensor:
        """(B, C) scores; the largest is the prediction."""
        raise TypeError(f"{type(self).__name__} must define forward")

    def reads(self, groups: Sequence[int]) -> tuple[bool, ...] | None:
        """Which groups of the network's features, of these sizes, scores depend on; None: all."""
        return None

    @property
    def class_sums(self) -> Tensor | None:
        """(width, C) sums over the images of each class, if the scorer stores them."""
        return None


Kind = TypeVar("Kind", bound=State)


def as_state(before: State | None, kind: type[Kind]) -> Kind | None:
    """Check the type of the state that a part returned after the last task."""
    assert before is None or isinstance(before, kind), f"expected {kind.__name__}, got {type(before).__name__}"
    return before
