"""One learner, many readers: predictions during a change, and changes one after another."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.testclient import TestClient

from adagauss.deploy.serve.model import Model
from adagauss.deploy.serve.security import Limits
from adagauss.deploy.serve.server import Job, JobReporter
from adagauss.deploy.serve.store import Store
from adagauss.utils.progress import Reporter
from tests.deploy.serve.colours import Serve, classes_of, ended, form, png

PICTURE = {"Content-Type": "image/png"}


class Slow:
    """Teaching that goes on until it is let go, reporting progress meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started, self.go = threading.Event(), threading.Event()
        taught = Model.taught

        def slow(model: Model, pixels: Sequence[Any], names: Sequence[str], reporter: Reporter) -> Model:
            self.started.set()
            with reporter.progress("waiting", 1000) as advance:
                while not self.go.wait(0.01):
                    advance()
            return taught(model, pixels, names, reporter)

        monkeypatch.setattr(Model, "taught", slow)


def test_predictions_go_on_from_the_old_state_while_a_class_is_taught(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    version = client.get("/api/model").json()["version"]
    answer = client.post("/api/teach", files=form(blue=6))
    assert slow.started.wait(20)
    for _ in range(3):
        meanwhile = client.post("/api/predict", content=png("blue"), headers=PICTURE).json()
        assert meanwhile["version"] == version
        assert meanwhile["predictions"][0]["label"] in ("red", "green")
    shown = client.get("/api/model").json()
    assert shown["job"]["state"] == "running"
    assert shown["version"] == version
    slow.go.set()
    job = ended(client, answer)
    after = client.post("/api/predict", content=png("blue"), headers=PICTURE).json()
    assert after["version"] == job["version"] == version + 1
    assert after["predictions"][0]["label"] == "blue"


def test_a_job_that_is_stopped_changes_nothing(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    running = client.post("/api/teach", files=form(blue=6))
    waiting = client.post("/api/rename", json={"old": "red", "new": "scarlet"})
    assert slow.started.wait(20)
    for answer in (waiting, running):
        client.delete(f"/api/jobs/{answer.json()['id']}")
        ended(client, answer, "cancelled")
    assert set(classes_of(client)) == {"green", "red"}


def test_changes_run_in_the_order_of_their_requests(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    answers = [client.post("/api/teach", files=form(blue=6))]
    answers += [client.post("/api/rename", json={"old": "blue", "new": "azure"})]
    answers += [client.post("/api/rename", json={"old": "azure", "new": "navy"})]
    slow.go.set()
    for answer in answers:
        ended(client, answer)
    assert set(classes_of(client)) == {"green", "navy", "red"}


def test_a_long_line_of_changes_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    client = serve(limits=Limits(waiting_jobs=1, changes=1000.0))
    first = client.post("/api/teach", files=form(blue=6))
    assert slow.started.wait(20)
    second = client.post("/api/rename", json={"old": "red", "new": "scarlet"})
    refused = client.post("/api/teach", files=form(grey=6))
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    slow.go.set()
    ended(client, first)
    ended(client, second)


def test_an_unexpected_error_ends_the_job_and_not_the_server(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Model:
        raise RuntimeError("secret path /home/someone")

    with monkeypatch.context() as patch:
        patch.setattr(Model, "taught", broken)
        job = ended(client, client.post("/api/teach", files=form(blue=3)), "failed")
    assert "secret" not in job["error"]
    ended(client, client.post("/api/teach", files=form(blue=3)))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_is_named_in_the_job(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def broken(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr("adagauss.deploy.serve.store.remove_durably", broken)
        forget = {"classes": ["red"], "for_good": True}
        job = ended(client, client.post("/api/forget", json=forget), "failed")
    assert "may contain forgotten classes" in job["error"]
    assert os.strerror(number) in job["error"]
    ended(client, client.delete("/api/history/copies"))
    with monkeypatch.context() as patch:
        patch.setattr(Model, "renamed", broken)
        job = ended(client, client.post("/api/rename", json={"old": "green", "new": "lime"}), "failed")
    assert os.strerror(number) in job["error"]


def test_an_error_in_the_code_has_the_shape_of_other_errors(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret path /home/someone")

    monkeypatch.setattr(Store, "undoable", broken)
    quiet = TestClient(client.app, base_url=str(client.base_url), raise_server_exceptions=False)
    answer = quiet.get("/api/model")
    assert answer.status_code == 500
    assert answer.json() == {"detail": "unexpected error: see the server's log"}


def test_an_unknown_job_is_not_found(client: TestClient) -> None:
    assert client.get("/api/jobs/0000").status_code == 404


def test_a_bar_only_moves_forward_over_several_stages() -> None:
    job = Job(action="teach", summary="")
    reporter = JobReporter(job)
    seen = [job.progress]
    for stage in ("training", "features", "drift"):
        with reporter.progress(stage, 4) as advance:
            for _ in range(4):
                with reporter.progress("inner", 2) as inner:
                    inner()
                advance()
                seen.append(job.progress)
    assert seen == sorted(set(seen))
    assert seen[-1] < 1.0


def test_what_the_learner_says_is_kept_with_the_job() -> None:
    job = Job(action="teach", summary="")
    JobReporter(job).message("the map does not fit")
    assert job.notes == ["the map does not fit"]


def test_too_many_waiting_pictures_are_refused(serve: Serve) -> None:
    client = serve(limits=Limits(waiting_pictures=2))
    files = [("pictures", (f"{seed}.png", png("red", seed))) for seed in range(3)]
    assert client.post("/api/predict", files=files).status_code == 503
    assert client.post("/api/predict", files=files[:2]).status_code == 200
