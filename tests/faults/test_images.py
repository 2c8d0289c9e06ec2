"""Image files made to do harm, and photographs as cameras store them."""

from __future__ import annotations

import os
import socket
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import EpsImagePlugin, ExifTags, Image, ImageFile

from adagauss.data import decode
from adagauss.data.dataset import ReadOptions, load_dataset
from adagauss.data.decode import FORMATS, MAX_PIXELS, decode_image, pixel_limit
from adagauss.data.folders import IMAGE_SUFFIXES, FileImages, images_in, read_table, require
from adagauss.errors import ConfigError, DataError
from tests.faults.budget import budget

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\n(x) run\n%%EOF\n"
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""How a camera held in each way stores an upright scene."""


def scene(width: int = 36, height: int = 24) -> Image.Image:
    """An upright picture that no turn and no mirror leaves as it is, even and odd where it is cropped."""
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[: height // 2, : width // 2] = (250, 20, 20)
    pixels[: height // 2, width // 2 :] = (20, 250, 20)
    pixels[height // 2 :, : width // 2] = (20, 20, 250)
    return Image.fromarray(pixels)


def stored(path: Path, orientation: int, picture: Image.Image, **options: Any) -> Path:
    turn = STORED[orientation]
    notes = Image.Exif()
    notes[ExifTags.Base.Orientation] = orientation
    (picture if turn is None else picture.transpose(turn)).save(path, exif=notes, **options)
    return path


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("png", {}),
        ("jpg", {"quality": 100, "subsampling": 0}),
        ("webp", {"lossless": True}),
        ("tif", {}),
        ("tiff", {"compression": "tiff_lzw"}),
    ],
)
def test_photographs_are_upright_however_they_were_stored(
    tmp_path: Path, suffix: str, options: dict[str, Any], orientation: int
) -> None:
    expected = decode_image(stored(tmp_path / "upright.png", 1, scene()), 12).astype(int)
    path = stored(tmp_path / f"photo.{suffix}", orientation, scene(), **options)
    assert np.abs(decode_image(path, 12).astype(int) - expected).max() <= (6 if suffix == "jpg" else 0)


@pytest.mark.parametrize("orientation", [3, 6])
def test_photographs_in_memory_and_decoded_on_demand_are_the_same(tmp_path: Path, orientation: int) -> None:
    large = scene(900, 600)  # read at a reduced scale
    upright = decode_image(stored(tmp_path / "upright.jpg", 1, large), 12)
    photo = stored(tmp_path / "photo.jpg", orientation, large)
    ways = [FileImages([photo], 12), FileImages([photo], 12, cache_bytes=0)]
    found = [images.batch(torch.tensor([0]))[0] for images in ways]
    assert all(torch.equal(pixels, found[0]) for pixels in found)
    assert np.abs(found[0].numpy().astype(int) - upright.astype(int)).max() <= 12


def test_damaged_camera_notes_leave_the_picture_as_it_is(tmp_path: Path) -> None:
    scene().save(tmp_path / "plain.png")
    for notes in (
        b"Exif\0\0",
        b"Exif\0\0MM\0*\0\0\0\xff",
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\xff\xff\xff\xff\0\0",
    ):
        scene().save(tmp_path / "noted.png", exif=notes)
        assert np.array_equal(decode_image(tmp_path / "noted.png", 12), decode_image(tmp_path / "plain.png", 12))


def test_a_stereo_photograph_is_read_as_its_first_picture(tmp_path: Path) -> None:
    scene().save(tmp_path / "stereo.jpg", format="MPO", save_all=True, append_images=[scene(24, 36)], quality=100)
    scene().save(tmp_path / "plain.jpg", quality=100)
    assert np.array_equal(decode_image(tmp_path / "stereo.jpg", 12), decode_image(tmp_path / "plain.jpg", 12))


@pytest.mark.parametrize("suffix", sorted(IMAGE_SUFFIXES))
def test_every_listed_suffix_is_of_a_format_that_is_read(tmp_path: Path, suffix: str) -> None:
    scene().convert("L" if suffix == ".pgm" else "RGB").save(tmp_path / f"image{suffix}")
    assert Image.registered_extensions()[suffix] in FORMATS
    decode_image(tmp_path / f"image{suffix}", 8)


@pytest.mark.parametrize("room", [0, 2**20])
def test_postscript_called_a_photograph_starts_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    started: list[object] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given, **named: started.append(given))
    (tmp_path / "photo.jpg").write_bytes(EPS)
    with Image.open(tmp_path / "photo.jpg") as image:
        assert image.format == "EPS", "this is not the file that Pillow would give to Ghostscript"
    with pytest.raises(DataError, match="not an image in one of the formats JPEG, PNG"):
        FileImages([tmp_path / "photo.jpg"], 8, cache_bytes=room)
    assert started == []


def empty_png(path: Path, side: int) -> Path:
    """A black PNG of a few kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(side // 8 + 2)) for _ in range(side)) + packer.flush()
    start = chunk(b"IHDR", side.to_bytes(4, "big") * 2 + b"\x01\0\0\0\0")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + start + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    return path


@pytest.mark.parametrize("room", [0, 2**20])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("side", "reason"), [(13_000, "it has 169000000 pixels"), (20_000, "it has more than 178956970 pixels")]
)
def test_a_small_file_of_very_many_pixels_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, side: int, reason: str
) -> None:
    path = empty_png(tmp_path / "bomb.png", side)
    assert path.stat().st_size < 100_000

    def load(image: ImageFile.ImageFile) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    with pytest.raises(DataError, match=rf"bomb\.png \({reason}.*resize it"):
        FileImages([path], 8, cache_bytes=room)


def test_the_limit_of_pixels_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_image: Any) -> None:
    path = write_image(tmp_path / "a.png", size=(30, 20))
    assert pixel_limit() == MAX_PIXELS
    monkeypatch.setenv("ADAGAUSS_MAX_PIXELS", "599")
    with pytest.raises(
        DataError, match=r"it has 600 pixels, and at most 599 are .*ADAGAUSS_MAX_PIXELS=600 in the environment"
    ):
        FileImages([path], 8)
    monkeypatch.setenv("ADAGAUSS_MAX_PIXELS", "600")  # as the sentence said
    assert len(FileImages([path], 8)) == 1
    for wrong in ("many", "-1", "0", "1e9"):
        monkeypatch.setenv("ADAGAUSS_MAX_PIXELS", wrong)
        with pytest.raises(ConfigError, match="whole number"):
            FileImages([path], 8)


def test_images_skipped_for_their_size_are_back_when_the_limit_is_raised(
    tmp_path: Path, write_image: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write_image(tmp_path / f"{side}.png", size=(side, side)) for side in (10, 20)]
    for limit, kept in ((100, [0]), (400, [0, 1])):
        monkeypatch.setenv("ADAGAUSS_MAX_PIXELS", str(limit))
        for room in (0, 2**20):
            images = FileImages(paths, 8, skip_bad=True, cache_bytes=room)
            assert images.kept.tolist() == kept


def irregular_files(folder: Path) -> list[Path]:
    os.mkfifo(folder / "pipe.png")
    (folder / "device.png").symlink_to("/dev/zero")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket.png"))
    listener.close()
    return [folder / "pipe.png", folder / "device.png", folder / "socket.png"]


def test_pipes_devices_and_sockets_are_refused_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket may be short only
    for path in irregular_files(Path()):
        for room in (0, 2**20):
            with pytest.raises(DataError, match="it is not a regular file"):
                FileImages([path], 8, cache_bytes=room)
        with pytest.raises(DataError, match="neither a file nor a folder"):
            require(path)
        with pytest.raises(DataError, match=r"regular file|neither a file"):
            read_table(path)


def test_a_pipe_among_the_images_of_a_class_is_not_passed_over(tmp_path: Path, write_image: Any) -> None:
    for label in ("ant", "bee"):
        for number in range(3):
            write_image(tmp_path / label / f"{number}.png", seed=number)
    os.mkfifo(tmp_path / "ant" / "pipe.png")
    assert tmp_path / "ant" / "pipe.png" in images_in(tmp_path / "ant")
    options = ReadOptions(root=tmp_path / "none", size=8)
    with pytest.raises(DataError, match=r"1 of \d images cannot be decoded: .*pipe\.png \(it is not a regular file"):
        load_dataset(f"folder:{tmp_path}", options)


def test_tables_that_are_not_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_bytes(b"1 caf\xe9\n")
    with pytest.raises(DataError, match=r"classes\.txt cannot be read"):
        read_table(tmp_path / "classes.txt")


@budget(150)
@given(data=st.data())
def test_damaged_images_are_pixels_or_an_error(tmp_path: Path, data: st.DataObject) -> None:
    suffix = data.draw(st.sampled_from(["png", "jpg", "webp", "gif", "bmp", "tif", "ppm"]))
    path = tmp_path / f"image.{suffix}"
    scene().save(path)
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        damaged[data.draw(st.integers(0, min(200, len(damaged)) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged[: data.draw(st.sampled_from([len(damaged), len(damaged) // 2]))])
    try:
        images = FileImages([path], 8)
    except DataError:
        return
    assert images.batch(torch.tensor([0])).shape == (1, 3, 8, 8)


def tiled_tiff(side: int, tile: int) -> bytes:
    """A grey TIFF with one compressed tile, which begins after the header."""
    content = zlib.compress(bytes(1000))
    tags = [(256, side), (257, side), (258, 8), (259, 8), (262, 1), (277, 1), (322, tile), (323, tile), (324, 8)]
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in [*tags, (325, len(content))]]
    directory = struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + len(content)) + content + directory


def test_a_tile_far_larger_than_its_image_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a.tif").write_bytes(tiled_tiff(16, 32752))
    with pytest.raises(DataError, match="tiles are larger than the image"):
        decode_image(tmp_path / "a.tif", 8)


def test_sixteen_bit_grey_takes_few_bytes_per_pixel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = 700
    levels = np.arange(side * side, dtype=np.uint16).reshape(side, side)
    Image.fromarray(levels).save(tmp_path / "a.png")
    whole = decode_image(tmp_path / "a.png", 32, 1)
    monkeypatch.setattr(decode, "BAND", 2**12)
    tracemalloc.start()
    try:
        assert np.array_equal(decode_image(tmp_path / "a.png", 32, 1), whole)
        assert tracemalloc.get_traced_memory()[1] < 8 * side * side
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L"])
@pytest.mark.parametrize("channels", [1, 3])
def test_transparent_parts_are_put_on_white_band_by_band(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, channels: int
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (61, 47, 4), dtype=np.uint8)
    picture = Image.fromarray(noise).convert(mode)
    settings: dict[str, Any] = {"transparency": 5} if mode in ("P", "L") else {}
    picture.save(tmp_path / "a.png", **settings)
    with Image.open(tmp_path / "a.png") as image:
        layer = image.convert("RGBA")
        paper = Image.new("RGBA", layer.size, "white")
        whole = Image.alpha_composite(paper, layer).convert("L" if channels == 1 else "RGB")
    monkeypatch.setattr(decode, "BAND", 7 * 47)
    with Image.open(tmp_path / "a.png") as image:
        assert np.array_equal(np.asarray(decode.upright(image, channels)), np.asarray(whole))
