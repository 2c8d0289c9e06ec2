"""The file that is exported for a download, and the process that makes it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from adagauss.deploy.serve import server as server_module
from adagauss.deploy.serve.server import Exporter
from adagauss.deploy.serve.store import Store

HARM = "open({!r}, 'w')\n"


def test_modules_in_the_current_folder_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap, installed, harmed = tmp_path / "downloads", tmp_path / "installed", tmp_path / "harmed"
    fake = "def export_file(*given):\n    return 0\n"
    for place, program in ((trap, HARM.format(str(harmed)) + fake), (installed, fake)):
        (place / "adagauss/deploy/serve").mkdir(parents=True)
        for name in ("__init__.py", "deploy/__init__.py", "deploy/serve/__init__.py", "deploy/serve/server.py"):
            (place / "adagauss" / name).write_text(program, encoding="utf-8")
    monkeypatch.chdir(trap)
    monkeypatch.setenv("PYTHONPATH", str(installed))
    asyncio.run(server_module._export(tmp_path / "model", tmp_path / "out.onnx"))
    assert not harmed.exists()


def test_what_was_exported_has_no_name_on_disk_and_goes_with_the_copies(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = []

    async def export(source: Path, target: Path) -> None:
        exported.append(source)
        target.write_bytes(b"onnx of " + str(len(exported)).encode())

    monkeypatch.setattr(server_module, "_export", export)
    store = Store(model)
    store.open()
    exporter = Exporter(store)

    async def ask() -> Any:
        return await exporter.file(), await exporter.file()

    first, second = asyncio.run(ask())
    assert first is second
    assert first.read() == b"onnx of 1"
    assert not store.history.export_file.exists()
    exporter.drop()
    assert asyncio.run(ask())[0].read() == b"onnx of 2"
    store.close()


def test_a_file_that_a_killed_server_left_is_removed_at_the_next_start(model: Path) -> None:
    store = Store(model)
    store.open()
    store.history.export_file.write_bytes(b"half")
    store.close()
    store.open()
    assert not store.history.export_file.exists()
    store.close()
