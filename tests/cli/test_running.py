"""`adagauss run` from its user's view: output before and after a run, and errors around it."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from adagauss.experiments.run import Run
from tests.cli.conftest import RUN, SMALL, Command, Outcome, Photographs


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def finished(digits_run: tuple[Path, Outcome], here: Path) -> Path:
    """The folder `out` of a finished run, which a test may damage."""
    return Path(shutil.copytree(digits_run[0], here / "out"))


def test_a_short_summary_comes_first(digits_run: tuple[Path, Outcome]) -> None:
    printed = digits_run[1].err
    assert "representation:" not in printed
    assert len(printed.splitlines()) < 15
    for text in ("adagauss, preset reference: digits in 2 tasks", "out/config.yaml"):
        assert text in printed


def test_one_accuracy_has_one_name(digits_run: tuple[Path, Outcome]) -> None:
    printed = digits_run[1].out.splitlines()
    lines = [line.split() for line in printed]
    (summary,) = (words for words in lines if words[:2] == ["adagauss", "1"])
    (last,) = (words for words in lines if words[:2] == ["2", "2"])
    assert last[2] == summary[2], "the last row of the table is A_last"
    assert max(map(len, printed)) <= 80


def test_a_folder_is_a_dataset_whose_classes_keep_their_order(
    adagauss: Command, photographs: Photographs, here: Path
) -> None:
    photographs(here / "some" / "birds", ("wren", "owl", "robin", "tit"))
    outcome = adagauss("run", "-d", "some/birds", "-t", "2", "--set", "stream.image_size=16", *SMALL)
    assert outcome.code == 0, outcome.err
    assert "birds, 2 tasks" in outcome.out
    assert str(here) not in outcome.out
    (folder,) = Path("runs/birds-2").iterdir()

    assert Run.open(folder).task_classes == (("owl", "robin"), ("tit", "wren"))


def test_classes_are_ordered_by_name(adagauss: Command, photographs: Photographs, here: Path) -> None:

    photographs(here / "birds", ("1", "10", "2", "owl"))
    order = ("--set", "stream.class_order=[owl,'2','1']", "-t", "3", "--set", "stream.image_size=16", "--out", "out")
    outcome = adagauss("run", "-d", "birds", *order, *SMALL)
    assert outcome.code == 0, outcome.err
    assert Run.open("out").task_classes == (("owl",), ("2",), ("1",))
    refused = adagauss("run", "-d", "birds", "--set", "stream.class_order=[owl,robin]")
    assert refused.code == 2
    assert "unknown class 'robin'" in refused.said


def test_a_path_that_is_not_a_folder_is_an_error(adagauss: Command, here: Path) -> None:
    for name in ("./birds", "photos/birds"):
        refused = adagauss("run", "-d", name)
        assert refused.code == 2
        assert "the folder does not exist" in refused.said


def test_a_failure_to_draw_is_not_one_of_the_runs(
    adagauss: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("adagauss.analysis.studies.save_figure", fail)
    outcome = adagauss("compare", "-m", "frozen", "--seeds", "0", *RUN[1:9], "--out", "out")
    assert outcome.code == 0, outcome.err
    assert "A_last" in outcome.out
    assert "no figures (No space left on device); the runs are complete in out" in outcome.said


@pytest.mark.parametrize("content", ["", "[]", "null", '"text"', "{", "{}", '{"source": []}'])
def test_a_damaged_environment_gives_a_message(adagauss: Command, finished: Path, content: str) -> None:
    (finished / "environment.json").write_text(content, encoding="utf-8")
    outcome = adagauss("run", "--out", "out", "--resume")
    assert outcome.code in (0, 2)
    assert "unexpected" not in outcome.said


@pytest.mark.parametrize("content", ["", "[]", "{", "seed: [", "method: 3"])
def test_a_damaged_configuration_gives_a_message(adagauss: Command, finished: Path, content: str) -> None:
    (finished / "config.yaml").write_text(content, encoding="utf-8")
    for words in (["run", "--out", "out", "--resume"], ["rescore", "out"]):
        outcome = adagauss(*words)
        assert outcome.code == 2
        assert "unexpected" not in outcome.said
    Path("settings.yaml").write_text(content, encoding="utf-8")
    outcome = adagauss("run", "--config", "settings.yaml", "--out", "new")
    assert outcome.code == 2
    assert "unexpected" not in outcome.said


def test_a_refusal_of_the_system_gives_a_message(
    adagauss: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "secret/config.yaml")

    monkeypatch.setattr("adagauss.experiments.run.RunFolder.exists", refuse)
    outcome = adagauss("run", "--out", "out", "--resume")
    assert outcome.code == 2
    assert "secret/config.yaml: Permission denied" in outcome.said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tasks", "11"), "11 tasks were requested, but there are only 4 classes"),
        (("-s", "stream.classes=11"), "11 classes were requested, but digits has 10"),
        (("--tasks", "5,6"), "the task sizes add up to 11, but there are 4 classes"),
        (("-s", "backbone.weights=imagenet"), "comes without weights"),
        (("-s", "backbone.weights=nowhere.pth"), "nowhere.pth does not exist"),
        (("-s", "backbone.stem=large"), "has only one stem"),
        (("-s", "drift.epochs=3"), "unknown setting"),
        (("--out", "out"), "already holds a run: continue it with --resume"),
        (("--out", "out", "--resume", "--seed", "1"), "was started with other settings"),
    ],
)
def test_errors_come_before_images_are_read(
    adagauss: Command, finished: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], message: str
) -> None:
    def reading(*_: object) -> None:
        raise AssertionError("the dataset is read")

    monkeypatch.setattr("adagauss.data.dataset.load_dataset", reading)
    outcome = adagauss(*RUN, "-s", "backbone.name=convnet", *options)
    assert outcome.code == 2
    assert message in outcome.err
