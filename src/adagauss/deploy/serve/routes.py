"""The REST routes. Reads use the current model; each change is submitted as a job and returns at once."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from pydantic import BaseModel, Field

import adagauss
from adagauss.data.decode import Pixels
from adagauss.deploy.serve.jobs import Job, Skipped
from adagauss.deploy.serve.model import TOP, ClassProbability, KnownClass, probabilities
from adagauss.deploy.serve.security import ApiError, client_address
from adagauss.deploy.serve.server import Served, Server
from adagauss.deploy.serve.store import Change
from adagauss.deploy.serve.uploads import PictureShape
from adagauss.errors import DataError, UnsupportedError

router = APIRouter(prefix="/api")
INVALID = "\ufffd"
"""Replaces bytes that are not UTF-8."""


class PredictForm(BaseModel):
    """Pictures to classify."""

    pictures: list[bytes]


class TeachForm(BaseModel):
    """Pictures to learn."""

    label: list[str] = Field(description="The class of the pictures that follow it in the form; may be repeated.")
    pictures: list[bytes]


class Prediction(BaseModel):
    """Prediction for one picture, or the decoding error."""

    name: str
    label: str | None = None
    unknown: bool = False
    probability: float = 0.0
    top: list[ClassProbability] = []
    problem: str = ""


class Predictions(BaseModel):
    """Predictions of one version of the model."""

    version: int
    predictions: list[Prediction]


class ModelInfo(BaseModel):
    """Classes and capabilities of the model."""

    name: str
    version: int
    method: str
    picture_size: int
    classes: list[KnownClass]
    cannot: dict[str, str]
    """Unsupported actions with the reasons."""
    can_undo: str | None
    """Description of the change that the next undo reverts."""
    job: Job | None
    """The running or next job, if any."""


class Health(BaseModel):
    """Health of the server."""

    status: str
    release: str


class Forget(BaseModel):
    """Classes to forget."""

    classes: list[str] = Field(min_length=1, max_length=1000)
    for_good: bool = False
    """Also delete the copies for undo, which still contain the classes. Nothing can be undone afterwards."""


class Rename(BaseModel):
    """A new name for a class."""

    old: str
    new: str


def _body(form: type[BaseModel], **others: Any) -> dict[str, Any]:
    """Describe a request body that the route reads itself, without writing pictures to disk."""
    content = {"multipart/form-data": {"schema": form.model_json_schema()}, **others}
    return {"requestBody": {"required": True, "content": content}}


ONE_PICTURE = {"image/*": {"schema": {"type": "string", "format": "binary"}}}


@router.post("/predict", openapi_extra=_body(PredictForm, **ONE_PICTURE), tags=["read"], summary="Classify pictures")
async def predict(
    request: Request,
    server: Served,
    top: Annotated[int, Query(ge=1, le=TOP)] = 3,
    unknown: Annotated[float | None, Query(gt=0, lt=1)] = None,
) -> Predictions:
    """Send a form with any number of ``pictures``, or one picture as the body.

    With ``unknown``, the target false-positive rate such as 0.05, pictures of unknown classes get no label.
    Pictures are not stored.
    """
    model, shape = server.store.model, _taught(server)
    pictures = [picture async for picture in server.decoder.pictures(request, shape)]
    pixels = [picture.pixels for picture in pictures if picture.pixels is not None]
    if not pictures:
        raise DataError("the request contains no pictures")
    answers = iter(await server.classify(model, pixels, unknown))
    predictions = []
    for picture in pictures:
        if picture.pixels is None:
            predictions.append(Prediction(name=picture.name, problem=picture.problem))
            continue
        answer = next(answers)
        predictions.append(
            Prediction(
                name=picture.name,
                label=None if answer.label is None else str(answer.label),
                unknown=answer.label is None,
                probability=answer.probability,
                top=probabilities(answer.top[:top]),
            )
        )
    return Predictions(version=model.version, predictions=predictions)


@router.get("/model", tags=["read"], summary="Classes and capabilities of the model")
def model(server: Served) -> ModelInfo:
    """For each class: number of pictures, estimated accuracy and confused classes."""
    now = server.store.model
    undoable = server.store.undoable()
    return ModelInfo(
        name=server.store.path.stem,
        version=now.version,
        method=now.method,
        picture_size=now.picture_shape[0],
        classes=now.classes,
        cannot=now.unsupported_actions,
        can_undo=None if undoable is None else f"{undoable.action}: {undoable.summary}",
        job=next((job for job in reversed(server.jobs.all) if not job.ended), None),
    )


@router.get("/history", tags=["read"], summary="History of changes, newest first")
def history(server: Served) -> list[Change]:
    """List all recorded changes."""
    return [*reversed(server.store.entries)]


@router.get("/jobs", tags=["jobs"], summary="Jobs since the start of the server, newest first")
def jobs(server: Served) -> list[Job]:
    """List waiting, running and finished jobs."""
    return server.jobs.all


@router.get("/jobs/{job}", tags=["jobs"], summary="State of a job")
async def job_state(job: str, server: Served) -> Job:
    """In the state ``done`` the change is saved on disk."""
    return server.jobs.get(job)


@router.delete("/jobs/{job}", tags=["jobs"], summary="Cancel a job")
async def stop_job(job: str, server: Served) -> Job:
    """A cancelled job leaves the model unchanged. A job that is already saving completes."""
    return server.jobs.cancel(job)


@router.get("/download/model", tags=["read"], summary="The model file", response_class=FileResponse)
async def download(server: Served) -> FileResponse:
    """Readable with `IncrementalClassifier.load`."""
    _taught(server)
    return FileResponse(server.store.path, media_type="application/octet-stream", filename=server.store.path.name)


@router.get("/health", tags=["operation"], summary="Health check")
async def health() -> Health:
    """Requires no token."""
    return Health(status="ok", release=adagauss.__version__)


@router.get("/metrics", tags=["operation"], summary="Prometheus metrics", response_class=PlainTextResponse)
async def metrics(server: Served) -> PlainTextResponse:
    """Requests, jobs, pictures, prediction latency and batch sizes."""
    return PlainTextResponse(generate_latest(server.metrics.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


@router.post("/teach", status_code=202, tags=["change"], openapi_extra=_body(TeachForm), summary="Teach classes")
async def teach(request: Request, server: Served) -> Job:
    """Send a form: a field ``label``, then its pictures, then optionally the next label and its pictures.

    Classes may be new or known. Unreadable pictures are skipped and listed in the job. Pictures are not stored.
    """
    server.jobs.require_room()
    with server.uploads.use(client_address(request.scope)) as take:
        take(1)
        pixels, names, skipped = await _received(request, server)
    counts = Counter(names)
    model = server.store.model
    reason = model.unsupported_actions.get("teach more")
    if reason and not counts.keys().isdisjoint(model.names):
        raise UnsupportedError(reason)
    summary = ", ".join(f"{count} of {name}" for name, count in counts.items())
    return server.change(
        "teach",
        summary,
        list(counts),
        lambda model, reporter: model.taught(pixels, names, reporter),
        skipped=skipped,
    )


@router.post("/forget", status_code=202, tags=["change"], summary="Forget classes")
async def forget(what: Forget, server: Served) -> Job:
    """Remove classes from the model. The copies for undo still contain them, unless ``for_good`` is set."""
    names = list(dict.fromkeys(class_name(name, server) for name in what.classes))
    return server.change(
        "forget", ", ".join(names), names, lambda model, _: model.forgot(names), for_good=what.for_good
    )


@router.post("/rename", status_code=202, tags=["change"], summary="Rename a class")
async def rename(what: Rename, server: Served) -> Job:
    """The new name must not belong to another class."""
    old, new = class_name(what.old, server), class_name(what.new, server)
    return server.change("rename", f"{old} is now {new}", [old, new], lambda model, _: model.renamed(old, new))


@router.post("/undo", status_code=202, tags=["change"], summary="Undo the last change")
async def undo(server: Served) -> Job:
    """Restore the model before the last change. Repeat to undo earlier changes."""
    # With queued jobs, the last change is known only when this job runs.
    last = None if server.jobs.open else server.store.last_change()
    summary, names = (last.summary, last.names) if last else ("the last change", [])
    return server.jobs.submit("undo", summary, names, lambda _: server.store.undo())


@router.delete("/history/copies", status_code=202, tags=["change"], summary="Delete the copies for undo")
async def drop_copies(server: Served) -> Job:
    """Nothing can be undone afterwards, and no copy contains forgotten classes."""
    return server.jobs.submit("drop copies", "copies for undo", [], lambda _: server.drop_copies([]))


def class_name(text: str, server: Server) -> str:
    """Normalise whitespace in a class name and check its length and characters."""
    name, most = " ".join(text.split()), server.limits.name
    if not name or len(name) > most or not name.isprintable() or INVALID in name:
        raise DataError(f"a class name must have 1 to {most} printable characters; got {name[:most]!r}")
    return name


def _taught(server: Server) -> PictureShape:
    """Return the shape of pictures of a model that has learned some."""
    if not server.store.model.names:
        raise ApiError(409, "nothing has been taught yet: teach at least one class first")
    return server.store.model.picture_shape


async def _received(request: Request, server: Server) -> tuple[list[Pixels], list[str], list[Skipped]]:
    """Return the pictures of a form, the class name of each, and the pictures that cannot be decoded."""
    pixels: list[Pixels] = []
    names: list[str] = []
    skipped: list[Skipped] = []
    sent: dict[str, None] = {}
    async for picture in server.decoder.pictures(request, server.store.model.picture_shape):
        name = class_name(picture.label, server)
        sent[name] = None
        if picture.pixels is None:
            skipped.append(Skipped(name=picture.name, reason=picture.problem))
        else:
            pixels.append(picture.pixels)
            names.append(name)
    if not sent:
        raise DataError("the request contains no pictures")
    if empty := [name for name in sent if name not in names]:
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in skipped[:3])
        raise DataError(f"the request contains no picture of {empty[0]!r} ({reasons})")
    return pixels, names, skipped
