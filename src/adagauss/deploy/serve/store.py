"""The model of a server: one file, replaced whole at every change, and what is needed to undo the last ones.

A change is committed by one rename. Before it, the new file and the list of changes are complete on disk; so whenever
the process is killed, the next start finds either the state before or the state after:

    before-N.safetensors    second name of the present file            (to undo)
    next.safetensors        the new model, forced to disk
    history.json            names the digest of the new file
    next.safetensors -> MODEL                                          this is the commit
    the change is acknowledged

A last entry of the list whose digest is not that of MODEL was not committed, and is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from adagauss.deploy.serve.history import NO_MODEL, Action, Entry, History, digest_of, same_file
from adagauss.deploy.serve.model import Model
from adagauss.errors import CheckpointError
from adagauss.utils.files import move_atomically, remove_durably

UNDO = 10


@dataclass(frozen=True)
class Snapshot:
    """A model and the number of its last change."""

    model: Model
    version: int


class Store:
    """Opens a model for one server; only one thread may change it, any may read ``snapshot``."""

    def __init__(self, path: Path, undo: int = UNDO) -> None:
        self.path = path.resolve()
        self.history = History(self.path.with_name(self.path.name + ".history"))
        self._undo = undo
        self._lock = FileLock(self.history.folder / "lock", blocking=False)
        self._stamp: tuple[int, ...] = ()
        self.snapshot = Snapshot(Model.empty(), 0)

    def open(self) -> None:
        """Take the model for this server and load it."""
        try:
            self.history.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout:
            raise CheckpointError(f"{self.path} is already served by another process: stop that one first") from None
        except OSError as error:
            raise CheckpointError(
                f"{self.history.folder} cannot be written ({error.strerror}): serve a model in a folder of your own"
            ) from error
        try:
            model = Model.load(self.path) if self.path.exists() else Model.empty()
            self._reconcile()
        except BaseException:
            self._lock.release()
            raise
        self._publish(model)

    def close(self) -> None:
        """Leave the model to others."""
        self._lock.release()

    def change(self, action: Action, summary: str, make: Callable[[Model], Model]) -> int:
        """Replace the model by another one made from it, save it, and return the number of the change."""
        self._require_own()
        model = make(self.snapshot.model)
        entry = Entry(
            number=self.history.next_number,
            action=action,
            summary=summary,
            before=self._last_digest,
            after=self._prepared(model),
            final=not self._undo,
        )
        if entry.before != NO_MODEL and self._undo:
            same_file(self.path, self.history.copy_before(entry.number))
        self._commit([*self.history.entries, entry], model)
        return entry.number

    def undo(self) -> int:
        """Bring back the model before the last change that was not undone yet."""
        self._require_own()
        last = self.history.last()
        if last.before == NO_MODEL:
            model = Model.empty()
        else:
            same_file(self.history.copy_before(last.number), self.history.next_file)
            model = Model.load(self.history.next_file)
        entry = Entry(
            number=self.history.next_number,
            action="undo",
            summary=f"undid: {last.summary}",
            before=self._last_digest,
            after=last.before,
            undoes=last.number,
        )
        self._commit([*_marked(self.history.entries, last.number, undone=True), entry], model)
        return entry.number

    def drop_copies(self, forgotten: Collection[str] = ()) -> int:
        """Delete the files before earlier changes, so that nothing forgotten is left in them; nothing can be undone.

        The list of changes does not name ``forgotten`` classes any more either.
        """
        self.history.finish(forgotten)
        return self.snapshot.version

    def _prepared(self, model: Model) -> str:
        """The digest of the new model, written beside the old one."""
        model.save(self.history.next_file)
        return digest_of(self.history.next_file)

    def _commit(self, entries: list[Entry], model: Model) -> None:
        listed = self.history.entries
        self.history.write(entries)
        try:
            self._require_own()
            if entries[-1].after == NO_MODEL:
                remove_durably(self.path.parent, [self.path])
            else:
                move_atomically(self.history.next_file, self.path)
        except Exception:
            self.history.write(listed)
            raise
        self._publish(model)
        with suppress(OSError):  # the change is committed; the next start tidies up
            self.history.drop_copies(self._undo)

    def _publish(self, model: Model) -> None:
        self._stamp = _stamp(self.path)
        self.snapshot = Snapshot(model, self.history.next_number - 1)

    def _reconcile(self) -> None:
        """Drop an entry that was not committed; note a change that another program made."""
        self.history.read()
        entries, now = self.history.entries, digest_of(self.path)
        if entries and entries[-1].after != now and entries[-1].before == now:
            entries = _marked(entries[:-1], entries[-1].undoes, undone=False)
        if (entries[-1].after if entries else NO_MODEL) != now:
            number = entries[-1].number + 1 if entries else 1
            summary = "changed by another program" if entries else "served for the first time"
            before = entries[-1].after if entries else now
            entries = [*entries, Entry(number=number, action="found", summary=summary, before=before, after=now)]
        if entries != self.history.entries:
            self.history.write(entries)
        self.history.export_file.unlink(missing_ok=True)  # of a process that was killed while it exported
        self.history.drop_copies(self._undo)

    @property
    def _last_digest(self) -> str:
        return self.history.entries[-1].after if self.history.entries else NO_MODEL

    def _require_own(self) -> None:
        """Refuse to replace a file that another program wrote meanwhile."""
        if _stamp(self.path) != self._stamp:
            raise CheckpointError(
                f"{self.path.name} was changed by another program, and nothing of this change was saved: restart the "
                "server to use the new file"
            )


def _marked(entries: list[Entry], number: int | None, undone: bool) -> list[Entry]:
    """The list in which one change is undone, or stands again."""
    return [entry.model_copy(update={"undone": undone}) if entry.number == number else entry for entry in entries]


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes when a file is replaced or written."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns
