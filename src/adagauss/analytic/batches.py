"""Teaching from shards: moments of each shard are computed separately, in any order, and learned as one task.

`sum_shard` reads a shard once and returns a `MomentBatch`. `teach_shards` does this for many shards, in this process or
in several, stores each finished batch in a folder, and updates the learner at the end. Memory does not grow with the
number of images, and an interrupted call resumes from the folder.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from filelock import FileLock, Timeout
from joblib import Parallel, delayed  # type: ignore[import-untyped]
from PIL import Image
from torch import Tensor

from adagauss.analytic.classifier import ExactClassifier
from adagauss.analytic.moments import MomentSums
from adagauss.core.class_edits import check_features
from adagauss.core.learn import Learner
from adagauss.core.learner_state import MISFIT, LearnerState
from adagauss.core.task import ClassEdit, CurrentTask
from adagauss.data.decode import Pixels, decode_image, image_size
from adagauss.data.files import map_collecting_errors, some_named
from adagauss.data.folders import PHOTO_SIZE
from adagauss.data.images import (
    ArrayImages,
    Label,
    LabelledImages,
    PixelScale,
    check_labels_exact,
    evenly_spaced,
    merge_pixel_ranges,
)
from adagauss.data.inputs import as_picture, check_one_kind, of_shape
from adagauss.data.shards import Bad, Example, Shard, ShardError, find_shards
from adagauss.errors import AdagaussError, CheckpointError, DataError, UnsupportedError, WorkerError
from adagauss.methods import Method
from adagauss.utils.checkpoint import load_tensors, save_tensors
from adagauss.utils.files import remove_durably
from adagauss.utils.process import is_out_of_memory
from adagauss.utils.progress import Advance, Reporter
from adagauss.utils.runtime import Runtime, RuntimeConfig

KEY_BITS = 63


@dataclass
class MomentBatch:
    """Moments of images, and the features of the few used for leave-one-out: those with the smallest keys.

    A key is a hash of an image, so this sample depends neither on the order of the images nor on how they are split
    into batches: the smallest keys of a whole are among the smallest of its parts.
    """

    sums: MomentSums
    views: int
    """Feature vectors per image: 2 with the mirror image."""
    most: int
    """Size of the leave-one-out sample."""
    labels: list[Label] = field(default_factory=list)
    """The classes of the sums, in their order."""
    keys: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    shown: Tensor = field(default_factory=lambda: torch.zeros(0))
    """(K, V, width) features of the images with these keys, and their ``targets`` among the labels."""
    targets: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    scale: PixelScale | None = None

    def __post_init__(self) -> None:
        self._position = {label: column for column, label in enumerate(self.labels)}
        if not len(self.keys):
            self.shown = torch.zeros(0, self.views, self.sums.width)

    @property
    def images(self) -> int:
        """Number of images, not counting mirror images."""
        return int(self.sums.counts.sum()) // self.views

    def add_(self, views: Sequence[Tensor], labels: Sequence[Label], keys: Tensor) -> Self:
        """Add images: (N, width) features for each view, one label and one key per image."""
        targets = torch.tensor(self._columns(labels), dtype=torch.long)
        for view in views:
            self.sums.add_(view, targets, len(self.labels))
        worth = self._worth(keys)
        self._select(keys[worth], torch.stack([view[worth.to(view.device)].cpu() for view in views], 1), targets[worth])
        return self

    def merge_(self, other: MomentBatch) -> Self:
        """Add all images of another batch, which is not changed."""
        if (other.sums.width, other.views) != (self.sums.width, self.views):
            raise DataError("these batches have different features: compute all of them with one model")
        columns = self._columns(other.labels)
        self.sums.merge_(other.sums, columns)
        self._select(other.keys, other.shown, torch.tensor(columns, dtype=torch.long)[other.targets])
        self.update_scale_(other.scale)
        return self

    def update_scale_(self, scale: PixelScale | None) -> None:
        """Extend the range of pixel values."""
        known = [one for one in (self.scale, scale) if one is not None]
        if known:
            self.scale = PixelScale(min(one.low for one in known), max(one.high for one in known))

    def tensors(self) -> dict[str, Tensor]:
        """The tensors stored in a file."""
        held = {"keys": self.keys, "shown": self.shown.contiguous(), "targets": self.targets}
        return {**{f"sums.{name}": tensor for name, tensor in self.sums.state_dict().items()}, **held}

    def facts(self) -> dict[str, Any]:
        """The facts stored in a file with the tensors."""
        scale = self.scale and [self.scale.low, self.scale.high]
        return {"views": self.views, "most": self.most, "labels": self.labels, "scale": scale}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Self:
        """Restore a batch from `tensors` and `facts`, with checks."""
        sums = MomentSums(0)
        sums.load_state_dict({name[5:]: tensor for name, tensor in tensors.items() if name.startswith("sums.")})
        sums.check()
        keys, shown, targets = (tensors[name] for name in ("keys", "shown", "targets"))
        labels, views = list(facts["labels"]), int(facts["views"])
        if len(labels) != sums.classes or shown.shape != (len(keys), views, sums.width) or len(targets) != len(keys):
            raise DataError("the tensors of this batch have inconsistent shapes")
        scale = facts["scale"] and PixelScale(*facts["scale"])
        return cls(sums, views, int(facts["most"]), labels, keys, shown, targets, scale)

    def _columns(self, labels: Sequence[Label]) -> list[int]:
        for label in labels:
            if label not in self._position:
                self._position[label] = len(self.labels)
                self.labels.append(label)
        return [self._position[label] for label in labels]

    def _worth(self, keys: Tensor) -> Tensor:
        """Mask of the images that may enter the leave-one-out sample: few of a long stream do."""
        if len(self.keys) < self.most:
            return torch.ones(len(keys), dtype=torch.bool)
        return keys < self.keys.max()

    def _select(self, keys: Tensor, shown: Tensor, targets: Tensor) -> None:
        if not len(keys):
            return
        keys = torch.cat([self.keys, keys])
        order = torch.argsort(keys, stable=True)[: self.most]
        self.keys = keys[order]
        self.shown = torch.cat([self.shown, shown])[order]
        self.targets = torch.cat([self.targets, targets])[order]


def analytic_classifier(method: Method) -> ExactClassifier:
    """The classifier of a method that learns from moments alone; raises for other methods."""
    classifier = method.classifier
    if not isinstance(classifier, ExactClassifier) or method.trains or method.memory.kind != "none":
        raise UnsupportedError(
            "this method cannot learn from shards: it trains a network, or stores more than moments of all images. "
            "Use a method of the family analytic that trains nothing, such as analytic, analytic-patches or "
            "analytic-pretrained"
        )
    return classifier


def empty_batch(method: Method, known: LearnerState, runtime: Runtime) -> MomentBatch:
    """An empty batch for the features of a learner."""
    classifier = analytic_classifier(method)
    width = classifier.initial(_context(known, runtime)).sums.width
    return MomentBatch(MomentSums(width).to(runtime.device), 2 if classifier.flips else 1, classifier.loo_images)


def _context(known: LearnerState, runtime: Runtime) -> ClassEdit:
    """The fitting context of the next task."""
    return ClassEdit((), known.network, runtime, len(known.tasks))


def teach_batch(learner: Learner, part: MomentBatch) -> None:
    """Learn images that were summed elsewhere with the features of this learner, as one task.

    The same as `Learner.learn` with all these images, up to rounding and which of many images select the model.
    """
    if not part.images:
        raise DataError("the batch holds no images: add some before teaching it")
    before = learner.state
    check_labels_exact([*before.classes, *part.labels])
    analytic_classifier(learner.method).check(before.network, len({*before.classes, *part.labels}), learner.runtime)
    learner._change(lambda known: after_batch(learner.method, known, part, learner.runtime))
    if part.scale is not None:
        learner.scale = merge_pixel_ranges(learner.scale, part.scale)


def after_batch(method: Method, known: LearnerState, part: MomentBatch, runtime: Runtime) -> LearnerState:
    """The learner state after a batch was learned as one task; no features are extracted."""
    classifier = analytic_classifier(method)
    task = sorted(part.labels, key=lambda label: (isinstance(label, str), label))
    position = {label: column for column, label in enumerate(dict.fromkeys([*known.classes, *task]))}
    columns = [position[label] for label in part.labels]
    views, targets = part.shown.transpose(0, 1).contiguous(), torch.tensor(columns, dtype=torch.long)[part.targets]
    before = known.states.get("classifier")
    fitted = classifier.update_from_sums(_context(known, runtime), before, part.sums, columns, views, targets)
    assert fitted.left_out is not None
    counts = torch.zeros(len(position), dtype=torch.long, device=runtime.device)
    counts[columns] = part.sums.counts.to(runtime.device) // part.views
    evidence = method.evidence.update_from_scores(known.states.get("evidence"), counts, fitted.left_out)
    states = {**known.states, "classifier": fitted.scorer, "evidence": evidence}
    return LearnerState(known.network, known.memory, states, (*known.tasks, tuple(task))).eval()


BATCH, BATCH_BYTES = 256, 2**26
"""Largest number of images, and of encoded bytes, per extraction batch."""


@dataclass
class Summed:
    """Moments of one shard."""

    part: MomentBatch
    digest: str = ""
    """Hash of its images and labels in order, independent of the container format."""
    bad: Bad = field(default_factory=dict)
    """Skipped images, with the reason."""


def sum_shard(
    learner: Learner, shard: Shard, *, skip_bad: bool = False, workers: int = 1, reporter: Reporter | None = None
) -> Summed:
    """Compute the moments of a shard with the features of a learner, which is not changed.

    Args:
        learner: a learner of an analytic method after its first task, or its `empty_like`.
        shard: read once, sequentially.
        skip_bad: skip images that cannot be decoded or have no label instead of raising an error.
        workers: decoding threads.
        reporter: shows progress.
    """
    found = Summed(empty_batch(learner.method, learner.state, learner.runtime))
    digest = hashlib.blake2b(digest_size=12)
    taking = _Taking(learner, found, workers)
    with (reporter or Reporter()).progress(shard.name, 1) as advance:
        for batch in _batches(shard.examples(found.bad)):
            keys = [example.digest() for example in batch]
            for example, key in zip(batch, keys, strict=True):
                digest.update(key + repr(example.label).encode("utf-8", "backslashreplace") + b"\0")
            taking.add(batch, keys)
            if found.bad and not skip_bad:
                named = "; ".join(f"{name} ({reason})" for name, reason in list(found.bad.items())[:5])
                raise ShardError(f"{shard.name}: images cannot be used: {named}. Repair them or add --skip-bad")
            advance(f"{found.part.images:,} images", step=0)
    if not found.part.images:
        listed = dict(enumerate(found.bad.values()))
        reason = f" ({some_named(listed, 'image {}'.format)})" if listed else ""
        raise ShardError(f"{shard.name} has no usable images{reason}. Remove it or add --skip-bad")
    found.digest = digest.hexdigest()
    return found


@dataclass
class _Taking:
    """Adds batches of examples to the moments."""

    learner: Learner
    found: Summed
    workers: int

    def __post_init__(self) -> None:
        learner = self.learner
        self.flips = analytic_classifier(learner.method).flips
        self.expanded = analytic_classifier(learner.method).initial(_context(learner.state, learner.runtime)).expanded

    def add(self, batch: list[Example], keys: list[bytes]) -> None:
        """Add the images that can be decoded; record the others as bad."""
        channels, height, width = self.learner.shape
        pixels = np.empty((len(batch), channels, height, width), dtype=np.uint8)

        def fill(row: int) -> None:
            image = batch[row].image
            if isinstance(image, bytes):
                if height != width:
                    raise DataError(f"image files are read as squares, but the model takes {height}×{width} pixels")
                pixels[row] = decode_image(BytesIO(image), height, channels)
            else:
                pixels[row] = of_shape(image, self.learner.shape).numpy()

        bad = map_collecting_errors(fill, len(batch), self.workers)
        self.found.bad |= {batch[row].name: reason for row, reason in bad.items()}
        good = [row for row in range(len(batch)) if row not in bad]
        if good:
            self._sum(pixels[good] if bad else pixels, [batch[row] for row in good], [keys[row] for row in good])

    def _sum(self, pixels: Pixels, batch: list[Example], keys: list[bytes]) -> None:
        learner, part = self.learner, self.found.part
        labels = [example.label for example in batch]
        data = LabelledImages(ArrayImages(pixels), torch.zeros(len(batch), dtype=torch.long), (None,))
        now = CurrentTask(1, data, learner.network, None, learner.method.augmentation, learner.runtime)
        order = torch.tensor([int.from_bytes(key[:8], "big") >> (64 - KEY_BITS) for key in keys])
        with torch.no_grad():
            blocks = [[self.expanded(view) for view in views] for _, views in now.blocks(self.flips)]
        # All blocks in one call: the sums are copied whenever there are new classes.
        part.add_([torch.cat(view) for view in zip(*blocks, strict=True)], labels, order)
        part.update_scale_(PixelScale(int(pixels.min()), int(pixels.max())))


def _batches(examples: Iterator[Example]) -> Iterator[list[Example]]:
    batch: list[Example] = []
    size = 0
    for example in examples:
        batch.append(example)
        size += example.size
        if len(batch) >= BATCH or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch


KIND = "gathered"
TOTAL, PART, FEATURES = "total.safetensors", "part-", "features.safetensors"
NOTE = "shards"
"""Key in the facts of a model that lists the shards it has learned."""
FOLD = 16
"""Shards after which the total is written again; it may be large."""

Finished = dict[str, str]
"""Maps the hashed path of each finished shard to its stamp and digest; no file name is stored."""


def noted(place: str, stamp: str, digest: str) -> Finished:
    """The entry of one shard."""
    return {place: f"{stamp} {digest}"}


def finished_in(about: Mapping[str, Any]) -> Finished:
    """The shards listed in the facts of a model or batch."""
    found = about.get(NOTE)
    return {str(place): str(note) for place, note in found.items()} if isinstance(found, dict) else {}


def digests(finished: Finished) -> set[str]:
    """The digests of finished shards."""
    return {note.partition(" ")[2] for note in finished.values()}


def write_part(folder: Path, part: MomentBatch, shard: Shard, stamp: str, digest: str) -> Path:
    """Store the batch of one shard atomically."""
    path = folder / f"{PART}{digest}.safetensors"
    facts = {**part.facts(), NOTE: noted(shard.place, stamp, digest)}
    save_tensors(path, KIND, part.tensors(), facts)
    return path


@dataclass
class BatchStore:
    """The folder with the batches of all finished shards that the model has not learned yet.

    Each file lists the shards that are in it, so both change together: if the process is killed at any moment, no shard
    counts twice and no finished shard is lost.
    """

    folder: Path
    total: MomentBatch
    known_classes: Sequence[Label] = ()
    """Classes of the model."""
    finished: Finished = field(default_factory=dict)
    _written: list[Path] = field(default_factory=list)
    """Parts added to the total in memory, but not yet to the file."""

    @classmethod
    def opened(
        cls, folder: Path, nothing: MomentBatch, in_model: Finished, known_classes: Sequence[Label]
    ) -> BatchStore:
        """Open the folder; batches that the model already holds are removed."""
        store = cls(folder, nothing, known_classes)
        if (folder / TOTAL).exists():
            total, finished = read_batch(folder / TOTAL)
            if digests(finished) & digests(in_model):  # saved, but interrupted before cleaning up
                store.clear(features=False)
            else:
                store.total.merge_(total)
                store.finished = finished
        for path in sorted(folder.glob(f"{PART}*.safetensors")):
            try:
                _, finished = read_batch(path)
            except CheckpointError:
                path.unlink(missing_ok=True)  # its shard is read again
                continue
            if digests(finished) & (digests(in_model) | digests(store.finished)):
                path.unlink(missing_ok=True)
            else:
                store.take(path)
        return store

    def take(self, path: Path) -> bool:
        """Add the batch of a shard; False if another shard holds the same images."""
        if not path.exists() and path.stem.removeprefix(PART) in digests(self.finished):
            return False  # a copy of a shard whose file was merged and removed
        part, finished = read_batch(path)
        try:
            check_one_kind([*self.known_classes, *self.total.labels, *part.labels])
        except DataError as error:
            path.unlink(missing_ok=True)
            raise ShardError(f"its labels do not match the earlier ones ({error})") from None
        new = not digests(finished) & digests(self.finished)
        if new:
            self.total.merge_(part)
            self._written.append(path)
        self.finished |= finished
        if len(self._written) >= FOLD:
            self.save()
        return new

    def save(self) -> None:
        """Write the total and remove the parts it contains."""
        if not self.finished:
            return
        save_tensors(self.folder / TOTAL, KIND, self.total.tensors(), {**self.total.facts(), NOTE: self.finished})
        remove_durably(self.folder, self._written)
        self._written = []

    def clear(self, features: bool = True) -> None:
        """Remove all files after the model was saved."""
        remove_durably(self.folder, [self.folder / TOTAL, *self.folder.glob(f"{PART}*.safetensors")])
        if features:
            remove_durably(self.folder, [self.folder / FEATURES])


def read_batch(path: Path) -> tuple[MomentBatch, Finished]:
    """Read a batch and the shards it consists of."""
    tensors, facts = load_tensors(path, KIND)
    try:
        return MomentBatch.restored(tensors, facts), finished_in(facts)
    except MISFIT as error:
        raise CheckpointError(f"{path} is not a valid batch ({error}). Delete it") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock", blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise CheckpointError(f"another process uses {folder}. Wait until it ends, or stop it") from None
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True)
class WorkerContext:
    """Settings shared by all workers."""

    features: Path
    """File of a learner with the features."""
    folder: Path
    """Output folder, visible to all workers."""
    device: str = "auto"
    skip_bad: bool = False
    workers: int = 1
    threads: int | None = None
    """Number of torch threads; None: unchanged."""


@dataclass(frozen=True)
class ShardResult:
    """Outcome of one shard; errors are values, so that other shards continue."""

    path: Path | None = None
    images: int = 0
    skipped: int = 0
    """Number of skipped images."""
    failure: str = ""
    damaged: bool = False
    """Whether the shard itself is unusable, so that --skip-bad may skip it."""


def process_shard(
    shard: Shard, context: WorkerContext, expected: str | None = None, reporter: Reporter | None = None
) -> ShardResult:
    """Compute and store the batch of one shard; ``expected`` is the stamp that the calling process sees."""
    try:
        if context.threads is not None:
            torch.set_num_threads(context.threads)
        stamp = _stamp(shard, expected)
        learner = _learner(context.features, context.features.stat().st_mtime_ns, context.device)
        found = sum_shard(learner, shard, skip_bad=context.skip_bad, workers=context.workers, reporter=reporter)
        if shard.stamp() != stamp:
            raise ShardError(f"{shard.name} changed while it was read. Run again when it is complete")
        path = write_part(context.folder, found.part, shard, stamp, found.digest)
    except ShardError as error:
        return ShardResult(failure=str(error), damaged=True)
    except AdagaussError as error:
        return ShardResult(failure=str(error))
    except OSError as error:
        return ShardResult(failure=f"{error.filename or shard.name}: {error.strerror or error}", damaged=True)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return ShardResult(failure=f"{shard.name}: out of memory. Use fewer --jobs")
    return ShardResult(path, found.part.images, len(found.bad))


def _stamp(shard: Shard, expected: str | None) -> str:
    """The stamp of a shard on this machine, which must equal the ``expected`` one."""
    try:
        stamp = shard.stamp()
        reason = "sees different files (size or modification time differs)"
    except OSError as error:
        if expected is None:
            raise
        stamp, reason = "", f"cannot read it ({error.strerror or error})"
    if expected is not None and stamp != expected:
        raise DataError(f"{shard.name}: {socket.gethostname()} {reason}. Use a folder that all machines share")
    return stamp


@lru_cache(maxsize=1)
def _learner(features: Path, changed: int, device: str) -> Learner:
    """Load the learner once per process."""
    return Learner.load(features, Runtime(RuntimeConfig(device=device)))


SAMPLE, SAMPLED_SHARDS = 1000, 20
"""Images, and shards, that a new model prepares its features from."""


def sample_images(shards: Sequence[Shard]) -> tuple[list[Image.Image], list[Label]]:
    """The first images and labels of evenly spaced shards, at most `SAMPLE`; unreadable ones are skipped."""
    chosen = [shards[index] for index in evenly_spaced(len(shards), SAMPLED_SHARDS).tolist()]
    pictures: list[Image.Image] = []
    labels: list[Label] = []
    problems: list[str] = []
    for shard in chosen:
        try:
            for example in islice(shard.examples({}), -(-SAMPLE // len(chosen))):
                try:
                    pictures.append(_picture(example))
                    labels.append(example.label)
                except Exception as error:  # image decoders raise nearly any exception on damaged files
                    problems.append(f"{shard.name}: {example.name} ({error})")
        except ShardError as error:
            problems.append(str(error))
    if not pictures:
        raise DataError(f"no image can be read: {problems[0] if problems else 'the shards are empty'}")
    return pictures, labels


def _picture(example: Example) -> Image.Image:
    if not isinstance(example.image, bytes):
        return as_picture(example.image)
    side = min(PHOTO_SIZE, *image_size(BytesIO(example.image)))
    return Image.fromarray(decode_image(BytesIO(example.image), side).transpose(1, 2, 0))


ATTEMPTS = 2
"""How often the remaining shards are started after a worker process died."""
MAX_LOST = 8
"""Shards that may fail for reasons outside the shard before the call stops."""

Listener = Callable[[Shard, ShardResult], None]


@dataclass
class ShardsReport:
    """What `teach_shards` has learned."""

    store: BatchStore
    shards: int = 0
    images: int = 0
    known: int = 0
    """Shards that were finished before, or hold the images of another shard."""
    skipped_images: int = 0
    damaged: list[str] = field(default_factory=list)
    """Messages about skipped shards."""

    def clear(self) -> None:
        """Remove the stored batches; call this after saving the learner."""
        self.store.clear()


def teach_shards(
    learner: Learner,
    paths: Iterable[Path | str],
    folder: Path,
    *,
    jobs: int | None = None,
    skip_bad: bool = False,
    workers: int = 2,
    device: str = "auto",
    reporter: Reporter | None = None,
    on_shard: Listener | None = None,
) -> ShardsReport:
    """Teach a learner all images of some shards as one task, with constant memory.

    The result equals that of `Learner.learn` with all images at once, up to rounding. The same call resumes after an
    interruption and counts each shard once.

    Args:
        learner: a learner of an analytic method, after its first task (or its `empty_like`); updated at the end.
        paths: shards, or folders of shards; see `find_shards`. Shards that the learner already holds are skipped.
        folder: stores finished shards until the learner is saved. Call `ShardsReport.clear` after saving.
        jobs: number of worker processes with one thread each; None: this process.
        skip_bad: skip images that cannot be decoded, and damaged shards, instead of raising an error.
        workers: decoding threads, without worker processes.
        device: device of the extractor.
        reporter: shows progress.
        on_shard: called after each shard.

    Raises:
        UnsupportedError: if the method stores more than moments.
        DataError: if a shard is damaged and ``skip_bad`` is off, or has changed since it was learned.
        WorkerError: if shards failed for other reasons; finished shards stay in ``folder``.
    """
    analytic_classifier(learner.method)  # before anything is written
    reporter = reporter or Reporter()
    shards = find_shards(paths)
    in_model = finished_in(learner.about)
    with locked(folder):
        context = WorkerContext(_features(learner, folder), folder.absolute(), device, skip_bad, workers)
        empty = empty_batch(learner.method, learner.state, learner.runtime)
        store = BatchStore.opened(folder, empty, in_model, learner.classes)
        if earlier := len(store.finished.keys() - {shard.place for shard in shards}):
            reporter.message(f"{folder} holds {earlier} shards of an earlier call; the model will learn them as well")
        collector = _Collector(ShardsReport(store), in_model, skip_bad, on_shard)
        waiting = collector.unfinished(shards)
        with reporter.progress("shards", len(waiting)) as advance:
            if jobs is None:
                for shard in waiting:
                    collector.end(shard, process_shard(shard, context, reporter=reporter), advance)
            else:
                collector.run(waiting, replace(context, workers=1, threads=1), jobs, advance)
        collector.complete()
        store.save()
        if store.total.images:
            teach_batch(learner, store.total)
            learner.about = {**learner.about, NOTE: {**in_model, **store.finished}}
    return collector.report


def _features(learner: Learner, folder: Path) -> Path:
    """Save a learner without classes for the workers."""
    path = folder / FEATURES
    if path.exists():
        try:
            check_features(learner.network.extractor, Learner.load(path).network.extractor)
        except DataError:
            raise DataError(
                f"{folder} holds shards computed with different features. Use the model they were computed for, or "
                "delete the folder"
            ) from None
    else:
        learner.empty_like().save(path)
    return path.absolute()


@dataclass
class _Collector:
    """Adds the results of shards to the store and the report."""

    report: ShardsReport
    in_model: Finished
    skip_bad: bool
    on_shard: Listener | None
    lost: list[str] = field(default_factory=list)
    """Messages about shards that failed for reasons outside the shard: a full disk, a killed worker."""

    def unfinished(self, shards: list[Shard]) -> list[Shard]:
        """The shards left to process; a shard whose files have changed is an error, since it would count twice."""
        finished, left = {**self.in_model, **self.report.store.finished}, []
        for shard in shards:
            note = finished.get(shard.place, "").partition(" ")[0]
            if not note:
                left.append(shard)
            elif note == shard.stamp():
                self.report.known += 1
            else:
                self._damaged(
                    f"{shard.name} has changed since it was learned, and its images would count twice. Put the new "
                    "images into a new shard"
                )
        return left

    def run(self, shards: list[Shard], context: WorkerContext, jobs: int, advance: Advance) -> None:
        """Process shards in worker processes; if a worker dies, the remaining shards are started once more."""
        for attempt in range(1, ATTEMPTS + 1):
            tasks = (delayed(_processed)(index, shard, context, shard.stamp()) for index, shard in enumerate(shards))
            left = dict(enumerate(shards))
            try:
                for index, result in Parallel(jobs, return_as="generator_unordered", pre_dispatch="2*n_jobs")(tasks):
                    self.end(left.pop(index), result, advance)
                return
            except BrokenProcessPool as error:
                if attempt == ATTEMPTS:
                    self.report.store.save()
                    raise WorkerError(
                        f"a worker process died {attempt} times ({type(error).__name__}): it was killed, or ran out "
                        "of memory. Use fewer --jobs; finished shards are stored, and the same command resumes"
                    ) from error
                shards = list(left.values())

    def end(self, shard: Shard, result: ShardResult, advance: Advance) -> None:
        """Add a finished shard, or record why it failed."""
        if result.path is not None:
            try:
                self._add(result, result.path)
            except ShardError as error:
                self._damaged(f"{shard.name}: {error}")
        elif result.damaged:
            self._damaged(result.failure)
        else:
            self.lost.append(result.failure)
            if len(self.lost) >= MAX_LOST:
                self.complete()
        if self.on_shard is not None:
            self.on_shard(shard, result)
        advance(f"{self.report.images:,} images")

    def _add(self, result: ShardResult, path: Path) -> None:
        if path.stem.removeprefix(PART) in digests(self.in_model):
            path.unlink(missing_ok=True)
            self.report.known += 1
        elif not self.report.store.take(path):
            self.report.known += 1
        else:
            self.report.shards += 1
            self.report.images += result.images
            self.report.skipped_images += result.skipped

    def complete(self) -> None:
        """Raise if shards were lost; finished shards stay on disk and the learner is not changed."""
        if self.lost:
            self.report.store.save()
            more = f" ({len(self.lost)} shards failed like this)" if len(self.lost) > 1 else ""
            raise WorkerError(f"{self.lost[0]}{more}. Finished shards are stored, and the same command resumes")

    def _damaged(self, message: str) -> None:
        if not self.skip_bad:
            self.report.store.save()
            raise DataError(message)
        self.report.damaged.append(message)


def _processed(index: int, shard: Shard, context: WorkerContext, expected: str) -> tuple[int, ShardResult]:
    return index, process_shard(shard, context, expected)
