"""The application: routes, the guard around them, and how errors are answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

import adagauss
from adagauss.deploy.serve import page, routes_read, routes_write
from adagauss.deploy.serve.security import SecurityMiddleware
from adagauss.deploy.serve.server import Server
from adagauss.errors import AdagaussError, CheckpointError, UnsupportedError
from adagauss.utils.progress import escape_control_chars

DESCRIPTION = """\
An image classifier that is taught class by class. Predictions come from the last saved state while another class is
being taught; every change is a job, and a job that is `done` is saved. Where the server has a token, send it as
`Authorization: Bearer TOKEN`."""
_TELEMETRY: dict[str, Any] = {"telemetry": {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}}
"""Nothing about requests leaves this server, whatever the environment says; older releases of FastAPI ignore it."""


def make_app(server: Server) -> FastAPI:
    """The application of a server; it starts and stops with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(server.start)
        try:
            yield
        finally:
            await asyncio.to_thread(server.stop)

    app = FastAPI(
        title="adagauss serve",
        version=adagauss.__version__,
        description=DESCRIPTION,
        openapi_url="/api/openapi.json",
        docs_url=None,  # FastAPI's pages of documentation load scripts from another site
        redoc_url=None,
        lifespan=lifespan,
        **_TELEMETRY,
    )
    app.state.server = server
    for module in (routes_read, routes_write, page):
        app.include_router(module.router)
    app.add_exception_handler(AdagaussError, _refused)
    app.add_exception_handler(RequestValidationError, _unfit)
    app.add_middleware(SecurityMiddleware, access=server.access, limits=server.limits, metrics=server.metrics)
    return app


async def _unfit(request: Request, error: Exception) -> JSONResponse:
    """What is wrong with a request, without repeating its values: some of them cannot be written as an answer."""
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    detail = [
        {"loc": [escape_control_chars(place) for place in one["loc"]], "msg": escape_control_chars(one["msg"])}
        for one in problems
    ]
    return JSONResponse({"detail": detail}, 422)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    """Errors that the user can fix; a `ApiError` is answered by FastAPI itself."""
    status = 409 if isinstance(error, UnsupportedError) else 503 if isinstance(error, CheckpointError) else 422
    return JSONResponse({"detail": str(error)}, status)
