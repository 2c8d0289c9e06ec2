"""Safe files: open regular files only, replace files atomically, lock models, and read untrusted YAML within limits.

Reading a pipe may block forever, and a device may have no end. A file is replaced completely or not at all, even if the
machine stops. Without limits, a few lines of YAML can take gigabytes of memory or hours.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode

from adagauss.errors import CheckpointError, ConfigError, DataError


class IrregularFileError(DataError):
    """Something other than a regular file, such as a pipe, a device, or a folder."""


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; any other kind is refused without waiting for it."""
    irregular = IrregularFileError(f"{path} is not a regular file: put a file in its place or leave it out")
    if not stat.S_ISREG(path.stat().st_mode):  # opening a device may already have side effects
        raise irregular
    # Non-blocking, in case the path has become a pipe since the check; the opened file is checked again.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise irregular
    return os.fdopen(descriptor, "rb")


def read_text(path: Path) -> str:
    """Read a text file in UTF-8; a pipe is refused without waiting for it."""
    with open_regular(path) as file:
        return file.read().decode("utf-8")


STALE_SECONDS = 3600.0
TEMPORARY = ".adagauss-*.tmp"
"""Names of files that are being written, and locked by their writer. One that is not locked is left from a killed
process. Where the file system has no locks, one is that has not changed for an hour."""


def write_atomically(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace a file with these bytes; after a crash or on a full disk the old file is complete."""
    replace_atomically(path, lambda file: file.write(data), mode=mode)


def replace_atomically(path: Path, write: Callable[[BufferedWriter], object], *, mode: int = 0o666) -> None:
    """Replace a file with the output of ``write``.

    The file is written next to the target under a temporary name, forced to disk, and renamed; then the folder is
    forced to disk, since it holds the new name. Several threads or processes may replace one target: the last one wins.
    A symbolic link is followed. The new file has the mode and owner of the old one; the first one has the permissions
    ``mode`` less the umask.
    """
    target = real_path(path)
    temporary = target.with_name(TEMPORARY.replace("*", secrets.token_hex(8)))
    try:
        _make_folder(target.parent)
        _sweep(target.parent)
        with _create(temporary, mode) as file:
            _copy_mode_and_owner(target, file.fileno())
            write(file)
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(target)  # while it is locked
    except BaseException as error:  # an interrupt must not leave a gigabyte behind either
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise CheckpointError(
            f"{path} could not be written ({error.strerror or error}); the old file is unchanged. "
            f"{_remedy(error)}, then try again."
        ) from error
    _sync_replaced(target)


def _remedy(error: OSError) -> str:
    """What to do after a failed write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space or choose another folder"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Make its folder writable or choose another folder"
    return "Check the path and the disk, or choose another folder"


def move_atomically(source: Path, target: Path) -> None:
    """Replace a file with a complete one on the same file system that is already forced to disk.

    A symbolic link is followed. The new file gets the mode and owner of the old one.
    """
    real = real_path(target)
    try:
        with open_regular(source) as file:
            _copy_mode_and_owner(real, file.fileno())
        source.replace(real)
    except OSError as error:
        raise CheckpointError(f"{target} could not be replaced ({error.strerror}); it is unchanged") from error
    _sync_replaced(real)
    if source.parent != real.parent:
        sync_folder(source.parent)


def remove_durably(folder: Path, paths: Iterable[Path]) -> None:
    """Remove files of a folder and force the removal to disk; missing files are skipped."""
    for path in paths:
        path.unlink(missing_ok=True)
    sync_folder(folder)


def file_version(path: Path) -> tuple[int, ...] | None:
    """Return attributes that change when a file is replaced or written; None if there is no file."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size


def real_path(path: Path) -> Path:
    """Resolve all symbolic links to the absolute path of a file."""
    return Path(os.path.realpath(path))


def resolve_path(path: Path) -> Path:
    """Expand ``~``; raise a `DataError` if nothing exists there."""
    path = path.expanduser()
    try:
        if path.exists():
            return path
    except (OSError, ValueError):  # too long for a path, or with a NUL character
        pass
    text = str(path)
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    if "://" in text or ":/" in text[1:]:
        raise DataError(f"{shown!r} is an address, not a path: download the images first")
    raise DataError(f"no such file or folder: {shown!r}")


def _create(path: Path, mode: int) -> BufferedWriter:
    """Create a file, locked until it is closed."""
    while True:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb")
        _lock(file, wait=True)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another process took it for an abandoned one before it was locked


def _lock(file: BufferedReader | BufferedWriter, *, wait: bool = False) -> bool:
    """Lock an open file until it is closed; returns whether that was possible."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _copy_mode_and_owner(target: Path, descriptor: int) -> None:
    """Give an open file the mode and, as far as the user may, the owner and group of the file that it replaces."""
    try:
        old = target.stat()
    except FileNotFoundError:
        return
    new = os.fstat(descriptor)
    mode = stat.S_IMODE(old.st_mode)
    if new.st_gid != old.st_gid or new.st_uid != old.st_uid:
        try:
            os.fchown(descriptor, old.st_uid, old.st_gid)
        except OSError:
            try:
                os.fchown(descriptor, -1, old.st_gid)
            except OSError:  # the permissions of the old group are not for the new one
                mode &= ~stat.S_IRWXG
    os.fchmod(descriptor, mode)


def _make_folder(folder: Path) -> None:
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in made:
        sync_folder(place.parent)


def _sync_replaced(target: Path) -> None:
    try:
        sync_folder(target.parent)
    except OSError as error:
        raise CheckpointError(
            f"{target} was replaced, but its folder could not be forced to disk ({error.strerror}): the new file may "
            "be lost if the machine stops. Check the disk, then repeat the command"
        ) from error


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to disk, if the file system can do this."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot do this
            raise
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove files that killed processes left."""
    for path in folder.glob(TEMPORARY):
        with suppress(OSError, IrregularFileError), open_regular(path) as file:  # another process may sweep as well
            if _lock(file) or time.time() - os.fstat(file.fileno()).st_mtime > STALE_SECONDS:
                path.unlink()


LOCK_SECONDS = 300.0
"""Time that a change of a model waits for another one to end."""
SERVER_SECONDS = 2.0
"""Time that it waits for a server to stop."""
SERVER = ", a server"
"""Marks a server among the descriptions of processes."""


@contextmanager
def lock_model(
    path: Path,
    seconds: float | None = None,
    waiting: Callable[[str], object] = lambda holder: None,
    *,
    server: bool = False,
) -> Iterator[None]:
    """Hold the lock of a model file: from before it is read until its replacement is complete.

    Everything that changes a model takes this lock: commands, and a server for its whole life. Readers do not need it,
    since files are replaced atomically. The lock is a file next to the model, `.MODEL.lock`, which the operating system
    unlocks when the process ends, however it ends. Inside, it describes the process that holds it.

    Args:
        path: the model file, which need not exist yet; a symbolic link is followed.
        seconds: how long to wait, at most `SERVER_SECONDS` for a server; None means `LOCK_SECONDS`.
        waiting: called once with a description of the holder if the lock is not free, and the holder is not a server.
        server: whether this process holds the lock until it ends.

    Raises:
        CheckpointError: another process still holds the lock; the message names it.
    """
    target = real_path(path)
    file = target.with_name(f".{target.name}.lock")
    seconds = LOCK_SECONDS if seconds is None else seconds
    lock = FileLock(file, thread_local=False)  # a server may release it in another thread
    try:
        _make_folder(target.parent)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if (holder := _holder(file)).endswith(SERVER):
                seconds = min(seconds, SERVER_SECONDS)
            else:
                waiting(holder)
            lock.acquire(timeout=seconds, poll_interval=0.1)
    except Timeout:
        if (holder := _holder(file)).endswith(SERVER):
            raise CheckpointError(
                f"{path} is served by {holder.removesuffix(SERVER)}: make the change on the page of the server or by "
                "REST, or stop the server and try again"
            ) from None
        raise CheckpointError(
            f"{path} is being changed by {holder}; waited {seconds:g} s. Wait until it has ended, or stop it, "
            "then try again"
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be locked for a change ({file}: {error.strerror or error}): its folder must be writable"
        ) from error
    try:
        with suppress(OSError):  # a change by an administrator must not lock out the owner of the model
            owner = (target if target.exists() else target.parent).stat()
            os.chown(file, owner.st_uid, owner.st_gid)
        if not os.access(target.parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            raise CheckpointError(f"{target.parent} is not writable, so {path} cannot be changed: copy it elsewhere")
        # No further words of the command: one may be a token.
        command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:2]])
        with suppress(OSError):  # only a message lacks it
            holder = f"process {os.getpid()} on {socket.gethostname()} ({command[:100]}){SERVER if server else ''}"
            file.write_text(holder, encoding="utf-8", errors="replace")
        yield
    finally:
        with suppress(OSError):
            os.truncate(file, 0)
        lock.release()


def _holder(file: Path) -> str:
    """Describe the process that holds a lock; it may not have written this yet."""
    with suppress(OSError, UnicodeError):
        return file.read_text(encoding="utf-8") or "another process"
    return "another process"


MAX_BYTES = 2**18
MAX_DEPTH = 40
MAX_NODES = 20_000
"""Limit for all values, with each alias counted as all the values it stands for."""
MAX_NUMBER = 100
"""Limit for the characters of a number or date: base-60 numbers take time quadratic in their length."""
TEXT = "tag:yaml.org,2002:str"


class YamlError(ConfigError):
    """Text that is not YAML, or exceeds the limits; the message is the reason in one line."""


def as_yaml(value: object) -> str:
    """Write a plain value in one line, as `parse_yaml` and ``--set`` read it.

    >>> as_yaml([1, "a"]), as_yaml(None)
    ('[1, a]', 'null')
    """
    return yaml.safe_dump(value, default_flow_style=True, width=float("inf")).removesuffix("\n").removesuffix("\n...")


def parse_yaml(text: str) -> Any:
    """Parse a YAML text into plain values.

    >>> parse_yaml("{tied: 0.5, kinds: [a, b]}")
    {'tied': 0.5, 'kinds': ['a', 'b']}
    """
    if len(text) > MAX_BYTES:
        raise YamlError(f"it is longer than {MAX_BYTES // 1024} KiB, the limit for settings")
    try:
        return yaml.load(text, Loader=_BoundedLoader)  # a safe loader: it makes plain values only
    except YamlError:
        raise
    except (yaml.YAMLError, ValueError, TypeError) as error:  # a ValueError is a date that does not exist
        # The full text of a YAML error has several lines.
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None and mark.line else ""
        raise YamlError(f"{reason}{where}") from error


def read_yaml(path: Path) -> Any:
    """Read a YAML file in UTF-8; a missing file raises as usual."""
    if not path.is_file() and path.exists():
        raise YamlError("it is not a file")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    try:
        return parse_yaml(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        if len(content) > MAX_BYTES:  # a character may be cut at the limit
            raise YamlError(f"it is longer than {MAX_BYTES // 1024} KiB, the limit for settings") from error
        raise YamlError("it is not text in UTF-8") from error


class _BoundedLoader(yaml.SafeLoader):
    """Counts while it reads, so that excessive content is refused before it is built."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0
        self._sizes: dict[int, int] = {}
        """Number of values of each finished node; an alias to an unfinished node refers to a node that contains it."""

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        is_alias = self.check_event(AliasEvent)
        before = self._nodes
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise YamlError(f"it is nested more than {MAX_DEPTH} levels deep, the limit for settings")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if is_alias and id(node) not in self._sizes:
            raise YamlError("a value refers to itself")
        self._nodes += self._sizes[id(node)] if is_alias else 1
        if self._nodes > MAX_NODES:
            raise YamlError(f"it stands for more than {MAX_NODES} values, the limit for settings")
        self._sizes.setdefault(id(node), self._nodes - before)
        if isinstance(node, ScalarNode) and node.tag != TEXT and len(node.value) > MAX_NUMBER:
            raise YamlError(f"a number of more than {MAX_NUMBER} characters; put text into quotation marks")
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, MappingNode) else ():
            if not isinstance(key, ScalarNode):
                raise YamlError("a list or mapping is where the name of a setting should be")
            if key.value in seen:
                raise YamlError(f"{key.value[:50]!r} is given twice in line {key.start_mark.line + 1}")
            seen.add(key.value)
        return node
