"""The application: the page, the REST routes, the error handlers, and running it on a socket.

Reading routes use the current model; each change is submitted as a job and returns at once.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from pydantic import BaseModel, Field

import adagauss
from adagauss.data.decode import Pixels
from adagauss.data.folders import IMAGE_SUFFIXES
from adagauss.deploy.serve.model import ClassProbability, KnownClass, PictureShape, probabilities
from adagauss.deploy.serve.security import (
    Access,
    ApiError,
    Connection,
    SecurityMiddleware,
    client_address,
    is_loopback,
)
from adagauss.deploy.serve.server import Job, Server, Skipped
from adagauss.deploy.serve.store import Entry, Store
from adagauss.errors import AdagaussError, CheckpointError, ConfigError, DataError, UnsupportedError
from adagauss.utils.progress import escape_control_chars

STATIC = Path(__file__).parent / "static"
DESCRIPTION = """\
A class-incremental image classifier. Predictions use the last saved model while new classes are learned. Every change
is a job; a job in the state `done` is saved. If the server requires a token, send it as
`Authorization: Bearer TOKEN`."""
_TELEMETRY: dict[str, Any] = {"telemetry": {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}}
"""Disables telemetry regardless of the environment. Older releases of FastAPI ignore it."""
INVALID = "\ufffd"
"""Replaces bytes that are not UTF-8."""


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
    warning: str = ""
    """Why no picture can be unknown at the requested rate."""


class ModelInfo(BaseModel):
    """Classes and capabilities of the model."""

    name: str
    version: int
    method: str
    picture_size: int
    formats: list[str]
    """Endings of the picture files that are read."""
    classes: list[KnownClass]
    cannot: dict[str, str]
    """Unsupported actions with the reasons."""
    can_undo: str | None
    """Description of the change that the next undo reverts."""
    job: Job | None
    """The running or next job, if any."""


class Problem(BaseModel):
    """The reason for an error status."""

    detail: str


class Forget(BaseModel):
    """Classes to forget."""

    classes: list[str] = Field(min_length=1, max_length=1000)
    for_good: bool = False
    """Also delete the copies for undo, which still contain the classes. Nothing can be undone afterwards."""


class Rename(BaseModel):
    """A new name for a class."""

    old: str
    new: str
    merge: bool = False
    """The new name is a class of the model: make one class of both."""


def _body(*fields: str, **others: Any) -> dict[str, Any]:
    """Describe a form that the route reads itself, without writing pictures to disk."""
    items = {"label": {"type": "string"}, "pictures": {"type": "string", "format": "binary"}}
    schema = {
        "type": "object",
        "required": fields,
        "properties": {name: {"type": "array", "minItems": 1, "items": items[name]} for name in fields},
        "additionalProperties": False,
    }
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}, **others}}}


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem} for status in statuses}


ONE_PICTURE = {"image/*": {"schema": {"type": "string", "format": "binary"}}}
router = APIRouter(prefix="/api", responses=_problems(400, 401, 403, 408, 413, 422, 429, 503))


async def _server(request: Request) -> Server:
    # A coroutine, because FastAPI calls plain functions in another thread, which is slower.
    server: Server = request.app.state.server
    return server


Served = Annotated[Server, Depends(_server)]
"""The server as a dependency of a route."""


@router.post(
    "/predict",
    openapi_extra=_body("pictures", **ONE_PICTURE),
    response_model=Predictions,
    responses=_problems(409, 415),
    tags=["read"],
    summary="Classify pictures",
)
async def predict(
    request: Request,
    server: Served,
    top: Annotated[int, Query(ge=1, le=10)] = 3,
    unknown: Annotated[float | None, Query(gt=0, lt=1)] = None,
) -> Response:
    """Send a form with any number of ``pictures``, or one picture as the body.

    With ``unknown``, the target false-positive rate such as 0.05, pictures of unknown classes get no label.
    Pictures are not stored.
    """
    model, shape = server.store.model, _taught(server)
    pictures = [picture async for picture in server.decoder.pictures(request, shape)]
    if not pictures:
        raise DataError("the request contains no pictures")
    pixels = [picture.pixels for picture in pictures if picture.pixels is not None]
    answers = iter(await server.classify(model, pixels, top, unknown))
    predictions = [Prediction(name=picture.name, problem=picture.problem) for picture in pictures]
    for picture, prediction in zip(pictures, predictions, strict=True):
        if picture.pixels is not None:
            answer = next(answers)
            prediction.label = None if answer.label is None else str(answer.label)
            prediction.unknown = answer.label is None
            prediction.probability = answer.probability
            prediction.top = probabilities(answer.top)
    # A finished response: FastAPI would validate the predictions once more.
    warning = model.classifier.learner_.state.predictor.unknown_warning(unknown) or ""
    content = Predictions(version=model.version, predictions=predictions, warning=warning).model_dump_json()
    return Response(content, media_type="application/json")


@router.get("/model", tags=["read"], summary="Classes and capabilities of the model")
def model(server: Served) -> ModelInfo:
    """For each class: number of pictures, estimated accuracy and confused classes."""
    now, undoable = server.store.model, server.store.undoable()
    return ModelInfo(
        name=server.store.path.stem,
        version=now.version,
        method=now.method,
        picture_size=max(now.picture_shape[0]),
        formats=sorted(suffix.removeprefix(".") for suffix in IMAGE_SUFFIXES),
        classes=now.classes,
        cannot=now.unsupported_actions,
        can_undo=None if undoable is None else f"{undoable.action}: {undoable.summary}",
        job=next(reversed(server.open_jobs), None),
    )


@router.get("/history", tags=["read"], summary="History of changes, newest first")
def history(server: Served) -> list[Entry]:
    """List all recorded changes."""
    return [*reversed(server.store.entries)]


@router.get("/jobs", tags=["jobs"], summary="Jobs since the start of the server, newest first")
def jobs(server: Served) -> list[Job]:
    """List waiting, running and finished jobs."""
    return server.jobs


@router.get("/jobs/{job}", responses=_problems(404), tags=["jobs"], summary="State of a job")
async def job_state(job: str, server: Served) -> Job:
    """In the state ``done`` the change is saved on disk."""
    return server.job(job)


@router.delete("/jobs/{job}", responses=_problems(404), tags=["jobs"], summary="Cancel a job")
async def stop_job(job: str, server: Served) -> Job:
    """A cancelled job leaves the model unchanged. A job that is already saving completes."""
    return server.cancel(job)


@router.get(
    "/download/model",
    response_class=FileResponse,
    responses=_problems(409) | {200: {"content": {"application/octet-stream": {}}}},
    tags=["read"],
    summary="The model file",
)
async def download(server: Served) -> FileResponse:
    """Readable with `IncrementalClassifier.load`."""
    _taught(server)
    return FileResponse(server.store.path, media_type="application/octet-stream", filename=server.store.path.name)


@router.get("/health", tags=["operation"], summary="Health check")
async def health() -> dict[str, str]:
    """Requires no token."""
    return {"status": "ok", "release": adagauss.__version__}


@router.get("/metrics", tags=["operation"], summary="Prometheus metrics", response_class=PlainTextResponse)
async def metrics() -> PlainTextResponse:
    """Requests, jobs, pictures, prediction latency, and facts about the process."""
    return PlainTextResponse(generate_latest(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


@router.post(
    "/teach",
    status_code=202,
    openapi_extra=_body("label", "pictures"),
    responses=_problems(409, 415),
    tags=["change"],
    summary="Teach classes",
)
async def teach(request: Request, server: Served) -> Job:
    """Send a form: a field ``label``, then its pictures, then optionally the next label and its pictures.

    Classes may be new or known. Unreadable pictures are skipped and listed in the job. Pictures are not stored.
    """
    server.require_room()
    with server.uploads.use(client_address(request.scope)) as take:
        take(1)
        pixels, names, skipped = await _received(request, server)
    counts, model = Counter(names), server.store.model
    reason = model.unsupported_actions.get("teach more")
    if reason and not counts.keys().isdisjoint(model.labels):
        raise UnsupportedError(reason)
    summary = ", ".join(f"{count} of {name}" for name, count in counts.items())
    job = Job(action="teach", summary=summary, names=[*counts], skipped=skipped)
    return server.change(job, lambda model, reporter: model.taught(pixels, names, reporter))


@router.post("/forget", status_code=202, tags=["change"], summary="Forget classes")
async def forget(what: Forget, server: Served) -> Job:
    """Remove classes from the model. The copies for undo still contain them, unless ``for_good`` is set."""
    names = list(dict.fromkeys(class_name(name, server) for name in what.classes))
    job = Job(action="forget", summary=", ".join(names), names=names)
    return server.change(job, lambda model, _: model.forgot(names), what.for_good)


@router.post("/rename", status_code=202, tags=["change"], summary="Rename a class, or merge it into another")
async def rename(what: Rename, server: Served) -> Job:
    """Without ``merge``, the new name must not belong to another class; with it, it must."""
    old, new = class_name(what.old, server), class_name(what.new, server)
    job = Job(action="rename", summary=f"{old} is now {'part of ' if what.merge else ''}{new}", names=[old, new])
    return server.change(job, lambda model, _: model.merged(old, new) if what.merge else model.renamed(old, new))


@router.post("/undo", status_code=202, tags=["change"], summary="Undo the last change")
async def undo(server: Served) -> Job:
    """Restore the model before the last change. Repeat to undo earlier changes."""
    if not server.open_jobs:  # with queued jobs, the last change is known only when this job runs
        server.store.last_change()
    return server.submit(Job(action="undo", summary="the last change"), lambda _: server.store.undo())


@router.delete("/history/copies", status_code=202, tags=["change"], summary="Delete the copies for undo")
async def drop_copies(server: Served) -> Job:
    """Nothing can be undone afterwards, and no copy contains forgotten classes."""
    return server.submit(Job(action="drop copies", summary="copies for undo"), lambda _: server.drop_copies([]))


def class_name(text: str, server: Server) -> str:
    """Normalise whitespace in a class name and check its length and characters."""
    name, most = " ".join(text.split()), server.limits.name
    if not name or len(name) > most or not name.isprintable() or INVALID in name:
        raise DataError(f"a class name must have 1 to {most} printable characters; got {name[:most]!r}")
    return name


def _taught(server: Server) -> PictureShape:
    """Return the shape of pictures of a model that has learned some."""
    if not server.store.model.labels:
        raise ApiError(409, "nothing has been taught yet: teach at least one class first")
    return server.store.model.picture_shape


async def _received(request: Request, server: Server) -> tuple[list[Pixels], list[str], list[Skipped]]:
    """Return the pictures of a form, the class name of each, and the pictures that cannot be decoded."""
    pixels, names, skipped = list[Pixels](), list[str](), list[Skipped]()
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


def make_app(server: Server) -> FastAPI:
    """Create the application, which stops the server at its end."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.to_thread(server.stop)

    app = FastAPI(
        title="adagauss serve",
        version=adagauss.__version__,
        description=DESCRIPTION,
        openapi_url="/api/openapi.json",
        docs_url=None,  # FastAPI's documentation pages load scripts from another site
        redoc_url=None,
        lifespan=lifespan,
        **_TELEMETRY,
    )
    app.state.server = server
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=STATIC))

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    app.add_exception_handler(AdagaussError, _handle_error)
    app.add_exception_handler(RequestValidationError, _handle_error)
    app.add_exception_handler(Exception, _handle_unexpected)
    app.add_middleware(SecurityMiddleware, access=server.access, limits=server.limits)
    return app


async def _handle_error(request: Request, error: Exception) -> JSONResponse:
    """Report errors that the user can fix. FastAPI handles `ApiError` itself."""
    status = 409 if isinstance(error, UnsupportedError) else 503 if isinstance(error, CheckpointError) else 422
    detail = str(error)
    if isinstance(error, RequestValidationError):  # without the invalid values: some cannot be encoded as JSON
        detail = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        detail = escape_control_chars(detail)
    return JSONResponse({"detail": detail}, status)


async def _handle_unexpected(request: Request, error: Exception) -> JSONResponse:
    """Report an error in the code in the shape of the others; uvicorn logs it."""
    return JSONResponse({"detail": "unexpected error: see the server's log"}, 500)


def run(model: Path, host: str, port: int, token: str | None, hosts: tuple[str, ...]) -> None:
    """Serve until the process receives a signal to stop."""
    access = Access(host, token, hosts)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}:{port} ({error}): choose another port or host") from None
    with listener:
        server = Server(Store(model), access)
        shown = f"[{host}]" if ":" in host else host
        # Browsers do not send the part after # to the server. The page reads the token from there.
        link = f"http://{shown}:{listener.getsockname()[1]}/" + ("#token=TOKEN, with your token" if token else "")
        note = "" if is_loopback(host) else "Traffic is not encrypted: use a reverse proxy with TLS.\n"
        sys.stderr.write(f"Serving {model.name} at {link} (process {os.getpid()}; stop with Ctrl+C)\n{note}")
        sys.stderr.flush()
        # Modules stay for ever: going through them stops all threads for 0.1 to 0.5 s once in a thousand requests.
        gc.collect()
        gc.freeze()
        with suppress(KeyboardInterrupt):  # Ctrl+C stops the server
            uvicorn.Server(socket_config(server)).run(sockets=[listener])


def socket_config(server: Server) -> uvicorn.Config:
    """Return the settings of uvicorn."""
    return uvicorn.Config(
        make_app(server),
        http=partial(Connection, server.limits),  # type: ignore[arg-type]
        ws="none",  # an upgraded connection would leave the limits
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # rate limits use the address, so clients must not choose it
        server_header=False,
        timeout_graceful_shutdown=5,
    )
