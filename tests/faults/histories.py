"""Whether what clients saw of a served model can be explained by its changes, one after another (linearizability).

Each operation takes effect at one moment between its start and its end. The checker goes through the starts and ends
in order, with all states that some order of the operations so far can give. Its state is the number of images of each
class, so that a lost lesson of a known class is noticed as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Classes = frozenset[tuple[str, int]]
"""The classes of a model with their numbers of images."""


@dataclass(frozen=True, eq=False)
class Operation:
    """What a client did, when, and what it was told."""

    action: Literal["teach", "forget", "rename", "read"]
    names: tuple[str, ...]
    started: float
    ended: float = math.inf
    """When the response came; without one, the moment after which it can no longer happen."""
    outcome: Literal["done", "refused", "unknown"] = "done"
    images: int = 0
    """Taught images."""
    classes: Classes = frozenset()
    """What a reader saw."""

    def after(self, state: Classes) -> Classes | None:
        """The state after this operation; None if it cannot have this outcome in this state."""
        known = dict(state)
        if self.action == "read":
            return state if state == self.classes else None
        if self.action == "teach":
            known[self.names[0]] = known.get(self.names[0], 0) + self.images
            return None if self.outcome == "refused" else frozenset(known.items())
        is_possible = self.names[0] in known and (
            len(known) > 1 if self.action == "forget" else self.names[1] not in known
        )
        if not is_possible:
            return state if self.outcome == "refused" else None
        images = known.pop(self.names[0])
        if self.action == "rename":
            known[self.names[1]] = images
        return None if self.outcome == "refused" else frozenset(known.items())


MOST = 10**5
Configuration = tuple[Classes, frozenset[Operation]]
"""A state, and the open operations that have already taken effect in it."""


def unexplained(history: Iterable[Operation], before: Mapping[str, int]) -> Operation | None:
    """Return the first operation whose outcome no order of the operations explains; None if there is none."""
    history = list(history)
    moments = [(one.started, 0, one) for one in history] + [(one.ended, 1, one) for one in history]
    found: set[Configuration] = {(frozenset(before.items()), frozenset())}
    open_now: set[Operation] = set()
    for _, is_end, operation in sorted(moments, key=lambda moment: moment[:2]):
        if not is_end:
            open_now.add(operation)
            continue
        possible: set[Configuration] = set()
        seen, waiting = set(found), list(found)
        while waiting:
            state, effective = waiting.pop()
            if operation in effective or operation.outcome == "unknown":
                possible.add((state, effective - {operation}))
            if operation in effective:
                continue  # others can take effect later as well
            for other in open_now - effective:
                if (after := other.after(state)) is not None:
                    one = (after, effective | {other})
                    if one not in seen:
                        assert len(seen) < MOST, f"{len(open_now)} operations at once are too many to check"
                        seen.add(one)
                        waiting.append(one)
        if not possible:
            return operation
        found = possible
        open_now.discard(operation)
    return None
