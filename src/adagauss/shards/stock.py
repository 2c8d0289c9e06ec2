"""What is finished, in a folder beside the model: sums of all shards so far, and single shards not yet added to them.

Which shards are in a file of sums is written in that file, so both change together: whatever is killed when, no shard
counts twice, and a finished one is not lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from adagauss.classifier import check_one_kind
from adagauss.core.learner_state import UNFIT
from adagauss.data.images import Label
from adagauss.errors import CheckpointError, DataError
from adagauss.gathered import Gathered
from adagauss.shards.example import ShardError
from adagauss.shards.finding import Shard
from adagauss.utils.checkpoint import load_tensors, save_tensors
from adagauss.utils.files import remove_durably

KIND = "gathered"
TOTAL, PART, FEATURES = "total.safetensors", "part-", "features.safetensors"
NOTE = "shards"
"""Where the facts about a model note the shards that are in it."""
FOLD = 16
"""Shards after which the sums of all are written anew: they may be large."""

Finished = dict[str, str]
"""For the place of each finished shard its stamp and its digest, as hashes: no file is named."""


def noted(place: str, stamp: str, digest: str) -> Finished:
    """The note of one shard."""
    return {place: f"{stamp} {digest}"}


def finished_in(about: Mapping[str, Any]) -> Finished:
    """The shards that a model says are in it."""
    found = about.get(NOTE)
    return {str(place): str(note) for place, note in found.items()} if isinstance(found, dict) else {}


def digests(finished: Finished) -> set[str]:
    """The digests of finished shards."""
    return {note.partition(" ")[2] for note in finished.values()}


def write_part(folder: Path, part: Gathered, shard: Shard, stamp: str, digest: str) -> Path:
    """Keep the sums of one shard, whole or not at all."""
    path = folder / f"{PART}{digest}.safetensors"
    facts = {**part.facts(), NOTE: noted(shard.place, stamp, digest)}
    save_tensors(path, KIND, part.tensors(), facts)
    return path


@dataclass
class Stock:
    """The sums of all finished shards that are not in the model yet."""

    folder: Path
    total: Gathered
    beside: Sequence[Label] = ()
    """Classes that the model knows."""
    finished: Finished = field(default_factory=dict)
    _written: list[Path] = field(default_factory=list)
    """Parts that are in the total in memory, and not yet in that on disk."""

    @classmethod
    def opened(cls, folder: Path, nothing: Gathered, in_model: Finished, beside: Sequence[Label]) -> Stock:
        """What an earlier command has left, or nothing; what is in the model already is removed."""
        stock = cls(folder, nothing, beside)
        if (folder / TOTAL).exists():
            total, finished = read(folder / TOTAL)
            if digests(finished) & digests(in_model):  # the model was saved, and the command ended before it cleaned up
                stock.clear(features=False)
            else:
                stock.total.merge_(total)
                stock.finished = finished
        for path in sorted(folder.glob(f"{PART}*.safetensors")):
            try:
                _, finished = read(path)
            except CheckpointError:
                path.unlink(missing_ok=True)  # its shard is read again
                continue
            if digests(finished) & (digests(in_model) | digests(stock.finished)):
                path.unlink(missing_ok=True)
            else:
                stock.take(path)
        return stock

    def take(self, path: Path) -> bool:
        """Add the sums of a shard; False if its images are in the sums already, as another shard."""
        if not path.exists() and path.stem.removeprefix(PART) in digests(self.finished):
            return False  # a copy of a shard whose sums have been added up, and their file removed, in the meantime
        part, finished = read(path)
        try:
            check_one_kind([*self.beside, *self.total.labels, *part.labels])
        except DataError as error:
            path.unlink(missing_ok=True)
            raise ShardError(f"the labels of a shard do not suit those before ({error})") from None
        new = not digests(finished) & digests(self.finished)
        if new:
            self.total.merge_(part)
            self._written.append(path)
        self.finished |= finished
        if len(self._written) >= FOLD:
            self.save()
        return new

    def save(self) -> None:
        """Write the sums of all; then their parts are not needed any more."""
        if not self.finished:
            return
        save_tensors(self.folder / TOTAL, KIND, self.total.tensors(), {**self.total.facts(), NOTE: self.finished})
        remove_durably(self.folder, self._written)
        self._written = []

    def clear(self, features: bool = True) -> None:
        """Remove all of it: it is in the model."""
        remove_durably(self.folder, [self.folder / TOTAL, *self.folder.glob(f"{PART}*.safetensors")])
        if features:
            remove_durably(self.folder, [self.folder / FEATURES])


def read(path: Path) -> tuple[Gathered, Finished]:
    """Sums in a file, and of which shards they are."""
    tensors, facts = load_tensors(path, KIND)
    try:
        return Gathered.restored(tensors, facts), finished_in(facts)
    except UNFIT as error:
        raise CheckpointError(f"{path} does not hold sums over images ({error}): delete it") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other commands from gathering for the same model."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock", blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise CheckpointError(f"another command gathers shards in {folder}: wait for it, or stop it") from None
    try:
        yield
    finally:
        lock.release()
