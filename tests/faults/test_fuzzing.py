"""Readers of untrusted files, fed with changed and invented ones: a value or an error message."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from adagauss.core.learn import Learner
from adagauss.data.dataset import ReadOptions, load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.errors import AdagaussError, CheckpointError
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.run import Run, RunFolder
from adagauss.experiments.runner import run
from adagauss.utils.checkpoint import load_tensors, save_tensors
from tests.contracts.toy import same, state, taught
from tests.faults.budget import budget

Change = tuple[str, float, bytes]
changes = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "insert", "replace", "zero"]), st.floats(0, 1), st.binary(max_size=12)),
    min_size=1,
    max_size=3,
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def changed(content: bytes, steps: list[Change]) -> bytes:
    """The content with some places changed, each given as a share of its length."""
    for kind, share, what in steps:
        place = int(share * len(content))
        if kind == "flip" and content:
            place = min(place, len(content) - 1)
            content = content[:place] + bytes([content[place] ^ (1 << (len(what) % 8))]) + content[place + 1 :]
        elif kind == "cut":
            content = content[:place] + content[place + len(what) + 1 :]
        elif kind == "insert":
            content = content[:place] + what + content[place:]
        elif kind == "replace":
            content = content[:place] + what + content[place + len(what) :]
        elif kind == "zero":
            content = content[:place] + bytes(len(what)) + content[place + len(what) :]
    return content


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("learner") / "learner.safetensors"
    taught("adagauss", 1).save(path)
    return path


@budget(80)
@given(steps=changes)
def test_a_changed_learner_is_refused(learner: Path, tmp_path: Path, steps: list[Change]) -> None:
    whole = learner.read_bytes()
    content = changed(whole, steps)
    (tmp_path / "file").write_bytes(content)
    if content == whole:
        assert same(state(Learner.load(tmp_path / "file")), state(taught("adagauss", 1)))
    else:
        with pytest.raises(CheckpointError):
            Learner.load(tmp_path / "file")


def leaves(data: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values, whole branches included."""
    below = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place, *(inner for key, value in below for inner in leaves(value, (*place, key)))]


def exchanged(data: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    copied = dict(data) if isinstance(data, dict) else list(data)
    copied[place[0]] = exchanged(copied[place[0]], place[1:], value)
    return copied


@budget(60)
@given(which=st.floats(0, 1, exclude_max=True), value=values)
def test_a_learner_with_a_forged_fact_and_a_right_digest_loads_or_gives_a_message(
    learner: Path, tmp_path: Path, which: float, value: Any
) -> None:
    tensors, facts = load_tensors(learner, "learner")
    places = leaves(facts)[1:]
    save_tensors(tmp_path / "file", "learner", tensors, exchanged(facts, places[int(which * len(places))], value))
    read_or_refused(lambda: Learner.load(tmp_path / "file"), Learner)


def read_or_refused(read: Callable[[], object], kind: type) -> None:
    """What is read is of its kind, or a known error is raised; any other error is a failure."""
    found, sentence = None, ""
    try:
        found = read()
    except AdagaussError as error:
        sentence = str(error)
    assert isinstance(found, kind) or len(sentence.split()) > 3, sentence


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    stream = StreamConfig(dataset="digits", sizes=(1, 1), classes=2)
    run(make_config("exact", stream, settings={"backbone.options.filters": 4}), path)
    return path


def read_all(path: Path) -> None:
    """Everything that commands read from a run folder, each by itself."""
    folder = RunFolder(path)
    read_or_refused(lambda: folder.config, RunConfig)
    read_or_refused(lambda: folder.origins, dict)
    read_or_refused(lambda: Run.open(path).stored_metrics(), dict)
    read_or_refused(lambda: folder.evaluation(0), tuple)
    read_or_refused(lambda: folder.evaluation(1), tuple)
    read_or_refused(lambda: Learner.load(folder.last_checkpoint()), Learner)


@budget(40)
@given(which=st.floats(0, 1, exclude_max=True), steps=changes)
def test_a_run_folder_with_a_changed_file_is_read_or_gives_a_message(
    finished: Path, tmp_path: Path, which: float, steps: list[Change]
) -> None:
    path = tmp_path / "run"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(finished, path)
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != "lock")
    file = files[int(which * len(files))]
    file.write_bytes(changed(file.read_bytes(), steps))
    read_all(path)


@budget(40)
@given(which=st.floats(0, 1, exclude_max=True), value=values, name=st.sampled_from(["config.yaml", "metrics.json"]))
def test_a_run_folder_with_a_forged_value_is_read_or_gives_a_message(
    finished: Path, tmp_path: Path, which: float, value: Any, name: str
) -> None:
    path = tmp_path / "run"
    path.mkdir(exist_ok=True)
    content = yaml.safe_load((finished / name).read_text(encoding="utf-8"))
    places = leaves(content)
    invented = exchanged(content, places[int(which * len(places))], value)
    text = yaml.safe_dump(invented) if name == "config.yaml" else json.dumps(invented)
    (path / name).write_text(text, encoding="utf-8")
    read_or_refused(lambda: RunFolder(path).config, RunConfig)
    copytree(finished / "tasks", path / "tasks", dirs_exist_ok=True)
    read_or_refused(lambda: Run.open(path).stored_metrics(), dict)


def idx(values: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    lengths = struct.pack(f">{values.ndim}I", *values.shape)
    return bytes((0, 0, 8, values.ndim)) + lengths + values.tobytes()


@budget(120)
@given(which=st.integers(0, 3), steps=changes, zipped=st.booleans())
def test_changed_idx_files_are_read_or_give_a_message(
    tmp_path: Path, which: int, steps: list[Change], zipped: bool
) -> None:
    folder = tmp_path / "mnist"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    pixels, labels = np.zeros((4, 5, 5), np.uint8), np.arange(4, dtype=np.uint8)
    names = [f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
    for number, (name, content) in enumerate(zip(names, [idx(pixels), idx(labels)] * 2, strict=True)):
        content = gzip.compress(content) if zipped else content
        content = changed(content, steps) if number == which else content
        (folder / (name + ".gz" * zipped)).write_bytes(content)
    with suppress(AdagaussError):
        dataset = load_dataset("mnist", ReadOptions(root=tmp_path))
        assert 0 <= int(dataset.train.targets.max()) < 10


names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12)


@budget(50)
@given(tree=st.dictionaries(names, st.dictionaries(names, st.booleans(), max_size=3), max_size=4), steps=changes)
def test_any_folder_is_a_dataset_or_gives_a_message(
    tmp_path: Path, tree: dict[str, dict[str, bool]], steps: list[Change]
) -> None:
    root = tmp_path / "photos"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    Image.new("RGB", (4, 4), (9, 8, 7)).save(tmp_path / "plain.png")
    whole = (tmp_path / "plain.png").read_bytes()
    for folder, files in tree.items():
        with suppress(OSError):  # two names that are one to the file system, or too long for it
            (root / folder).mkdir()
            for name, sound in files.items():
                (root / folder / f"{name}.png").write_bytes(whole if sound else changed(whole, steps))
    for skip in (False, True):
        with suppress(AdagaussError):
            options = ReadOptions(size=4, skip_bad_images=skip)
            dataset = load_dataset(f"folder:{root}", options)
            assert set(dataset.train.classes) <= set(tree)
