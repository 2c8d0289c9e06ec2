"""Freed memory stays with the process and waiting threads sleep soon, unless the user set something else."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest
from typer.testing import CliRunner

from adagauss.cli import app
from adagauss.utils import process

FAULTS = """
import resource
import numpy
from adagauss.utils.process import keep_freed_memory
def faults():
    numpy.ones(2**24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        numpy.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
usual = faults()
print(usual, faults() if keep_freed_memory() else "")
"""


def test_arrays_of_the_same_size_reuse_their_pages() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    usual, *kept = map(int, done.stdout.split())
    if not kept:
        pytest.skip("the C library is not glibc")
    assert kept[0] < usual / 10


@pytest.mark.parametrize("name", process.MALLOC_VARIABLES)
def test_an_allocator_set_by_the_user_is_not_changed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "something")
    library = types.SimpleNamespace(mallopt=lambda *_: pytest.fail("mallopt was called"))
    monkeypatch.setattr("ctypes.CDLL", lambda _: library)
    assert not process.keep_freed_memory()


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in process.MALLOC_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("ctypes.CDLL", lambda _: types.SimpleNamespace())
    assert not process.keep_freed_memory()


@pytest.fixture
def no_spin_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in process.SPIN_VARIABLES:
        monkeypatch.setenv(name, "")  # so that a value that a test sets is removed after it
        monkeypatch.delenv(name)


@pytest.mark.parametrize("command", ["teach", "predict", "forget", "rename", "info", "evaluate", "export", "serve"])
def test_a_command_for_models_limits_spinning(command: str, no_spin_variables: None) -> None:
    CliRunner().invoke(app, [command, "--help"])
    assert os.environ["GOMP_SPINCOUNT"] == process.SPIN_COUNT


@pytest.mark.parametrize("command", ["run", "compare", "reproduce"])
def test_a_command_that_trains_does_not_limit_spinning(command: str, no_spin_variables: None) -> None:
    CliRunner().invoke(app, [command, "--help"])
    assert "GOMP_SPINCOUNT" not in os.environ


@pytest.mark.parametrize("name", process.SPIN_VARIABLES)
def test_a_spin_count_set_by_the_user_is_not_changed(
    name: str, monkeypatch: pytest.MonkeyPatch, no_spin_variables: None
) -> None:
    monkeypatch.setenv(name, "5")
    CliRunner().invoke(app, ["predict", "--help"])
    assert {key: os.environ.get(key) for key in process.SPIN_VARIABLES if key in os.environ} == {name: "5"}
