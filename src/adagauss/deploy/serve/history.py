"""The folder beside a model: what was changed, and the files before each of the last changes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from adagauss.errors import CheckpointError, DataError
from adagauss.utils.checkpoint import save_json
from adagauss.utils.files import open_regular, remove_durably

Action = Literal["teach", "forget", "rename", "undo", "found"]
COPY = re.compile(r"before-(\d{1,9})\.safetensors")
LARGEST = 64 * 2**20
ENTRIES = 1000
"""Changes that are listed; older ones are dropped from the list."""
NOT_NAMED = "classes that were forgotten for good"
NO_MODEL = ""
"""Digest of a model file that is not there."""


class Entry(BaseModel):
    """One change of the model."""

    number: int
    time: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    action: Action
    summary: str
    before: str
    """SHA-256 of the model file before it, and after."""
    after: str
    undone: bool = False
    undoes: int | None = None
    """Number of the change that this one undid."""
    final: bool = False
    """Whether it cannot be undone, because the state before it is not kept."""


class History:
    """All files of the folder; every method leaves it whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[Entry] = []

    def read(self) -> None:
        """Read the list, if there is one."""
        path = self.folder / "history.json"
        if not path.exists():
            return
        try:
            with open_regular(path) as file:
                listed = json.loads(file.read(LARGEST))
            self.entries = [Entry.model_validate(entry) for entry in listed]
        except (OSError, ValueError, TypeError, ValidationError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({type(error).__name__}): move it away; the model itself is in its own file"
            ) from error

    def write(self, entries: list[Entry]) -> None:
        """Replace the list."""
        kept = entries[-ENTRIES:]
        save_json(self.folder / "history.json", [entry.model_dump() for entry in kept])
        self.entries = kept

    @property
    def next_number(self) -> int:
        return self.entries[-1].number + 1 if self.entries else 1

    @property
    def export_file(self) -> Path:
        """Where the model is exported to; it is gone as soon as it was opened."""
        return self.folder / "export.onnx"

    @property
    def next_file(self) -> Path:
        """Where a model is written before it takes its place."""
        return self.folder / "next.safetensors"

    def copy_before(self, number: int) -> Path:
        """The file of the model before a change."""
        return self.folder / f"before-{number}.safetensors"

    def last(self) -> Entry:
        """The last change that was not undone; an error if there is none, or the state before it is gone."""
        changes = [entry for entry in self.entries if entry.action != "undo" and not entry.undone]
        if changes and changes[-1].action == "found" and len(changes) > 1:
            raise DataError("there is nothing to undo: another program changed the model since")
        if not changes or changes[-1].action == "found":
            raise DataError("there is nothing to undo: nothing was changed here, or all of it was undone")
        entry = changes[-1]
        if entry.final or not (entry.before == NO_MODEL or self.copy_before(entry.number).is_file()):
            raise DataError("there is nothing to undo: the state before the last change is no longer kept")
        return entry

    def undoable(self) -> Entry | None:
        """The change that would be undone next, if there is one."""
        try:
            return self.last()
        except DataError:
            return None

    def drop_copies(self, keep: int = 0) -> None:
        """Delete all but the newest copies, and those of changes that were undone or never happened."""
        numbers = {entry.number for entry in self.entries if not entry.undone}
        found = [(int(match[1]), path) for path in self.folder.iterdir() if (match := COPY.fullmatch(path.name))]
        wanted = sorted((number for number, _ in found if number in numbers), reverse=True)[:keep]
        unwanted = [path for number, path in found if number not in wanted]
        remove_durably(self.folder, [*unwanted, self.next_file])

    def finish(self, forgotten: Collection[str] = ()) -> None:
        """Delete all copies, after which no change of the list can be undone; some classes are not named any more."""
        kept = []
        for entry in self.entries:
            told = any(name in entry.summary for name in forgotten)
            changes: dict[str, object] = {"final": True, **({"summary": NOT_NAMED} if told else {})}
            kept.append(entry.model_copy(update=changes))
        self.write(kept)
        self.drop_copies(keep=0)


def same_file(source: Path, target: Path) -> None:
    """A second name for a file, or a copy where the file system knows no second names."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        with suppress(OSError), target.open("rb+") as file:
            os.fsync(file.fileno())


def digest_of(path: Path) -> str:
    """SHA-256 of a file; empty if there is none."""
    if not path.exists():
        return NO_MODEL
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
