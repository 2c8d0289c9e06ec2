"""The application: the page, the routes, the error handlers, and running it on a socket."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

import adagauss
from adagauss.deploy.serve import routes
from adagauss.deploy.serve.security import SecurityMiddleware, access_for, connection_class, is_loopback
from adagauss.deploy.serve.server import Server
from adagauss.deploy.serve.store import Store
from adagauss.errors import AdagaussError, CheckpointError, ConfigError, UnsupportedError
from adagauss.utils.progress import escape_control_chars

STATIC = Path(__file__).parent / "static"


DESCRIPTION = """\
A class-incremental image classifier. Predictions use the last saved model while new classes are learned. Every change
is a job; a job in the state `done` is saved. If the server requires a token, send it as
`Authorization: Bearer TOKEN`."""
_TELEMETRY: dict[str, Any] = {"telemetry": {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}}
"""Disables telemetry regardless of the environment. Older releases of FastAPI ignore it."""


def make_app(server: Server) -> FastAPI:
    """Create the application. The server starts and stops with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(server.store.open)
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
    app.include_router(routes.router)
    app.mount("/static", StaticFiles(directory=STATIC))

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    app.add_exception_handler(AdagaussError, _handle_error)
    app.add_exception_handler(RequestValidationError, _handle_invalid)
    app.add_middleware(SecurityMiddleware, access=server.access, limits=server.limits, metrics=server.metrics)
    return app


async def _handle_invalid(request: Request, error: Exception) -> JSONResponse:
    """Report validation errors without the invalid values: some of them cannot be encoded as JSON."""
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    detail = [
        {"loc": [escape_control_chars(place) for place in one["loc"]], "msg": escape_control_chars(one["msg"])}
        for one in problems
    ]
    return JSONResponse({"detail": detail}, 422)


async def _handle_error(request: Request, error: Exception) -> JSONResponse:
    """Report errors that the user can fix. FastAPI handles `ApiError` itself."""
    status = 409 if isinstance(error, UnsupportedError) else 503 if isinstance(error, CheckpointError) else 422
    return JSONResponse({"detail": str(error)}, status)


def run(model: Path, host: str, port: int, token: str | None, hosts: tuple[str, ...]) -> None:
    """Serve until the process receives a signal to stop."""
    access = access_for(host, token, hosts)
    server = Server(Store(model), access)
    with _listening(host, port) as listener:
        server.store.open()  # before the address is printed, so that errors in the model file end this command
        sys.stderr.write(_greeting(server, host, listener.getsockname()[1]))
        sys.stderr.flush()
        with suppress(KeyboardInterrupt):  # Ctrl+C stops the server
            uvicorn.Server(socket_config(server)).run(sockets=[listener])


def socket_config(server: Server) -> uvicorn.Config:
    """Return the settings of uvicorn."""
    return uvicorn.Config(
        make_app(server),
        http=connection_class(server.limits),
        ws="none",  # an upgraded connection would leave the limits
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # rate limits use the address, so clients must not choose it
        server_header=False,
        timeout_graceful_shutdown=5,
    )


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, reuse_port=False)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}:{port} ({error}): choose another port or host") from None


def _greeting(server: Server, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    # Browsers do not send the part after # to the server. The page reads the token from there.
    link = f"http://{shown}:{port}/" + ("#token=TOKEN, with your token" if server.access.token else "")
    note = "" if is_loopback(host) else "Traffic is not encrypted: use a reverse proxy with TLS.\n"
    return f"Serving {server.store.path.name} at {link} (process {os.getpid()}; stop with Ctrl+C)\n{note}"
