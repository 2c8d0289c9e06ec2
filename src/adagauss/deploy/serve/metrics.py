"""Prometheus metrics of one server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """Counters, histograms and gauges in their own registry."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        self.requests = Counter("adagauss_requests", "HTTP requests.", ["route", "status"], registry=own)
        self.jobs = Counter("adagauss_jobs", "Finished jobs.", ["action", "state"], registry=own)
        self.pictures = Counter("adagauss_pictures", "Classified pictures.", registry=own)
        self.latency = Histogram(
            "adagauss_predict_seconds", "Latency of successful predictions.", buckets=SECONDS, registry=own
        )
        self.classes = Gauge("adagauss_classes", "Classes of the model.", registry=own)
        self.version = Gauge("adagauss_model_version", "Number of the last change of the model.", registry=own)
        self.open_jobs = Gauge("adagauss_jobs_open", "Jobs that are waiting or running.", registry=own)
