"""A model of a disk: every call that changes a folder is recorded, and all folders that a crash may leave are made.

After a kill, all calls so far have happened. After a power cut, only what was forced to disk is certain: a file has the
content of its last fsync, later bytes may be there, missing or zero, and of the new, renamed and removed names of a
folder that was not forced to disk afterwards, any may be there. A rename is one step, as file systems with a journal
guarantee.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import itertools
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.faults.injection import CREATES

Kind = Literal[
    "mkdir", "create", "write", "link", "rename", "unlink", "fsync", "fsync folder", "lock", "unlock", "read"
]
State = dict[str, bytes]
"""Content of each file of a folder, by its path in it."""


@dataclass(frozen=True)
class Call:
    """One recorded call: the path in the folder, and what was written where, or the new name."""

    kind: Kind
    path: str
    target: str = ""
    start: int = 0
    data: bytes = b""
    done: int = 0
    """Changes that were acknowledged before this call."""


@dataclass
class Recorder:
    """The calls that change a folder, in order, and what is in it at the beginning."""

    folder: Path
    before: State = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    acknowledged: int = 0
    _open: dict[int, str] = field(default_factory=dict)

    def record(self, kind: Kind, path: Any, target: Any = "", start: int = 0, data: bytes = b"") -> None:
        name, other = self._name(path), self._name(target) if target else ""
        if name is None or other is None or (name.endswith(".lock") and kind not in ("lock", "unlock")):
            return
        self.calls.append(Call(kind, name, other, start, data, self.acknowledged))

    def _name(self, path: Any) -> str | None:
        place = self._open.get(path, "") if isinstance(path, int) else os.path.realpath(path)
        return str(Path(place).relative_to(self.folder)) if place and Path(place).is_relative_to(self.folder) else None


def content(folder: Path) -> State:
    """The files of a folder, without locks."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@contextmanager
def recorded(folder: Path) -> Iterator[Recorder]:
    """Record what happens in a folder; at the end, the recorded calls must explain what is in it."""
    recorder = Recorder(Path(os.path.realpath(folder)), content(folder))
    open_, fdopen, fsync, close, flock = os.open, os.fdopen, os.fsync, os.close, fcntl.flock

    class Raw(io.FileIO):
        def write(self, data: Any) -> int:
            start, written = self.tell(), super().write(data)
            recorder.record("write", self.fileno(), start=start, data=bytes(memoryview(data)[:written]))
            return written

    def opened(path: Any, flags: int, *more: Any, **named: Any) -> int:
        descriptor = open_(path, flags, *more, **named)
        recorder._open[descriptor] = os.path.realpath(path)
        if flags & CREATES:
            recorder.record("create", path)
        elif stat.S_ISREG(os.fstat(descriptor).st_mode):
            recorder.record("read", path)
        return descriptor

    def wrapped(descriptor: int, mode: str = "r", *more: Any, **named: Any) -> Any:
        return io.BufferedWriter(Raw(descriptor, "wb")) if mode == "wb" else fdopen(descriptor, mode, *more, **named)

    def forced(descriptor: int) -> None:
        fsync(descriptor)
        recorder.record("fsync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "fsync", descriptor)

    def locked(descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        recorder.record("unlock" if operation == fcntl.LOCK_UN else "lock", descriptor)

    def closed(descriptor: int) -> None:
        close(descriptor)
        recorder._open.pop(descriptor, None)

    def changed(kind: Kind, call: Any, path: Any, *more: Any, **named: Any) -> None:
        place = recorder._name(path)  # it may be gone afterwards
        call(path, *more, **named)
        if place is not None:
            target = more[0] if kind in ("link", "rename") else ""
            recorder.record(kind, recorder.folder / place, target)

    with pytest.MonkeyPatch.context() as patch:
        for name, function in (("open", opened), ("fdopen", wrapped), ("fsync", forced), ("close", closed)):
            patch.setattr(os, name, function)
        patch.setattr(fcntl, "flock", locked)
        names: dict[str, Kind] = {"replace": "rename", "rename": "rename", "link": "link"}
        for name, kind in {**names, "mkdir": "mkdir", "unlink": "unlink"}.items():
            patch.setattr(os, name, partial(changed, kind, getattr(os, name)))
        yield recorder
    after = _left_by(recorder, len(recorder.calls), None, "all")
    assert after == content(folder), "a call was not recorded"


def states(recorder: Recorder) -> Iterator[tuple[str, int, int, State]]:
    """All different folders that a crash after each call may leave.

    Yields what happened, the changes acknowledged before the crash and at its latest call, and the folder.
    """
    seen: set[tuple[int, str]] = set()
    for count in range(len(recorder.calls) + 1):
        done = recorder.calls[count - 1].done if count else 0
        done = recorder.acknowledged if count == len(recorder.calls) else done
        pending = _pending(recorder.calls[:count])
        subsets = itertools.chain.from_iterable(
            itertools.combinations(pending, size) for size in range(len(pending) + 1)
        )
        crashes = [(None, "all"), *itertools.product(map(frozenset, subsets), ("all", "forced", "zero"))]
        for lost, bytes_left in crashes:
            state = _left_by(recorder, count, lost, bytes_left)
            digest = hashlib.sha256(b"".join(name.encode() + b"\0" + hashed(state[name]) for name in sorted(state)))
            if (done, digest.hexdigest()) not in seen:
                seen.add((done, digest.hexdigest()))
                last = recorder.calls[count - 1] if count else None
                how = "a kill" if lost is None else f"a power cut, {bytes_left} bytes, without {sorted(lost)}"
                yield f"{how} after call {count} ({last and (last.kind, last.path)})", count, done, state


def hashed(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _folder_of(path: str) -> str:
    return str(Path(path).parent)


def _pending(calls: list[Call]) -> list[int]:
    """Positions of calls that changed names in a folder that was not forced to disk afterwards."""
    found: list[int] = []
    for place, call in enumerate(calls):
        if call.kind in ("mkdir", "create", "link", "rename", "unlink"):
            found.append(place)
        elif call.kind == "fsync folder":
            found = [one for one in found if _folder_of(calls[one].target or calls[one].path) != call.path]
    return found


def _left_by(recorder: Recorder, count: int, lost: frozenset[int] | None, bytes_left: str) -> State:
    """The folder after a crash; ``lost`` are calls whose new names are lost, None if the machine goes on."""
    lost = lost or frozenset()
    number = itertools.count()
    files: dict[int, tuple[bytes, bytes]] = {}
    """Content of each file: what programs read, and what was last forced to disk."""
    seen: dict[str, int] = {}
    """The file of each name, as programs see it; ``kept`` holds the names that are left."""
    for path, data in recorder.before.items():
        seen[path] = next(number)
        files[seen[path]] = (data, data)
    kept = dict(seen)
    folders = {_folder_of(path) for path in seen} | {"."}
    made = {call.path for call in recorder.calls if call.kind == "mkdir"}
    for place, call in enumerate(recorder.calls[:count]):
        names = [seen] if place in lost else [seen, kept]
        if call.kind == "create":
            file = next(number)
            files[file] = (b"", b"")
            for one in names:
                one[call.path] = file
        elif call.kind == "write":
            now, forced = files[seen[call.path]]
            now = now.ljust(call.start, b"\0")
            now = now[: call.start] + call.data + now[call.start + len(call.data) :]
            files[seen[call.path]] = (now, forced)
        elif call.kind == "fsync":
            now, _ = files[seen[call.path]]
            files[seen[call.path]] = (now, now)
        elif call.kind in ("link", "rename"):
            file = seen[call.path]
            for one in names:
                if call.kind == "rename":
                    one.pop(call.path, None)
                one[call.target] = file
        elif call.kind == "unlink":
            for one in names:
                one.pop(call.path, None)
        elif call.kind == "mkdir" and place not in lost:
            folders.add(call.path)
    left: State = {}
    for path, file in kept.items():
        if _folder_of(path) in folders or _folder_of(path) not in made:
            now, forced = files[file]
            left[path] = {"all": now, "forced": forced, "zero": forced.ljust(len(now), b"\0")}[bytes_left]
    return left


def restore(state: Mapping[str, bytes], folder: Path) -> Path:
    """Write a state into a new folder."""
    for name, data in state.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
