"""The REST routes. Reads use the current snapshot; each change is submitted as a job and returns at once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Collection
from io import BufferedReader
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, Field

import adagauss
from adagauss.data.decode import Pixels
from adagauss.deploy.serve.jobs import Job, Skipped
from adagauss.deploy.serve.model import TOP, ClassProbability, KnownClass, class_name
from adagauss.deploy.serve.security import ApiError
from adagauss.deploy.serve.server import Served, Server
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
    return PlainTextResponse(server.metrics.text(gauges), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _file(file: BufferedReader, name: str) -> StreamingResponse:
    """An opened file, so that one that takes its place meanwhile is not mixed in; it is closed with its last reader."""
    size = os.fstat(file.fileno()).st_size

    async def content() -> AsyncIterator[bytes]:
        for start in range(0, size, CHUNK):
            yield await anyio.to_thread.run_sync(os.pread, file.fileno(), CHUNK, start)

    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in name)
    headers = {"Content-Length": str(size), "Content-Disposition": f'attachment; filename="{plain}"'}
    return StreamingResponse(content(), media_type="application/octet-stream", headers=headers)


_TEACH_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["label", "pictures"],
                    "properties": {
                        "label": {
                            "type": "array",
                            "items": {"type": "string"},
                            "description": "The class of the pictures that follow it in the form; may be repeated.",
                        },
                        "pictures": {"type": "array", "items": {"type": "string", "format": "binary"}},
                    },
                }
            }
        },
    }
}


class Forget(BaseModel):
    """Classes to forget."""

    classes: list[str] = Field(min_length=1, max_length=1000)
    for_good: bool = False
    """Also delete the files before earlier changes, which still hold what was known; nothing can be undone then."""


class Rename(BaseModel):
    """Another name for a class."""

    old: str
    new: str


@router.post(
    "/teach",
    status_code=202,
    tags=["change"],
    openapi_extra=_TEACH_FORM,
    summary="Teach new classes, or known ones more",
)
async def teach(request: Request, server: Served) -> Job:
    """Send a form: a field ``label``, then its pictures, then perhaps the next label and its pictures.

    Pictures that cannot be read are skipped and named in the job. No picture is kept.
    """
    server.jobs.require_room()
    async with server.uploads:
        pixels, names, skipped = await _received(request, server)
    counts = Counter(names)
    now = server.store.snapshot.model
    if not counts.keys().isdisjoint(now.names):
        await run_in_threadpool(now.require_can, "teach more")
    summary = ", ".join(f"{count} of {name}" for name, count in counts.items())
    return server.jobs.submit(
        "teach",
        summary,
        lambda reporter: server.store.change("teach", summary, lambda model: model.taught(pixels, names, reporter)),
        skipped,
    )


@router.post("/forget", status_code=202, tags=["change"], summary="Forget classes")
async def forget(what: Forget, server: Served) -> Job:
    """Nothing of the classes remains in the model; the files kept for undo still hold them, unless ``for_good``."""
    await run_in_threadpool(server.store.snapshot.model.require_can, "forget")
    names = [class_name(name, server.limits) for name in what.classes]
    summary = ", ".join(dict.fromkeys(names))

    def work(_: object) -> int:
        version = server.store.change("forget", summary, lambda model: model.forgot(names))
        return _without_copies(server, names) if what.for_good else version

    return server.jobs.submit("forget", summary, work)


@router.post("/rename", status_code=202, tags=["change"], summary="Give a class another name")
async def rename(what: Rename, server: Served) -> Job:
    """The new name must not be that of another class."""
    old, new = class_name(what.old, server.limits), class_name(what.new, server.limits)
    summary = f"{old} is now {new}"
    return server.jobs.submit(
        "rename", summary, lambda _: server.store.change("rename", summary, lambda model: model.renamed(old, new))
    )


@router.post("/undo", status_code=202, tags=["change"], summary="Undo the last change")
async def undo(server: Served) -> Job:
    """Bring back the model before the last change; ask again to go further back."""
    # With other changes in line, which one will be the last is known only when its turn has come.
    summary = "the last change by then" if server.jobs.open else server.store.history.last().summary
    return server.jobs.submit("undo", summary, lambda _: server.store.undo())


@router.delete("/history/copies", status_code=202, tags=["change"], summary="Delete the files kept for undo")
async def drop_copies(server: Served) -> Job:
    """After this nothing can be undone, and nothing forgotten is left in these files."""
    return server.jobs.submit("drop copies", "files kept for undo", lambda _: _without_copies(server))


def _without_copies(server: Server, forgotten: Collection[str] = ()) -> int:
    server.exporter.drop()
    return server.store.drop_copies(forgotten)


async def _received(request: Request, server: Server) -> tuple[list[Pixels], list[str], list[Skipped]]:
    size, channels = server.store.snapshot.model.picture_shape
    pixels: list[Pixels] = []
    names: list[str] = []
    skipped: list[Skipped] = []
    sent: dict[str, None] = {}
    async for picture in server.decoder.pictures(request, size, channels, server.limits):
        name = class_name(picture.label, server.limits)
        sent[name] = None
        if picture.pixels is None:
            skipped.append(Skipped(name=picture.name, reason=picture.problem))
        else:
            pixels.append(picture.pixels)
            names.append(name)
    empty = [name for name in sent if name not in names]
    if empty or not sent:
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in skipped[:3])
        raise DataError(f"there is no picture of {empty[0]!r} ({reasons})" if empty else "there are no pictures")
    return pixels, names, skipped
