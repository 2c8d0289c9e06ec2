"""Which shards there are: files, and folders of class folders in pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from adagauss.data.folders import folders_in, image_files
from adagauss.data.inputs import resolve_path
from adagauss.errors import DataError
from adagauss.shards.example import MOST_BYTES, Example, ShardError
from adagauss.shards.tables import array_examples, parquet_examples
from adagauss.shards.tars import Bad, tar_examples
from adagauss.utils.files import open_regular

PIECE = 10_000
"""Files of a class folder that are one shard."""
KINDS = {".tar": "tar", ".tgz": "tar", ".tar.gz": "tar", ".parquet": "parquet", ".npz": "arrays"}


@dataclass(frozen=True)
class Shard:
    """A file of many images, or a piece of a class folder."""

    path: Path
    kind: str
    piece: int = 0

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.path}#{self.piece}" if self.piece else str(self.path)

    @property
    def place(self) -> str:
        """A hash of where it is: notes name no files."""
        return _hash(f"{self.path}#{self.piece}")

    def stamp(self) -> str:
        """A hash of what changes when its files do, found without reading them."""
        states = [(path.name, path.stat()) for path in ([self.path] if self.kind != "folder" else self._files())]
        return _hash("\n".join(f"{name} {state.st_size} {state.st_mtime_ns}" for name, state in states))

    def examples(self, bad: Bad) -> Iterator[Example]:
        """Its images in order; those that have no usable label go to ``bad``, with the reason."""
        try:
            if self.kind == "tar":
                yield from tar_examples(self.path, bad)
            elif self.kind == "parquet":
                yield from parquet_examples(self.path, bad)
            elif self.kind == "arrays":
                yield from array_examples(self.path)
            else:
                yield from self._class_folder(bad)
        except OSError as error:
            raise ShardError(f"{self.name} cannot be read ({error.strerror or error})") from error

    def _class_folder(self, bad: Bad) -> Iterator[Example]:
        for path in self._files():
            name = path.relative_to(self.path).as_posix()
            try:
                with open_regular(path) as file:
                    content = file.read(MOST_BYTES + 1)
                if len(content) > MOST_BYTES:
                    raise DataError(f"it has more than {MOST_BYTES} bytes")
            except (DataError, OSError) as error:
                bad[name] = str(error)
                continue
            yield Example(name, self.path.name, content)

    def _files(self) -> list[Path]:
        return image_files(self.path)[self.piece * PIECE : (self.piece + 1) * PIECE]


def find_shards(paths: Iterable[Path | str]) -> list[Shard]:
    """The shards that are given: files, folders that hold such files, and folders of class folders."""
    found = list(dict.fromkeys(shard for path in paths for shard in _below(resolve_path(Path(path)).absolute())))
    if not found:
        raise DataError("no shards were given")
    return found


def _below(path: Path) -> Iterator[Shard]:
    if not path.is_dir():
        kind = _kind(path)
        if kind is None:
            raise DataError(f"{path} is no shard: folders of class folders and {', '.join(KINDS)} files are read")
        yield Shard(path, kind)
        return
    files = [(file, kind) for file in sorted(path.iterdir()) if file.is_file() and (kind := _kind(file)) is not None]
    pieces = [(folder, -(-len(image_files(folder)) // PIECE)) for folder in folders_in(path)]
    if files and any(number for _, number in pieces):
        raise DataError(
            f"{path} holds class folders with images, and {files[0][0].name} beside them: give each kind a folder "
            "of its own, or name the files"
        )
    if files:
        yield from (Shard(file, kind) for file, kind in files)
        return
    if not any(number for _, number in pieces):
        raise DataError(f"{path} holds neither class folders with images nor {', '.join(KINDS)} files")
    yield from (Shard(folder, "folder", piece) for folder, number in pieces for piece in range(number))


def _kind(path: Path) -> str | None:
    name = path.name.lower()
    if name.startswith("."):
        return None
    return next((kind for suffix, kind in KINDS.items() if name.endswith(suffix)), None)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
