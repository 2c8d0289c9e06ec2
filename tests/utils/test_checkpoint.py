"""Files that survive: round trips, damaged and hostile files, a full disk."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from adagauss.core.learn import Learner
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.errors import CheckpointError
from adagauss.methods import make_method
from adagauss.utils import files as atomic
from adagauss.utils.checkpoint import load_tensors, save_json, save_tensors
from adagauss.utils.runtime import Runtime, RuntimeConfig

TENSORS = {
    "weights": torch.arange(6, dtype=torch.float64).view(2, 3),
    "counts": torch.tensor([3, 4]),
    "scalar": torch.tensor(0.5),
    "empty": torch.zeros(0, 4),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "transposed": torch.arange(6).view(2, 3).T,
}
FACTS = {"labels": ["a", 1, 2.5, True], "nested": {"list": [1, [2]]}, "text": "é"}


def saved(folder: Path) -> Path:
    path = folder / "some" / "folder" / "learner.safetensors"
    save_tensors(path, "learner", TENSORS, FACTS)
    return path


def with_header(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + body


def test_tensors_that_share_memory_round_trip(tmp_path: Path) -> None:
    whole = torch.arange(6)
    save_tensors(tmp_path / "file", "learner", {"whole": whole, "part": whole[2:4], "same": whole}, {})
    tensors, _ = load_tensors(tmp_path / "file", "learner")
    assert [tensors[name].tolist() for name in ("whole", "part", "same")] == [
        [0, 1, 2, 3, 4, 5],
        [2, 3],
        [0, 1, 2, 3, 4, 5],
    ]


def test_saving_again_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = saved(tmp_path)
    save_tensors(path, "learner", {"other": torch.ones(1)}, {"second": True})
    tensors, facts = load_tensors(path, "learner")
    assert (list(tensors), facts) == (["other"], {"second": True})
    assert list(path.parent.iterdir()) == [path]


class Bomb:
    """A pickle of it makes a folder when it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("form", ["pickle", "old pickle", "torch", "header"])
def test_a_pickle_is_refused_without_being_unpickled(tmp_path: Path, form: str) -> None:
    target, path = tmp_path / "made by the pickle", tmp_path / "learner.safetensors"
    bomb = Bomb(target)
    if form == "torch":
        torch.save(bomb, path)
    else:
        content = pickle.dumps(bomb, protocol=0 if form == "old pickle" else None)
        path.write_bytes(with_header(content) if form == "header" else content)
    with pytest.raises(CheckpointError):
        load_tensors(path, "learner")
    assert not target.exists()
    pickle.loads(pickle.dumps(bomb))
    assert target.exists(), "the pickle would have done nothing: this test shows nothing"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"PK\x03\x04" + bytes(100),
        with_header(b"not json"),
        with_header(b"[1, 2]"),
        with_header(b"12"),
        with_header(b"{}"),
        with_header(b'{"a": 1}'),
        with_header(b'{"a": {}}'),
        with_header(b'{"a": {"data_offsets": 3}}'),
        with_header(b'{"a": {"data_offsets": ["x", "y"]}}'),
        with_header(b'{"__metadata__": 5}'),
        with_header(b'{"__metadata__": "text"}'),
        with_header(b"\xff\xfe\x00"),
        with_header(b"[" * 200_000),
        with_header(json.dumps({"__metadata__": {"format": "adagauss-learner", "version": "1"}}).encode()),
        struct.pack("<Q", 2**63) + bytes(50),
    ],
    ids=lambda content: str(content[8:40]),
)
def test_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "learner.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=path.name):
        load_tensors(path, "learner")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"not a saved adagauss snapshot .*adagauss-learner"):
        load_tensors(saved(tmp_path), "snapshot")


def test_a_file_of_the_first_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    metadata = {"format": "adagauss-learner", "version": "1", "facts": "{}"}
    (tmp_path / "old").write_bytes(safetensors.torch.save({"weights": torch.ones(3)}, metadata=metadata))
    with pytest.raises(CheckpointError, match=r"in file format 1\): use another file, or the release that wrote it"):
        load_tensors(tmp_path / "old", "learner")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(CheckpointError, match="cannot be read"):
            load_tensors(path, "learner")


class FullDisk(io.FileIO):
    """Takes a few bytes and no more."""

    def write(self, data: Any) -> int:
        super().write(bytes(data)[:16])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_space(*arguments: Any, **named: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def save_other_tensors(path: Path) -> None:
    save_tensors(path, "learner", {"new": torch.zeros(1000)}, {})


def save_other_json(path: Path) -> None:
    save_json(path, {"a": 1})


@pytest.mark.parametrize("fails", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("save", [save_other_tensors, save_other_json])
def test_a_full_disk_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, save: Callable[[Path], None]
) -> None:
    path = saved(tmp_path)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        if fails == "write":
            patch.setattr(atomic, "_create", lambda path, mode: FullDisk(path, "w"))
        elif fails == "replace":
            patch.setattr(Path, fails, no_space)
        else:
            patch.setattr(os, fails, no_space)
        with pytest.raises(CheckpointError, match=f"{path.name} could not be written .*No space left"):
            save(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "Free some space"), (errno.EACCES, "Make its folder writable"), (errno.EIO, "Check the path and")],
)
def test_the_remedy_of_a_failed_write_fits_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(atomic, "_create", fail)
    with pytest.raises(CheckpointError, match=remedy):
        saved(tmp_path)


def test_a_folder_that_cannot_be_made_is_a_readable_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(CheckpointError, match="could not be written"):
        save_tensors(tmp_path / "file" / "learner.safetensors", "learner", TENSORS, FACTS)


def small_learner() -> Learner:
    short = {"representation.first.epochs": 1, "representation.later.epochs": 1, "drift.recipe.epochs": 1}
    small = {"backbone.name": "convnet", "backbone.features": 4, "drift.samples": 50, "augmentation.policy": "none"}
    method = make_method("adagauss", settings={**short, **small})
    return Learner(method, (1, 8, 8), (0.5,), (0.5,), Runtime(RuntimeConfig(device="cpu"), seed=5))


def some_images(seed: int, classes: tuple[str, ...]) -> LabelledImages:
    pixels: Tensor = torch.randint(0, 256, (24, 1, 8, 8), generator=torch.Generator().manual_seed(seed))
    return LabelledImages(ArrayImages(pixels.to(torch.uint8)), torch.arange(24) % 2, classes)


def test_a_learner_goes_on_from_its_file_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    learner = small_learner()
    learner.learn(some_images(0, ("a", "b")))
    learner.save(tmp_path / "learner")
    loaded = Learner.load(tmp_path / "learner", Runtime(RuntimeConfig(device="cpu")))
    points = some_images(9, ("x", "y")).images
    assert loaded.classes == learner.classes == ["a", "b"]
    assert np.array_equal(loaded.predictions(points).probabilities, learner.predictions(points).probabilities)
    for one in (learner, loaded):
        one.learn(some_images(1, ("c", "d")))
    assert np.array_equal(loaded.predictions(points).probabilities, learner.predictions(points).probabilities)
    assert torch.equal(loaded.memory.packed, learner.memory.packed)
