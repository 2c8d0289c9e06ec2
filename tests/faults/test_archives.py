"""Archives and links: nothing is written outside the requested folder, whatever is in it."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from adagauss.data.download import extract
from adagauss.errors import DataError


def pack(path: Path, names: list[str], links: dict[str, str] | None = None) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as packed:
            for name in names:
                packed.writestr(name, f"new {name}")
        return path
    with tarfile.open(path, "w") as tar:
        for name in names:
            content = f"new {name}".encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, leads in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, leads
            tar.addfile(member)
    return path


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("suffix", ["tar", "zip"])
@pytest.mark.parametrize("inner", ["", "deep/er/"])
def test_a_link_in_the_target_is_not_followed(tmp_path: Path, suffix: str, inner: str) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    (outside / "below").mkdir(parents=True)
    (outside / "a.txt").write_text("precious", encoding="utf-8")
    (target / inner).mkdir(parents=True)
    (target / "a.txt").write_text("old", encoding="utf-8")
    (target / inner / "train").symlink_to(outside)
    archive = pack(tmp_path / f"x.{suffix}", ["a.txt", f"{inner}train/a.txt", f"{inner}train/below/b.txt"])
    with pytest.raises(DataError, match=r"train is a link.*Remove the link"):
        extract(archive, target)
    assert tree(outside) == {"a.txt": "precious"}
    assert (target / "a.txt").read_text(encoding="utf-8") == "old", "a refused extraction changed something"
    assert [path.name for path in target.glob(".extracting-*")] == []
    (target / inner / "train").unlink()  # as the sentence says
    extract(archive, target)
    assert (target / inner / "train" / "below" / "b.txt").read_text(encoding="utf-8") == f"new {inner}train/below/b.txt"


@pytest.mark.parametrize("suffix", ["tar", "zip"])
def test_a_link_in_the_place_of_a_file_is_replaced_and_not_written_through(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "precious.txt").write_text("precious", encoding="utf-8")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "a.txt").symlink_to(tmp_path / "precious.txt")
    extract(pack(tmp_path / f"x.{suffix}", ["a.txt"]), tmp_path / "target")
    assert (tmp_path / "precious.txt").read_text(encoding="utf-8") == "precious"
    assert not (tmp_path / "target" / "a.txt").is_symlink()


def test_a_link_of_one_archive_does_not_lead_the_next_one_out(tmp_path: Path) -> None:
    (tmp_path / "target" / "real").mkdir(parents=True)
    extract(pack(tmp_path / "one.tar", ["real/a.txt"], {"alias": "real"}), tmp_path / "target")
    with pytest.raises(DataError, match="alias is a link"):
        extract(pack(tmp_path / "two.tar", ["alias/a.txt"]), tmp_path / "target")


def test_a_file_where_a_folder_should_be_is_a_readable_error(tmp_path: Path) -> None:
    (tmp_path / "target" / "a.txt").mkdir(parents=True)
    with pytest.raises(DataError, match="could not be extracted into"):
        extract(pack(tmp_path / "x.tar", ["a.txt"]), tmp_path / "target")
