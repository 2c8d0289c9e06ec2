"""Class orders by name, by seed, or as a list."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adagauss.data.images import Label
from adagauss.errors import ConfigError, unknown_name

ICARL_SEED = 1993
NAMES = ("natural", "icarl", "seeded", "per-run")


def class_order(order: str | int | Sequence[int | str], classes: Sequence[Label], seed: int = 0) -> list[int]:
    """Positions of classes in the order they are taught.

    - ``"natural"``: as the dataset numbers them;
    - ``"icarl"``: NumPy's legacy permutation with seed 1993, the usual order for CIFAR-100;
    - ``"seeded"`` and ``"per-run"``: the same permutation with ``seed``; a number is short for it. A stream takes the
      seed from its configuration for ``seeded``, and from the run for ``per-run``;
    - a list of classes, by name, or by position where no class is called so.

    >>> class_order("icarl", range(100))[:5]
    [68, 56, 78, 8, 23]
    >>> class_order(["wren", "owl", "0"], ["robin", "owl", "wren"])
    [2, 1, 0]
    """
    count = len(classes)
    if isinstance(order, str):
        if order.isdecimal():
            order = int(order)
        elif order == "natural":
            return list(range(count))
        elif order == "icarl":
            order = ICARL_SEED
        elif order in ("seeded", "per-run"):
            order = seed
        else:
            raise unknown_name("class order", order, NAMES)
    if isinstance(order, int):
        if not 0 <= order < 2**32:
            raise ConfigError(f"the seed of a class order must lie in 0..{2**32 - 1}; got {order}")
        return [int(position) for position in np.random.RandomState(order).permutation(count)]
    names = {str(label): place for place, label in enumerate(classes)}
    chosen = [word if isinstance(word, int) else _position(word, names) for word in order]
    if len(set(chosen)) != len(chosen) or not set(chosen) <= set(range(count)):
        raise ConfigError(
            f"a class order must list classes, or positions 0..{count - 1}, each at most once; got {list(order)}"
        )
    return chosen


def _position(word: str, names: dict[str, int]) -> int:
    if word in names:
        return names[word]
    if word.isdecimal():
        return int(word)
    raise unknown_name("class", word, names)
