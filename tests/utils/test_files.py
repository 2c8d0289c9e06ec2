"""Replaced files keep mode and owner, links are followed, and a folder that cannot be forced to disk is an error."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from adagauss.errors import CheckpointError
from adagauss.utils.files import move_atomically, write_atomically


def write(path: Path) -> None:
    write_atomically(path, b"new")


def move(path: Path) -> None:
    source = path.with_name("source")
    source.write_bytes(b"new")
    move_atomically(source, path)


replacing = pytest.mark.parametrize("replace", [write, move])


@replacing
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_the_mode_is_the_same_as_before(tmp_path: Path, replace: Callable[[Path], None], mode: int) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    path.chmod(mode)
    replace(path)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


@replacing
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_owner_is_the_same_as_before(tmp_path: Path, replace: Callable[[Path], None]) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    os.chown(path, 1234, 2345)
    replace(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


@replacing
def test_the_permissions_of_a_group_do_not_pass_to_another(
    tmp_path: Path, replace: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"old")
    path.chmod(0o660)
    real = os.fstat

    def other_group(descriptor: int) -> os.stat_result:
        found = list(real(descriptor))
        found[stat.ST_GID] += 1
        return os.stat_result(found)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fstat", other_group)
    monkeypatch.setattr(os, "fchown", refuse)
    replace(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@replacing
def test_a_symbolic_link_is_followed(tmp_path: Path, replace: Callable[[Path], None]) -> None:
    target = tmp_path / "store" / "model"
    target.parent.mkdir()
    target.write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to(Path("store") / "model")
    replace(link)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert list(target.parent.iterdir()) == [target]


@replacing
@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EIO, errno.EROFS])
def test_only_file_systems_without_this_may_refuse_to_force_a_folder_to_disk(
    tmp_path: Path, replace: Callable[[Path], None], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    if code in (errno.EINVAL, errno.ENOTSUP):
        replace(tmp_path / "model")
    else:
        with pytest.raises(CheckpointError, match="was replaced, but its folder could not be forced to disk"):
            replace(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == b"new"
