"""The model file of a server, replaced atomically at every change, and the copies for undo.

One rename commits a change. The new file and the history are complete on disk before it. If the process is killed, the
next start finds either the old or the new state:

    before-N.safetensors    a copy of the current file                 (for undo)
    next.safetensors        the new model, synced to disk
    history.json            contains the digest of the new file
    next.safetensors -> MODEL                                          commit
    the change is acknowledged

If the digest of the last entry differs from that of MODEL, the entry was not committed and is dropped.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from io import BufferedWriter
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, TypeAdapter

from adagauss.deploy.serve.model import Model
from adagauss.errors import CheckpointError, DataError
from adagauss.utils.checkpoint import remove_backups, save_json
from adagauss.utils.files import (
    TEMPORARY,
    file_version,
    lock_model,
    move_atomically,
    open_regular,
    remove_durably,
    replace_atomically,
    sync_folder,
)

Action = Literal["teach", "forget", "rename", "undo", "found", "drop copies"]
COPY = re.compile(r"before-\d+\.safetensors")
LARGEST = 64 * 2**20
MOST_ENTRIES = 1000
"""Older entries of the history are dropped."""
NOT_NAMED = "classes that were forgotten for good"


class Entry(BaseModel):
    """A change of the model in its history."""

    number: int
    time: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    action: Action
    summary: str
    undone: bool = False
    before: str
    """SHA-256 of the model file before the change, empty if there was none; ``after`` is the one after it."""
    after: str
    undoes: int | None = None
    """Number of the change that this entry reverts."""
    classes: list[str] | None = None
    """Names of the classes in the summary; of a rename, the old and the new one. None, in files of 0.2: not known."""


ENTRIES = TypeAdapter(list[Entry])
UNDO = 10
"""Number of changes that can be undone. Each one stores a copy of the model file."""
LOCK_SECONDS = 2.0
"""How long a server waits at its start for a command that changes the model."""


class Store:
    """The model of one server, its history, and the copies for undo. One thread changes it; any thread may read it."""

    def __init__(self, path: Path) -> None:
        """Lock the model until `close`, and load it."""
        self.path = path.resolve()
        self.folder = self.path.with_name(self.path.name + ".history")
        self._next = self.folder / "next.safetensors"
        self.entries: list[Entry] = []
        """Committed changes; the file may contain one more."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_folder(self.path.parent)  # without it, a change could survive a power cut that its undo does not
        except OSError as error:
            raise CheckpointError(
                f"{self.folder} is not writable ({error.strerror}): serve a model in a writable folder"
            ) from error
        with ExitStack() as lock:
            lock.enter_context(lock_model(self.path, LOCK_SECONDS, server=True))
            self._publish(self._reconciled(), Model.load(self.path))
            self._drop_copies(UNDO)
            self._lock = lock.pop_all()

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    def change(self, action: Action, summary: str, names: list[str], make: Callable[[Model], Model]) -> int:
        """Apply a function to the model, save the result, and return the number of the change.

        ``names`` are the classes in the summary.
        """
        self._require_own()
        model = make(self.model)
        model.classifier.save(self._next)
        last, digest = self.entries[-1], digest_of(self._next)
        entry = Entry(
            number=last.number + 1, action=action, summary=summary, before=last.after, after=digest, classes=names
        )

        def copy(file: BufferedWriter) -> None:
            if last.after:  # the copy of a missing file is empty
                with open_regular(self.path) as current:
                    shutil.copyfileobj(current, file)

        replace_atomically(self._copy_before(entry), copy, mode=0o600)
        return self._commit(entry, model, self._next)

    def undo(self) -> int:
        """Restore the model before the last change that was not undone."""
        self._require_own()
        last, undone = self.entries[-1], self.last_change()
        entry = Entry(
            number=last.number + 1,
            action="undo",
            summary=f"undid: {undone.summary}",
            before=last.after,
            after=undone.before,
            undoes=undone.number,
            classes=undone.classes,
        )
        return self._commit(entry, Model.load(self._copy_before(undone)), self._copy_before(undone))

    def undoable(self) -> Entry | None:
        """Return the last change that was not undone, if the state before it is stored."""
        last = next((entry for entry in reversed(self.entries) if entry.action != "undo" and not entry.undone), None)
        return last if last is not None and self._copy_before(last).is_file() else None

    def last_change(self) -> Entry:
        """Return the change that the next undo reverts; `DataError` if there is none."""
        if (last := self.undoable()) is None:
            raise DataError("nothing to undo: the state before the last change is not stored")
        return last

    def finish(self, forgotten: Collection[str] = ()) -> set[str]:
        """Delete all copies, and blank the entries that name ``forgotten`` classes.

        Returns:
            The names of these classes, with the former names of renamed ones.
        """
        names, changed = set(forgotten), list[Entry]()
        renames = {entry.number for entry in self.entries if entry.action == "rename"}
        for entry in reversed(self.entries):
            if entry.classes and (entry.number in renames or entry.undoes in renames):
                former, name = entry.classes if entry.number in renames else reversed(entry.classes)
                names.update([former] if name in names else [])
            if entry.classes is None or not names.isdisjoint(entry.classes):
                entry = entry.model_copy(update={"summary": NOT_NAMED, "classes": []})
            changed.append(entry)
        try:
            self._write(changed[::-1])
            self.entries = changed[::-1]
            self._drop_copies(keep=0)
            remove_backups(self.path)  # of `adagauss undo`
        except (CheckpointError, OSError) as error:
            raise CheckpointError(
                f"the copies for undo are not deleted, and may contain forgotten classes ({error}): delete them again"
            ) from error
        return names

    def _copy_before(self, entry: Entry) -> Path:
        return self.folder / f"before-{entry.number}.safetensors"

    def _drop_copies(self, keep: int) -> None:
        """Delete old copies, those of changes that were undone or not committed, and what a killed server left."""
        copies = [self._copy_before(entry) for entry in self.entries if not entry.undone and entry.action != "undo"]
        wanted = [copy for copy in copies if copy.is_file()][-keep:] if keep else []
        unwanted = [path for path in self.folder.iterdir() if COPY.fullmatch(path.name) and path not in wanted]
        # Only the server that holds the lock writes into this folder.
        remove_durably(self.folder, [*unwanted, *self.folder.glob(TEMPORARY), self._next])

    def _commit(self, entry: Entry, model: Model, file: Path) -> int:
        """Replace the model file by another one, or remove it if the model has no classes.

        After an error the file of the history may contain one more entry than is committed: the next change replaces
        it, or the next start drops it.
        """
        self._require_own()
        entries = [*self.entries, entry]
        self._write(entries)
        version = file_version(file) if model.labels else None
        try:
            if model.labels:
                move_atomically(file, self.path)
            else:
                remove_durably(self.path.parent, [self.path])
        finally:
            if file_version(self.path) == version:  # also if only forcing the folder to disk has failed
                self._publish(entries, model)
        with suppress(OSError):  # the change is committed; the next start cleans up
            self._drop_copies(UNDO)
        return self.model.version

    def _publish(self, entries: list[Entry], model: Model) -> None:
        """Replace the state that readers see."""
        undone = {entry.undoes for entry in entries}
        self.entries = [entry.model_copy(update={"undone": entry.number in undone}) for entry in entries]
        self._found = file_version(self.path)
        self.model = replace(model, version=entries[-1].number)

    def _reconciled(self) -> list[Entry]:
        """Read the history, drop an uncommitted entry, and record a change by another program."""
        path, now = self.folder / "history.json", digest_of(self.path)
        try:
            with open_regular(path) as file:
                stored = ENTRIES.validate_json(file.read(LARGEST))
        except FileNotFoundError:
            stored = []
        except (OSError, ValueError, DataError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({type(error).__name__}): move it away; the model file is not affected"
            ) from error
        entries = stored
        if entries and entries[-1].after != now and entries[-1].before == now:
            entries = entries[:-1]
        if not entries or entries[-1].after != now:
            number, before = (entries[-1].number, entries[-1].after) if entries else (0, now)
            summary = "changed by another program" if entries else "served for the first time"
            found = Entry(number=number + 1, action="found", summary=summary, before=before, after=now, classes=[])
            entries = [*entries, found]
        if entries != stored:
            self._write(entries)
        return entries

    def _write(self, entries: list[Entry]) -> None:
        """Replace the file of the history; the change is committed later."""
        save_json(self.folder / "history.json", ENTRIES.dump_python(entries[-MOST_ENTRIES:]))

    def _require_own(self) -> None:
        """Raise if another program changed the model file."""
        if file_version(self.path) != self._found:
            raise CheckpointError(
                f"{self.path.name} was changed by another program, so this change was not saved: restart the server "
                "to use the new file"
            )


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file; empty if the file is missing."""
    if not path.exists():
        return ""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
