"""What a client may ask for: sizes and counts of an upload, and requests per second."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

ADDRESSES = 4096
"""Addresses whose use is remembered; the one that was silent for longest is dropped first."""


@dataclass(frozen=True)
class Limits:
    """The limits of one server. Bytes are those that arrive, whatever a request says about itself."""

    body: int = 512 * 2**20
    """Bytes of a request."""
    picture: int = 32 * 2**20
    """Bytes of one picture."""
    pictures: int = 500
    """Pictures in one request."""
    name: int = 100
    """Characters of a class name."""
    waiting_jobs: int = 4
    """Changes that may wait for the one at work; their decoded pictures are in memory."""
    waiting_pictures: int = 2000
    """Pictures that may wait to be classified."""
    uploads: int = 4
    """Requests with pictures to teach that are received at the same time."""
    requests: float = 500.0
    """Requests per second from one address."""
    changes: float = 5.0
    """Changes per second from one address."""
    wrong_tokens: float = 0.2
    """Wrong tokens per second from one address."""
    idle: float = 30.0
    """Seconds that a request may pause while it is received."""


class Rate:
    """So many events per second on average for each key, and a few at once (a token bucket).

    >>> rate = Rate(2.0, burst=1, clock=lambda: 0.0)
    >>> rate.wait("10.0.0.1"), rate.wait("10.0.0.1"), rate.wait("10.0.0.2")
    (0.0, 0.5, 0.0)
    """

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, key: str) -> float:
        """0.0 and the event is counted; or the seconds after which it may be tried again."""
        left, now = self._left(key)
        if left < 1.0:
            return (1.0 - left) / self._per_second
        self._buckets[key] = (left - 1.0, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > ADDRESSES:
            self._buckets.popitem(last=False)
        return 0.0

    def exhausted(self, key: str) -> bool:
        """Whether an event would have to wait now; nothing is counted."""
        return self._left(key)[0] < 1.0

    def _left(self, key: str) -> tuple[float, float]:
        now = self._clock()
        left, then = self._buckets.get(key, (self._burst, now))
        return min(self._burst, left + (now - then) * self._per_second), now
