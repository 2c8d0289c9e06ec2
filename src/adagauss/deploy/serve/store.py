"""The model file of a server, replaced atomically at every change, and the copies for undo.

One rename commits a change. The new file and the history are complete on disk before it. If the process is killed, the
next start finds either the old or the new state:

    before-N.safetensors    hard link to the current file              (for undo)
    next.safetensors        the new model, synced to disk
    history.json            contains the digest of the new file
    next.safetensors -> MODEL                                          commit
    the change is acknowledged

If the digest of the last entry differs from that of MODEL, the entry was not committed and is dropped.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, TypeAdapter

from adagauss.deploy.serve.jobs import NOT_NAMED
from adagauss.deploy.serve.model import Model
from adagauss.errors import CheckpointError, DataError
from adagauss.utils.checkpoint import save_json
from adagauss.utils.files import lock_model, move_atomically, open_regular, remove_durably, replace_atomically

Action = Literal["teach", "forget", "rename", "undo", "found"]
COPY = re.compile(r"before-(\d{1,9})\.safetensors")
LARGEST = 64 * 2**20
MOST_ENTRIES = 1000
"""Older entries of the history are dropped."""
NO_MODEL = ""
"""Digest of a missing model file."""


class Change(BaseModel):
    """A change of the model, as the page and the interface show it."""

    number: int
    time: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    action: Action
    summary: str
    undone: bool = False


class Entry(Change):
    """A change of the model, as it is stored."""

    before: str
    """SHA-256 of the model file before the change; ``after`` is the one after it."""
    after: str
    undoes: int | None = None
    """Number of the change that this entry reverts."""
    final: bool = False
    """Whether it cannot be undone, because the previous state is not stored."""
    classes: list[str] | None = None
    """Names of the classes in the summary; of a rename, the old and the new one. None in files of release 0.2."""

    @property
    def names(self) -> list[str]:
        """Names of the classes in the summary.

        >>> Entry(number=1, action="undo", summary="undid: 2 of cat, 1 of dog", before="", after="").names
        ['cat', 'dog']
        """
        if self.classes is not None:
            return self.classes
        plain = self.summary.removeprefix("undid: ")
        return [re.sub(r"^\d+ of ", "", name) for name in re.split(r", | is now ", plain)]


ENTRIES = TypeAdapter(list[Entry])


class History:
    """The history folder. Every method leaves it consistent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[Entry] = []
        """Committed changes; the file may contain one more."""

    def read(self) -> list[Entry]:
        """Read the entries, if the file exists."""
        path = self.folder / "history.json"
        if not path.exists():
            return []
        try:
            with open_regular(path) as file:
                return ENTRIES.validate_json(file.read(LARGEST))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({type(error).__name__}): move it away; the model file is not affected"
            ) from error

    def write(self, entries: list[Entry]) -> None:
        """Replace the file; the change is committed later."""
        save_json(self.folder / "history.json", ENTRIES.dump_python(entries[-MOST_ENTRIES:]))

    @property
    def next_number(self) -> int:
        return self.entries[-1].number + 1 if self.entries else 1

    @property
    def last_digest(self) -> str:
        """Digest of the current model file."""
        return self.entries[-1].after if self.entries else NO_MODEL

    @property
    def export_file(self) -> Path:
        """Temporary ONNX file; unlinked as soon as it is open."""
        return self.folder / "export.onnx"

    @property
    def next_file(self) -> Path:
        """Temporary file of the next model."""
        return self.folder / "next.safetensors"

    def copy_before(self, number: int) -> Path:
        """Path of the model file before a change."""
        return self.folder / f"before-{number}.safetensors"

    def last(self) -> Entry:
        """Return the last change that was not undone.

        Raises:
            DataError: there is none, or its previous state is not stored.
        """
        changes = [entry for entry in self.entries if entry.action != "undo" and not entry.undone]
        if changes and changes[-1].action == "found" and len(changes) > 1:
            raise DataError("nothing to undo: another program changed the model")
        if not changes or changes[-1].action == "found":
            raise DataError("nothing to undo: nothing was changed here, or all changes were undone")
        entry = changes[-1]
        if entry.final or not (entry.before == NO_MODEL or self.copy_before(entry.number).is_file()):
            raise DataError("nothing to undo: the state before the last change is not stored")
        return entry

    def undoable(self) -> Entry | None:
        """Return the change that the next undo reverts, if any."""
        try:
            return self.last()
        except DataError:
            return None

    def drop_copies(self, keep: int = 0) -> None:
        """Delete old copies and those of changes that were undone or not committed."""
        numbers = {entry.number for entry in self.entries if not entry.undone}
        found = [(int(match[1]), path) for path in self.folder.iterdir() if (match := COPY.fullmatch(path.name))]
        wanted = sorted((number for number, _ in found if number in numbers), reverse=True)[:keep]
        unwanted = [path for number, path in found if number not in wanted]
        remove_durably(self.folder, [*unwanted, self.next_file])

    def finish(self, forgotten: Collection[str] = ()) -> set[str]:
        """Delete all copies, mark all entries as final, and blank those that name ``forgotten`` classes.

        Returns:
            The names of these classes, with the former names of renamed ones.
        """
        names, changed = set(forgotten), list[Entry]()
        for entry in reversed(self.entries):
            if entry.action in ("rename", "undo") and not names.isdisjoint(entry.names[1:]):
                names.add(entry.names[0])
            changes: dict[str, object] = {"final": True}
            if not names.isdisjoint(entry.names):
                changes |= {"summary": NOT_NAMED, "classes": []}
            changed.append(entry.model_copy(update=changes))
        self.write(changed[::-1])
        self.entries = changed[::-1]
        self.drop_copies(keep=0)
        return names


def same_file(source: Path, target: Path) -> None:
    """Create a hard link, or a copy if the file system does not support links."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        with open_regular(source) as content:
            replace_atomically(target, lambda file: shutil.copyfileobj(content, file))


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file; empty if the file is missing."""
    if not path.exists():
        return NO_MODEL
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


UNDO = 10
LOCK_SECONDS = 2.0
"""How long a server waits at its start for a command that changes the model."""


class Store:
    """The model of one server. One thread changes it; any thread may read ``model``."""

    def __init__(self, path: Path, undo: int = UNDO) -> None:
        self.path = path.resolve()
        self.history = History(self.path.with_name(self.path.name + ".history"))
        self._undo = undo
        self._lock: ExitStack | None = None
        self._stamp: tuple[int, ...] = ()
        self.model = Model()

    def open(self) -> None:
        """Lock the model until `close`, and load it. A second call has no effect."""
        if self._lock is not None:
            return
        try:
            self.history.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"{self.history.folder} is not writable ({error.strerror}): serve a model in a writable folder"
            ) from error
        with ExitStack() as lock:
            lock.enter_context(lock_model(self.path, seconds=LOCK_SECONDS))
            self._publish(self._reconciled(), Model.load(self.path))
            self.history.export_file.unlink(missing_ok=True)  # left by a process that was killed during export
            self.history.drop_copies(self._undo)
            self._lock = lock.pop_all()

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def change(self, action: Action, summary: str, classes: list[str], make: Callable[[Model], Model]) -> int:
        """Apply a function to the model, save the result, and return the number of the change.

        ``classes`` are the names in the summary.
        """
        self._require_own()
        model = make(self.model)
        file, number = self.history.next_file, self.history.next_number
        model.classifier.save(file)
        entry = Entry(
            number=number,
            action=action,
            summary=summary,
            before=self.history.last_digest,
            after=digest_of(file),
            final=not self._undo,
            classes=classes,
        )
        if entry.before != NO_MODEL and self._undo:
            same_file(self.path, self.history.copy_before(number))
        return self._commit([*self.history.entries, entry], model, file)

    def undo(self) -> int:
        """Restore the model before the last change that was not undone."""
        self._require_own()
        last = self.history.last()
        file = None if last.before == NO_MODEL else self.history.copy_before(last.number)
        entry = Entry(
            number=self.history.next_number,
            action="undo",
            summary=f"undid: {last.summary}",
            before=self.history.last_digest,
            after=last.before,
            undoes=last.number,
            classes=last.classes,
        )
        entries = [*_marked(self.history.entries, last.number, undone=True), entry]
        return self._commit(entries, Model() if file is None else Model.load(file), file)

    def _commit(self, entries: list[Entry], model: Model, file: Path | None) -> int:
        """Replace the model file by another one, or remove it.

        After an error the file of the history may contain one more entry than is committed: the next change replaces
        it, or the next start drops it.
        """
        self._require_own()
        self.history.write(entries)
        stamp = () if file is None else _stamp(file)
        try:
            if file is None:
                remove_durably(self.path.parent, [self.path])
            else:
                move_atomically(file, self.path)
        finally:
            if _stamp(self.path) == stamp:  # also if only forcing the folder to disk has failed
                self._publish(entries, model)
        with suppress(OSError):  # the change is committed; the next start cleans up
            self.history.drop_copies(self._undo)
        return self.model.version

    def _publish(self, entries: list[Entry], model: Model) -> None:
        self.history.entries = entries
        self._stamp = _stamp(self.path)
        self.model = replace(model, version=self.history.next_number - 1)

    def _reconciled(self) -> list[Entry]:
        """Read the history, drop an uncommitted entry, and record a change by another program."""
        stored, now = self.history.read(), digest_of(self.path)
        entries = stored
        if entries and entries[-1].after != now and entries[-1].before == now:
            entries = _marked(entries[:-1], entries[-1].undoes, undone=False)
        if (entries[-1].after if entries else NO_MODEL) != now:
            number = entries[-1].number + 1 if entries else 1
            summary = "changed by another program" if entries else "served for the first time"
            before = entries[-1].after if entries else now
            entries = [*entries, Entry(number=number, action="found", summary=summary, before=before, after=now)]
        if entries != stored:
            self.history.write(entries)
        return entries

    def _require_own(self) -> None:
        """Raise if another program changed the model file."""
        if _stamp(self.path) != self._stamp:
            raise CheckpointError(
                f"{self.path.name} was changed by another program, so this change was not saved: restart the server "
                "to use the new file"
            )


def _marked(entries: list[Entry], number: int | None, undone: bool) -> list[Entry]:
    """Return the entries with the flag ``undone`` of one entry set."""
    return [entry.model_copy(update={"undone": undone}) if entry.number == number else entry for entry in entries]


def _stamp(path: Path) -> tuple[int, ...]:
    """Return file attributes that change when the file is replaced or written."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns
