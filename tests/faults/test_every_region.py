"""Flips and truncations in every region of every kind of file that is written: all of them are detected."""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path

import pytest
import torch

from adagauss.data.stream import StreamConfig
from adagauss.errors import CheckpointError
from adagauss.experiments.config import make_config
from adagauss.experiments.run import FileSnapshots
from adagauss.experiments.runner import run
from adagauss.utils.checkpoint import PLACE, UNSIGNED, load_tensors

KINDS = ("learner", "evaluation", "snapshot")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One file of every kind."""
    path = tmp_path_factory.mktemp("files")
    stream = StreamConfig(dataset="digits", sizes=(2,), tasks=1, classes=2)
    settings = {"backbone.name": "convnet", "representation.first.epochs": 1, "memory.kind": "gaussians"}
    run(make_config("frozen", stream, settings=settings), path / "run")
    found = {kind: path / "run" / "tasks" / "01" / f"{kind}.safetensors" for kind in KINDS[:2]}
    tensors = {"weight": torch.rand(4, 3), "moment": torch.rand(5)}
    FileSnapshots(path / "snapshots", 0.0).offer("task", tensors, {"history": [{"loss": 1.0}]})
    found["snapshot"] = path / "snapshots" / "task.safetensors"
    return found


def borders(content: bytes) -> list[int]:
    """Where the regions of a file begin and end: length, digest, header, and each tensor."""
    header = 8 + int(struct.unpack("<Q", content[:8])[0])
    entries = json.loads(content[8:header])
    inside = [header + place for name in entries.keys() - {"__metadata__"} for place in entries[name]["data_offsets"]]
    return sorted({0, 8, PLACE, PLACE + len(UNSIGNED), header, *inside, len(content)})


@pytest.mark.parametrize("kind", KINDS)
def test_every_flip_and_truncation_at_the_border_or_in_the_middle_of_a_region_is_detected(
    kind: str, files: dict[str, Path], tmp_path: Path
) -> None:
    content = files[kind].read_bytes()
    edges = borders(content)
    middles = [(first + last) // 2 for first, last in itertools.pairwise(edges)]
    places = sorted({place for edge in [*edges, *middles] for place in (edge - 1, edge) if 0 <= place < len(content)})
    assert len(places) > 10
    damaged = tmp_path / "tasks" / "01" / "file"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(content)
    load_tensors(damaged, kind)
    for place in places:
        for bit in (0, 7):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            damaged.write_bytes(flipped)
            with pytest.raises(CheckpointError):
                load_tensors(damaged, kind)
        damaged.write_bytes(content[:place])
        with pytest.raises(CheckpointError):
            load_tensors(damaged, kind)
