"""Teaching from shards: moments of each shard are computed separately, in any order, and learned as one task.

`sum_shard` reads a shard once and returns a `MomentBatch`. `teach_shards` does this for many shards, in this process or
in several, and updates the learner at the end. The batch of all finished shards is stored in a folder: an interrupted
call resumes from it. Memory does not grow with the number of images.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, Self

import numpy as np
import torch
from filelock import FileLock, Timeout
from joblib import Parallel, delayed  # type: ignore[import-untyped]
from PIL import Image
from torch import Tensor

from adagauss.analytic.classifier import AnalyticClassifier
from adagauss.analytic.moments import MomentSums
from adagauss.core.class_edits import check_features
from adagauss.core.learn import Learner
from adagauss.core.learner_state import MISFIT, LearnerState
from adagauss.core.task import ClassEdit, CurrentTask
from adagauss.data.decode import Pixels, decode_image
from adagauss.data.folders import PHOTO_SIZE
from adagauss.data.image_files import map_collecting_errors, some_named
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
from adagauss.errors import CheckpointError, DataError, UnsupportedError, WorkerError
from adagauss.methods import Method
from adagauss.utils.checkpoint import load_tensors, save_tensors
from adagauss.utils.files import remove_durably
from adagauss.utils.process import is_out_of_memory
from adagauss.utils.progress import Advance, Reporter
from adagauss.utils.runtime import Runtime, RuntimeConfig

KIND = "gathered"
TOTAL, FEATURES = "total.safetensors", "features.safetensors"
NOTE = "shards"
"""Key in the facts of a model or batch that lists its shards."""
SAVE_SECONDS = 60
"""Seconds between two writes of the batch of all finished shards."""
KEY_BITS = 63
BATCH, BATCH_BYTES = 256, 2**26
"""Largest number of images, and of encoded bytes, per extraction batch."""

Finished = dict[str, str]
"""Maps the hashed path of each finished shard to its stamp and digest; no file name is stored."""


def finished_in(about: Mapping[str, Any]) -> Finished:
    """The shards listed in the facts of a model or batch."""
    found = about.get(NOTE)
    return {str(place): str(note) for place, note in found.items()} if isinstance(found, dict) else {}


def digests(finished: Finished) -> set[str]:
    """The digests of finished shards."""
    return {note.partition(" ")[2] for note in finished.values()}


@dataclass
class MomentBatch:
    """Moments of images, and the features of the few used for leave-one-out: those with the smallest keys.

    A key is a hash of an image, so this sample depends neither on the order of the images nor on how they are split
    into batches: the smallest keys of a whole are among the smallest of its parts.
    """

    sums: MomentSums
    most: int
    """Size of the leave-one-out sample."""
    labels: list[Label] = field(default_factory=list)
    """The classes of the sums, in their order."""
    keys: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    shown: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    """(K, width) features of the images with these keys, and their ``targets`` among the labels."""
    targets: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    scale: PixelScale | None = None
    shards: Finished = field(default_factory=dict)
    """The shards that hold these images."""

    def __post_init__(self) -> None:
        self._position = {label: column for column, label in enumerate(self.labels)}
        if not len(self.keys):
            self.shown = torch.zeros(0, self.sums.width)

    @property
    def images(self) -> int:
        """Number of images."""
        return int(self.sums.counts.sum())

    def add_(self, features: Tensor, labels: Sequence[Label], keys: Tensor) -> Self:
        """Add images: (N, width) features, one label and one key per image."""
        targets = torch.tensor(self._columns(labels), dtype=torch.long)
        self.sums.add_(features, targets, len(self.labels))
        worth = self._worth(keys)
        self._select(keys[worth], features[worth.to(features.device)].cpu(), targets[worth])
        return self

    def merge_(self, other: MomentBatch) -> Self:
        """Add all images of another batch, which is not changed."""
        if other.sums.width != self.sums.width:
            raise DataError("these batches have different features: compute all of them with one model")
        columns = self._columns(other.labels)
        self.sums.merge_(other.sums, columns)
        self._select(other.keys, other.shown, torch.tensor(columns, dtype=torch.long)[other.targets])
        self.update_scale_(other.scale)
        self.shards |= other.shards
        return self

    def update_scale_(self, scale: PixelScale | None) -> None:
        """Extend the range of pixel values."""
        known = [one for one in (self.scale, scale) if one is not None]
        if known:
            self.scale = PixelScale(min(one.low for one in known), max(one.high for one in known))

    def save(self, path: Path) -> None:
        """Write the batch to a file."""
        held = {"keys": self.keys, "shown": self.shown.contiguous(), "targets": self.targets}
        tensors = {**{f"sums.{name}": tensor for name, tensor in self.sums.state_dict().items()}, **held}
        scale = self.scale and [self.scale.low, self.scale.high]
        facts = {"most": self.most, "labels": self.labels, "scale": scale, NOTE: self.shards}
        save_tensors(path, KIND, tensors, facts)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a batch from a file, with checks."""
        tensors, facts = load_tensors(path, KIND)
        try:
            sums = MomentSums(0)
            sums.load_state_dict({name[5:]: tensor for name, tensor in tensors.items() if name.startswith("sums.")})
            sums.check()
            keys, shown, targets = (tensors[name] for name in ("keys", "shown", "targets"))
            labels = list(facts["labels"])
            if len(labels) != sums.classes or shown.shape != (len(keys), sums.width) or len(targets) != len(keys):
                raise DataError("its tensors have inconsistent shapes")
            scale = facts["scale"] and PixelScale(*facts["scale"])
            return cls(sums, int(facts["most"]), labels, keys, shown, targets, scale, finished_in(facts))
        except MISFIT as error:
            raise CheckpointError(f"{path} is not a valid batch ({error}). Delete it") from error

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


def analytic_classifier(method: Method) -> AnalyticClassifier:
    """The classifier of a method that learns from moments alone; raises for other methods."""
    classifier = method.classifier
    if not isinstance(classifier, AnalyticClassifier) or method.trains or method.memory.kind != "none":
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
    return MomentBatch(MomentSums(width).to(runtime.device), classifier.loo_images)


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
    targets = torch.tensor(columns, dtype=torch.long)[part.targets]
    before = known.states.get("classifier")
    fitted = classifier.update_from_sums(_context(known, runtime), before, part.sums, columns, part.shown, targets)
    assert fitted.left_out is not None
    counts = torch.zeros(len(position), dtype=torch.long, device=runtime.device)
    counts[columns] = part.sums.counts.to(runtime.device)
    evidence = method.evidence.update_from_scores(known.states.get("evidence"), counts, fitted.left_out)
    states = {**known.states, "classifier": fitted.scorer, "evidence": evidence}
    return LearnerState(known.network, known.memory, states, (*known.tasks, tuple(task))).eval()


def sum_shard(
    learner: Learner, shard: Shard, *, skip_bad: bool = False, workers: int = 1, reporter: Reporter | None = None
) -> tuple[MomentBatch, Bad]:
    """Compute the moments of a shard with the features of a learner; return skipped images with the reasons as well.

    Args:
        learner: a learner of an analytic method after its first task, or its `empty_like`; not changed.
        shard: read once, sequentially.
        skip_bad: skip images that cannot be decoded or have no label instead of raising an error.
        workers: decoding threads.
        reporter: shows progress.
    """
    stamp, digest, bad = shard.stamp(), hashlib.blake2b(digest_size=12), Bad()
    part = empty_batch(learner.method, learner.state, learner.runtime)
    with (reporter or Reporter()).progress(shard.name, 1) as advance:
        for batch in _batches(shard.examples(bad)):
            keys = [example.digest() for example in batch]
            for example, key in zip(batch, keys, strict=True):
                digest.update(key + repr(example.label).encode("utf-8", "backslashreplace") + b"\0")
            pixels, failed = _decode(batch, learner, workers)
            bad |= {batch[row].name: reason for row, reason in failed.items()}
            good = [row for row in range(len(batch)) if row not in failed]
            if good:
                chosen = pixels[good] if failed else pixels
                _add_pixels(learner, part, chosen, [batch[row].label for row in good], [keys[row] for row in good])
            if bad and not skip_bad:
                named = "; ".join(f"{name} ({reason})" for name, reason in list(bad.items())[:5])
                raise ShardError(f"{shard.name}: images cannot be used: {named}. Repair them or add --skip-bad")
            advance(f"{part.images:,} images", step=0)
    if not part.images:
        reason = f" ({some_named(dict(enumerate(bad.values())), 'image {}'.format)})" if bad else ""
        raise ShardError(f"{shard.name} has no usable images{reason}. Remove it or add --skip-bad")
    if shard.stamp() != stamp:
        raise ShardError(f"{shard.name} changed while it was read. Run again when it is complete")
    # The digest is that of the images in order, independent of the container format.
    part.shards = {shard.place: f"{stamp} {digest.hexdigest()}"}
    return part, bad


def _decode(batch: list[Example], learner: Learner, workers: int) -> tuple[Pixels, dict[int, str]]:
    """The pixels of examples, and for each that cannot be decoded the reason."""
    channels, height, width = learner.shape
    pixels = np.empty((len(batch), *learner.shape), dtype=np.uint8)

    def fill(row: int) -> None:
        image = batch[row].image
        if not isinstance(image, bytes):
            pixels[row] = of_shape(image, learner.shape, learner.resize_mode).numpy()
        elif height != width:
            raise DataError(f"image files are read as squares, but the model takes {height}×{width} pixels")
        else:
            pixels[row] = decode_image(BytesIO(image), height, channels, mode=learner.resize_mode)

    return pixels, map_collecting_errors(fill, len(batch), workers)


@torch.no_grad()
def _add_pixels(learner: Learner, part: MomentBatch, pixels: Pixels, labels: list[Label], keys: list[bytes]) -> None:
    """Add decoded images to a batch."""
    classifier = analytic_classifier(learner.method)
    expanded = classifier.initial(_context(learner.state, learner.runtime)).expanded
    data = LabelledImages(ArrayImages(pixels), torch.zeros(len(pixels), dtype=torch.long), (None,))
    now = CurrentTask(1, data, learner.network, None, learner.method.augmentation, learner.runtime)
    order = torch.tensor([int.from_bytes(key[:8], "big") >> (64 - KEY_BITS) for key in keys])
    # All blocks in one call: the sums are copied whenever there are new classes.
    part.add_(torch.cat([expanded(features) for _, features in now.blocks()]), labels, order)
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
    return Image.fromarray(decode_image(BytesIO(example.image), PHOTO_SIZE, mode=None).transpose(1, 2, 0))


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


@dataclass
class ShardsReport:
    """What `teach_shards` has learned."""

    folder: Path
    shards: int = 0
    images: int = 0
    known: int = 0
    """Shards that were finished before, or hold the images of another shard."""
    skipped_images: int = 0
    damaged: list[str] = field(default_factory=list)
    """Messages about skipped shards."""
    learned: int = 0
    """Images that the learner has learned, with those of an interrupted call."""

    def clear(self, features: bool = True) -> None:
        """Remove the stored batches; call this after saving the learner."""
        files = [self.folder / TOTAL, *self.folder.glob("part-*.safetensors")]  # parts are files of version 0.2
        remove_durably(self.folder, [*files, *([self.folder / FEATURES] if features else [])])


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
    on_shard: Callable[[Shard], object] | None = None,
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
        device: device of the extractor in worker processes.
        reporter: shows progress.
        on_shard: called after each shard.

    Raises:
        UnsupportedError: if the method stores more than moments.
        DataError: if a shard is damaged and ``skip_bad`` is off, or has changed since it was learned.
        WorkerError: if memory is full or a worker process died; finished shards stay in ``folder``.
    """
    analytic_classifier(learner.method)  # before anything is written
    reporter = reporter or Reporter()
    shards = find_shards(paths)
    with locked(folder):
        features = _features(learner, folder)
        total = _Total(learner, ShardsReport(folder), skip_bad)
        if earlier := len(total.batch.shards.keys() - {shard.place for shard in shards}):
            reporter.message(f"{folder} holds {earlier} shards of an earlier call; the model will learn them as well")
        waiting = dict(enumerate(total.unfinished(shards)))
        with reporter.progress("shards", len(waiting)) as advance:
            try:
                if jobs is None:
                    results = (
                        _processed(index, shard, learner, skip_bad, workers, reporter)
                        for index, shard in waiting.items()
                    )
                else:
                    tasks = (
                        delayed(_process)(index, shard, shard.stamp(), features, device, skip_bad)
                        for index, shard in waiting.items()
                    )
                    results = Parallel(jobs, return_as="generator_unordered", pre_dispatch="2*n_jobs")(tasks)
                for index, result in results:
                    total.add(waiting[index], result, advance)
                    if on_shard is not None:
                        on_shard(waiting[index])
            except BrokenProcessPool as error:
                raise WorkerError(
                    "a worker process died: it was killed, or ran out of memory. Use fewer --jobs; finished shards "
                    "are stored, and the same command resumes"
                ) from error
            finally:
                total.save()
        if total.batch.images:
            teach_batch(learner, total.batch)
            learner.about = {**learner.about, NOTE: {**total.in_model, **total.batch.shards}}
    return total.report


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


Result = tuple[MomentBatch, int] | ShardError
"""The batch of a shard and the number of skipped images, or why the shard is unusable."""


def _process(
    index: int, shard: Shard, expected: str, features: Path, device: str, skip_bad: bool
) -> tuple[int, Result]:
    """Compute the batch of one shard in a worker process; ``expected`` is the stamp that the calling process sees."""
    torch.set_num_threads(1)
    try:
        same = shard.stamp() == expected
    except OSError:
        same = False
    if not same:
        raise DataError(
            f"{shard.name}: {socket.gethostname()} sees different files (size or modification time differs). Use a "
            "folder that all machines share"
        )
    learner = _learner(features, features.stat().st_mtime_ns, device)
    return _processed(index, shard, learner, skip_bad, 1, None)


def _processed(
    index: int, shard: Shard, learner: Learner, skip_bad: bool, workers: int, reporter: Reporter | None
) -> tuple[int, Result]:
    try:
        part, bad = sum_shard(learner, shard, skip_bad=skip_bad, workers=workers, reporter=reporter)
    except ShardError as error:
        return index, error
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise WorkerError(f"{shard.name}: out of memory. Use fewer --jobs") from error
    part.sums.cpu()
    return index, (part, len(bad))


@lru_cache(maxsize=1)
def _learner(features: Path, changed: int, device: str) -> Learner:
    """Load the learner once per process."""
    return Learner.load(features, Runtime(RuntimeConfig(device=device)))


class _Total:
    """The batch of all finished shards that the model has not learned yet, and its file.

    The file lists the shards that are in it, so both change together: if the process is killed at any moment, no shard
    counts twice, and the shards of the last `SAVE_SECONDS` are read again.
    """

    def __init__(self, learner: Learner, report: ShardsReport, skip_bad: bool) -> None:
        self.in_model = finished_in(learner.about)
        self.batch = empty_batch(learner.method, learner.state, learner.runtime)
        self.report = report
        self._skip_bad = skip_bad
        self._classes = learner.classes
        self._path = report.folder / TOTAL
        self._saved = monotonic()
        if self._path.exists():
            stored = MomentBatch.load(self._path)
            if digests(stored.shards) & digests(self.in_model):  # saved, but interrupted before `clear`
                report.clear(features=False)
            else:
                self.batch.merge_(stored)
        report.learned = self.batch.images

    def unfinished(self, shards: list[Shard]) -> list[Shard]:
        """The shards left to process; a shard whose files have changed is an error, since it would count twice."""
        finished, left = {**self.in_model, **self.batch.shards}, []
        for shard in shards:
            stamp = finished.get(shard.place, "").partition(" ")[0]
            if not stamp:
                left.append(shard)
            elif stamp == shard.stamp():
                self.report.known += 1
            else:
                self._damaged(
                    f"{shard.name} has changed since it was learned, and its images would count twice. Put the new "
                    "images into a new shard"
                )
        return left

    def add(self, shard: Shard, result: Result, advance: Advance) -> None:
        """Add the batch of a shard, or record why the shard is unusable."""
        if isinstance(result, ShardError):
            self._damaged(str(result))
            return
        part, skipped = result
        try:
            check_one_kind([*self._classes, *self.batch.labels, *part.labels])
        except DataError as error:
            self._damaged(f"{shard.name}: its labels do not match the earlier ones ({error})")
            return
        if digests(part.shards) & digests(self.in_model):
            self.report.known += 1
        elif digests(part.shards) & digests(self.batch.shards):
            self.report.known += 1
            self.batch.shards |= part.shards
        else:
            self.batch.merge_(part)
            self.report.shards += 1
            self.report.images += part.images
            self.report.learned += part.images
            self.report.skipped_images += skipped
        if monotonic() - self._saved > SAVE_SECONDS:
            self.save()
        advance(f"{self.report.images:,} images")

    def save(self) -> None:
        """Write the batch."""
        if self.batch.images:
            self.batch.save(self._path)
            self._saved = monotonic()

    def _damaged(self, message: str) -> None:
        if not self._skip_bad:
            raise DataError(message)
        self.report.damaged.append(message)
