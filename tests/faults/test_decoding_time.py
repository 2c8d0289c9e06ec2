"""Images that take long are decoded in a child process that the system ends; everything that reads images does so."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from adagauss import IncrementalClassifier
from adagauss.analytic.batches import sample_images
from adagauss.data import decode
from adagauss.data.decode import decode_image
from adagauss.data.folders import FileImages
from adagauss.data.shards import Shard
from adagauss.errors import DataError
from tests.shards.conftest import packed


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The processes that decode: those that wait now, and later ones of this test."""
    own: list[object] = []
    monkeypatch.setattr(decode, "_idle", own)
    return own


def stored(kind: str, width: int = 40, height: int = 30, **options: bool) -> bytes:
    picture = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(noise).save(picture, kind, **options)
    return picture.getvalue()


@pytest.mark.parametrize("kind", ["PPM", "TIFF", "BMP"])
@pytest.mark.parametrize(("size", "mode"), [(16, "crop"), ((8, 16), "pad"), (16, None)])
def test_decoding_in_a_child_process_equals_decoding_here(
    children: list[object], tmp_path: Path, kind: str, size: decode.Size, mode: decode.ResizeMode | None
) -> None:
    (tmp_path / "a").write_bytes(stored(kind))
    expected = decode_image(stored("PNG"), size, mode=mode)
    assert children == []
    for source in (tmp_path / "a", stored(kind), bytearray(stored(kind))):
        np.testing.assert_array_equal(decode_image(source, size, mode=mode), expected)
    assert len(children) == 1


def test_an_error_in_the_child_process_is_that_of_the_image(children: list[object]) -> None:
    content = stored("PPM")
    with pytest.raises(DataError, match="truncated"):
        decode_image(content[: len(content) // 2], 16)
    assert len(children) == 1
    assert decode_image(content, 16).shape == (3, 16, 16)


def test_a_child_process_that_has_died_is_replaced(children: list[object]) -> None:
    first = decode_image(stored("PPM"), 16)
    (child,) = decode._idle
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    np.testing.assert_array_equal(decode_image(stored("PPM"), 16), first)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shard with a picture that takes more than 20 ms of CPU time, and a folder of it."""
    folder = tmp_path_factory.mktemp("slow")
    content = stored("JPEG", 2500, 2500, progressive=True)
    (folder / "ant").mkdir()
    (folder / "ant" / "slow.jpg").write_bytes(content)
    packed(folder / "slow.tar", [("a.jpg", content), ("a.cls", b"ant")])
    return folder


READERS: dict[str, Callable[[Path], object]] = {
    "file": lambda folder: FileImages([folder / "ant" / "slow.jpg"], 8),
    "on demand": lambda folder: FileImages([folder / "ant" / "slow.jpg"], 8, cache_bytes=0).batch(torch.arange(1)),
    "teach": lambda folder: IncrementalClassifier("exact").fit(folder),
    "shard": lambda folder: sample_images([Shard(folder / "slow.tar", "tar")]),
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_stops_an_image_that_takes_too_long(
    children: list[object], monkeypatch: pytest.MonkeyPatch, slow: Path, reader: str
) -> None:
    monkeypatch.setattr(decode, "DECODING_SECONDS", 0.02)
    with pytest.raises(DataError, match=r"decoding fails or takes more than 0\.02 s of CPU time"):
        READERS[reader](slow)
    assert children == []


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
def test_usual_photographs_need_no_child_process(children: list[object], kind: str) -> None:
    assert decode_image(stored(kind, 320, 240), 16).shape == (3, 16, 16)
    assert children == []
