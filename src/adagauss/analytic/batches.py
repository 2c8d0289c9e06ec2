"""Teaching from shards: moments of each shard are computed separately, in any order, and learned as one task.

`teach_shards` reads each shard once, one or several at a time, adds their moments up, and updates the learner at the
end, after an error, and from time to time. The learner notes the shards that it has learned, so that the same call
continues. Memory does not grow with the number of images.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, Self

import numpy as np
import torch
from joblib import Parallel, delayed  # type: ignore[import-untyped]
from PIL import Image
from torch import Tensor

from adagauss.analytic.classifier import AnalyticClassifier, AnalyticScorer, Sample
from adagauss.analytic.moments import MomentSums
from adagauss.core.learn import Learner, same_features_warning
from adagauss.core.learner_state import LearnerState, add_tasks
from adagauss.core.near_duplicates import near_duplicates, sketched
from adagauss.core.state import as_state
from adagauss.core.task import ClassEdit
from adagauss.data.decode import Pixels, as_picture, decode_image
from adagauss.data.folders import PHOTO_SIZE, first_reasons, map_collecting_errors
from adagauss.data.images import (
    ArrayImages,
    Label,
    PixelRange,
    check_labels_exact,
    check_one_kind,
    evenly_spaced,
    merge_pixel_ranges,
    pixel_range,
)
from adagauss.data.inputs import of_shape
from adagauss.data.shards import Bad, Example, Shard, ShardError, find_shards
from adagauss.errors import DataError, UnsupportedError, WorkerError
from adagauss.methods import Method
from adagauss.utils.process import is_out_of_memory
from adagauss.utils.progress import Reporter

logger = logging.getLogger(__name__)

NOTE = "shards"
"""Key in the facts of a model that lists its shards."""
CHECKPOINT_SECONDS = 600
"""Time after which finished shards are learned; it doubles each time."""
KEY_BITS = 63
BATCH, BATCH_BYTES = 256, 2**26
"""Largest number of images, and of encoded bytes, per extraction batch."""

Finished = dict[str, str]
"""Maps the hashed path of each finished shard to its stamp and digest; no file name is stored."""


def finished_in(about: Mapping[str, Any]) -> Finished:
    """The shards listed in the facts of a model."""
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
    shown: Tensor = field(default_factory=lambda: torch.zeros(0))
    """(K, width) features of the images with these keys, and their ``targets`` among the labels."""
    targets: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    scale: PixelRange | None = None
    shards: Finished = field(default_factory=dict)
    """The shards that hold these images."""

    @property
    def images(self) -> int:
        """Number of images."""
        return int(self.sums.counts.sum())

    def add_(self, features: Tensor, labels: Sequence[Label], keys: Tensor) -> Self:
        """Add images: (N, width) features, one label and one key per image."""
        targets = torch.tensor(self._columns(labels), dtype=torch.long)
        self.sums.add_(features, targets, len(self.labels))
        self._select(keys, features.cpu(), targets)
        return self

    def merge_(self, other: MomentBatch) -> Self:
        """Add all images of another batch, which is not changed."""
        columns = self._columns(other.labels)
        self.sums.merge_(other.sums, columns)
        self._select(other.keys, other.shown, torch.tensor(columns, dtype=torch.long)[other.targets])
        self.scale = merge_pixel_ranges(self.scale, other.scale) if other.scale else self.scale
        self.shards |= other.shards
        return self

    def _columns(self, labels: Sequence[Label]) -> list[int]:
        self.labels = list(dict.fromkeys([*self.labels, *labels]))
        position = {label: column for column, label in enumerate(self.labels)}
        return [position[label] for label in labels]

    def _select(self, keys: Tensor, shown: Tensor, targets: Tensor) -> None:
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


def _start(learner: Learner) -> tuple[ClassEdit, AnalyticScorer]:
    """The context in which the next task is fitted, and a scorer without classes."""
    classifier = analytic_classifier(learner.method)
    context = ClassEdit((), learner.network, learner.runtime, len(learner.tasks))
    return context, classifier.initial(context)


def teach_batch(learner: Learner, part: MomentBatch) -> None:
    """Learn images that were summed elsewhere with the features of this learner, as one task.

    The same as `Learner.learn` with all these images, up to rounding and which of many images select the model.
    """
    method, runtime, classifier = learner.method, learner.runtime, analytic_classifier(learner.method)
    known = learner.state
    check_labels_exact([*known.classes, *part.labels])
    classifier.check(known.network, len({*known.classes, *part.labels}), runtime)
    task = sorted(part.labels, key=lambda label: (isinstance(label, str), label))
    position = {label: column for column, label in enumerate(dict.fromkeys([*known.classes, *task]))}
    columns = [position[label] for label in part.labels]
    context, scorer = _start(learner)
    scorer = as_state(known.states.get("classifier"), AnalyticScorer) or scorer
    shown, targets = part.shown.to(runtime.device), torch.tensor(columns, dtype=torch.long)[part.targets]
    groups = near_duplicates(sketched(shown[:, sum(classifier.feature_groups(context.network)[:-1]) :]), targets)
    sums = scorer.sums.copy().merge_(part.sums, columns)
    fitted = classifier.fitted(scorer, sums, Sample(shown, targets, groups), context, list(position))
    if len(shown) < part.images and len(torch.unique(groups)) < len(groups):
        runtime.reporter.message(
            "some images are near-duplicates: of shards only a sample is compared, so accuracies, prediction sets and "
            "scores of unknown images are too optimistic. Teach folders to hold near-duplicates out together"
        )
    if fitted.warning is not None:
        runtime.reporter.message(fitted.warning)
    assert fitted.left_out is not None
    counts = torch.zeros(len(position), dtype=torch.long, device=runtime.device)
    counts[columns] = part.sums.counts.to(runtime.device)
    evidence = method.evidence.update_from_scores(known.states.get("evidence"), counts, fitted.left_out)
    states = {**known.states, "classifier": fitted.scorer, "evidence": evidence}
    after = LearnerState(known.network, known.memory, states, add_tasks(known.tasks, tuple(task))).eval()
    learner._replace(known, after)
    if problem := same_features_warning(after, task):
        logger.warning("%s", problem)
    if part.scale is not None:
        learner.scale = merge_pixel_ranges(learner.scale, part.scale)


def empty_batch(learner: Learner) -> MomentBatch:
    """An empty batch for the features of a learner."""
    sums = MomentSums(_start(learner)[1].sums.width).to(learner.runtime.device)
    return MomentBatch(sums, analytic_classifier(learner.method).loo_images)


@torch.no_grad()
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
    part, expanded = empty_batch(learner), _start(learner)[1].expanded
    with (reporter or Reporter()).progress(shard.name, 1) as advance:
        for batch in _batches(shard.examples(bad)):
            keys = [example.digest() for example in batch]
            for example, key in zip(batch, keys, strict=True):
                digest.update(key + repr(example.label).encode("utf-8", "backslashreplace") + b"\0")
            pixels, failed = _decode(batch, learner, workers)
            bad |= {batch[row].name: reason for row, reason in failed.items()}
            good = [row for row in range(len(batch)) if row not in failed]
            if good:
                images = ArrayImages(pixels[good])
                features = expanded(learner.features(images))
                order = torch.tensor([int.from_bytes(keys[row][:8], "big") >> (64 - KEY_BITS) for row in good])
                part.add_(features, [batch[row].label for row in good], order)
                part.scale = merge_pixel_ranges(part.scale, pixel_range(images, BATCH))
            if bad and not skip_bad:
                raise ShardError(
                    f"{shard.name}: images cannot be used: {first_reasons(bad.items())}. Repair them or add --skip-bad"
                )
            advance(f"{part.images:,} images", step=0)
    if not part.images:
        reason = f" ({first_reasons(bad.items())})" if bad else ""
        raise ShardError(f"{shard.name} has no usable images{reason}. Remove it or add --skip-bad")
    if shard.stamp() != stamp:
        raise ShardError(f"{shard.name} changed while it was read. Run again when it is complete")
    # The digest is that of the images in order, independent of the container format.
    part.shards = {shard.place: f"{stamp} {digest.hexdigest()}"}
    return part, bad


def _decode(batch: list[Example], learner: Learner, workers: int) -> tuple[Pixels, dict[int, str]]:
    """The pixels of examples, and for each that cannot be decoded the reason."""
    pixels = np.empty((len(batch), *learner.shape), dtype=np.uint8)

    def fill(row: int) -> None:
        image = batch[row].image
        if isinstance(image, bytes):
            pixels[row] = decode_image(image, learner.shape[1:], learner.shape[0], learner.resize_mode)
        else:
            pixels[row] = of_shape(image, learner.shape, learner.resize_mode).numpy()

    return pixels, map_collecting_errors(fill, len(batch), workers)


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
    problem = "the shards are empty"
    for shard in chosen:
        examples = islice(shard.examples({}), -(-SAMPLE // len(chosen)))
        while True:
            try:
                example = next(examples)
                image = example.image
                pixels = image.numpy() if not isinstance(image, bytes) else decode_image(image, PHOTO_SIZE, mode=None)
                pictures.append(as_picture(pixels))
                labels.append(example.label)
            except StopIteration:
                break
            except Exception as error:  # image decoders raise nearly any exception on damaged files
                problem = str(error)
    if not pictures:
        raise DataError(f"no image can be read: {problem}")
    return pictures, labels


@dataclass
class ShardsReport:
    """What `teach_shards` has learned."""

    shards: int = 0
    images: int = 0
    known: int = 0
    """Shards that were learned before, or hold the images of another shard."""
    skipped_images: int = 0
    damaged: list[str] = field(default_factory=list)
    """Messages about skipped shards."""


def teach_shards(
    learner: Learner,
    paths: Iterable[Path | str],
    checkpoint: Callable[[ShardsReport], object] = lambda _: None,
    *,
    jobs: int | None = None,
    skip_bad: bool = False,
    workers: int = 2,
    reporter: Reporter | None = None,
) -> ShardsReport:
    """Teach a learner all images of some shards as one task, with constant memory.

    The result equals that of `Learner.learn` with all images at once, up to rounding. After an error or Ctrl-C, the
    learner has learned the finished shards: the same call with it teaches the others. Each shard counts once.

    Args:
        learner: a learner of an analytic method, after its first task (or its `empty_like`).
        paths: shards, or folders of shards; see `find_shards`. Shards that the learner already holds are skipped.
        checkpoint: saves the learner; called when it has learned finished shards: at the end, also after an error, and
            after `CHECKPOINT_SECONDS`, 3, 7, ... times as many, which are tasks of their own.
        jobs: number of shards that are read at once, with one thread each; None: one shard with all threads.
        skip_bad: skip images that cannot be decoded, and damaged shards, instead of raising an error.
        workers: decoding threads, for one shard at once.
        reporter: shows progress.

    Raises:
        UnsupportedError: if the method stores more than moments.
        DataError: if a shard is damaged and ``skip_bad`` is off, or has changed since it was learned.
        WorkerError: if memory is full.
    """
    teaching = _Teaching(learner, skip_bad, checkpoint)
    reporter, threads = reporter or Reporter(), torch.get_num_threads()
    waiting = [shard for shard in find_shards(paths) if teaching.is_new(shard)]

    def summed(index: int, shard: Shard) -> tuple[int, MomentBatch | ShardError, Bad]:
        torch.set_num_threads(threads if jobs is None else 1)  # of the thread that works on the shard
        own, heard = (workers, reporter) if jobs is None else (1, None)
        try:
            return index, *sum_shard(learner, shard, skip_bad=skip_bad, workers=own, reporter=heard)
        except ShardError as error:
            return index, error, {}
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise WorkerError(f"{shard.name}: out of memory. Use fewer --jobs") from error

    run = Parallel(jobs or 1, backend="threading", return_as="generator_unordered", pre_dispatch="2*n_jobs")
    with reporter.progress("shards", len(waiting)) as advance:
        try:
            for index, part, bad in run(delayed(summed)(*one) for one in enumerate(waiting)):
                teaching.add(waiting[index], part, bad)
                advance(f"{teaching.report.images:,} images")
        finally:
            torch.set_num_threads(threads)
            teaching.learn()
    return teaching.report


class _Teaching:
    """The sum of all finished shards that the learner has not learned yet."""

    def __init__(self, learner: Learner, skip_bad: bool, checkpoint: Callable[[ShardsReport], object]) -> None:
        self.report = ShardsReport()
        self._learner = learner
        self._batch = empty_batch(learner)
        self._skip_bad = skip_bad
        self._checkpoint = checkpoint
        self._pause, self._last = CHECKPOINT_SECONDS, monotonic()

    @property
    def _finished(self) -> Finished:
        return {**finished_in(self._learner.about), **self._batch.shards}

    def is_new(self, shard: Shard) -> bool:
        """Whether a shard is to be read; one whose files have changed is an error, since it would count twice."""
        stamp = self._finished.get(shard.place, "").partition(" ")[0]
        if stamp == shard.stamp():
            self.report.known += 1
        elif stamp:
            self._damaged(
                f"{shard.name} has changed since it was learned, and its images would count twice. Put the new "
                "images into a new shard"
            )
        return not stamp

    def add(self, shard: Shard, part: MomentBatch | ShardError, bad: Bad) -> None:
        """Add the batch of a shard, or record why the shard is unusable."""
        if isinstance(part, ShardError):
            self._damaged(str(part))
            return
        try:
            check_one_kind([*self._learner.classes, *self._batch.labels, *part.labels])
        except DataError as error:
            self._damaged(f"{shard.name}: its labels do not match the earlier ones ({error})")
            return
        if digests(part.shards) & digests(self._finished):
            self.report.known += 1
            self._batch.shards |= part.shards
            return
        self._batch.merge_(part)
        self.report.shards += 1
        self.report.images += part.images
        self.report.skipped_images += len(bad)
        if monotonic() - self._last > self._pause:
            self.learn()
            self._pause, self._last = 2 * self._pause, monotonic()

    def learn(self) -> None:
        """Learn the finished shards."""
        if self._batch.images:
            finished = self._finished
            teach_batch(self._learner, self._batch)
            self._learner.about = {**self._learner.about, NOTE: finished}
            self._batch = empty_batch(self._learner)
            self._checkpoint(self.report)

    def _damaged(self, message: str) -> None:
        if not self._skip_bad:
            raise DataError(message)
        self.report.damaged.append(message)
