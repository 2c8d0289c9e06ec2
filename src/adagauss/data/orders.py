"""Class orders by name, by seed, or as a list."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adagauss.errors import ConfigError, unknown_name

ICARL_SEED = 1993
NAMES = ("natural", "icarl", "seeded", "per-run")


def class_order(order: str | int | Sequence[int], classes: int, seed: int = 0) -> list[int]:
    """Positions of classes in the order they are taught.

    - ``"natural"``: as the dataset numbers them;
    - ``"icarl"``: NumPy's legacy permutation with seed 1993, the usual order for CIFAR-100;
    - ``"seeded"`` and ``"per-run"``: the same permutation with ``seed``; a number is short for it. A stream takes the
      seed from its configuration for ``seeded``, and from the run for ``per-run``;
    - a list of positions.

    >>> class_order("icarl", 100)[:5]
    [68, 56, 78, 8, 23]
    """
    if isinstance(order, str):
        if order.isdecimal():
            order = int(order)
        elif order == "natural":
            return list(range(classes))
        elif order == "icarl":
            order = ICARL_SEED
        elif order in ("seeded", "per-run"):
            order = seed
        else:
            raise unknown_name("class order", order, NAMES)
    if isinstance(order, int):
        if not 0 <= order < 2**32:
            raise ConfigError(f"the seed of a class order must lie in 0..{2**32 - 1}; got {order}")
        return [int(position) for position in np.random.RandomState(order).permutation(classes)]
    chosen = list(order)
    if len(set(chosen)) != len(chosen) or not set(chosen) <= set(range(classes)):
        raise ConfigError(f"a class order must list positions 0..{classes - 1}, each at most once; got {chosen}")
    return chosen
