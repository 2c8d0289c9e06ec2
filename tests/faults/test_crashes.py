"""A crash after every call that changes the disk: the old or the new model, and what was acknowledged is there.

All calls of the commands and of the server are recorded, and all folders that a kill or a power cut after each of them
may leave (`crashes.states`) are opened again. Then each call of the server fails in turn.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("python_multipart")
pytest.importorskip("prometheus_client")

from adagauss import IncrementalClassifier
from adagauss.deploy.serve.model import Model
from adagauss.deploy.serve.store import COPY, Store
from adagauss.errors import CheckpointError, DataError
from adagauss.utils import files
from adagauss.utils.checkpoint import backup_of
from tests.cli.conftest import SMALL, fill, prepare
from tests.deploy.serve.colours import pixels
from tests.faults.budget import TORTURE
from tests.faults.crashes import Recorder, content, recorded, restore, states
from tests.faults.injection import BROKEN, FULL, STAYS_FULL, Disk, every_write, faulty

NAME = "model.safetensors"


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A model of red and green pictures."""
    path = tmp_path_factory.mktemp("colours") / NAME
    classifier = IncrementalClassifier("exact", settings={"backbone.options.filters": 10})
    images = [pixels(colour, seed) for colour in ("red", "green") for seed in range(6)]
    classifier.partial_fit(np.stack(images), ["red"] * 6 + ["green"] * 6).save(path)
    return path.read_bytes()


def rename(store: Store, old: str, new: str) -> int:
    return store.change("rename", f"{old} is now {new}", [old, new], lambda model: model.renamed(old, new))


def check_locked(recorder: Recorder) -> None:
    """Whoever changes a model has its lock, and reads the model within it before it is replaced."""
    is_locked, is_read, exists = False, True, NAME in recorder.before
    for call in recorder.calls:
        if call.kind in ("lock", "unlock") and call.path.endswith(".tmp"):
            continue  # a file that is being written is locked as well, against its removal
        if call.kind in ("lock", "unlock"):
            assert call.path == f".{NAME}.lock"
            is_locked, is_read = call.kind == "lock", False
        elif call.kind == "read":
            is_read |= call.path == NAME
        elif call.kind not in ("mkdir", "fsync folder"):
            assert is_locked, call
            assert is_read or not exists or call.target != NAME, call
            exists |= call.target == NAME
    assert not is_locked


# Every change, the classes after it, and the classes after one more undo: None if nothing can be undone.
CHANGES: list[tuple[str, Sequence[str], set[str], set[str] | None]] = [
    ("found", (), {"green", "red"}, None),
    ("rename", ("red", "scarlet"), {"green", "scarlet"}, {"green", "red"}),
    ("rename", ("green", "lime"), {"lime", "scarlet"}, {"green", "scarlet"}),
    ("undo", (), {"green", "scarlet"}, {"green", "red"}),
    ("teach", ("blue",), {"blue", "green", "scarlet"}, {"green", "scarlet"}),
    ("undo", (), {"green", "scarlet"}, {"green", "red"}),
    ("forget", ("green",), {"scarlet"}, {"green", "scarlet"}),
]


def change(store: Store, action: str, names: Sequence[str]) -> None:
    if action == "rename":
        rename(store, *names)
    elif action == "undo":
        store.undo()
    elif action == "forget":
        store.change("forget", names[0], [*names], lambda model: model.forgot(names))
    elif action == "teach":
        pictures = [pixels(names[0], seed).transpose(2, 0, 1) for seed in range(3)]
        store.change("teach", names[0], [*names], lambda model: model.taught(pictures, [*names] * 3, files_only))


files_only = IncrementalClassifier()._reporter()


def test_a_crash_of_a_server_at_any_call(colours: bytes, tmp_path: Path) -> None:
    folder = restore({NAME: colours}, tmp_path / "served")
    with recorded(folder) as recorder:
        store = Store(folder / NAME)
        for action, names, _, _ in CHANGES[1:]:
            change(store, action, names)
            recorder.acknowledged += 1
        store.finish(["green"])
        recorder.acknowledged += 1
        store.close()
    check_locked(recorder)
    count = 0
    for how, _, done, state in states(recorder):
        count += 1
        again = Store(restore(state, tmp_path / str(count)) / NAME)
        found = again.model.version - 1
        assert found in (done, done + 1) or (found, done) == (len(CHANGES) - 1, len(CHANGES)), how
        _, _, expected, after_undo = CHANGES[found]
        assert again.model.labels.keys() == expected, how
        assert Model.load(again.path).labels.keys() == expected, how
        if done == len(CHANGES):  # forgotten for good
            assert again.undoable() is None, how
            assert "green" not in (again.folder / "history.json").read_text(encoding="utf-8"), how
        left = {path.name for path in again.folder.iterdir()}
        assert {name for name in left if not COPY.fullmatch(name)} <= {"history.json"}, how
        if after_undo is None or again.undoable() is None:
            assert after_undo is None or found == len(CHANGES) - 1, how
            with pytest.raises(DataError, match="nothing to undo"):
                again.undo()
        else:
            again.undo()
            assert again.model.labels.keys() == after_undo, how
        again.close()
    assert count > 50


def test_a_crash_while_the_first_classes_are_taught_or_undone(colours: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    trained = restore({NAME: colours}, tmp_path / "trained") / NAME
    with recorded(restore({}, folder)) as recorder:
        store = Store(folder / NAME)
        store.change("teach", "two colours", ["red", "green"], lambda _: Model.load(trained))
        recorder.acknowledged += 1
        store.undo()
        recorder.acknowledged += 1
        store.close()
    check_locked(recorder)
    for count, (how, _, done, state) in enumerate(states(recorder)):
        again = Store(restore(state, tmp_path / str(count)) / NAME)
        found = again.model.version - 1
        assert found in (done, done + 1), how
        assert again.model.labels.keys() == ({"green", "red"} if found == 1 else set()), how
        assert again.path.exists() == (found == 1), how
        again.close()


@pytest.mark.parametrize("action", ["rename", "undo", "forget for good"])
def test_a_call_of_a_server_that_fails_loses_neither_the_model_nor_undo(
    action: str, colours: bytes, tmp_path: Path
) -> None:
    path = tmp_path / NAME

    def opened() -> Store:
        shutil.rmtree(path.with_name(f"{NAME}.history"), ignore_errors=True)
        path.write_bytes(colours)
        store = Store(path)
        rename(store, "red", "scarlet")
        rename(store, "green", "lime")
        return store

    def work(store: Store) -> None:
        if action == "forget for good":
            change(store, "forget", ["lime"])
            store.finish(["lime"])
        else:
            change(store, action, ["lime", "green"])

    old, new = {"lime", "scarlet"}, {"scarlet"} if action == "forget for good" else {"green", "scarlet"}
    store = opened()
    calls = every_write(lambda: work(store))
    store.close()
    hows = (BROKEN, STAYS_FULL, FULL)
    for number, how in enumerate(hows * (len(calls) // len(hows) + 1) if TORTURE == 1 else hows * len(calls)):
        store = opened()
        error = None
        with faulty(Disk(number if TORTURE == 1 else number // len(hows), how)):
            try:
                work(store)
            except (CheckpointError, OSError) as found:
                error = found
        labels = {*store.model.labels}
        case = f"{how} at call {number}: {error}"
        assert labels == new if error is None else labels in (old, new), case
        assert {*Model.load(path).labels} == labels, case
        is_done = store.model.version == 4
        if store.undoable() is None:
            assert action == "forget for good", case
            assert is_done, case
        else:
            store.undo()
            before = old if is_done and action != "undo" else {"green", "scarlet"}
            assert store.model.labels.keys() == ({"green", "red"} if is_done and action == "undo" else before), case
        version, labels = store.model.version, {*store.model.labels}
        store.close()
        again = Store(path)
        assert (again.model.version, {*again.model.labels}) == (version, labels), case
        change(again, "rename", [sorted(labels)[0], "new"])
        again.close()


def test_a_crash_of_a_command_at_any_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "seen", ("owl", "wren"), 8)
    fill(tmp_path / "more", ("owl", "tit"), 4, first=50)
    folder = restore({}, tmp_path / "models")
    model = folder / NAME
    commands = [
        (("teach", model, "seen", *SMALL), {"owl": 8, "wren": 8}),
        (("teach", model, "more"), {"owl": 12, "tit": 4, "wren": 8}),
        (("rename", model, "wren", "Wren"), {"Wren": 8, "owl": 12, "tit": 4}),
        (("undo", model), {"owl": 12, "tit": 4, "wren": 8}),
        (("forget", model, "owl", "--yes", "--no-backup"), {"tit": 4, "wren": 8}),
    ]
    with recorded(folder) as recorder:
        for words, _ in commands:
            prepare(tmp_path, *words)
            recorder.acknowledged += 1
    check_locked(recorder)
    expected = [{}, *(classes for _, classes in commands)]
    count = 0
    for how, _, done, state in states(recorder):
        count += 1
        left = restore(state, tmp_path / str(count))
        found = {}
        if (left / NAME).exists():
            classifier = IncrementalClassifier.load(left / NAME)
            found = {str(one.label): one.images for one in classifier.summary()}
        assert found in expected[done : done + 2], how
        if not found:
            continue
        if backup := backup_of(left / NAME):
            IncrementalClassifier.load(backup)
            assert done < len(commands), how
        if content(left).keys() - {NAME, backup and backup.name}:  # the next command removes them, when they are old
            monkeypatch.setattr(files, "STALE_SECONDS", -1.0)
            prepare(left, "rename", NAME, "tit" if "tit" in found else "owl", "new")
            backup = backup_of(left / NAME)
            assert backup is not None
            assert content(left).keys() == {NAME, backup.name}, how
    assert count > 20
