"""Routes that change the model: each puts a job in line and returns it at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field

from adagauss.data.decode import Pixels
from adagauss.deploy.serve.jobs import Job, Skipped
from adagauss.deploy.serve.model import class_name
from adagauss.deploy.serve.server import Served, Server
from adagauss.errors import DataError

router = APIRouter(prefix="/api", tags=["change"])

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


@router.post("/teach", status_code=202, openapi_extra=_TEACH_FORM, summary="Teach new classes, or known ones more")
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


@router.post("/forget", status_code=202, summary="Forget classes")
async def forget(what: Forget, server: Served) -> Job:
    """Nothing of the classes remains in the model; the files kept for undo still hold them, unless ``for_good``."""
    await run_in_threadpool(server.store.snapshot.model.require_can, "forget")
    names = [class_name(name, server.limits) for name in what.classes]
    summary = ", ".join(dict.fromkeys(names))

    def work(_: object) -> int:
        version = server.store.change("forget", summary, lambda model: model.forgot(names))
        return _without_copies(server, names) if what.for_good else version

    return server.jobs.submit("forget", summary, work)


@router.post("/rename", status_code=202, summary="Give a class another name")
async def rename(what: Rename, server: Served) -> Job:
    """The new name must not be that of another class."""
    old, new = class_name(what.old, server.limits), class_name(what.new, server.limits)
    summary = f"{old} is now {new}"
    return server.jobs.submit(
        "rename", summary, lambda _: server.store.change("rename", summary, lambda model: model.renamed(old, new))
    )


@router.post("/undo", status_code=202, summary="Undo the last change")
async def undo(server: Served) -> Job:
    """Bring back the model before the last change; ask again to go further back."""
    # With other changes in line, which one will be the last is known only when its turn has come.
    summary = "the last change by then" if server.jobs.open else server.store.history.last().summary
    return server.jobs.submit("undo", summary, lambda _: server.store.undo())


@router.delete("/history/copies", status_code=202, summary="Delete the files kept for undo")
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
