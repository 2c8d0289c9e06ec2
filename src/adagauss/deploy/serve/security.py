"""Access control and limits: host, origin, token, request rates and sizes, and the security headers.

A page of another site can make a browser send requests to a server on the same machine. Three things keep it out:
browsers say where a request comes from (``Origin``, ``Sec-Fetch-Site``); a name that an attacker points at 127.0.0.1
(DNS rebinding) is not among the hosts; and a token travels in a header, never in a cookie, so a browser does not add it
by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adagauss.deploy.serve.metrics import Metrics
from adagauss.errors import AdagaussError, ConfigError


class ApiError(HTTPException, AdagaussError):  # it is an answer, not a fault of this program
    """A request that is not carried out: its status, the reason, and when to try again."""

    def __init__(self, status: int, reason: str, retry_after: float | None = None) -> None:
        headers = {} if retry_after is None else {"Retry-After": str(max(1, round(retry_after)))}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if status in (408, 413):  # the rest of the request is not read
            headers["Connection"] = "close"
        HTTPException.__init__(self, status, reason, headers)

    def __str__(self) -> str:
        return self.detail


ADDRESSES = 4096
"""Addresses whose use is remembered; the one that was silent for longest is dropped first."""


@dataclass(frozen=True)
class Limits:
    """The limits of one server. Bytes are those that arrive, whatever a request says about itself."""

    body: int = 512 * 2**20
    """Bytes of a request."""
    picture: int = 32 * 2**20
    """Bytes of one picture."""
    pictures: int = 500
    """Pictures in one request."""
    name: int = 100
    """Characters of a class name."""
    waiting_jobs: int = 4
    """Changes that may wait for the one at work; their decoded pictures are in memory."""
    waiting_pictures: int = 2000
    """Pictures that may wait to be classified."""
    uploads: int = 4
    """Requests with pictures to teach that are received at the same time."""
    requests: float = 500.0
    """Requests per second from one address."""
    changes: float = 5.0
    """Changes per second from one address."""
    wrong_tokens: float = 0.2
    """Wrong tokens per second from one address."""
    idle: float = 30.0
    """Seconds that a request may pause while it is received."""


class Rate:
    """So many events per second on average for each key, and a few at once (a token bucket).

    >>> rate = Rate(2.0, burst=1, clock=lambda: 0.0)
    >>> rate.wait("10.0.0.1"), rate.wait("10.0.0.1"), rate.wait("10.0.0.2")
    (0.0, 0.5, 0.0)
    """

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, key: str) -> float:
        """0.0 and the event is counted; or the seconds after which it may be tried again."""
        left, now = self._left(key)
        if left < 1.0:
            return (1.0 - left) / self._per_second
        self._buckets[key] = (left - 1.0, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > ADDRESSES:
            self._buckets.popitem(last=False)
        return 0.0

    def exhausted(self, key: str) -> bool:
        """Whether an event would have to wait now; nothing is counted."""
        return self._left(key)[0] < 1.0

    def _left(self, key: str) -> tuple[float, float]:
        now = self._clock()
        left, then = self._buckets.get(key, (self._burst, now))
        return min(self._burst, left + (now - then) * self._per_second), now


LEAST_TOKEN = 16
PAGE_PATHS = ("/", "/favicon.ico")
OPEN_PATHS = ("/api/health",)
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
"""Headers of every answer: the page runs its own scripts only, and no other page may frame or read it."""


@dataclass(frozen=True)
class Access:
    """Who may use a server: names it answers to, and the token, if any."""

    token: str | None = field(default=None, repr=False)
    hosts: frozenset[str] = frozenset({"localhost"})
    """Host names beside addresses in numbers; a name that is not here is refused."""

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """Raise a `ApiError` unless the host and the site of a request are those of this server."""
        host = headers.get("host", "")
        name = host_name(host)
        if name not in self.hosts and not _is_address(name):
            raise ApiError(
                403, f"this server does not answer to the name {name[:100]!r}: add it with hosts=, or use its address"
            )
        if is_page(path):
            return  # a link of another site may open the page; it holds nothing and cannot be framed
        site = headers.get("sec-fetch-site", "none")
        origin = headers.get("origin")
        foreign = origin is not None and _netloc(origin) != host.lower()
        if foreign or site not in ("same-origin", "none"):
            raise ApiError(403, "requests from pages of other sites are refused")

    def knows(self, authorization: str | None) -> bool:
        """Whether this header carries the token; the time it takes does not depend on how much of it is right."""
        if self.token is None:
            return True
        scheme, _, given = (authorization or "").partition(" ")
        right = hmac.compare_digest(_digest(given.strip()), _digest(self.token))
        return right and scheme.lower() == "bearer"


def access_for(host: str, token: str | None, hosts: tuple[str, ...] = ()) -> Access:
    """The access of a server bound to ``host``; without a token only this machine itself may be served."""
    if token is not None and (len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable()):
        raise ConfigError(f"the token must have at least {LEAST_TOKEN} printable ASCII characters")
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines, so a token is required: put one of at least {LEAST_TOKEN} "
            "characters into the environment variable ADAGAUSS_TOKEN (openssl rand -hex 16 makes one), or serve on "
            "127.0.0.1"
        )
    own = {"localhost", host.lower(), *(name.lower() for name in hosts)}
    if token is not None:
        own.add(socket.gethostname().lower())
    return Access(token, frozenset(own))


def is_loopback(host: str) -> bool:
    """Whether all addresses of a host are those of this machine itself.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, False)
    """
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"there is no host {host!r} ({error}): use an address of this machine") from None
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def host_name(header: str) -> str:
    """The host in a ``Host`` header, without its port.

    >>> host_name("LocalHost:8000"), host_name("[::1]:8000"), host_name("a.b:evil"), host_name("[::1]evil")
    ('localhost', '::1', '', '')
    """
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return ""
    plain = parts.netloc == header and not parts.username and not parts.path
    name, after = parts.hostname or "", header.rpartition("]")[2]
    return name if plain and (after == header or after.startswith(":") or not after) else ""


def is_page(path: str) -> bool:
    """Whether a path belongs to the page itself: files of this package, the same for everybody."""
    return path in PAGE_PATHS or path.startswith("/static/")


def needs_token(path: str) -> bool:
    """Whether a path is only for those who know the token."""
    return not is_page(path) and path not in OPEN_PATHS


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # nothing that a browser would send
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


PREDICT = "/api/predict"
PICTURE_PATHS = (PREDICT, "/api/teach")
SMALL = 2**20
_SECURITY = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class SecurityMiddleware:
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
            except ApiError as refusal:
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
                raise ApiError(429, "too many wrong tokens from this address: wait a little", 10.0)
            if not self._access.knows(headers.get("authorization")):
                self._wrong_tokens.wait(address)
                raise ApiError(401, "this server needs its token, as Authorization: Bearer TOKEN")
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
                raise ApiError(408, f"nothing arrived for {self._limits.idle:g} seconds") from None
            received += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if received > most:
                raise _too_large(most)
            return message

        return limited


async def _refuse(refusal: ApiError, send: Send) -> None:
    body = json.dumps({"detail": refusal.detail}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **(refusal.headers or {})}
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status_code, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def _within(wait: float) -> None:
    if wait > 0:
        raise ApiError(429, "too many requests from this address: wait a little", wait)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"this request may have at most {limit / 2**20:.3g} MB: send less at once")


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
