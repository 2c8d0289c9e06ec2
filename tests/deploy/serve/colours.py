"""A small classifier of coloured pictures, and a client of a server that serves it."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi")
pytest.importorskip("python_multipart")
pytest.importorskip("prometheus_client")

from starlette.testclient import TestClient

from adagauss import IncrementalClassifier
from adagauss.deploy.serve.app import make_app
from adagauss.deploy.serve.security import Limits
from adagauss.deploy.serve.server import Server
from adagauss.deploy.serve.store import Store

SIDE = 12
COLOURS = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (50, 60, 200), "grey": (128, 128, 128)}
Upload = tuple[str, tuple[str | None, bytes] | tuple[str | None, bytes, str]]


def pixels(colour: str, seed: int, side: int = SIDE) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """(side, side, 3) pixels around a colour."""
    noise = np.random.default_rng(seed).normal(0, 25, (side, side, 3))
    return np.clip(np.array(COLOURS[colour]) + noise, 0, 255).astype(np.uint8)


def png(colour: str = "red", seed: int = 0, side: int = SIDE) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(colour, seed, side)).save(file, "PNG")
    return file.getvalue()


def form(**classes: int | list[bytes]) -> list[Upload]:
    """Parts of a form that teaches: so many pictures of each colour, or these pictures."""
    parts: list[Upload] = []
    for name, given in classes.items():
        pictures = given if isinstance(given, list) else [png(name, 100 + seed) for seed in range(given)]
        parts.append(("label", (None, name.encode())))
        parts += [("pictures", (f"{name}-{place}.png", picture)) for place, picture in enumerate(pictures)]
    return parts


def ended(client: TestClient, answer: Any, state: str = "done") -> dict[str, Any]:
    """The job of an answer at its end, in the expected state."""
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    deadline = time.monotonic() + 60
    while job["state"] in ("waiting", "running"):
        assert time.monotonic() < deadline, job
        time.sleep(0.01)
        job = client.get(f"/api/jobs/{job['id']}").json()
    assert job["state"] == state, job
    return job


def classes_of(client: TestClient) -> dict[str, int]:
    return {one["label"]: one["images"] for one in client.get("/api/model").json()["classes"]}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of red and green pictures, which can be taught and forgets."""
    path = tmp_path_factory.mktemp("serve") / "colours.safetensors"
    classifier = IncrementalClassifier("exact", settings={"backbone.options.filters": 20})
    images = [pixels(colour, seed) for colour in ("red", "green") for seed in range(12)]
    classifier.partial_fit(np.stack(images), ["red"] * 12 + ["green"] * 12)
    classifier.save(path)
    return path


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADAGAUSS_TOKEN", raising=False)


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    path = tmp_path / "colours.safetensors"
    path.write_bytes(saved.read_bytes())
    return path


Serve = Callable[..., TestClient]


@contextmanager
def serving(path: Path, base: str = "http://127.0.0.1:8000", **settings: Any) -> Iterator[TestClient]:
    """A client of a server of this model, in this process, that compares every response with the OpenAPI document."""
    settings.setdefault("limits", Limits(changes=1000.0))
    app = make_app(Server(Store(path), **settings))
    documented = {
        (method.upper(), re.sub(r"{\w+}", "[^/]+", route)): operation["responses"].keys()
        for route, operations in app.openapi()["paths"].items()
        for method, operation in operations.items()
    }

    def compare(response: Any) -> None:
        request = response.request
        for (method, route), statuses in documented.items():
            if method == request.method and re.fullmatch(route, request.url.path):
                assert str(response.status_code) in statuses
        if response.status_code >= 400 and request.url.path.startswith("/api/"):
            response.read()
            assert isinstance(response.json()["detail"], str)

    with TestClient(app, base_url=base) as client:
        client.event_hooks = {"response": [compare]}
        yield client


@pytest.fixture
def serve(model: Path) -> Iterator[Serve]:
    """A function that serves a model, by default that of red and green pictures."""
    with ExitStack() as stack:
        yield lambda path=model, **settings: stack.enter_context(serving(path, **settings))


@pytest.fixture
def client(serve: Serve) -> TestClient:
    return serve()


@pytest.fixture(scope="module")
def reader(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client for tests that change nothing."""
    path = tmp_path_factory.mktemp("reader") / "colours.safetensors"
    path.write_bytes(saved.read_bytes())
    with serving(path) as client:
        yield client
