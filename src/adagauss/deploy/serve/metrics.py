"""Prometheus metrics of one server."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
PICTURES = (1, 2, 4, 8, 16, 32, 64)
GAUGES = {
    "classes": "Classes of the model.",
    "model_version": "Number of the last change of the model.",
    "jobs_open": "Jobs that are waiting or running.",
}


class Metrics:
    """Counters, histograms and gauges in their own registry. All methods are thread-safe.

    >>> metrics = Metrics()
    >>> metrics.batch(3)
    >>> "adagauss_pictures_total 3.0" in metrics.text({"classes": 2})
    True
    """

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        self._requests = Counter("adagauss_requests", "HTTP requests.", ["route", "status"], registry=own)
        self._jobs = Counter("adagauss_jobs", "Finished jobs.", ["action", "state"], registry=own)
        self._pictures = Counter("adagauss_pictures", "Classified pictures.", registry=own)
        self._latency = Histogram(
            "adagauss_predict_seconds", "Latency of successful predictions.", buckets=SECONDS, registry=own
        )
        self._batches = Histogram("adagauss_batch_pictures", "Pictures per batch.", buckets=PICTURES, registry=own)
        self._gauges = {name: Gauge(f"adagauss_{name}", text, registry=own) for name, text in GAUGES.items()}

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request; record the latency of a successful prediction."""
        self._requests.labels(route, str(status)).inc()
        if route == "/api/predict" and status == 200:
            self._latency.observe(seconds)

    def batch(self, pictures: int) -> None:
        """Count the pictures of a classified batch."""
        self._batches.observe(pictures)
        self._pictures.inc(pictures)

    def job(self, action: str, state: str) -> None:
        """Count a finished job."""
        self._jobs.labels(action, state).inc()

    def text(self, gauges: Mapping[str, float]) -> str:
        """Set the gauges and return all metrics in the Prometheus text format."""
        for name, value in gauges.items():
            self._gauges[name].set(value)
        return generate_latest(self._registry).decode()
