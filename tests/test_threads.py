"""Threads that wait for each other sleep soon where networks stand still, unless the user has chosen otherwise."""

from __future__ import annotations

import os

import pytest
from typer.testing import CliRunner

from adagauss.cli import app
from adagauss.utils import process as threads


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in threads.OWN_SPIN_CHOICE:
        monkeypatch.setenv(name, "")  # so that what a test sets is gone after it
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "command", ["teach", "predict", "forget", "rename", "merge", "info", "evaluate", "export", "serve", "gather"]
)
def test_a_command_for_models_lets_threads_sleep_soon(command: str) -> None:
    CliRunner().invoke(app, [command, "--help"])
    assert os.environ["GOMP_SPINCOUNT"] == threads.TURNS


@pytest.mark.parametrize("command", ["run", "compare", "reproduce"])
def test_a_command_that_trains_lets_them_wait(command: str) -> None:
    CliRunner().invoke(app, [command, "--help"])
    assert "GOMP_SPINCOUNT" not in os.environ


@pytest.mark.parametrize("name", threads.OWN_SPIN_CHOICE)
def test_a_choice_made_in_the_environment_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "5")
    CliRunner().invoke(app, ["predict", "--help"])
    assert {key: os.environ.get(key) for key in threads.OWN_SPIN_CHOICE if key in os.environ} == {name: "5"}
