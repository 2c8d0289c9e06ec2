"""`undo` restores the version before the last change; questions on a terminal; folders that were taught before."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from adagauss.core.learn import Learner
from adagauss.errors import CheckpointError
from adagauss.utils.files import lock_model
from tests.cli.conftest import Command, Photographs


def backups(model: Path) -> list[Path]:
    return list(model.parent.glob(f".{model.name}.before-*"))


CHANGES = (
    ("teach", "birds.safetensors", "more"),
    ("forget", "birds.safetensors", "owl"),
    ("rename", "birds.safetensors", "owl", "Owl"),
    ("teach", "birds.safetensors", "tits.safetensors"),
)


@pytest.mark.parametrize("command", CHANGES, ids=["teach", "forget", "rename", "merge"])
def test_a_change_is_undone_and_restored(
    adagauss: Command, photographs: Photographs, birds: Path, command: tuple[str, ...]
) -> None:
    photographs(Path("more"), ("tit",), 4)
    if "tits.safetensors" in command:
        assert adagauss("teach", "tits.safetensors", "more", "--features-from", birds).code == 0
    before = birds.read_bytes()
    assert adagauss(*command).code == 0
    after = birds.read_bytes()
    assert after != before
    undone = adagauss("undo", birds)
    assert undone.code == 0, undone.err
    assert "as saved by teach on" in undone.out
    assert birds.read_bytes() == before
    assert adagauss("undo", birds).code == 0
    assert birds.read_bytes() == after
    assert len(backups(birds)) == 1


def test_without_a_backup_there_is_one_message(adagauss: Command, birds: Path) -> None:
    def refused() -> None:
        before = birds.read_bytes()
        outcome = adagauss("undo", birds)
        assert outcome.code == 2
        assert "there is no version of" in outcome.said
        assert birds.read_bytes() == before

    refused()  # the first version
    assert adagauss("rename", birds, "owl", "Owl").code == 0
    learner = Learner.load(birds)
    learner.rename("Owl", "Eule")
    learner.save(birds)
    refused()  # changed by another program
    assert adagauss("rename", birds, "Eule", "owl").code == 0
    assert adagauss("forget", birds, "owl", "--no-backup").code == 0
    assert backups(birds) == []
    refused()
    assert "there is no model" in adagauss("undo", "absent/model").said
    assert not Path("absent").exists()


def test_a_failed_change_keeps_the_backup(adagauss: Command, birds: Path) -> None:
    before = birds.read_bytes()
    assert adagauss("rename", birds, "owl", "Owl").code == 0
    assert adagauss("teach", birds, "seen", "--method", "analytic").code == 2
    assert adagauss("undo", birds).code == 0
    assert birds.read_bytes() == before


def test_forget_names_the_backup_that_contains_the_class(adagauss: Command, birds: Path) -> None:
    out = adagauss("forget", birds, "owl").out
    assert f"{backups(birds)[0].name} contains the version before" in out
    assert "contains the version" not in adagauss("forget", birds, "wren", "--no-backup").out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Typed = Callable[[str], Terminal]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """A function that types into a terminal, and returns what the terminal then shows."""

    def type_in(text: str) -> Terminal:
        shown = Terminal()
        monkeypatch.setattr(sys, "stdin", Terminal(text))
        monkeypatch.setattr(sys, "stderr", shown)
        return shown

    return type_in


@pytest.mark.parametrize(("text", "forgets"), [("y\n", True), ("n\n", False), ("", False)])
def test_forget_asks_on_a_terminal(adagauss: Command, birds: Path, typed: Typed, text: str, forgets: bool) -> None:
    shown = typed(text)
    assert adagauss("forget", birds, "owl", "wren").code == (0 if forgets else 130)
    assert f"Forget 'owl', 'wren' in {birds}? [y/N]" in shown.getvalue()
    assert ("owl" not in Learner.load(birds).classes) == forgets


def test_yes_forgets_without_a_question(adagauss: Command, birds: Path, typed: Typed) -> None:
    shown = typed("n\n")
    assert adagauss("forget", birds, "owl", "--yes").code == 0
    assert "[y/N]" not in shown.getvalue()


def test_a_folder_that_was_taught_before_is_refused(adagauss: Command, birds: Path) -> None:
    before = birds.read_bytes()
    refused = adagauss("teach", birds, "seen")  # a copy of the folder that was taught
    assert refused.code == 2
    assert "taught these images before, and each would count twice: owl, robin, wren" in refused.said
    assert "--again" in refused.said
    assert birds.read_bytes() == before
    assert adagauss("teach", birds, "seen/owl", "--class", "Owl").code == 2
    assert adagauss("teach", birds, "seen", "--again").code == 0
    assert int(Learner.load(birds).state.evidence.learned.sum()) == 2 * 36


@pytest.mark.parametrize(("text", "teaches"), [("y\n", True), ("\n", False)])
def test_a_terminal_prompts_before_teaching_again(
    adagauss: Command, birds: Path, typed: Typed, text: str, teaches: bool
) -> None:
    before, shown = birds.read_bytes(), typed(text)
    assert adagauss("teach", birds, "seen", "--quiet").code == (0 if teaches else 130)
    assert "Teach them again? [y/N]" in shown.getvalue()
    assert (birds.read_bytes() != before) == teaches


def test_a_folder_that_has_changed_since_causes_a_warning(
    adagauss: Command, photographs: Photographs, birds: Path
) -> None:
    photographs(Path("more"), ("tit", "crow"), 4)
    assert adagauss("teach", birds, "more").code == 0
    photographs(Path("more"), ("tit",), 1, first=70)
    Path("more/crow").rename("crow")
    outcome = adagauss("teach", birds, "more")
    assert outcome.code == 0, outcome.err
    assert "taught before, and changed since: tit." in outcome.said


def test_a_class_that_was_forgotten_is_taught_again(adagauss: Command, birds: Path) -> None:
    assert adagauss("rename", birds, "owl", "Owl").code == 0
    assert adagauss("teach", birds, "seen/owl", "--class", "Owl").code == 2, "the note follows the class"
    assert adagauss("forget", birds, "Owl").code == 0
    noted = Learner.load(birds).about["sources"]
    assert set(noted) == {"robin", "wren"}, "nothing is noted of a class that was forgotten"
    assert adagauss("teach", birds, "seen/owl", "--class", "Owl").code == 0


def test_a_decomposed_name_of_a_folder_is_noted_as_its_class(
    adagauss: Command, photographs: Photographs, birds: Path
) -> None:
    photographs(Path("more"), ("ma\u0308hne",), 4)
    assert adagauss("teach", birds, "more").code == 0
    assert adagauss("rename", birds, "owl", "Owl").code == 0
    assert adagauss("teach", birds, "more").code == 2
    assert adagauss("forget", birds, "m\u00e4hne").code == 0
    assert adagauss("teach", birds, "more").code == 0


CODE = """
import json, sys
from adagauss.cli import main
for command in json.loads(sys.argv[1]):
    sys.argv[1:] = command
    try:
        main()
    except SystemExit as ended:
        print(ended.code, "torch" in sys.modules)
"""


def test_paths_are_checked_before_torch_is_imported(adagauss: Command, birds: Path) -> None:
    commands: list[list[str | Path]] = [
        ["predict", birds, "absent.jpg"],
        ["predict", "seen/owl/000.png", birds],
        ["teach", birds, "absent"],
        ["evaluate", birds, "absent"],
        ["forget", birds, "absent"],
        ["forget", birds, "owl", "--images", "absent"],
        ["rename", "absent", "owl", "Owl"],
        ["undo", birds],
    ]
    given = json.dumps([[str(word) for word in command] for command in commands])
    done = subprocess.run([sys.executable, "-c", CODE, given], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["2 False"] * len(commands), done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="root takes another user's rights")
@pytest.mark.parametrize("locked_before", [True, False])
def test_a_folder_that_is_not_writable_is_an_error_before_a_change(tmp_path: Path, locked_before: bool) -> None:
    model = tmp_path / "model"
    if locked_before:
        (tmp_path / ".model.lock").touch(0o666)
        (tmp_path / ".model.lock").chmod(0o666)
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(CheckpointError, match="writable"), lock_model(model, 0.0):
            raise AssertionError("it was locked")
    finally:
        os.seteuid(0)
