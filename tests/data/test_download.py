from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from adagauss.data import dataset
from adagauss.data.dataset import dataset_info, datasets
from adagauss.data.download import extract, fetch
from adagauss.errors import DataError
from adagauss.utils.progress import LineReporter


def tar_of(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def zip_of(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return path


class Server:
    """Serves the files of a folder over HTTP, until it is stopped."""

    def __init__(self, folder: Path) -> None:
        class Quiet(SimpleHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.folder = folder
        self._web = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        threading.Thread(target=self._web.serve_forever, args=(0.02,), daemon=True).start()

    def url(self, file: Path) -> str:
        return f"http://127.0.0.1:{self._web.server_port}/{file.name}"

    def stop(self) -> None:
        self._web.shutdown()
        self._web.server_close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "server").mkdir()
    found = Server(tmp_path / "server")
    yield found
    found.stop()


def register(monkeypatch: pytest.MonkeyPatch, server: Server, files: list[Path], unpack_into: str | None = "") -> None:
    downloads = {server.url(file): hashlib.md5(file.read_bytes()).hexdigest() for file in files}
    toy = replace(dataset_info("cifar100"), name="toy", folder="toy", downloads=downloads, unpack_into=unpack_into)
    monkeypatch.setitem(dataset._DATASETS._entries, "toy", (toy, "tests", "toy"))


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_fetch_extracts_once_downloaded(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, pack: Any
) -> None:
    archive = pack(server.folder / "toy.archive", {"toy/a.txt": b"a", "toy/deep/b.txt": b"b"})
    register(monkeypatch, server, [archive])
    root = tmp_path / "data"
    assert fetch("toy", root) == root
    assert (root / "toy" / "deep" / "b.txt").read_bytes() == b"b"
    (root / "toy" / "a.txt").unlink()
    (root / "toy" / "own.txt").write_text("mine", encoding="utf-8")
    server.stop()
    fetch("toy", root)  # mends what is missing from the archive kept
    assert (root / "toy" / "a.txt").read_bytes() == b"a"
    assert (root / "toy" / "own.txt").read_text(encoding="utf-8") == "mine"
    assert sorted(path.name for path in root.iterdir()) == ["downloads", "toy"]


def test_plain_files_go_to_their_folder(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [server.folder / name for name in ("one.gz", "two.gz")]
    for file in files:
        file.write_bytes(file.name.encode())
    register(monkeypatch, server, files, unpack_into=None)
    folder = fetch("toy", tmp_path / "data")
    assert sorted(path.name for path in folder.iterdir()) == ["one.gz", "two.gz"]


def test_offline_says_what_to_put_where_and_takes_it(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = zip_of(tmp_path / "toy.zip", {"toy/a.txt": b"a"})
    register(monkeypatch, server, [archive])
    server.stop()
    root = tmp_path / "data"
    place = root / "downloads" / "toy.zip"
    with pytest.raises(DataError, match=r"http://.*/toy\.zip could not be downloaded") as raised:
        fetch("toy", root)
    assert str(place) in str(raised.value)
    place.write_bytes(b"half a file")
    with pytest.raises(DataError, match="or incomplete"):
        fetch("toy", root)
    shutil.copy(archive, place)
    fetch("toy", root)
    assert (root / "toy" / "a.txt").exists()


def test_a_file_with_another_checksum_is_refused(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = zip_of(server.folder / "toy.zip", {"toy/a.txt": b"a"})
    register(monkeypatch, server, [archive])
    zip_of(archive, {"toy/a.txt": b"changed"})
    with pytest.raises(DataError, match=r"could not be downloaded \(MD5 hash .* does not match"):
        fetch("toy", tmp_path / "data")
    assert not list((tmp_path / "data" / "downloads").iterdir())
    assert not (tmp_path / "data" / "toy").exists()


@pytest.mark.parametrize("name", ["../evil.txt", "/etc/evil.txt", "toy/../../evil.txt"])
@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_members_leading_outside_are_not_written(tmp_path: Path, pack: Any, name: str) -> None:
    archive = pack(tmp_path / "archive", {"toy/a.txt": b"a", name: b"evil"})
    target = tmp_path / "outer" / "data"
    if pack is zip_of:
        extract(archive, target)  # left out
        assert [path.name for path in target.rglob("*.txt")] == ["a.txt"]
    elif name.startswith("/"):
        extract(archive, target)  # tar members lose their leading slash and stay inside
        assert (target / "etc" / "evil.txt").exists()
    else:
        with pytest.raises(DataError, match="may be malicious"):
            extract(archive, target)
        assert not list(target.iterdir())
    assert not [path for path in tmp_path.rglob("evil.txt") if not path.is_relative_to(target)]


def test_links_leading_outside_are_not_made(tmp_path: Path) -> None:
    archive = tmp_path / "archive.tar"
    with tarfile.open(archive, "w") as tar:
        link = tarfile.TarInfo("toy/link")
        link.type, link.linkname = tarfile.SYMTYPE, "../../../etc"
        tar.addfile(link)
    with pytest.raises(DataError, match="may be malicious"):
        extract(archive, tmp_path / "data")
    packed = tmp_path / "archive.zip"
    with zipfile.ZipFile(packed, "w") as file:
        member = zipfile.ZipInfo("toy/link")
        member.external_attr = 0o120777 << 16
        file.writestr(member, "/etc")
    extract(packed, tmp_path / "data")  # a text with the place that it points to
    assert not (tmp_path / "data" / "toy" / "link").is_symlink()


def test_a_damaged_archive(tmp_path: Path) -> None:
    whole = tar_of(tmp_path / "toy.tgz", {"toy/a.txt": bytes(range(256)) * 200})
    whole.write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(DataError, match="damaged"):
        extract(whole, tmp_path / "data")
    assert not list((tmp_path / "data").iterdir())
    (tmp_path / "text").write_text("no archive", encoding="utf-8")
    with pytest.raises(DataError, match="damaged"):
        extract(tmp_path / "text", tmp_path / "data")


def test_the_table_of_sources_is_sound() -> None:
    for info in datasets().values():
        assert not (info.downloads and info.manual), info.name
        for url, md5 in info.downloads.items():
            assert len(bytes.fromhex(md5)) == 16
            assert url.startswith("http")
            assert not url.endswith("/")


def test_progress_counts_every_byte_once(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = zip_of(server.folder / "toy.zip", {"toy/a.bin": bytes(4 * 10**6)})
    register(monkeypatch, server, [archive])
    lines = io.StringIO()
    ticks = iter(range(0, 1000, 10))
    fetch("toy", tmp_path / "data", reporter=LineReporter(Console(file=lines), lambda: float(next(ticks))))
    shown = lines.getvalue().splitlines()
    assert shown[0] == "toy.zip, MB: 1/4"
    assert shown[-1] == "toy.zip, MB: 4/4"
    assert len(shown) == 4


def test_a_failed_fetch_leaves_no_empty_dataset_behind(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = server.folder / "one.gz"
    file.write_bytes(b"1")
    register(monkeypatch, server, [file], unpack_into=None)
    server.stop()
    with pytest.raises(DataError, match="could not be downloaded"):
        fetch("toy", tmp_path)
    assert not (tmp_path / "toy").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cars", "Kaggle"),
        ("digits", "digits cannot be downloaded from here. It needs no download"),
        ("folder", "images of your own.*folder:path/to/images"),
        ("folder:some/where", "images of your own"),
    ],
)
def test_a_dataset_without_downloads_is_refused_with_advice(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        fetch(name, tmp_path)
