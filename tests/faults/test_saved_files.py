"""Saved learners and runs: every flipped bit is noticed, and forged files are refused."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from adagauss.errors import CheckpointError
from adagauss.utils.checkpoint import load_tensors, require_finite, save_tensors
from tests.contracts.toy import taught, toy_images
from tests.faults.budget import budget, some

TENSORS = {
    "weights": torch.arange(60, dtype=torch.float64).view(20, 3) / 7,
    "counts": torch.tensor([3, 4]),
    "flags": torch.tensor([True, False, True]),
    "half": torch.ones(5, dtype=torch.bfloat16),
    "scalar": torch.tensor(0.5),
    "empty": torch.zeros(0, 4),
    "also empty": torch.zeros(3, 0, dtype=torch.int64),
}
FACTS = {"labels": ["ant", "bee"], "seed": 3, "text": "é", "method": {"b": 1, "a": 2}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_tensors(tmp_path / "learner", "learner", TENSORS, FACTS)
    return tmp_path / "learner"


def regions(content: bytes) -> dict[str, range]:
    """Positions of the parts of a file."""
    length = struct.unpack("<Q", content[:8])[0]
    digest = content.index(b'"digest":"') + len(b'"digest":"')
    facts = content.index(b'"facts"')
    entries = content.index(b'"},"') + 1
    return {
        "length": range(0, 8),
        "opening": range(8, digest),
        "digest": range(digest, digest + 64),
        "metadata": range(digest + 64, facts),
        "facts": range(facts, entries),
        "entries and padding": range(entries, 8 + length),
        "tensors": range(8 + length, len(content)),
    }


REGIONS = ["length", "opening", "digest", "metadata", "facts", "entries and padding", "tensors"]


@pytest.mark.parametrize("region", REGIONS)
def test_every_flipped_bit_is_noticed(path: Path, region: str) -> None:
    whole = path.read_bytes()
    positions = regions(whole)[region]
    assert len(positions) > 0
    # Every bit of short regions; of long ones, a bit of every byte.
    flips = [
        (position, bit) for position in positions for bit in range(8) if len(positions) < 70 or bit == position % 8
    ]
    for position, bit in some(flips, 80):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=path.name):
            load_tensors(path, "learner")


def test_the_regions_are_the_whole_file(path: Path) -> None:
    parts = regions(path.read_bytes())
    assert list(parts) == REGIONS
    assert [position for part in parts.values() for position in part] == list(range(path.stat().st_size))


def test_every_truncation_and_every_longer_file_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    lengths = some(range(len(whole)), 80)
    for content in [*(whole[:length] for length in lengths), whole + b"\0", whole + whole]:
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=path.name):
            load_tensors(path, "learner")


def test_swapped_tensors_are_noticed(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"weights"', b'"w_ights"'))
    with pytest.raises(CheckpointError, match="digest does not fit"):
        load_tensors(path, "learner")


def test_the_safetensors_library_reads_the_file(path: Path) -> None:
    loaded = safetensors.torch.load(path.read_bytes())
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in loaded.items():
        assert torch.equal(tensor, TENSORS[name])


def test_round_trip(path: Path) -> None:
    before = path.read_bytes()
    tensors, facts = load_tensors(path, "learner")
    assert facts == FACTS
    assert list(facts["method"]) == ["b", "a"], "the order of facts may mean something"
    for name, tensor in tensors.items():
        assert tensor.dtype == TENSORS[name].dtype
        assert torch.equal(tensor, TENSORS[name])
        tensor.zero_()  # can be written to, which does not reach the file
    assert path.read_bytes() == before


def test_the_same_content_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    for number in range(3):
        turned = dict(list(TENSORS.items())[number:] + list(TENSORS.items())[:number])
        gaps = {name: torch.stack([tensor, tensor], dim=-1)[..., 0] for name, tensor in turned.items()}
        save_tensors(tmp_path / "again", "learner", gaps if number else turned, FACTS)
        assert (tmp_path / "again").read_bytes() == path.read_bytes()


def signed(header: dict[str, Any], body: bytes) -> bytes:
    """A file with a sound digest and a header of one's own."""
    facts = {"digest": "0" * 64, "format": "adagauss-learner", "version": "2", "facts": "{}"}
    text = json.dumps({"__metadata__": facts, **header}, separators=(",", ":")).encode()
    content = struct.pack("<Q", len(text)) + text + body
    return content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode(), 1)


@pytest.mark.parametrize(
    ("entry", "body"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, bytes(4)),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, bytes(4)),
        ({"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}, bytes(4)),
        ({"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}, bytes(4)),
        ({"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}, bytes(4)),
        ({"dtype": "F32", "shape": [2**62, 2**62, 0], "data_offsets": [0, 0]}, b""),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}, bytes(8)),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, bytes(8)),
        ({"dtype": "object", "shape": [1], "data_offsets": [0, 4]}, bytes(4)),
        ({"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}, bytes(4)),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}, bytes(4)),
        ({"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}, bytes(4)),
        ({"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]}, b"\x02"),
        ("text", b""),
        (None, b""),
    ],
    ids=str,
)
def test_a_forged_header_is_refused_though_its_digest_fits(tmp_path: Path, entry: Any, body: bytes) -> None:
    (tmp_path / "file").write_bytes(signed({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)))
    load_tensors(tmp_path / "file", "learner")
    (tmp_path / "file").write_bytes(signed({"a": entry}, body))
    with pytest.raises(CheckpointError):
        load_tensors(tmp_path / "file", "learner")


numbers: st.SearchStrategy[Any] = st.integers(-2, 20) | st.sampled_from(
    [2**31, 2**62, 2**64, 10**30, 0.5, True, None, "4", []]
)
entry = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F64", "F32", "BF16", "I64", "U8", "BOOL", "F8", "", None, 3]),
        "shape": st.lists(numbers, max_size=4) | numbers,
        "data_offsets": st.lists(numbers, max_size=3) | numbers,
    },
)


@budget(400)
@given(header=st.dictionaries(st.sampled_from(["a", "b", "c"]), entry, max_size=3), size=st.integers(0, 40))
def test_any_forged_header_is_refused_or_sound(tmp_path: Path, header: dict[str, Any], size: int) -> None:
    (tmp_path / "file").write_bytes(signed(header, bytes(size)))
    with suppress(CheckpointError):
        tensors, _ = load_tensors(tmp_path / "file", "learner")
        assert sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) == size


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="it is not a regular file"):
        load_tensors(tmp_path / "pipe", "learner")


def test_what_cannot_be_saved_is_refused_and_the_old_file_stays(path: Path) -> None:
    before = path.read_bytes()
    for tensor in (torch.ones(2, dtype=torch.complex64), torch.ones(2).to_sparse()):
        with pytest.raises(CheckpointError, match="part is a tensor of"):
            save_tensors(path, "learner", {"part": tensor}, {})
    assert path.read_bytes() == before


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    require_finite({"sound": torch.ones(3), "counts": torch.tensor([1]), "empty": torch.zeros(0)}, tmp_path)
    for bad in (float("nan"), float("inf"), -float("inf")):
        tensors: dict[str, Tensor] = {"sound": torch.ones(3), "mean": torch.tensor([0.0, bad, 1.0])}
        with pytest.raises(CheckpointError, match="1 of 3 numbers of mean"):
            require_finite(tensors, tmp_path)


def test_many_updates_of_known_classes_do_not_lengthen_the_record(tmp_path: Path) -> None:
    learner, data = taught("exact", 1), toy_images().of_classes(["zero", "one"])
    sizes = []
    for _ in range(3):
        for _ in range(3):
            learner.learn(data)
        learner.save(tmp_path / "learner")
        with (tmp_path / "learner").open("rb") as file:
            header = file.read(8 + int.from_bytes(file.read(8), "little"))
        sizes.append(header.count(b"[") + header.count(b"{"))
    assert sizes[0] == sizes[1] == sizes[2]
