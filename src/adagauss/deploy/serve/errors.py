"""Refusals of the server, each with the HTTP status that says whose turn it is."""

from __future__ import annotations

from starlette.exceptions import HTTPException

from adagauss.errors import AdagaussError


class Refusal(HTTPException, AdagaussError):  # noqa: N818  # it is an answer, not a fault of this program
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
