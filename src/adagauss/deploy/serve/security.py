"""Access control and limits: host, origin, token, request rates and sizes, and the security headers.

A page of another site can make a browser send requests to a local server (CSRF). Three checks prevent this. Cross-site
requests are rejected by ``Origin`` and ``Sec-Fetch-Site``. Unknown host names are rejected against DNS rebinding. The
token is sent in a header, never in a cookie, so browsers do not add it automatically.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import math
import re
import socket
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Histogram
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from adagauss.errors import AdagaussError, ConfigError


class ApiError(HTTPException, AdagaussError):
    """An HTTP error with status, reason and an optional ``Retry-After`` in seconds."""

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
"""Maximum number of tracked addresses; the least recently used one is dropped first."""


@dataclass(frozen=True)
class Limits:
    """Limits of one server. Byte limits count received bytes, not only the declared length."""

    body: int = 512 * 2**20  # bytes of a request
    picture: int = 32 * 2**20  # bytes of one picture
    pictures: int = 500  # pictures in one request
    name: int = 100  # characters of a class name
    waiting_jobs: int = 4  # queued jobs; their decoded pictures are in memory
    waiting_pictures: int = 2000  # queued pictures for classification
    uploads: int = 8  # unfinished uploads of training pictures from one address
    received: int = 512 * 2**20  # bytes of pictures of all unfinished requests in memory, encoded and decoded
    address_received: int = 256 * 2**20  # the same, of the requests from one address
    decoding: float = 10.0  # CPU seconds for decoding one picture
    connections: int = 512  # open connections; then the oldest one without a complete request is closed for a new one
    address_connections: int = 256  # open connections from one address; see ``connections``
    requests: float = 500.0  # requests per second from one address
    changes: float = 5.0  # changes per second from one address
    wrong_tokens: float = 0.2  # wrong tokens per second from one address
    headers: float = 10.0  # seconds until the headers of a request are complete
    idle: float = 30.0  # seconds between two chunks of a request, and for which a client need not read its response
    body_rate: float = 10_000.0  # minimum bytes per second of a request body, but for pauses of ``idle`` seconds


class Rate:
    """Rate limiter: one token bucket per key.

    >>> rate = Rate(2.0, burst=1, clock=lambda: 0.0)
    >>> rate.wait("10.0.0.1"), rate.wait("10.0.0.1"), rate.wait("10.0.0.2")
    (0.0, 0.5, 0.0)
    """

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._full: OrderedDict[str, float] = OrderedDict()
        """For each key the time at which its bucket is full again."""

    def wait(self, key: str, count: bool = True) -> float:
        """Return the seconds until the next event is allowed; if it is allowed now, count it and return 0.0."""
        now = self._clock()
        full = max(now, self._full.get(key, now))
        wait = full - now - (self._burst - 1) / self._per_second
        if wait > 0:
            return wait
        if count:
            self._full[key] = full + 1 / self._per_second
            self._full.move_to_end(key)
            if len(self._full) > ADDRESSES:
                self._full.popitem(last=False)
        return 0.0

    def require(self, key: str) -> None:
        """Count an event; raise `ApiError` if it is not allowed yet."""
        if wait := self.wait(key):
            raise ApiError(429, "too many requests from this address: try again later", wait)


class Quota:
    """Limit the amount that is in use at the same time, per key.

    >>> quota = Quota(2, "too many uploads")
    >>> with quota.use("10.0.0.1") as take:
    ...     take(2)
    ...     take(1)
    Traceback (most recent call last):
    adagauss.deploy.serve.security.ApiError: too many uploads: try again later
    """

    def __init__(self, limit: int, reason: str, status: int = 503) -> None:
        self._limit = limit
        self._reason = reason
        self._status = status
        self._used: defaultdict[str, int] = defaultdict(int)

    @contextmanager
    def use(self, key: str = "") -> Iterator[Callable[[int], None]]:
        """Yield a function that takes an amount, or returns a negative one; the rest is returned at the end."""
        held = 0

        def take(amount: int) -> None:
            nonlocal held
            if amount > 0 and self._used[key] + amount > self._limit:
                raise ApiError(self._status, f"{self._reason}: try again later", 5.0)
            self._used[key] += amount
            held += amount

        try:
            yield take
        finally:
            self._used[key] -= held
            if not self._used[key]:
                del self._used[key]


class Connection(H11Protocol):
    """A connection of uvicorn that is closed if it sends no complete headers, or reads no response, in time."""

    def __init__(self, limits: Limits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._answer, self.app = self.app, self._start
        self._timer: asyncio.TimerHandle | None = None
        """Runs while the client has sent no complete request headers."""
        self._reading: asyncio.TimerHandle | None = None
        """Runs while the client does not read a response."""

    async def _start(self, scope: Any, receive: Any, send: Any) -> None:
        self._stop_waiting()
        await self._answer(scope, receive, send)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        everyone = [one for one in self.connections if isinstance(one, Connection)]
        neighbours = [one for one in everyone if one.client and self.client and one.client[0] == self.client[0]]
        if len(neighbours) > self._limits.address_connections:
            self._close_oldest(neighbours)
        elif len(everyone) > self._limits.connections:
            self._close_oldest(everyone)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._reading = self.loop.call_later(self._limits.idle, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._reading = None
        super().resume_writing()

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    @staticmethod
    def _close_oldest(connections: Iterable[Connection]) -> None:
        oldest = min(connections, key=lambda one: one._timer.when() if one._timer else math.inf)
        oldest._stop_waiting()
        oldest.transport.abort()

    def _wait(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(self._limits.headers, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None


MIN_TOKEN_LENGTH = 16
OWN_SITE = ("same-origin", "none")
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:/?#@\s]+))(?::\d{0,5})?")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
}
"""Headers of every response: only own scripts run, and other sites cannot frame or read the page."""


class Access:
    """Access control of a server that listens on ``host``; addresses of other machines require a token.

    Requests must name the server by an IP address, ``localhost``, ``host`` or one of ``hosts``.
    """

    def __init__(self, host: str = "127.0.0.1", token: str | None = None, hosts: tuple[str, ...] = ()) -> None:
        if token is not None and (len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable()):
            raise ConfigError(f"the token must have at least {MIN_TOKEN_LENGTH} printable ASCII characters")
        if token is None and not is_loopback(host):
            raise ConfigError(
                f"{host} is not a loopback address, so a token is required: set the environment variable "
                f"ADAGAUSS_TOKEN to at least {MIN_TOKEN_LENGTH} characters (openssl rand -hex 16), or serve on "
                "127.0.0.1"
            )
        self._token = token
        own = {"localhost", host, *hosts} | ({socket.gethostname()} if token else set())
        self._hosts = {name.lower() for name in own}

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """Raise `ApiError` for an unknown host name or a cross-site request."""
        host = headers.get("host", "").lower()
        match = HOST.fullmatch(host)
        name = "" if match is None else match[1] or match[2]
        if name not in self._hosts and not _is_address(name):
            raise ApiError(403, f"unknown host name {name[:100]!r}: add it with hosts=, or use the IP address")
        if is_public(path):
            return  # links of other sites may open the page; it contains no data and cannot be framed
        own = ("", f"http://{host}", f"https://{host}")
        if headers.get("origin", "").lower() not in own or headers.get("sec-fetch-site", "none") not in OWN_SITE:
            raise ApiError(403, "cross-site requests are not allowed")

    def knows(self, authorization: str) -> bool:
        """Whether this header contains the token, compared in constant time."""
        if self._token is None:
            return True
        scheme, _, given = authorization.partition(" ")
        return hmac.compare_digest(given.strip().encode(), self._token.encode()) and scheme.lower() == "bearer"


def is_loopback(host: str) -> bool:
    """Whether all addresses of a host are loopback addresses.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, False)
    """
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot resolve host {host!r} ({error}): use an address of this machine") from None
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def is_public(path: str) -> bool:
    """Whether a path needs no token: the files of the page, and the health check."""
    return path in ("/", "/api/health") or path.startswith("/static/")


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


PREDICT, TEACH = "/api/predict", "/api/teach"
SMALL = 2**20
"""Bytes of requests without pictures."""
_SECURITY = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
REQUESTS = Counter("adagauss_requests", "HTTP requests.", ["route", "status"])
SECONDS = Histogram(
    "adagauss_predict_seconds",
    "Latency of successful predictions.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)


class SecurityMiddleware:
    """ASGI middleware around the whole application: access, rates, sizes, security headers and metrics."""

    def __init__(self, app: ASGIApp, access: Access, limits: Limits) -> None:
        self._app = app
        self._access = access
        self._limits = limits
        self._requests = Rate(limits.requests, burst=2 * limits.requests)
        self._changes = Rate(limits.changes, burst=4 * limits.changes)
        self._wrong_tokens = Rate(limits.wrong_tokens, burst=10)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, app = time.perf_counter(), 500, self._app

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *_SECURITY]}
            await send(message)

        try:
            receive = self._limited(receive, self._admit(scope))
        except ApiError as error:
            app = JSONResponse({"detail": error.detail}, error.status_code, error.headers)
        try:
            await app(scope, receive, sending)
        except ClientDisconnect:  # no response can be sent
            status = 499
        finally:
            # The route template, so that path parameters do not become metric labels.
            route = str(getattr(scope.get("route"), "path", "other"))
            REQUESTS.labels(route, str(status)).inc()
            if route == PREDICT and status == 200:
                SECONDS.observe(time.perf_counter() - started)

    def _admit(self, scope: Scope) -> int:
        """Return the maximum bytes of this request; raise `ApiError` if it is not allowed."""
        headers, path, address = Headers(scope=scope), scope["path"], client_address(scope)
        self._access.check(path, headers)
        self._requests.require(address)
        if not is_public(path):
            if self._wrong_tokens.wait(address, count=False):
                raise ApiError(429, "too many wrong tokens from this address: try again later", 10.0)
            if not self._access.knows(headers.get("authorization", "")):
                self._wrong_tokens.wait(address)
                raise ApiError(401, "wrong or missing token: send Authorization: Bearer TOKEN")
        if scope["method"] in ("POST", "DELETE", "PUT", "PATCH") and path != PREDICT:
            self._changes.require(address)
        most = self._limits.body if path in (PREDICT, TEACH) else min(SMALL, self._limits.body)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > most:
            raise _too_large(most)
        return most

    def _limited(self, receive: Receive, most: int) -> Receive:
        """Limit the received bytes and pauses: a chunked request does not declare its length."""
        limits = self._limits
        received, whole, left = 0, False, limits.idle

        async def limited() -> Message:
            nonlocal received, whole, left
            if whole:  # only the disconnect message follows, at any time
                return await receive()
            started = time.monotonic()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, left))
            except TimeoutError:
                raise ApiError(408, "the request body arrives too slowly: send it again") from None
            # Only the time spent on waiting for the client counts. Fast bytes do not pay for a later pause.
            size = len(message.get("body", b""))
            left = min(limits.idle, left - (time.monotonic() - started) + size / limits.body_rate)
            received += size
            whole = not message.get("more_body", False)
            if received > most:
                raise _too_large(most)
            return message

        return limited


def client_address(scope: Scope) -> str:
    """Return the address that rate limits count."""
    client = scope.get("client")
    return str(client[0]) if client else "local"


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the request is larger than {limit / 2**20:.3g} MB: send smaller requests")
