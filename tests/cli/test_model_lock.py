"""Two commands on one model: no acknowledged change is lost, and a message names the process that has the lock."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adagauss.errors import CheckpointError
from adagauss.utils import files
from adagauss.utils.files import lock_model
from tests.cli.conftest import Command, Photographs

TEACH = """
import sys
from adagauss.cli import main
try:
    main()
finally:
    assert "torch._dynamo" not in sys.modules, "torch's compiler is imported, which takes a second"
"""
HOLD = """
import sys
from pathlib import Path
from adagauss.utils.files import lock_model
with lock_model(Path(sys.argv[2])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(birds: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the lock of the model until its input is closed."""
    words = [sys.executable, "-c", HOLD, "teach", str(birds)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_two_processes_that_teach_one_model_both_succeed(
    adagauss: Command, photographs: Photographs, birds: Path
) -> None:
    for label in ("tit", "crow"):
        photographs(Path(label), (label,), 6)
    command = [sys.executable, "-c", TEACH, "teach", str(birds), "tit", "--quiet"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as other:
        here = adagauss("teach", birds, "crow", "--quiet")
        message = other.communicate()[1]
    assert (here.code, other.returncode) == (0, 0), (here.err, message)
    assert "knows    5 classes" in adagauss("info", birds).out


def test_the_message_names_the_holder(
    adagauss: Command, birds: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.3)
    before = birds.read_bytes()
    refused = adagauss("forget", birds, "owl")
    assert refused.code == 2
    assert f"waiting for process {holder.pid} on {socket.gethostname()} (-c teach)" in refused.said
    assert (
        f"is being changed by process {holder.pid} on {socket.gethostname()} (-c teach); waited 0.3 s" in refused.said
    )
    assert birds.read_bytes() == before


@pytest.mark.parametrize(
    "words", [["rename", "owl", "Owl"], ["forget", "owl"], ["teach", "seen"], ["teach", "copy.safetensors"]]
)
def test_every_command_that_changes_a_model_waits(
    adagauss: Command, birds: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    Path("copy.safetensors").write_bytes(birds.read_bytes())
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.1)
    command, *rest = words
    assert "is being changed by" in adagauss(command, birds, *rest).said


def test_a_command_does_not_wait_long_for_a_server(
    adagauss: Command, birds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SERVER_SECONDS", 0.1)
    with lock_model(birds, server=True):
        refused = adagauss("forget", birds, "owl")
    assert f"is served by process {os.getpid()} on {socket.gethostname()} (" in refused.said
    assert "make the change on the page of the server or by REST, or stop the server" in refused.said
    assert "waiting" not in refused.said


def test_readers_do_not_wait(adagauss: Command, birds: Path, holder: subprocess.Popen[str]) -> None:
    started = time.monotonic()
    for words in (["info", birds], ["predict", birds, "unseen/owl", "--quiet"]):
        assert adagauss(*words).code == 0
    assert holder.poll() is None
    assert time.monotonic() - started < 60


def test_the_lock_of_a_dead_process_is_free(birds: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(CheckpointError, match="is being changed by"), lock_model(birds, 0.0):
        pass
    holder.kill()
    holder.wait()
    with lock_model(birds, 0.0):
        assert str(os.getpid()) in birds.with_name(f".{birds.name}.lock").read_text(encoding="utf-8")


def test_a_link_and_its_file_have_one_lock(birds: Path) -> None:
    link = birds.with_name("link.safetensors")
    link.symlink_to(birds.name)
    with lock_model(link), pytest.raises(CheckpointError, match="is being changed by"), lock_model(birds, 0.0):
        pass


def test_a_token_is_not_written_into_the_lock(birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/adagauss", "serve", "m.safetensors", "--token", "secret"])
    with lock_model(birds):
        text = birds.with_name(f".{birds.name}.lock").read_text(encoding="utf-8")
    assert "(adagauss serve)" in text
    assert "secret" not in text


def test_a_lock_that_cannot_be_opened_is_an_error_message(tmp_path: Path) -> None:
    (tmp_path / ".model.lock").mkdir()
    with pytest.raises(CheckpointError, match="cannot be locked for a change"), lock_model(tmp_path / "model", 0.0):
        pass
