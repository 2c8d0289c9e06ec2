"""The file of a server and its history; `tests/faults/test_crashes.py` ends the server at every call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adagauss import IncrementalClassifier
from adagauss.deploy.serve import store as store_module
from adagauss.deploy.serve.model import Model
from adagauss.deploy.serve.store import NOT_NAMED, Store
from adagauss.errors import CheckpointError, DataError
from adagauss.utils.files import lock_model


def rename(store: Store, old: str, new: str) -> int:
    return store.change("rename", f"{old} is now {new}", [old, new], lambda model: model.renamed(old, new))


def test_a_served_file_is_locked_for_servers_and_commands(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "LOCK_SECONDS", 0.1)
    store = Store(model)
    with pytest.raises(CheckpointError, match="is served by process"):
        Store(model)
    with (
        pytest.raises(CheckpointError, match=r"is served by process .* or stop the server"),
        lock_model(model, seconds=0.1),
    ):
        pass
    store.close()
    Store(model).close()


def test_a_change_of_another_program_is_neither_lost_nor_overwritten(model: Path) -> None:
    store = Store(model)
    other = IncrementalClassifier.load(model)
    other.learner_.rename("red", "ruby")
    other.save(model)
    with pytest.raises(CheckpointError, match="another program"):
        rename(store, "red", "scarlet")
    store.close()
    again = Store(model)
    assert again.model.labels.keys() == {"green", "ruby"}
    assert again.entries[-1].summary == "changed by another program"
    with pytest.raises(DataError, match="nothing to undo"):
        again.undo()
    again.close()


def test_the_first_class_can_be_undone_as_well(tmp_path: Path, saved: Path) -> None:
    path = tmp_path / "new.safetensors"
    store = Store(path)
    store.change("teach", "two colours", ["red", "green"], lambda _: Model.load(saved))
    assert path.exists()
    store.undo()
    assert not path.exists()
    assert store.model.labels == {}
    store.close()
    again = Store(path)
    assert again.model.labels == {}
    again.close()


def test_the_first_class_cannot_be_undone_once_the_copies_are_gone(tmp_path: Path, saved: Path) -> None:
    path = tmp_path / "new.safetensors"
    store = Store(path)
    store.change("teach", "two colours", ["red", "green"], lambda _: Model.load(saved))
    store.finish()
    for _ in range(2):  # at once, and after a restart
        with pytest.raises(DataError, match="nothing to undo"):
            store.undo()
        assert path.exists()
        store.close()
        store = Store(path)
    store.close()


def test_without_a_stored_state_nothing_can_be_undone(model: Path, saved: Path) -> None:
    store = Store(model)
    assert store.undoable() is None
    rename(store, "red", "scarlet")
    assert store.undoable() == store.entries[-1]
    backup = model.with_name(f".{model.name}.before-{'0' * 16}")  # of a command
    backup.touch()
    store.finish()
    assert store.undoable() is None
    assert not backup.exists()
    store.close()
    IncrementalClassifier.load(saved).rename("red", "pink").save(model)
    store = Store(model)
    with pytest.raises(DataError, match="nothing to undo"):
        store.undo()
    store.close()


def test_a_model_is_called_by_its_method_or_by_what_chose_it(saved: Path) -> None:
    assert Model().method == "none yet"
    model = Model.load(saved)
    assert model.method == model.classifier.method
    model.classifier.method, model.classifier.effort = None, "quick"
    assert model.method == "effort quick"


def test_classes_forgotten_for_good_are_not_named_any_more(model: Path) -> None:
    store = Store(model)
    rename(store, "red", "scarlet")
    rename(store, "green", "lime")
    store.change("forget", "scarlet", ["scarlet"], lambda model: model.forgot(["scarlet"]))
    store.finish(["scarlet"])
    listed = (store.folder / "history.json").read_text(encoding="utf-8")
    assert "scarlet" not in listed
    assert "red" not in listed, "a former name"
    assert "green is now lime" in listed
    store.close()


def test_a_name_that_was_undone_is_a_former_name_as_well(model: Path) -> None:
    store = Store(model)
    rename(store, "red", "scarlet")
    rename(store, "green", "lime")
    store.change("teach", "5 of scarlet", ["lime", "scarlet"], lambda model: model.renamed("scarlet", "x"))
    for _ in range(3):
        store.undo()
    store.change("forget", "red", ["red"], lambda model: model.forgot(["red"]))
    assert store.finish(["red"]) == {"red", "scarlet"}
    named = [entry.summary for entry in store.entries[1:] if entry.summary != NOT_NAMED]
    assert named == ["green is now lime", "undid: green is now lime"]
    store.close()


def test_what_a_killed_server_was_writing_is_removed_at_the_next_start(model: Path) -> None:
    store = Store(model)
    rename(store, "red", "scarlet")
    before = sorted(store.folder.iterdir())
    store.close()
    for name in (".adagauss-0123456789abcdef.tmp", "next.safetensors", "before-9.safetensors"):
        (store.folder / name).write_bytes(b"half a file")
    other = model.with_name(".adagauss-fedcba9876543210.tmp")  # perhaps of a program that is still running
    other.write_bytes(b"half a file")
    Store(model).close()
    assert sorted(store.folder.iterdir()) == before
    assert other.exists()


def test_names_of_forgotten_classes_match_exactly(model: Path) -> None:
    store = Store(model)
    rename(store, "red", "c")
    rename(store, "green", "cat")
    store.change("forget", "c", ["c"], lambda model: model.forgot(["c"]))
    assert store.finish(["c"]) == {"c", "red"}
    assert [entry.summary for entry in store.entries[1:]] == [NOT_NAMED, "green is now cat", NOT_NAMED]
    store.close()


def test_entries_of_release_02_are_read_and_blanked_because_they_do_not_list_their_classes(model: Path) -> None:
    store = Store(model)
    rename(store, "red", "scarlet")
    file = store.folder / "history.json"
    store.close()
    entries = json.loads(file.read_text(encoding="utf-8"))
    for entry in entries:
        del entry["classes"]
        entry["final"] = False
    file.write_text(json.dumps(entries), encoding="utf-8")
    store = Store(model)
    assert store.undoable() == store.entries[-1]
    store.finish(["pink"])
    assert store.entries[-1].summary == NOT_NAMED
    store.close()


def test_a_damaged_list_of_changes_says_what_to_do(model: Path) -> None:
    Store(model).close()
    (model.with_name(model.name + ".history") / "history.json").write_text("[{]", encoding="utf-8")
    with pytest.raises(CheckpointError, match="move it away"):
        Store(model)


def test_classes_taught_as_numbers_stay_numbers(tmp_path: Path, saved: Path) -> None:
    path = tmp_path / "numbers.safetensors"
    classifier = IncrementalClassifier.load(saved)
    classifier.learner_.rename("red", 1)
    classifier.learner_.rename("green", 2)
    classifier.save(path)
    store = Store(path)
    rename(store, "1", "7")
    assert IncrementalClassifier.load(path).classes_.tolist() == [2, 7]
    with pytest.raises(DataError, match="are numbers"):
        rename(store, "7", "red")
    store.close()
