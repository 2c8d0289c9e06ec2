"""Decode one image file of any mode into square uint8 pixels."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, TiffImagePlugin, UnidentifiedImageError

from adagauss.errors import ConfigError, DataError
from adagauss.utils.files import IrregularFileError, open_regular

Pixels = npt.NDArray[np.uint8]
ResizeMode = Literal["crop", "stretch", "pad"]
LONGEST = 8
"""Longer side of images that keep their proportions, in units of the requested size."""
PADDING = 128
"""Grey level of the borders with ``pad``."""

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""The only formats that are opened: Pillow knows others, some of which start programs (EPS starts Ghostscript)."""
MAX_PIXELS = 2**26
"""Limit for an image file before resizing: decoding takes up to twelve bytes per pixel, and a PNG of 20 kB can hold 170
million pixels."""
BAND = 2**20
"""Pixels that are brought to another mode at a time, where that takes more memory than the result."""
LARGEST_TILE = 4096
"""Side in pixels that a tile of a TIFF may have, even where the image is smaller."""
MAX_PIXELS_VARIABLE = "ADAGAUSS_MAX_PIXELS"
MAX_SCANS = 100
"""Limit for the scans of a JPEG. Each one takes time for all pixels; encoders write about ten."""
MAX_SCANNED_PIXELS = 2**30
"""Limit for scans × pixels of a JPEG with more than `USUAL_SCANS`."""
USUAL_SCANS = 16
CHEAP_FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
CHEAP_PIXELS = 2**24
"""Scans × pixels that decode in less than a second."""
_START_OF_SCAN = b"\xff\xda"
# EXIF orientation, and the transposition that turns the picture upright.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_image(
    path: Path | BinaryIO,
    size: int,
    channels: int = 3,
    mode: ResizeMode | None = "crop",
) -> Pixels:
    """Decode an image to ``(channels, size, size)``: upright, and resized by `fitted`.

    With ``mode=None`` it keeps its proportions, and its shorter side becomes ``size`` pixels, or stays smaller.

    Transparent parts become white. Sixteen-bit grey is scaled to eight bits. The EXIF orientation is applied, so
    that a photograph is the same image however it was stored. Only the first of several frames is read. ``path``
    may also be an open binary stream.
    """
    with _opened(path) as image:
        _check_scans(image)  # before `draft`, which reduces the size but not the time of a scan
        # Large JPEGs are read at a reduced scale, never below twice the wanted size, so that the antialiased resize
        # below still determines the result.
        image.draft(None, (2 * size, 2 * size))
        picture = upright(image, channels)
        if mode is not None:
            return fitted(picture, size, size, mode)
        scale = max(1.0, min(picture.size) / size, max(picture.size) / (LONGEST * size))
        height, width = (max(1, round(side / scale)) for side in (picture.height, picture.width))
        return fitted(picture, height, width, "stretch")


def upright(image: Image.Image, channels: int = 3) -> Image.Image:
    """Convert an opened image to mode L or RGB, rotated by its EXIF orientation, transparent parts white."""
    _check_scans(image)
    image.load()
    try:
        turn = _TURNS.get(int(image.getexif().get(ExifTags.Base.Orientation, 1)))
    except Exception:  # the EXIF data may be damaged in any way while the pixels are valid
        turn = None
    picture = _in_mode(image, "L" if channels == 1 else "RGB")
    return picture if turn is None else picture.transpose(turn)


def fitted(picture: Image.Image, height: int, width: int, mode: ResizeMode = "crop") -> Pixels:
    """Resize a picture to ``(channels, height, width)``.

    Where the proportions differ, ``crop`` takes the largest centred part with these proportions, ``stretch`` takes the
    whole picture and changes its proportions, and ``pad`` fits the whole picture in and fills the borders with grey.
    """
    across, down = picture.size
    resample = Image.Resampling.BILINEAR
    if mode == "pad":
        inner = picture.resize(inner_size(across, down, height, width), resample)
        resized = Image.new(picture.mode, (width, height), PADDING if picture.mode == "L" else (PADDING,) * 3)
        resized.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
    else:
        if mode == "crop":
            across = max(1, min(across, picture.height * width // height))
            down = max(1, min(down, picture.width * height // width))
        left, top = (picture.width - across) // 2, (picture.height - down) // 2
        resized = picture.resize((width, height), resample, box=(left, top, left + across, top + down))
    pixels = np.asarray(resized)
    # A copy: the array from Pillow is read-only.
    return np.array(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1), order="C")


def inner_size(across: int, down: int, height: int, width: int) -> tuple[int, int]:
    """Width and height of a picture of ``across`` × ``down`` pixels that is fitted into ``height`` × ``width``."""
    if across * height >= down * width:
        return width, max(1, down * width // across)
    return max(1, across * height // down), height


def image_size(path: Path) -> tuple[int, int]:
    """Width and height, from the header; raises if it is not that of a readable image."""
    with _opened(path) as image:
        return image.size


def pixel_limit() -> int:
    """Limit for the pixels of an image file: from the environment, or `MAX_PIXELS`."""
    text = os.environ.get(MAX_PIXELS_VARIABLE, "")
    if not text:
        return MAX_PIXELS
    if not text.isdecimal() or not 1 <= len(text) <= 15 or int(text) < 1:
        raise ConfigError(f"the limit of pixels ({MAX_PIXELS_VARIABLE}) must be a whole number; got {text[:50]!r}")
    return int(text)


@contextmanager
def _opened(path: Path | BinaryIO) -> Iterator[Image.Image]:
    limit = pixel_limit()
    try:
        stream = open_regular(path) if isinstance(path, Path) else nullcontext(path)
    except IrregularFileError:
        raise DataError("it is not a regular file") from None
    with stream as file:
        try:
            image = Image.open(file, formats=FORMATS)
        except UnidentifiedImageError:
            raise DataError(f"it is not an image in one of the formats {', '.join(FORMATS)}") from None
        except Image.DecompressionBombError:
            raise DataError(
                f"it has more than {2 * (Image.MAX_IMAGE_PIXELS or 0)} pixels, the most that Pillow decodes: resize it"
            ) from None
        with image:
            pixels = image.width * image.height
            if pixels > limit:
                raise DataError(
                    f"it has {pixels} pixels, and at most {limit} are decoded: resize it, or raise the limit "
                    f"with {MAX_PIXELS_VARIABLE}={pixels} in the environment"
                )
            if image.format == "TIFF":
                _check_tiles(image)
            yield image


def _check_tiles(image: Image.Image) -> None:
    """Refuse a TIFF whose tiles are far larger than the image: memory is taken for a whole tile."""
    tags = getattr(image, "tag_v2", {})
    for tag, side in ((TiffImagePlugin.TILEWIDTH, image.width), (TiffImagePlugin.TILELENGTH, image.height)):
        if tag in tags and not tags[tag] <= max(side + 15, LARGEST_TILE):  # a tile may end after the image
            raise DataError(f"its tiles are larger than the image ({tags[tag]} and {side} pixels): it is damaged")


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _from_deep_grey(image).convert(mode)
    if {"A", "a"} & set(image.getbands()) or "transparency" in image.info:
        return _on_white(image, mode)
    return image if image.mode == mode else image.convert(mode)


def _on_white(image: Image.Image, mode: str) -> Image.Image:
    shown = Image.new(mode, image.size)
    rows = max(1, BAND // image.width)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        layer = image.crop(box).convert("RGBA")
        paper = Image.new("RGBA", layer.size, "white")
        shown.paste(Image.alpha_composite(paper, layer).convert(mode), box)
    return shown


def _from_deep_grey(image: Image.Image) -> Image.Image:
    # Pillow would clip these to 255 instead of scaling them. Older versions open 16-bit PNGs in mode "I".
    if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):
        raise ValueError(f"pixels of mode {image.mode!r} have no fixed range; save it with 8 or 16 bits")
    deep: npt.NDArray[Any] = np.asarray(image)
    shallow = np.empty(deep.size, np.uint8)
    flat = deep.reshape(-1)
    for start in range(0, flat.size, BAND):
        part = flat[start : start + BAND].astype(np.float64)
        shallow[start : start + BAND] = np.rint(part / 257).clip(0, 255)
    return Image.fromarray(shallow.reshape(deep.shape))


def _check_scans(image: Image.Image) -> None:
    scans = _scans(image)
    if scans > MAX_SCANS or (scans > USUAL_SCANS and scans * image.width * image.height > MAX_SCANNED_PIXELS):
        raise DataError(f"it has {scans} scans, too many for its size: save it again as a usual JPEG")


def _scans(image: Image.Image) -> int:
    """Return the number of scans of a JPEG that is not loaded yet, else 1."""
    file = getattr(image, "fp", None)
    if file is None or image.format not in ("JPEG", "MPO"):
        return 1
    position, found, last = file.tell(), 0, b""
    file.seek(0)
    while chunk := file.read(2**20):
        found += (last + chunk).count(_START_OF_SCAN)  # cannot occur in the coded data of a scan
        last = chunk[-1:]
    file.seek(position)
    return found


def is_cheap(content: bytes | bytearray) -> bool:
    """Whether decoding this file takes less than a second, as its header and its scans show."""
    with _opened(io.BytesIO(content)) as image:
        return image.format in CHEAP_FORMATS and image.width * image.height * _scans(image) <= CHEAP_PIXELS


class DecodingProcess:
    """Decodes images in a child process, which the system ends after some seconds of CPU time for one image."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None

    def decode(self, content: bytes | bytearray, size: int, channels: int, mode: ResizeMode | None = "crop") -> Pixels:
        """Decode an image as `decode_image` does.

        Raises:
            DataError: it cannot be decoded, or not within the time.
        """
        connection = self._started()
        try:
            connection.send((size, channels, mode))
            connection.send_bytes(content)
            answer = connection.recv_bytes() if connection.poll(10 * self._seconds) else b""
        except (EOFError, OSError):
            answer = b""
        if not answer:
            self.close()
            raise DataError(
                f"decoding fails or takes more than {self._seconds:g} s of CPU time: resize it, or save it again"
            )
        if answer[:1] == b"!":
            raise DataError(answer[1:].decode("utf-8"))
        height, width = struct.unpack_from("<II", answer, 1)
        return np.frombuffer(answer, np.uint8, offset=9).reshape(channels, height, width).copy()

    def close(self) -> None:
        """End the process, if it was started."""
        if self._process is not None and self._connection is not None:
            self._connection.close()
            self._process.kill()
            self._process.join()
        self._process = self._connection = None

    def _started(self) -> Connection:
        if self._connection is None or self._process is None or not self._process.is_alive():
            self.close()
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_decode_images, args=(theirs, self._seconds), daemon=True)
            self._process.start()
            theirs.close()
        return self._connection


def _decode_images(connection: Connection, seconds: float) -> None:
    """Decode the images of a connection until it is closed: the child process of `DecodingProcess`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    timer = getattr(signal, "setitimer", None)  # missing on Windows, where only the parent's timeout applies
    while True:
        try:
            size, channels, mode = connection.recv()
            content = connection.recv_bytes()
        except EOFError:
            return
        if timer is not None:
            timer(signal.ITIMER_PROF, seconds)
        try:
            pixels = decode_image(io.BytesIO(content), size, channels, mode)
            answer = b"=" + struct.pack("<II", *pixels.shape[1:]) + pixels.tobytes()
        except Exception as error:  # Pillow's decoders raise many exception types for damaged files
            answer = b"!" + (str(error) or type(error).__name__).encode("utf-8", "replace")
        if timer is not None:
            timer(signal.ITIMER_PROF, 0)
        connection.send_bytes(answer)
