"""What every request passes first: host, site, token, rates and size; and the headers of every answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adagauss.deploy.serve.errors import Refusal
from adagauss.deploy.serve.limits import Limits, Rate
from adagauss.deploy.serve.metrics import Metrics
from adagauss.deploy.serve.security import HEADERS, Access, needs_token

PREDICT = "/api/predict"
PICTURE_PATHS = (PREDICT, "/api/teach")
SMALL = 2**20
_SECURITY = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, access: Access, limits: Limits, metrics: Metrics) -> None:
        self._app = app
        self._access = access
        self._limits = limits
        self._metrics = metrics
        self._requests = Rate(limits.requests, burst=2 * limits.requests)
        self._changes = Rate(limits.changes, burst=4 * limits.changes)
        self._wrong_tokens = Rate(limits.wrong_tokens, burst=10)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *_SECURITY]}
            await send(message)

        try:
            try:
                self._admit(scope)
            except Refusal as refusal:
                await _refuse(refusal, sending)
            else:
                await self._app(scope, self._limited(receive, self._most(scope["path"])), sending)
        finally:
            self._metrics.request(_route(scope), status, time.perf_counter() - started)

    def _admit(self, scope: Scope) -> None:
        headers, address, path = _headers(scope), _address(scope), scope["path"]
        self._access.check(path, headers)
        _within(self._requests.wait(address))
        if needs_token(path):
            if self._wrong_tokens.exhausted(address):
                raise Refusal(429, "too many wrong tokens from this address: wait a little", 10.0)
            if not self._access.knows(headers.get("authorization")):
                self._wrong_tokens.wait(address)
                raise Refusal(401, "this server needs its token, as Authorization: Bearer TOKEN")
        if scope["method"] in ("POST", "DELETE", "PUT", "PATCH") and path != PREDICT:
            _within(self._changes.wait(address))
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._most(path):
            raise _too_large(self._most(path))

    def _most(self, path: str) -> int:
        """Bytes of a request; only those with pictures may be large."""
        return self._limits.body if path in PICTURE_PATHS else min(SMALL, self._limits.body)

    def _limited(self, receive: Receive, most: int) -> Receive:
        """Counts the bytes that really arrive: a request sent in chunks does not say its length."""
        received, whole = 0, False

        async def limited() -> Message:
            nonlocal received, whole
            if whole:  # what follows is the client's farewell, whenever it comes
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self._limits.idle)
            except TimeoutError:
                raise Refusal(408, f"nothing arrived for {self._limits.idle:g} seconds") from None
            received += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if received > most:
                raise _too_large(most)
            return message

        return limited


async def _refuse(refusal: Refusal, send: Send) -> None:
    body = json.dumps({"detail": refusal.detail}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **(refusal.headers or {})}
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status_code, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def _within(wait: float) -> None:
    if wait > 0:
        raise Refusal(429, "too many requests from this address: wait a little", wait)


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"this request may have at most {limit / 2**20:.3g} MB: send less at once")


def _headers(scope: Scope) -> Mapping[str, str]:
    """Headers by lower-case name; one that comes twice counts as neither of its values."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1")
        found[key] = value.decode("latin-1") if key not in found else f"{found[key]}, {value.decode('latin-1')}"
    return found


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else "local"


def _route(scope: Scope) -> str:
    """The route as it is declared, so that names in a path do not become metrics; set when one was found."""
    route = scope.get("route")
    return str(getattr(route, "path", "other"))
