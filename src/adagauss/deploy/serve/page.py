"""The page: plain files of this package, read once; a request chooses one by name and never reaches the disk."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from adagauss.deploy.serve.security import ApiError

router = APIRouter(include_in_schema=False)

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class Asset:
    """A file of the page."""

    content: bytes
    kind: str
    tag: str


@cache
def assets() -> dict[str, Asset]:
    """The files of the page by name."""
    found = {}
    for file in (files("adagauss.deploy.serve") / "static").iterdir():
        kind = TYPES.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            content = file.read_bytes()
            found[file.name] = Asset(content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return found


@router.get("/")
async def index(request: Request) -> Response:
    """The page itself."""
    return _asset("index.html", request)


@router.get("/favicon.ico")
async def icon(request: Request) -> Response:
    """The icon that browsers ask for."""
    return _asset("icon.svg", request)


@router.get("/static/{name}")
async def static(name: str, request: Request) -> Response:
    """A file of the page."""
    return _asset(name, request)


def _asset(name: str, request: Request) -> Response:
    asset = assets().get(name)
    if asset is None:
        raise ApiError(404, "there is no such page")
    headers = {"ETag": asset.tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == asset.tag:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.kind, headers=headers)
