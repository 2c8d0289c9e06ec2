"""The server does what its OpenAPI document says, for requests that fit the document and for those that do not.

Every response to a client of `colours.serving` is compared with the document as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from adagauss.deploy.serve.app import make_app
from adagauss.deploy.serve.security import Access, Limits
from adagauss.deploy.serve.server import Server
from adagauss.deploy.serve.store import Store
from tests.deploy.serve.colours import png
from tests.faults.budget import budget

schemathesis = pytest.importorskip("schemathesis")

WITH_PICTURES = ("/api/predict", "/api/teach")
"""Requests that need more cases before one is accepted."""


@pytest.fixture(scope="module")
def document(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The document of a server that never says that it is busy."""
    path = tmp_path_factory.mktemp("openapi") / "colours.safetensors"
    path.write_bytes(saved.read_bytes())
    limits = Limits(requests=1e6, changes=1e6, waiting_jobs=10**6, waiting_pictures=10**6)
    server = Server(Store(path), Access(hosts=("testserver",)), limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "stop", lambda: None)  # there is one client per request, and each ends the application
        pictures = st.sampled_from([png("red"), png("green"), b"not a picture"])
        schemathesis.openapi.format("binary", pictures)
        schemathesis.openapi.media_type("image/*", pictures)
        yield schemathesis.openapi.from_asgi("/api/openapi.json", make_app(server))
    server.stop()


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_generated_requests_get_documented_responses(document: Any, mode: str) -> None:
    from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

    operations = [found.ok() for found in document.get_all_operations()]
    assert len(operations) == 14
    statuses: dict[str, set[int]] = {}
    for operation in operations:

        @settings(budget(300 if operation.path in WITH_PICTURES else 160), suppress_health_check=list(HealthCheck))
        @given(operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
        def check(case: Any) -> None:
            # Class names and pictures have limits that the document states only in its descriptions.
            # Every value of a form is text, whatever type a request was generated with.
            form = [negative_data_rejection] if case.path == "/api/teach" else []
            response = case.call_and_validate(excluded_checks=[positive_data_acceptance, *form])
            statuses.setdefault(case.path, set()).add(response.status_code)

        with suppress(Unsatisfiable):  # without parameters, no request is wrong
            check()
    if mode == "positive":
        assert len(statuses) == 13
        assert 200 in statuses["/api/predict"]
        assert 202 in statuses["/api/teach"]
    else:
        assert statuses.keys() == {"/api/forget", "/api/predict", "/api/rename", "/api/teach"}
