"""Routes that read: predictions from the present snapshot, what is known, jobs, downloads, health."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from io import BufferedReader
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import BaseModel

import adagauss
from adagauss.deploy.serve.jobs import Job
from adagauss.deploy.serve.model import TOP, ClassProbability, KnownClass
from adagauss.deploy.serve.security import ApiError
from adagauss.deploy.serve.server import Served
from adagauss.deploy.serve.store import Action
from adagauss.errors import DataError
from adagauss.utils.files import open_regular

router = APIRouter(prefix="/api")
CHUNK = 2**20

_PREDICT_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"pictures": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                }
            },
            "image/*": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


class Prediction(BaseModel):
    """What one picture shows, or why it could not be read."""

    name: str
    label: str | None = None
    unknown: bool = False
    probability: float = 0.0
    top: list[ClassProbability] = []
    problem: str = ""


class Predictions(BaseModel):
    """All from one version of the model."""

    version: int
    predictions: list[Prediction]


class ModelInfo(BaseModel):
    """What the model is and can do."""

    name: str
    version: int
    method: str
    picture_size: int
    classes: list[KnownClass]
    cannot: dict[str, str]
    """Actions that this method cannot do, and why."""
    can_undo: str | None
    """What the next undo would undo."""
    job: Job | None
    """The change at work, if any."""


class Change(BaseModel):
    """A change of the past."""

    number: int
    time: str
    action: Action
    summary: str
    undone: bool


class Health(BaseModel):
    """Whether the server works."""

    status: str
    release: str


@router.post("/predict", openapi_extra=_PREDICT_FORM, tags=["read"], summary="What pictures show")
async def predict(
    request: Request,
    server: Served,
    top: Annotated[int, Query(ge=1, le=TOP)] = 3,
    unknown: Annotated[float | None, Query(gt=0, lt=1)] = None,
) -> Predictions:
    """Send a form with any number of ``pictures``, or one picture as the body.

    With ``unknown``, a wished rate of false alarms such as 0.05, pictures that look like no known class have no label.
    Pictures are not kept.
    """
    now = server.store.snapshot
    if not now.model.names:
        raise ApiError(409, "nothing has been taught yet: teach at least one class first")
    size, channels = now.model.picture_shape
    pictures = [picture async for picture in server.decoder.pictures(request, size, channels, server.limits)]
    pixels = [picture.pixels for picture in pictures if picture.pixels is not None]
    if not pictures:
        raise DataError("there are no pictures")
    answers = iter(await server.batcher.ask(now.model, pixels, unknown) if pixels else [])
    predictions = []
    for picture in pictures:
        if picture.pixels is None:
            predictions.append(Prediction(name=picture.name, problem=picture.problem))
            continue
        answer = next(answers)
        predictions.append(
            Prediction(
                name=picture.name,
                label=answer.label,
                unknown=answer.label is None,
                probability=answer.probability,
                top=answer.top[:top],
            )
        )
    return Predictions(version=now.version, predictions=predictions)


@router.get("/model", tags=["read"], summary="The classes and what can be done")
def model(server: Served) -> ModelInfo:
    """For each class the number of its pictures, the accuracy to expect and what it is taken for."""
    now = server.store.snapshot
    undoable = server.store.history.undoable()
    size, _ = now.model.picture_shape
    return ModelInfo(
        name=server.store.path.stem,
        version=now.version,
        method=now.model.method,
        picture_size=size,
        classes=now.model.classes,
        cannot=now.model.unsupported_actions(),
        can_undo=None if undoable is None else f"{undoable.action}: {undoable.summary}",
        job=next((job for job in reversed(server.jobs.all) if not job.ended), None),
    )


@router.get("/history", tags=["read"], summary="What was taught, the newest first")
def history(server: Served) -> list[Change]:
    """Every change since the model is served."""
    shown = set(Change.model_fields)
    return [Change(**entry.model_dump(include=shown)) for entry in reversed(server.store.history.entries)]


@router.get("/jobs", tags=["jobs"], summary="Changes since the start of the server, the newest first")
def jobs(server: Served) -> list[Job]:
    """Waiting, at work and ended."""
    return server.jobs.all


@router.get("/jobs/{job}", tags=["jobs"], summary="How far a change is")
async def job_state(job: str, server: Served) -> Job:
    """``done`` means that the change is saved: it survives whatever happens to the server."""
    return server.jobs.get(job)


@router.delete("/jobs/{job}", tags=["jobs"], summary="Stop a change")
async def stop_job(job: str, server: Served) -> Job:
    """Nothing of a stopped change is kept; one that is already being saved is completed."""
    return server.jobs.cancel(job)


@router.get("/download/model", tags=["read"], summary="The model file", response_class=StreamingResponse)
def download(server: Served) -> StreamingResponse:
    """As `IncrementalClassifier.load` reads it."""
    if not server.store.path.exists():
        raise ApiError(409, "nothing has been taught yet, so there is no file")
    return _file(open_regular(server.store.path), server.store.path.name)


@router.get("/download/onnx", tags=["read"], summary="The model as ONNX", response_class=StreamingResponse)
async def download_onnx(server: Served) -> StreamingResponse:
    """Preprocessing, labels and threshold are inside; the first export of a version takes some seconds."""
    if not server.store.path.exists():
        raise ApiError(409, "nothing has been taught yet, so there is nothing to export")
    await run_in_threadpool(server.store.snapshot.model.require_can, "onnx")
    return _file(await server.exporter.file(), f"{server.store.path.stem}.onnx")


@router.get("/health", tags=["operation"], summary="Whether the server works")
async def health() -> Health:
    """Needs no token."""
    return Health(status="ok", release=adagauss.__version__)


@router.get("/metrics", tags=["operation"], summary="Counts for Prometheus", response_class=PlainTextResponse)
async def metrics(server: Served) -> PlainTextResponse:
    """Requests, jobs, pictures, how long predictions take and how many are classified together."""
    now = server.store.snapshot
    gauges = {
        "classes": float(len(now.model.names)),
        "model_version": float(now.version),
        "jobs_open": float(server.jobs.open),
    }
    return PlainTextResponse(server.metrics.text(gauges), media_type="text/plain; version=0.0.4; charset=utf-8")


def _file(file: BufferedReader, name: str) -> StreamingResponse:
    """An opened file, so that one that takes its place meanwhile is not mixed in; it is closed with its last reader."""
    size = os.fstat(file.fileno()).st_size

    async def content() -> AsyncIterator[bytes]:
        for start in range(0, size, CHUNK):
            yield await anyio.to_thread.run_sync(os.pread, file.fileno(), CHUNK, start)

    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in name)
    headers = {"Content-Length": str(size), "Content-Disposition": f'attachment; filename="{plain}"'}
    return StreamingResponse(content(), media_type="application/octet-stream", headers=headers)
