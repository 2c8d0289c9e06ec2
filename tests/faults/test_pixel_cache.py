"""Decoded images kept on disk: damage is noticed and mended, and nothing of somebody else's is believed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from adagauss.data import files
from adagauss.data.dataset import ReadOptions, load_dataset
from adagauss.data.decode import decode_image
from adagauss.data.files import FileImages
from adagauss.errors import ConfigError


@pytest.fixture
def paths(tmp_path: Path, write_image: Any) -> list[Path]:
    return [write_image(tmp_path / f"{number}.png", seed=number) for number in range(5)]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def pixels(paths: list[Path], cache: Path, **options: Any) -> torch.Tensor:
    images = FileImages(paths, 6, cache_dir=cache, **options)
    return images.batch(torch.arange(len(images)))


def stored(cache: Path) -> Path:
    (file,) = cache.glob("*.pixels.safetensors")
    return file


class CountedDecoding:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(files, "decode_image", self)

    def __call__(self, *given: Any) -> Any:
        self.count += 1
        return decode_image(*given)


def test_zeroed_pixels_are_noticed_and_made_anew(
    paths: list[Path], cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = pixels(paths, cache)
    content = stored(cache).read_bytes()
    stored(cache).write_bytes(content[:-300] + bytes(300))
    decoding = CountedDecoding(monkeypatch)
    assert torch.equal(pixels(paths, cache), sound)
    assert decoding.count == 5
    assert "ignored a damaged cache" in caplog.text
    assert stored(cache).read_bytes() == content
    assert torch.equal(pixels(paths, cache), sound)
    assert decoding.count == 5


def test_every_damaged_byte_is_noticed(paths: list[Path], cache: Path) -> None:
    sound = pixels(paths, cache)
    content = stored(cache).read_bytes()
    for position in range(0, len(content), 11):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        stored(cache).write_bytes(damaged)
        assert torch.equal(pixels(paths, cache), sound)
        assert stored(cache).read_bytes() == content


def test_a_file_replaced_with_its_size_and_time_kept_is_decoded_again(
    paths: list[Path], cache: Path, tmp_path: Path, write_image: Any
) -> None:
    before = pixels(paths, cache)
    state = paths[2].stat()
    replacement = write_image(tmp_path / "replacement.png", seed=99).read_bytes()
    assert len(replacement) == state.st_size, "another size would be noticed by itself"
    paths[2].write_bytes(replacement)
    os.utime(paths[2], ns=(state.st_atime_ns, state.st_mtime_ns))
    same = (pixels(paths, cache) == before).flatten(1).all(1)
    assert same.tolist() == [True, True, False, True, True]


def test_pixels_of_other_files_under_this_name_are_refused(paths: list[Path], cache: Path, tmp_path: Path) -> None:
    sound = pixels(paths[:4], cache)
    pixels(paths[1:], tmp_path / "other")
    stored(cache).write_bytes(stored(tmp_path / "other").read_bytes())
    assert torch.equal(pixels(paths[:4], cache), sound)


def test_what_somebody_else_put_there_is_not_read(
    paths: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels(paths, cache)
    decoding = CountedDecoding(monkeypatch)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    os.chown(stored(cache), 23456, -1) if os.geteuid() == 0 else pytest.skip("files can be given away by root only")
    pixels(paths, cache)
    assert decoding.count == 5


def test_pixels_are_forced_to_disk(paths: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[int] = []
    monkeypatch.setattr(os, "fsync", forced.append)
    pixels(paths, cache)
    assert len(forced) >= 4  # two files, and the folder after each


@pytest.mark.parametrize("by", ["option", "environment"])
def test_the_cache_can_be_switched_off(
    tmp_path: Path, write_image: Any, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    for label in ("ant", "bee"):
        for number in range(2):
            write_image(tmp_path / "images" / label / f"{number}.png", seed=number)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ADAGAUSS_CACHE", "off" if by == "environment" else "on")
    for cache_dir in (None, tmp_path / "given"):
        options = ReadOptions(root=tmp_path, size=8, cache_dir=cache_dir, keep_decoded=by == "environment")
        load_dataset(f"folder:{tmp_path / 'images'}", options)
    assert [path.name for path in tmp_path.iterdir()] == ["images"]
    load_dataset(f"folder:{tmp_path / 'images'}", ReadOptions(root=tmp_path, size=8, keep_decoded=by == "option"))
    assert (tmp_path / ".cache").exists() == (by == "option")


def test_another_word_for_the_switch_is_an_error(
    tmp_path: Path, write_image: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for label in ("ant", "bee"):
        for number in range(2):
            write_image(tmp_path / label / f"{number}.png", seed=number)
    monkeypatch.setenv("ADAGAUSS_CACHE", "never")
    with pytest.raises(ConfigError, match="ADAGAUSS_CACHE is on or off"):
        load_dataset(f"folder:{tmp_path}", ReadOptions(root=tmp_path, size=8))
