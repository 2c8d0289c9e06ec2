from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adagauss.analytic.batches import sum_shard
from adagauss.core.learn import Learner
from adagauss.data.decode import MAX_PIXELS_VARIABLE
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.data.shards import Shard, ShardError, find_shards, label_of_files
from adagauss.errors import DataError
from adagauss.methods import make_method
from tests.shards.conftest import SETTINGS, Digits, packed, png, samples


def _read(path: Path) -> tuple[list[tuple[str, Any]], dict[str, str]]:
    bad: dict[str, str] = {}
    (shard,) = find_shards([path])
    return [(example.name, example.label) for example in shard.examples(bad)], bad


def test_samples_are_the_members_with_one_name(tmp_path: Path, digits: Digits) -> None:
    picture = png(digits[0][0])
    members = [
        ("a/0.cls", b"3\n"),
        ("a/0.png", picture),
        ("a/0.seg.png", b"no image"),
        ("a/._1.png", b"no image"),
        ("a/1.JPG", picture),
        ("a/1.json", b'{"caption": "x", "label": "wren"}'),
        ("a/2.png", picture),
        ("readme.txt", b"words"),
    ]
    found, bad = _read(packed(tmp_path / "x.tar", members))
    assert found == [("a/0", 3), ("a/1", "wren")]
    assert list(bad) == ["a/2"]
    assert "no label" in bad["a/2"]


def test_no_name_in_a_tar_reaches_the_file_system(
    tmp_path: Path, digits: Digits, prepared: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture, outside = png(digits[0][0]), tmp_path / "outside"
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    path = tmp_path / "x.tar"
    names = ["../outside/0", f"{outside}/1"]
    with_links = [
        (f"{name}.{suffix}", content) for name in names for suffix, content in (("png", picture), ("cls", b"a"))
    ]
    packed(path, with_links)
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("2.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    (shard,) = find_shards([path])
    assert sum_shard(prepared, shard)[0].images == 2
    assert not outside.exists()
    assert not list(inside.iterdir())


@pytest.mark.parametrize("where", ["header", "end", "middle of an image"])
def test_damage_anywhere_is_an_error(tmp_path: Path, digits: Digits, where: str) -> None:
    path = packed(tmp_path / "x.tar", samples(digits, range(3)))
    content = bytearray(path.read_bytes())
    if where == "header":
        content[2048 + 10] ^= 255  # of the third member
    elif where == "end":
        del content[6 * 1024 :]
    else:
        del content[2600:]
    path.write_bytes(content)
    with pytest.raises(ShardError, match=r"x\.tar cannot be read"):
        _read(path)


def test_a_header_that_claims_much_memory_is_rejected(tmp_path: Path) -> None:
    info = tarfile.TarInfo("long")
    info.type, info.size = tarfile.XHDTYPE, 2**33
    path = tmp_path / "x.tar"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(ShardError, match="a header of 8589934592 bytes"):
        _read(path)


def test_the_limit_of_pixels_holds_in_a_shard(
    tmp_path: Path, digits: Digits, prepared: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = png(np.zeros((40, 40), np.uint8))
    members = [*samples(digits, range(2)), ("x.png", large), ("x.txt", b"digit 0")]
    (shard,) = find_shards([packed(tmp_path / "x.tar", members)])
    monkeypatch.setenv(MAX_PIXELS_VARIABLE, "1000")
    with pytest.raises(ShardError, match=r"x \(it has 1600 pixels, and at most 1000 are decoded"):
        sum_shard(prepared, shard)
    part, bad = sum_shard(prepared, shard, skip_bad=True)
    assert part.images == 2
    assert list(bad) == ["x"]


def test_encoded_images_get_the_size_of_a_learner_of_oblong_images(tmp_path: Path, digits: Digits) -> None:
    pixels, labels = digits
    learner = Learner(make_method("exact", settings=SETTINGS), (1, 8, 10), (0.3,), (0.4,))
    learner.learn(LabelledImages.from_labels(ArrayImages(np.pad(pixels[:40], ((0, 0), (0, 0), (1, 1)))), labels[:40]))
    (shard,) = find_shards([packed(tmp_path / "x.tar", samples(digits, range(5)))])
    assert sum_shard(learner, shard)[0].images == 5


@pytest.mark.parametrize(
    ("files", "label"),
    [
        ({"cls": b"7"}, 7),
        ({"cls": b" wren "}, "wren"),
        ({"txt": b"7"}, "7"),
        ({"json": b"7"}, 7),
        ({"json": b'{"cls": "wren"}'}, "wren"),
    ],
)
def test_labels(files: dict[str, bytes], label: object) -> None:
    assert label_of_files(files) == label


@pytest.mark.parametrize("text", [b"{}", b"[" * 5000, b"1.5", b"true", b'"' + b"x" * 600 + b'"', b"\xff"])
def test_an_invalid_label_is_rejected(text: bytes) -> None:
    with pytest.raises(Exception, match=r"label|holds none") as caught:
        label_of_files({"json": text})
    assert isinstance(caught.value, DataError)


def test_parquet_of_hugging_face(tmp_path: Path, digits: Digits, prepared: Learner) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pixels, labels = digits
    names = sorted(set(labels))
    features = json.dumps({"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}})
    images: list[dict[str, Any]] = [{"bytes": png(pixels[row]), "path": "/etc/passwd"} for row in range(150)]
    images[3] = {"bytes": None, "path": "/etc/passwd"}
    columns = {"image": images, "label": [names.index(label) for label in labels[:150]]}
    table = arrow.table(columns).replace_schema_metadata({"huggingface": features})
    parquet.write_table(table, tmp_path / "x.parquet")
    found, bad = _read(tmp_path / "x.parquet")
    assert [label for _, label in found] == [label for row, label in enumerate(labels[:150]) if row != 3]
    assert bad == {"3": "it has no bytes, only a path, which is not opened"}
    whole = (tmp_path / "x.parquet").read_bytes()
    (tmp_path / "x.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ShardError, match=r"x\.parquet cannot be read"):
        _read(tmp_path / "x.parquet")


def test_the_order_of_images_does_not_change_the_left_out_images(
    tmp_path: Path, digits: Digits, prepared: Learner
) -> None:
    forwards = packed(tmp_path / "a.tar", samples(digits, range(60)))
    backwards = packed(tmp_path / "b.tar", samples(digits, range(59, -1, -1)))
    one, other = (sum_shard(prepared, Shard(path, "tar"))[0] for path in (forwards, backwards))
    for part in (one, other):
        part.most = 10
        part.merge_(sum_shard(prepared, Shard(packed(tmp_path / "c.tar", samples(digits, range(60, 80))), "tar"))[0])
    assert len(one.keys) == 10
    assert one.keys.tolist() == other.keys.tolist()


@pytest.mark.parametrize(
    "error", [NotImplementedError("zip version 25.5"), UnicodeDecodeError("utf-8", b"x", 0, 1, "")]
)
def test_any_error_of_a_reader_is_that_of_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, images=np.zeros((2, 8, 8), np.uint8), labels=np.arange(2))

    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(np, "load", broken)
    (shard,) = find_shards([path])
    with pytest.raises(ShardError, match="--skip-bad"):
        list(shard.examples({}))


def test_an_array_file_of_an_unknown_zip_version_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, images=np.zeros((2, 8, 8), np.uint8), labels=np.arange(2))
    content = bytearray(path.read_bytes())
    central = content.index(b"PK\x01\x02")
    content[central + 6 : central + 8] = (255).to_bytes(2, "little")  # the version needed to extract
    path.write_bytes(content)
    (shard,) = find_shards([path])
    with pytest.raises(ShardError, match="--skip-bad"):
        list(shard.examples({}))


def test_an_array_file_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 8, 8, 3), dtype=np.uint8)
    np.savez_compressed(tmp_path / "x.npz", images=pixels, labels=np.arange(7))
    monkeypatch.setattr("adagauss.data.shards.ARRAY_BYTES", 400)
    (shard,) = find_shards([tmp_path / "x.npz"])
    found = list(shard.examples({}))
    assert [one.label for one in found] == list(range(7))
    for one, image in zip(found, pixels, strict=True):
        assert isinstance(one.image, torch.Tensor)
        assert one.image.permute(1, 2, 0).numpy().tolist() == image.tolist()


def test_a_huge_image_of_a_small_array_file_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", images=np.zeros((1, 3, 8000, 6000), np.uint8), labels=np.zeros(1, int))
    (shard,) = find_shards([tmp_path / "x.npz"])
    with pytest.raises(ShardError, match="takes 144,000,000 bytes"):
        list(shard.examples({}))


def test_an_array_file_of_floats_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 8, 8)), labels=np.arange(2))
    (shard,) = find_shards([tmp_path / "x.npz"])
    with pytest.raises(ShardError, match="must be uint8 in C order; they are float64"):
        list(shard.examples({}))
