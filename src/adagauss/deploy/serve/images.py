"""Uploaded pictures to pixels, in threads beside the server's own."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from starlette.requests import Request

from adagauss.data.decode import Pixels, decode_image
from adagauss.deploy.serve.errors import Refusal
from adagauss.deploy.serve.limits import Limits
from adagauss.deploy.serve.uploads import Part, parts_of

LABEL = "label"
PICTURES = "pictures"


@dataclass(frozen=True)
class Picture:
    """A picture as it was sent: its file name, the label before it in the form, and its pixels or why it has none."""

    name: str
    label: str
    pixels: Pixels | None
    problem: str = ""


class Decoder:
    """Decodes in a few threads, which bounds the memory of large pictures."""

    def __init__(self, threads: int = 2) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    async def pictures(self, request: Request, size: int, channels: int, limits: Limits) -> AsyncIterator[Picture]:
        """The pictures of a request in order, each with the last label sent before it.

        A few are decoded while the next ones arrive, never more than one per thread and one in waiting.
        """
        label, waiting = "", list[asyncio.Future[Picture]]()
        loop = asyncio.get_running_loop()
        try:
            async for part in parts_of(request, limits):
                if part.filename is not None:
                    waiting.append(loop.run_in_executor(self._pool, _decoded, part, label, size, channels))
                elif part.key == LABEL:
                    label = part.text
                else:
                    raise Refusal(422, f"unknown field {part.key[:50]!r}: a form has the fields label and pictures")
                while len(waiting) > self._threads:
                    yield await waiting.pop(0)
            while waiting:
                yield await waiting.pop(0)
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """Let the threads end."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _decoded(part: Part, label: str, size: int, channels: int) -> Picture:
    name = part.filename or "picture"
    try:
        pixels = decode_image(io.BytesIO(part.content), size, channels)
    except Exception as error:  # a damaged file makes Pillow's readers raise almost anything
        return Picture(name, label, None, str(error) or type(error).__name__)
    return Picture(name, label, pixels)
