"""Decode one image file of any mode into uint8 pixels of a given size."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, TiffImagePlugin, UnidentifiedImageError

from adagauss.errors import ConfigError, DataError
from adagauss.utils.files import IrregularFileError, open_regular

Pixels = npt.NDArray[np.uint8]
Size = int | tuple[int, int]
"""Side of a square, or height and width."""
ResizeMode = Literal["crop", "stretch", "pad"]
LONGEST = 8
"""Longer side of images that keep their proportions, in units of the requested size."""
PADDING = 128
"""Grey level of the borders with ``pad``."""

READS_HEIC = find_spec("pillow_heif") is not None
"""Whether the extra `heic` is installed."""
if READS_HEIC:
    import_module("pillow_heif").register_heif_opener(thumbnails=False)
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM", *(["HEIF"] if READS_HEIC else []))
"""The only formats that are opened: Pillow knows others, some of which start programs (EPS starts Ghostscript)."""
MAX_PIXELS = 2**26
"""Limit for an image file before resizing: decoding takes up to twelve bytes per pixel, and a PNG of 20 kB can hold 170
million pixels."""
BAND = 2**20
"""Pixels that are converted to another mode at a time, where that takes more memory than the result."""
MAX_TILE = 4096
"""Largest side in pixels of a tile of a TIFF, even if the image is smaller."""
MAX_PIXELS_VARIABLE = "ADAGAUSS_MAX_PIXELS"
MAX_SCANS = 100
"""Limit for the scans of a JPEG. Each one takes time for all pixels; encoders write about ten."""
MAX_SCANNED_PIXELS = 2**30
"""Limit for scans × pixels of a JPEG with more than `USUAL_SCANS`."""
USUAL_SCANS = 16
CHEAP_FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
CHEAP_PIXELS = 2**24
"""Scans × pixels that decode in less than a second. Images with more, or of other formats, are decoded in a child
process, which the system ends after its CPU time."""
CHEAP_BYTES = 2**20
"""Larger files go to the child process too: Pillow holds the GIL for 0.4 s per megabyte of tiny chunks."""
DECODING_SECONDS = 30.0
"""CPU time for one image of at most `MAX_PIXELS`; the largest usual ones take a third of it."""
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
    source: Path | bytes | bytearray,
    size: Size,
    channels: int = 3,
    mode: ResizeMode | None = "crop",
    seconds: float | None = None,
) -> Pixels:
    """Decode a file, or its content, to ``(channels, height, width)``: upright, and resized by `fitted`.

    With ``mode=None`` it keeps its proportions, and its shorter side becomes that of ``size``, or stays smaller.

    Transparent parts become white. Sixteen-bit grey is scaled to eight bits. The EXIF orientation is applied, so
    that a photograph is the same image however it was stored. Only the first of several frames is read.

    Raises:
        DataError: it exceeds a limit, or takes more than ``seconds`` (default `DECODING_SECONDS`) of CPU time.
    """
    if (source.stat().st_size if isinstance(source, Path) else len(source)) <= CHEAP_BYTES:
        with _opened(source) as image:
            if image.format in CHEAP_FORMATS and image.width * image.height * _checked_scans(image) <= CHEAP_PIXELS:
                return _decoded(image, size, channels, mode)
    return _decode_in_child(source, size, channels, mode, DECODING_SECONDS if seconds is None else seconds)


def _decoded(image: Image.Image, size: Size, channels: int, mode: ResizeMode | None) -> Pixels:
    height, width = (size, size) if isinstance(size, int) else size
    # Large JPEGs are read at a reduced scale, never below twice the wanted size, so that the antialiased resize below
    # still determines the result. It reduces the size but not the time of a scan.
    image.draft(None, (2 * width, 2 * height))
    picture = upright(image, channels)
    if mode is not None:
        return fitted(picture, height, width, mode)
    side = min(height, width)
    scale = max(1.0, min(picture.size) / side, max(picture.size) / (LONGEST * side))
    height, width = (max(1, round(side / scale)) for side in (picture.height, picture.width))
    return fitted(picture, height, width, "stretch")


def upright(image: Image.Image, channels: int = 3) -> Image.Image:
    """Convert an opened image to mode L or RGB, rotated by its EXIF orientation, transparent parts white."""
    _checked_scans(image)
    image.load()
    try:
        turn = _TURNS.get(int(image.getexif().get(ExifTags.Base.Orientation, 1)))
    except Exception:  # the EXIF data may be damaged in any way while the pixels are valid
        turn = None
    mode = "L" if channels == 1 else "RGB"
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        picture = _from_deep_grey(image).convert(mode)
    elif {"A", "a"} & set(image.getbands()) or "transparency" in image.info:
        picture = _on_white(image, mode)
    else:
        picture = image if image.mode == mode else image.convert(mode)
    return picture if turn is None else picture.transpose(turn)


def fitted(picture: Image.Image, height: int, width: int, mode: ResizeMode = "crop") -> Pixels:
    """Resize a picture to ``(channels, height, width)``.

    Where the proportions differ, ``crop`` takes the largest centred part with these proportions, ``stretch`` takes the
    whole picture and changes its proportions, and ``pad`` fits the whole picture in and fills the borders with grey.
    """
    across, down = picture.size
    resample = Image.Resampling.BILINEAR
    if mode == "pad":
        wide = across * height >= down * width
        inner_width = width if wide else max(1, across * height // down)
        inner = picture.resize((inner_width, max(1, down * width // across) if wide else height), resample)
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


def as_picture(pixels: Pixels) -> Image.Image:
    """Convert ``(C, H, W)`` to a picture, in mode L or RGB."""
    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def image_size(path: Path) -> tuple[int, int]:
    """Read width and height from the header; raises if it is not the header of a readable image."""
    with _opened(path) as image:
        return image.size


def pixel_limit() -> int:
    """Return the limit for the pixels of an image file: from the environment, or `MAX_PIXELS`."""
    text = os.environ.get(MAX_PIXELS_VARIABLE, "")
    if not text:
        return MAX_PIXELS
    if not text.isdecimal() or not 1 <= len(text) <= 15 or int(text) < 1:
        raise ConfigError(f"the limit of pixels ({MAX_PIXELS_VARIABLE}) must be a whole number; got {text[:50]!r}")
    return int(text)


@contextmanager
def _opened(source: Path | bytes | bytearray) -> Iterator[Image.Image]:
    limit = pixel_limit()
    try:
        stream = open_regular(source) if isinstance(source, Path) else BytesIO(source)
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
        if tag in tags and not tags[tag] <= max(side + 15, MAX_TILE):  # a tile may end after the image
            raise DataError(f"its tiles are larger than the image ({tags[tag]} and {side} pixels): it is damaged")


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


def _checked_scans(image: Image.Image) -> int:
    """Return the number of scans of a JPEG that is not loaded yet, else 1; raise if there are too many."""
    file = getattr(image, "fp", None)
    if file is None or image.format not in ("JPEG", "MPO"):
        return 1
    position, scans, last = file.tell(), 0, b""
    file.seek(0)
    while chunk := file.read(2**20):
        scans += (last + chunk).count(_START_OF_SCAN)  # cannot occur in the coded data of a scan
        last = chunk[-1:]
    file.seek(position)
    if scans > MAX_SCANS or (scans > USUAL_SCANS and scans * image.width * image.height > MAX_SCANNED_PIXELS):
        raise DataError(f"it has {scans} scans, too many for its size: save it again as a usual JPEG")
    return scans


_idle: list[subprocess.Popen[bytes]] = []
"""Child processes that wait for an image: at most one for each thread that has decoded."""
os.register_at_fork(after_in_child=_idle.clear)


def _decode_in_child(
    source: Path | bytes | bytearray, size: Size, channels: int, mode: ResizeMode | None, seconds: float
) -> Pixels:
    path, content = (str(source.absolute()), b"") if isinstance(source, Path) else (None, bytes(source))
    seconds *= max(1.0, pixel_limit() / MAX_PIXELS)
    limits = (pixel_limit(), Image.MAX_IMAGE_PIXELS, seconds)
    child = _waiting_child()
    watch = threading.Timer(10 * seconds, child.kill)  # for a child that waits instead of computing
    watch.start()
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps([path, len(content), size, channels, mode, limits]).encode() + b"\n" + content)
        child.stdin.flush()
        height, width, length = struct.unpack("<III", child.stdout.read(12))
        answer = child.stdout.read(length)
        if len(answer) != length:
            raise EOFError
    except BaseException as error:  # after Ctrl-C as well, the pipes hold a part of an answer
        child.kill()
        child.communicate()
        if not isinstance(error, OSError | EOFError | struct.error):
            raise
        raise DataError(
            f"decoding fails or takes more than {seconds:g} s of CPU time: resize it, or save it again"
        ) from None
    finally:
        watch.cancel()
    _idle.append(child)
    if not height:
        raise DataError(answer.decode("utf-8"))
    return np.frombuffer(answer, np.uint8).reshape(channels, height, width).copy()


def _waiting_child() -> subprocess.Popen[bytes]:
    with suppress(IndexError):
        while True:
            if (child := _idle.pop()).poll() is None:
                return child
    # It runs this module in its own session, where Ctrl-C does not reach it.
    places = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, "-P", "-c", "from adagauss.data.decode import _serve; _serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": places},
    )


def _serve() -> None:
    """Run the child process: decode the images that are requested on standard input, until it is closed."""
    timer = getattr(signal, "setitimer", None)  # missing on Windows, where only the parent's limit applies
    while line := sys.stdin.buffer.readline():
        path, length, size, channels, mode, (limit, pillow_limit, seconds) = json.loads(line)
        content = sys.stdin.buffer.read(length)
        os.environ[MAX_PIXELS_VARIABLE], Image.MAX_IMAGE_PIXELS = str(limit), pillow_limit
        if timer is not None:
            timer(signal.ITIMER_PROF, seconds)
        try:
            with _opened(content if path is None else Path(path)) as image:
                pixels = _decoded(image, size, channels, mode)
            height, width, answer = *pixels.shape[1:], pixels.tobytes()
        except Exception as error:  # Pillow's decoders raise many exception types for damaged files
            height, width, answer = 0, 0, (str(error) or type(error).__name__).encode("utf-8", "replace")
        if timer is not None:
            timer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(struct.pack("<III", height, width, len(answer)) + answer)
        sys.stdout.buffer.flush()
