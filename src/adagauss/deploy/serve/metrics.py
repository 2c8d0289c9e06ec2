"""Counts for a monitoring system, in the text format of Prometheus."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
PICTURES = (1, 2, 4, 8, 16, 32, 64)


class Histogram:
    """How many values were at most as large as each bound.

    >>> waits = Histogram((0.1, 1.0))
    >>> waits.add(0.5)
    >>> list(waits.lines("waits"))[1:4]
    ['waits_bucket{le="0.1"} 0', 'waits_bucket{le="1"} 1', 'waits_bucket{le="+Inf"} 1']
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterable[str]:
        """The histogram in text."""
        yield f"# TYPE {name} histogram"
        below = 0
        for bound, count in zip((*self._bounds, None), self._counts, strict=True):
            below += count
            yield f'{name}_bucket{{le="{"+Inf" if bound is None else f"{bound:g}"}"}} {below}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {below}"


class Metrics:
    """All counts of one server; threads may count at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._jobs: Counter[tuple[str, str]] = Counter()
        self._latency = Histogram(SECONDS)
        self._batches = Histogram(PICTURES)
        self._pictures = 0

    def request(self, route: str, status: int, seconds: float) -> None:
        """An answered request; the time of predictions is kept."""
        with self._lock:
            self._requests[route, status] += 1
            if route == "/api/predict" and status == 200:
                self._latency.add(seconds)

    def batch(self, pictures: int) -> None:
        """Pictures that were classified together."""
        with self._lock:
            self._batches.add(pictures)
            self._pictures += pictures

    def job(self, action: str, state: str) -> None:
        """A change that came to its end."""
        with self._lock:
            self._jobs[action, state] += 1

    def text(self, gauges: Mapping[str, float]) -> str:
        """Everything counted, and values of this moment."""
        with self._lock:
            lines = ["# TYPE adagauss_requests_total counter"]
            lines += [
                f'adagauss_requests_total{{route="{route}",status="{status}"}} {count}'
                for (route, status), count in sorted(self._requests.items())
            ]
            lines.append("# TYPE adagauss_jobs_total counter")
            lines += [
                f'adagauss_jobs_total{{action="{action}",state="{state}"}} {count}'
                for (action, state), count in sorted(self._jobs.items())
            ]
            lines += ["# TYPE adagauss_pictures_total counter", f"adagauss_pictures_total {self._pictures}"]
            lines += self._latency.lines("adagauss_predict_seconds")
            lines += self._batches.lines("adagauss_batch_pictures")
        for name, value in gauges.items():
            lines += [f"# TYPE adagauss_{name} gauge", f"adagauss_{name} {value:g}"]
        return "\n".join(lines) + "\n"
