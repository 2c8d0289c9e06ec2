from __future__ import annotations

import hashlib
import io
import shutil
import sys
import tarfile
import types
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from adagauss.data import dataset
from adagauss.data import download as fetching
from adagauss.data.dataset import dataset_info, datasets
from adagauss.data.download import extract, fetch
from adagauss.errors import ConfigError, DataError
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


def register(monkeypatch: pytest.MonkeyPatch, files: list[Path], unpack_into: str | None = "") -> None:
    downloads = {f"https://example.org/{file.name}": hashlib.md5(file.read_bytes()).hexdigest() for file in files}
    toy = replace(dataset_info("cifar100"), name="toy", folder="toy", downloads=downloads, unpack_into=unpack_into)
    monkeypatch.setitem(dataset._DATASETS._entries, "toy", (toy, "tests", "toy"))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for the network."""
    folder = tmp_path / "server"
    folder.mkdir()
    monkeypatch.setattr(fetching, "retrieve", lambda url, md5, file, _: shutil.copy(folder / file.name, file))
    return folder


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that takes the network away."""

    def fail(*_: object) -> None:
        raise ConnectionError("no network")

    return lambda: monkeypatch.setattr(fetching, "retrieve", fail)


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_fetch_extracts_once_downloaded(
    tmp_path: Path, server: Path, offline: Callable[[], None], monkeypatch: pytest.MonkeyPatch, pack: Any
) -> None:
    archive = pack(server / "toy.archive", {"toy/a.txt": b"a", "toy/deep/b.txt": b"b"})
    register(monkeypatch, [archive])
    root = tmp_path / "data"
    assert fetch("toy", root) == root
    assert (root / "toy" / "deep" / "b.txt").read_bytes() == b"b"
    (root / "toy" / "a.txt").unlink()
    (root / "toy" / "own.txt").write_text("mine", encoding="utf-8")
    offline()
    fetch("toy", root)  # mends what is missing from the archive kept
    assert (root / "toy" / "a.txt").read_bytes() == b"a"
    assert (root / "toy" / "own.txt").read_text(encoding="utf-8") == "mine"
    assert sorted(path.name for path in root.iterdir()) == ["downloads", "toy"]


def test_plain_files_go_to_their_folder(tmp_path: Path, server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one.gz", "two.gz"):
        (server / name).write_bytes(name.encode())
    register(monkeypatch, [server / "one.gz", server / "two.gz"], unpack_into=None)
    folder = fetch("toy", tmp_path / "data")
    assert sorted(path.name for path in folder.iterdir()) == ["one.gz", "two.gz"]


def test_offline_says_what_to_put_where_and_takes_it(
    tmp_path: Path, offline: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = zip_of(tmp_path / "toy.zip", {"toy/a.txt": b"a"})
    register(monkeypatch, [archive])
    offline()
    root = tmp_path / "data"
    place = root / "downloads" / "toy.zip"
    with pytest.raises(DataError, match=r"https://example\.org/toy\.zip could not be downloaded") as raised:
        fetch("toy", root)
    assert str(place) in str(raised.value)
    place.write_bytes(b"half a file")
    with pytest.raises(DataError, match="or incomplete"):
        fetch("toy", root)
    shutil.copy(archive, place)
    fetch("toy", root)
    assert (root / "toy" / "a.txt").exists()


def test_a_file_with_another_checksum_is_refused(tmp_path: Path, server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = zip_of(server / "toy.zip", {"toy/a.txt": b"a"})
    register(monkeypatch, [archive])
    zip_of(archive, {"toy/a.txt": b"changed"})
    with pytest.raises(DataError, match="not the official one"):
        fetch("toy", tmp_path / "data")
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


def test_names_that_cannot_be_fetched(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Kaggle"):
        fetch("cars", tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'cifar100'"):
        fetch("cifar-100", tmp_path)


def test_the_table_of_sources_is_sound() -> None:
    for info in datasets().values():
        assert not (info.downloads and info.manual), info.name
        for url, md5 in info.downloads.items():
            assert len(bytes.fromhex(md5)) == 16
            assert url.startswith("http")
            assert not url.endswith("/")


def test_pooch_is_given_address_checksum_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def retrieve(url: str, **settings: Any) -> None:
        bar = settings["downloader"]
        bar.total = 10_000_000
        bar.update(4_000_000)
        bar.reset()
        bar.update(10_000_000)
        bar.close()
        calls.append({"url": url, **settings})

    pooch = types.SimpleNamespace(retrieve=retrieve, HTTPDownloader=lambda progressbar, **_: progressbar)
    monkeypatch.setitem(sys.modules, "pooch", pooch)
    url = "https://example.org/a.zip"
    lines = io.StringIO()
    ticks = iter(range(0, 1000, 10))
    fetching.retrieve(url, "00", tmp_path / "a.zip", LineReporter(Console(file=lines), lambda: float(next(ticks))))
    assert lines.getvalue() == "a.zip, MB: 4/10\n", "what pooch counts a second time is not shown"
    (call,) = calls
    assert (call["url"], call["known_hash"]) == (url, "md5:00")
    assert Path(call["path"]) / call["fname"] == tmp_path / "a.zip"


def test_pooch_downloads_over_http(tmp_path: Path) -> None:
    import functools
    import http.server
    import threading

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = tmp_path / "server"
    server.mkdir()
    content = b"content" * 1000
    (server / "a.bin").write_bytes(content)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(server))) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{web.server_port}/a.bin"
        fetching.retrieve(url, hashlib.md5(content).hexdigest(), tmp_path / "a.bin")
        web.shutdown()
    assert (tmp_path / "a.bin").read_bytes() == content


def test_a_failed_fetch_leaves_no_empty_dataset_behind(tmp_path: Path, offline: Callable[[], None]) -> None:
    offline()
    with pytest.raises(DataError, match="could not be downloaded"):
        fetch("mnist", tmp_path)
    assert not (tmp_path / "mnist").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digits", "digits cannot be downloaded from here. It needs no download"),
        ("folder", "images of your own.*folder:path/to/images"),
        ("folder:some/where", "images of your own"),
    ],
)
def test_what_needs_no_fetching_says_so(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        fetch(name, tmp_path)
