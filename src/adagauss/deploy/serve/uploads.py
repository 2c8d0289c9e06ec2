"""Stream uploaded images and decode them in threads. No image is written to disk.

Starlette would spool large files to disk until the request ends. Here each image is decoded as soon as it is complete,
so only one encoded image per request is being received.
"""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from adagauss.data.decode import DecodingProcess, Pixels, ResizeMode, decode_image, is_cheap
from adagauss.deploy.serve.security import ApiError, Limits

TEXT_BYTES = 4096
SHOWN_NAME = 200
"""Maximum length of a file name in a response. File names are used for nothing else."""


@dataclass
class Part:
    """A form field or a file."""

    key: str = ""
    filename: str | None = None
    content: bytearray = field(default_factory=bytearray)

    @property
    def text(self) -> str:
        """Content of a text field."""
        try:
            return self.content.decode("utf-8")
        except UnicodeDecodeError:
            raise ApiError(422, f"the field {self.key!r} is not UTF-8 text") from None


class Budget:
    """Bytes of pictures in memory, encoded and decoded, of all unfinished requests."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0

    def take(self, size: int) -> None:
        """Add bytes, or raise if there are too many."""
        if self._used + size > self._limit:
            raise ApiError(503, "the server is receiving too many pictures: try again later", 5.0)
        self._used += size

    def give_back(self, size: int) -> None:
        """Remove bytes that were taken."""
        self._used -= size


async def parts_of(request: Request, limits: Limits, take: Callable[[int], None]) -> AsyncIterator[Part]:
    """Yield the parts of a form, or the single picture that is the body. ``take`` counts the received bytes."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind == b"multipart/form-data":
        form = _Form(options.get(b"boundary", b""), limits)
        async for chunk in request.stream():
            take(len(chunk))
            for part in form.received(chunk):
                yield part
        form.require_end()
    elif kind.startswith(b"image/") or kind == b"application/octet-stream":
        part = Part("pictures", "picture")
        async for chunk in request.stream():
            take(len(chunk))
            _grow(part, chunk, limits)
        yield part
    else:
        raise ApiError(
            415, "unsupported content type: send multipart/form-data, or one picture as the body (image/jpeg)"
        )


class _Form:
    """Incremental multipart parser."""

    def __init__(self, boundary: bytes, limits: Limits) -> None:
        self._limits = limits
        self._complete: list[Part] = []
        self._part = Part()
        self._name, self._value = b"", b""
        self._pictures = 0
        self._fields = 0
        self._closed = False
        if not boundary:
            raise ApiError(400, "the content type of the form has no boundary")
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._count,
                    "on_part_data": self._data,
                    "on_part_end": self._end,
                    "on_end": self._close,
                },
            )
        except FormParserError as error:
            raise ApiError(400, f"the form cannot be read: {error}") from None

    def received(self, chunk: bytes) -> list[Part]:
        """Parse a chunk and return the parts that it completes."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise ApiError(400, f"the form cannot be read: {error}") from None
        complete, self._complete = self._complete, []
        return complete

    def require_end(self) -> None:
        """Raise if the closing boundary is missing."""
        if not self._closed:
            raise ApiError(400, "the form ends before its closing boundary: send it again")

    def _close(self) -> None:
        self._closed = True

    def _begin(self) -> None:
        self._part = Part()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            options = parse_options_header(self._value)[1]
            self._part.key = options.get(b"name", b"").decode("utf-8", "replace")
            if b"filename" in options:
                self._part.filename = options[b"filename"].decode("utf-8", "replace")[:SHOWN_NAME]
        self._name, self._value = b"", b""

    def _count(self) -> None:
        if self._part.filename is None:
            self._fields += 1
        else:
            self._pictures += 1
        most = self._limits.pictures
        if self._pictures > most or self._fields > most:
            raise ApiError(413, f"a request may have at most {most} pictures: send several requests")

    def _data(self, data: bytes, start: int, end: int) -> None:
        _grow(self._part, memoryview(data)[start:end], self._limits)

    def _end(self) -> None:
        self._complete.append(self._part)


def _grow(part: Part, data: bytes | memoryview, limits: Limits) -> None:
    is_text = part.filename is None
    if len(part.content) + len(data) > (TEXT_BYTES if is_text else limits.picture):
        if is_text:
            raise ApiError(413, f"the field {part.key[:50]!r} is too long")
        raise ApiError(413, f"{part.filename} is larger than {limits.picture // 2**20} MB")
    part.content += data


@dataclass(frozen=True)
class Picture:
    """An uploaded picture: file name, the label before it in the form, and the pixels or the decoding error."""

    name: str
    label: str
    pixels: Pixels | None
    problem: str = ""


PictureShape = tuple[int, int, ResizeMode | None]
"""Size in pixels, number of channels and resize mode of pictures; with None they keep their proportions."""


class Decoder:
    """Decode in a few threads, which bounds the memory for large pictures.

    Files that may take long are decoded in child processes, one per thread, with a limit of CPU time.
    """

    def __init__(self, limits: Limits, threads: int = 2) -> None:
        self._limits = limits
        self._threads = threads
        self._budget = Budget(limits.received)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self._local = threading.local()
        self._processes: list[DecodingProcess] = []

    async def pictures(self, request: Request, shape: PictureShape) -> AsyncIterator[Picture]:
        """Yield the pictures of a request in order, each with the last label before it.

        Decoding overlaps with receiving; at most one picture per thread and one more are pending.
        """
        label, waiting, held = "", list[tuple[int, asyncio.Future[Picture]]](), 0
        loop = asyncio.get_running_loop()

        def take(size: int) -> None:
            nonlocal held
            self._budget.take(size)
            held += size

        async def decoded() -> Picture:
            nonlocal held
            encoded, future = waiting.pop(0)
            picture = await future
            self._budget.give_back(encoded)
            held -= encoded
            take(0 if picture.pixels is None else picture.pixels.nbytes)
            return picture

        try:
            async for part in parts_of(request, self._limits, take):
                if part.filename is not None:
                    future = loop.run_in_executor(self._pool, self._decoded, part, label, shape)
                    waiting.append((len(part.content), future))
                elif part.key == "label":
                    label = part.text
                else:
                    raise ApiError(422, f"unknown field {part.key[:50]!r}: a form has the fields label and pictures")
                while len(waiting) > self._threads:
                    yield await decoded()
            while waiting:
                yield await decoded()
        finally:
            for _, future in waiting:
                future.cancel()
            self._budget.give_back(held)

    def close(self) -> None:
        """Shut down the threads and processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.close()

    def _decoded(self, part: Part, label: str, shape: PictureShape) -> Picture:
        name = part.filename or "picture"
        size, channels, mode = shape
        try:
            if is_cheap(part.content):
                pixels = decode_image(io.BytesIO(part.content), size, channels, mode=mode)
            else:
                pixels = self._process().decode(part.content, size, channels, mode)
        except Exception as error:  # Pillow's decoders raise many exception types for damaged files
            return Picture(name, label, None, str(error) or type(error).__name__)
        return Picture(name, label, pixels)

    def _process(self) -> DecodingProcess:
        """Return the child process of this thread."""
        if not hasattr(self._local, "process"):
            self._local.process = DecodingProcess(self._limits.decoding)
            self._processes.append(self._local.process)
        process: DecodingProcess = self._local.process
        return process
