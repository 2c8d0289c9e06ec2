"""Stream uploaded images and decode them in threads. No image is written to disk.

Starlette would spool large files to disk until the request ends. Here each image is decoded as soon as it is complete,
so only one encoded image per request is being received.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header
from starlette.requests import Request

from adagauss.data.decode import Pixels, decode_image
from adagauss.deploy.serve.model import PictureShape
from adagauss.deploy.serve.security import ApiError, Limits, Quota, client_address

TEXT_BYTES = 4096
"""Maximum size of a text field."""
SHOWN_NAME = 200
"""Maximum length of a file name in a response. File names are used for nothing else."""
PARSER = {"MAX_MEMORY_FILE_SIZE": float("inf"), "UPLOAD_ERROR_ON_BAD_CTE": True}
"""Settings of the parser: files stay in memory, and unknown encodings are refused."""
THREADS = 2
"""A few threads bound the memory for large pictures."""


async def parts_of(request: Request, limits: Limits, take: Callable[[int], None]) -> AsyncIterator[Field | File]:
    """Yield the parts of a form, or the single picture that is the body. ``take`` counts the received bytes."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    is_form = kind == b"multipart/form-data"
    if not is_form and not kind.startswith(b"image/") and kind != b"application/octet-stream":
        raise ApiError(
            415, "unsupported content type: send multipart/form-data, or one picture as the body (image/jpeg)"
        )
    if is_form and not options.get(b"boundary"):
        raise ApiError(400, "the content type of the form has no boundary")
    complete: deque[Field | File] = deque()
    ends: list[bool] = []
    counts: Counter[type] = Counter()
    received = 0
    try:
        parser = FormParser(
            "multipart/form-data" if is_form else "application/octet-stream",
            on_field=complete.append,
            on_file=complete.append,
            on_end=lambda: ends.append(True),
            boundary=options.get(b"boundary"),
            file_name=b"picture",
            config=PARSER,
        )
        async for chunk in request.stream():
            take(len(chunk))
            received += len(chunk)
            if chunk:
                parser.write(chunk)
            elif is_form or received:  # the last chunk; an empty body has no picture
                parser.finalize()
            while complete:
                part = complete.popleft()
                counts[type(part)] += 1
                if counts[type(part)] > limits.pictures:
                    raise ApiError(413, f"a request may have at most {limits.pictures} pictures: send several requests")
                if isinstance(part, File) and part.size > limits.picture:
                    name = text_of(part.file_name)[:SHOWN_NAME]
                    raise ApiError(413, f"{name} is larger than {limits.picture // 2**20} MB")
                if isinstance(part, Field) and len(part.value or b"") > TEXT_BYTES:
                    raise ApiError(413, f"the field {text_of(part.field_name)[:50]!r} is too long")
                yield part
    except FormParserError as error:
        raise ApiError(400, f"the form cannot be read: {error}") from None
    if is_form and not ends:
        raise ApiError(400, "the form ends before its closing boundary: send it again")


def text_of(content: bytes | None) -> str:
    """Decode a text of a form; bytes that are not UTF-8 are replaced."""
    return (content or b"").decode("utf-8", "replace")


@dataclass(frozen=True)
class Picture:
    """An uploaded picture: file name, the label before it in the form, and the pixels or the decoding error."""

    name: str
    label: str
    pixels: Pixels | None
    problem: str = ""


class Decoder:
    """Decodes pictures in a few threads, with a limit of CPU time for each."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._memory = Quota(limits.received, "the server is receiving too many pictures")
        self._shares = Quota(limits.address_received, "too many unfinished pictures from this address", status=429)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="decode")

    async def pictures(self, request: Request, shape: PictureShape) -> AsyncIterator[Picture]:
        """Yield the pictures of a request in order, each with the last label before it.

        Decoding overlaps with receiving; at most one picture per thread and one more are pending.
        """
        label, waiting = "", deque[tuple[int, asyncio.Future[Picture]]]()
        loop = asyncio.get_running_loop()
        with self._memory.use() as of_all, self._shares.use(client_address(request.scope)) as of_client:

            def take(size: int) -> None:
                of_client(size)
                of_all(size)

            async def decoded() -> Picture:
                encoded, future = waiting.popleft()
                picture = await future
                take(-encoded)
                take(0 if picture.pixels is None else picture.pixels.nbytes)
                return picture

            try:
                async for part in parts_of(request, self._limits, take):
                    if isinstance(part, File):
                        future = loop.run_in_executor(self._pool, self._decoded, part, label, shape)
                        waiting.append((part.size, future))
                    elif part.field_name == b"label":
                        label = text_of(part.value)
                    else:
                        name = text_of(part.field_name)[:50]
                        raise ApiError(422, f"unknown field {name!r}: a form has the fields label and pictures")
                    while len(waiting) > THREADS:
                        yield await decoded()
                while waiting:
                    yield await decoded()
            finally:
                for _, future in waiting:
                    future.cancel()

    def close(self) -> None:
        """Shut down the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _decoded(self, file: File, label: str, shape: PictureShape) -> Picture:
        name = text_of(file.file_name)[:SHOWN_NAME] or "picture"
        size, channels, mode = shape
        file.file_object.seek(0)
        content = file.file_object.read()
        try:
            pixels = decode_image(content, size, channels, mode, self._limits.decoding)
        except Exception as error:  # Pillow's decoders raise many exception types for damaged files
            return Picture(name, label, None, str(error) or type(error).__name__)
        return Picture(name, label, pixels)
