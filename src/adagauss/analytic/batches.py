"""Images of which only sums are at hand: gathered in pieces, anywhere and in any order, then taught as one task."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
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
from PIL import Image
from torch import Tensor

from adagauss.analytic.classifier import ExactClassifier, Portion
from adagauss.analytic.moments import FeatureSums
from adagauss.core.class_edits import check_features
from adagauss.core.learn import Learner
from adagauss.core.learner_state import UNFIT, LearnerState
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
from adagauss.data.shards import Bad, Example, Shard, ShardError, find_shards
from adagauss.errors import AdagaussError, CheckpointError, DataError, UnsupportedError, WorkerError
from adagauss.estimator.labels import check_one_kind
from adagauss.experiments.session import PATIENCE, AbandonedError, SessionReporter, session
from adagauss.inputs.arrays import as_picture
from adagauss.inputs.pictures import of_shape
from adagauss.methods import Method
from adagauss.utils.checkpoint import load_tensors, save_tensors
from adagauss.utils.files import remove_durably
from adagauss.utils.process import is_out_of_memory
from adagauss.utils.progress import Advance, Reporter
from adagauss.utils.runtime import Runtime, RuntimeConfig

KEY_BITS = 63


@dataclass
class Gathered:
    """Sums over images, and the features of the few that will judge: those with the smallest keys.

    A key is a hash of an image, so which images judge depends neither on their order nor on their division into pieces:
    the smallest keys of a whole are among the smallest of its pieces. Memory does not grow with the number of images.
    """

    sums: FeatureSums
    views: int
    """Features of each image: 2 with those of its mirror image."""
    most: int
    """How many images judge."""
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
        """How many images there are, mirror images not counted."""
        return int(self.sums.counts.sum()) // self.views

    def add_(self, views: Sequence[Tensor], labels: Sequence[Label], keys: Tensor) -> Self:
        """Take in some images: for each view their (N, width) features, then one label and one key per image."""
        targets = torch.tensor(self._columns(labels), dtype=torch.long)
        for view in views:
            self.sums.add_(view, targets, len(self.labels))
        worth = self._worth(keys)
        self._judge(keys[worth], torch.stack([view[worth.to(view.device)].cpu() for view in views], 1), targets[worth])
        return self

    def merge_(self, other: Gathered) -> Self:
        """Take in all images of another piece; it stays as it is."""
        if (other.sums.width, other.views) != (self.sums.width, self.views):
            raise DataError("these sums are over other features: gather all pieces with one model")
        columns = self._columns(other.labels)
        self.sums.merge_(other.sums, columns)
        self._judge(other.keys, other.shown, torch.tensor(columns, dtype=torch.long)[other.targets])
        self.noticed_(other.scale)
        return self

    def noticed_(self, scale: PixelScale | None) -> None:
        """Widen the range of pixels that were seen."""
        known = [one for one in (self.scale, scale) if one is not None]
        if known:
            self.scale = PixelScale(min(one.low for one in known), max(one.high for one in known))

    def tensors(self) -> dict[str, Tensor]:
        """What a file keeps, beside `facts`."""
        held = {"keys": self.keys, "shown": self.shown.contiguous(), "targets": self.targets}
        return {**{f"sums.{name}": tensor for name, tensor in self.sums.state_dict().items()}, **held}

    def facts(self) -> dict[str, Any]:
        """What a file keeps beside tensors."""
        scale = self.scale and [self.scale.low, self.scale.high]
        return {"views": self.views, "most": self.most, "labels": self.labels, "scale": scale}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Self:
        """What `tensors` and `facts` describe, checked."""
        sums = FeatureSums(0)
        sums.load_state_dict({name[5:]: tensor for name, tensor in tensors.items() if name.startswith("sums.")})
        sums.check()
        keys, shown, targets = (tensors[name] for name in ("keys", "shown", "targets"))
        labels, views = list(facts["labels"]), int(facts["views"])
        if len(labels) != sums.classes or shown.shape != (len(keys), views, sums.width) or len(targets) != len(keys):
            raise DataError("the parts of these sums do not belong together")
        scale = facts["scale"] and PixelScale(*facts["scale"])
        return cls(sums, views, int(facts["most"]), labels, keys, shown, targets, scale)

    def _columns(self, labels: Sequence[Label]) -> list[int]:
        for label in labels:
            if label not in self._position:
                self._position[label] = len(self.labels)
                self.labels.append(label)
        return [self._position[label] for label in labels]

    def _worth(self, keys: Tensor) -> Tensor:
        """Which of these images may be among those that judge: most of a long stream are not."""
        if len(self.keys) < self.most:
            return torch.ones(len(keys), dtype=torch.bool)
        return keys < self.keys.max()

    def _judge(self, keys: Tensor, shown: Tensor, targets: Tensor) -> None:
        if not len(keys):
            return
        keys = torch.cat([self.keys, keys])
        order = torch.argsort(keys, stable=True)[: self.most]
        self.keys = keys[order]
        self.shown = torch.cat([self.shown, shown])[order]
        self.targets = torch.cat([self.targets, targets])[order]


def exact_classifier(method: Method) -> ExactClassifier:
    """The classifier of a method that learns from sums alone; an error that says so for another method."""
    classifier = method.classifier
    if not isinstance(classifier, ExactClassifier) or method.trains or method.memory.kind != "none":
        raise UnsupportedError(
            "this method cannot be taught from sums that were gathered elsewhere: it trains a network, or keeps more "
            "than sums over all images. Use exact, exact-auto, exact-pretrained or another one of the family exact "
            "that trains nothing"
        )
    return classifier


def nothing_gathered(method: Method, known: LearnerState, runtime: Runtime) -> Gathered:
    """Sums over no images, of the features that are known."""
    classifier = exact_classifier(method)
    width = classifier.begun(occasion(known, runtime)).sums.width
    return Gathered(FeatureSums(width).to(runtime.device), 2 if classifier.flips else 1, classifier.judged)


def occasion(known: LearnerState, runtime: Runtime) -> ClassEdit:
    """When the classifier of gathered images is made."""
    return ClassEdit((), known.network, runtime, len(known.tasks))


def teach_batch(learner: Learner, part: Gathered) -> None:
    """Learn images that were summed elsewhere with the features of this learner, as one task.

    The same as `Learner.learn` with all these images, up to rounding and which of many images select the model.
    """
    if not part.images:
        raise DataError("the batch holds no images: add some before teaching it")
    before = learner.state
    check_labels_exact([*before.classes, *part.labels])
    exact_classifier(learner.method).check(before.network, len({*before.classes, *part.labels}), learner.runtime)
    learner._change(lambda known: with_gathered(learner.method, known, part, learner.runtime))
    if part.scale is not None:
        learner.scale = merge_pixel_ranges(learner.scale, part.scale)


def with_gathered(method: Method, known: LearnerState, part: Gathered, runtime: Runtime) -> LearnerState:
    """What is known after gathered images were learned as one task; nothing is extracted."""
    classifier = exact_classifier(method)
    task = sorted(part.labels, key=lambda label: (isinstance(label, str), label))
    position = {label: column for column, label in enumerate(dict.fromkeys([*known.classes, *task]))}
    columns = [position[label] for label in part.labels]
    views, targets = part.shown.transpose(0, 1).contiguous(), torch.tensor(columns, dtype=torch.long)[part.targets]
    portion = Portion(part.sums, columns, views, targets)
    fitted = classifier.gathered(occasion(known, runtime), known.states.get("classifier"), portion)
    assert fitted.left_out is not None
    counts = torch.zeros(len(position), dtype=torch.long, device=runtime.device)
    counts[columns] = part.sums.counts.to(runtime.device) // part.views
    evidence = method.evidence.gathered(known.states.get("evidence"), counts, fitted.left_out)
    states = {**known.states, "classifier": fitted.scorer, "evidence": evidence}
    return LearnerState(known.network, known.memory, states, (*known.tasks, tuple(task))).eval()


BATCH, BATCH_BYTES = 256, 2**26
"""Images, and bytes of encoded images, that wait for the extractor at most."""


@dataclass
class Summed:
    """What a shard gives."""

    part: Gathered
    digest: str = ""
    """Of its images and labels in their order, however they are packed."""
    bad: Bad = field(default_factory=dict)
    """Images that were passed over, and why."""


def sum_shard(
    learner: Learner, shard: Shard, *, skip_bad: bool = False, workers: int = 1, reporter: Reporter | None = None
) -> Summed:
    """The sums over the images of a shard, with the features of a learner, which stays as it is.

    Args:
        learner: one of an exact method after its first task, or its `blank`.
        shard: what is read, once from its beginning to its end.
        skip_bad: pass over images that cannot be decoded or have no label, instead of raising an error.
        workers: threads that decode.
        reporter: is told of every batch.
    """
    found = Summed(nothing_gathered(learner.method, learner.state, learner.runtime))
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
                raise ShardError(f"{shard.name}: images cannot be used: {named}. Repair them, or give --skip-bad")
            advance(f"{found.part.images:,} images", step=0)
    if not found.part.images:
        listed = dict(enumerate(found.bad.values()))
        reason = f" ({some_named(listed, 'image {}'.format)})" if listed else ""
        raise ShardError(f"{shard.name} holds no usable images{reason}: leave it out, or skip it with --skip-bad")
    found.digest = digest.hexdigest()
    return found


@dataclass
class _Taking:
    """Batches into sums."""

    learner: Learner
    found: Summed
    workers: int

    def __post_init__(self) -> None:
        learner = self.learner
        self.flips = exact_classifier(learner.method).flips
        self.expanded = exact_classifier(learner.method).begun(occasion(learner.state, learner.runtime)).expanded

    def add(self, batch: list[Example], keys: list[bytes]) -> None:
        """Take in what can be decoded; note the rest."""
        channels, height, width = self.learner.shape
        pixels = np.empty((len(batch), channels, height, width), dtype=np.uint8)

        def fill(row: int) -> None:
            image = batch[row].image
            if isinstance(image, bytes):
                if height != width:
                    raise DataError(f"files are read as squares, and the model takes {height}×{width} pixels")
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
        # All blocks at once: the sums are copied whenever there are new classes.
        part.add_([torch.cat(view) for view in zip(*blocks, strict=True)], labels, order)
        part.noticed_(PixelScale(int(pixels.min()), int(pixels.max())))


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


@dataclass(frozen=True)
class Orders:
    """What workers have to know beside their shards."""

    features: Path
    """File of a learner with these features."""
    folder: Path
    """Where sums are written; all machines must see it."""
    device: str = "auto"
    skip_bad: bool = False
    workers: int = 1
    threads: int | None = None
    """None leaves torch as it is."""
    session: Path | None = None
    """Work ends when this session does."""


@dataclass(frozen=True)
class Done:
    """What became of a shard."""

    path: Path | None = None
    images: int = 0
    skipped: int = 0
    """Images that were passed over, and an example."""
    example: str = ""
    failure: str = ""
    damaged: bool = False
    """Whether the shard is to blame for the failure, and may be left out."""
    abandoned: bool = False
    """Whether it only stopped because nobody seemed to wait for it."""


def work(
    shard: Shard, number: int, orders: Orders, reporter: Reporter | None = None, expected: str | None = None
) -> Done:
    """Sum one shard; this is what executors are given. ``expected`` is its stamp where somebody waits for the sums."""
    try:
        if orders.threads is not None:
            torch.set_num_threads(orders.threads)
        if reporter is None and orders.session is not None:
            reporter = SessionReporter(orders.session, number, PATIENCE)
        stamp = _stamp(shard, expected)
        learner = _learner(orders.features, orders.features.stat().st_mtime_ns, orders.device)
        found = sum_shard(learner, shard, skip_bad=orders.skip_bad, workers=orders.workers, reporter=reporter)
        if shard.stamp() != stamp:
            raise ShardError(f"{shard.name} changed while it was read: begin again when it is complete")
        path = write_part(orders.folder, found.part, shard, stamp, found.digest)
    except ShardError as error:
        return Done(failure=str(error), damaged=True)
    except AbandonedError as error:
        return Done(failure=str(error), abandoned=True)
    except AdagaussError as error:
        return Done(failure=str(error))
    except OSError as error:
        return Done(failure=f"{error.filename or shard.name}: {error.strerror or error}", damaged=True)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return Done(failure=f"{shard.name}: the memory is full: give fewer --jobs")
    example = next((f"{name}: {reason}" for name, reason in found.bad.items()), "")
    return Done(path, found.part.images, len(found.bad), example)


def _stamp(shard: Shard, expected: str | None) -> str:
    """The stamp of a shard as this machine sees it, which must be that of the process that waits."""
    try:
        stamp = shard.stamp()
        reason = "finds other files there (size or time of change differs)"
    except OSError as error:
        if expected is None:
            raise
        stamp, reason = "", f"cannot read it ({error.strerror or error})"
    if expected is not None and stamp != expected:
        raise DataError(
            f"{shard.name}: {socket.gethostname()} {reason}: give all machines the same files, in a folder that they "
            "share"
        )
    return stamp


@lru_cache(maxsize=1)
def _learner(features: Path, changed: int, device: str) -> Learner:
    """Loaded once per process, not once per shard."""
    return Learner.load(features, Runtime(RuntimeConfig(device=device)))


SAMPLE, SAMPLED_SHARDS = 1000, 20
"""Images, and shards that they are the first of."""


def first_pictures(shards: Sequence[Shard]) -> tuple[list[Image.Image], list[Label]]:
    """Pictures and labels of evenly spaced shards, at most `SAMPLE`; what cannot be read is passed over here."""
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
"""How often a shard is begun whose worker dies."""
MOST_LOST = 8
"""Shards that may fail through no fault of their own before the others are not tried any more."""
MOST = 256
"""Shards that an executor has at a time, if nothing else is said: their sums wait on disk."""

Listener = Callable[[Shard, Done], None]


@dataclass
class Gathering:
    """What was gathered."""

    shards: int = 0
    images: int = 0
    known: int = 0
    """Shards that were finished before, or hold the images of another one."""
    skipped_images: int = 0
    damaged: list[str] = field(default_factory=list)
    """Sentences about shards that were left out."""
    stock: Stock | None = None

    def clear(self) -> None:
        """Remove what the model holds now; to be called when it is saved."""
        if self.stock is not None:
            self.stock.clear()


def gather(
    learner: Learner,
    paths: Iterable[Path | str],
    folder: Path,
    *,
    executor: Executor | None = None,
    most: int | None = None,
    skip_bad: bool = False,
    workers: int = 2,
    device: str = "auto",
    reporter: Reporter | None = None,
    then: Listener | None = None,
) -> Gathering:
    """Teach a learner all images of some shards, as `Learner.learn` would with all of them at once, in flat memory.

    Args:
        learner: of an exact method, after its first task (or its `blank`); it changes in the end, whole.
        paths: shards, or folders of shards; see `find_shards`. Those that are in the learner already are passed over.
        folder: where finished shards are kept until the learner is saved; the same call goes on from there. All
            workers must see it. Call `Gathering.clear` after saving.
        executor: who sums the shards; None does it here, one after another.
        most: how many the executor gets at a time.
        skip_bad: leave out images that cannot be decoded, and damaged shards, instead of raising an error.
        workers: threads that decode, where there is no executor.
        device: where the extractor runs.
        reporter: shows progress.
        then: called after each shard.
    """
    exact_classifier(learner.method)  # before anything is written
    reporter = reporter or Reporter()
    shards = find_shards(paths)
    in_model = finished_in(learner.about)
    with locked(folder):
        orders = Orders(_features(learner, folder), folder.absolute(), device, skip_bad, workers)
        nothing = nothing_gathered(learner.method, learner.state, learner.runtime)
        found = Gathering(stock=Stock.opened(folder, nothing, in_model, learner.classes))
        assert found.stock is not None
        if earlier := len(found.stock.finished.keys() - {shard.place for shard in shards}):
            reporter.message(f"{folder} holds shards of an earlier command ({earlier}): they will be in the model, too")
        crew = _Crew(found, found.stock, in_model, skip_bad, then)
        waiting = crew.unfinished(shards)
        with reporter.progress("shards", len(waiting)) as advance:
            if executor is None:
                for number, shard in enumerate(waiting):
                    crew.end(shard, work(shard, number, orders, reporter), advance)
            else:
                with session(folder) as place:
                    ways = replace(orders, workers=1, threads=1, session=place)
                    crew.share(executor, waiting, ways, most or MOST, advance)
        crew.complete()
        found.stock.save()
        if found.stock.total.images:
            teach_batch(learner, found.stock.total)
            learner.about = {**learner.about, NOTE: {**in_model, **found.stock.finished}}
    return found


def _features(learner: Learner, folder: Path) -> Path:
    """A file with the features alone: workers need neither classes nor sums."""
    path = folder / FEATURES
    if path.exists():
        try:
            check_features(learner.network.extractor, Learner.load(path).network.extractor)
        except DataError:
            raise DataError(
                f"{folder} holds shards that were gathered with other features than those of this model: gather them "
                "with the model that they were begun for, or delete the folder"
            ) from None
    else:
        learner.empty_like().save(path)
    return path.absolute()


@dataclass
class _Crew:
    """What becomes of shards, whoever sums them."""

    found: Gathering
    stock: Stock
    in_model: Finished
    skip_bad: bool
    then: Listener | None
    lost: list[str] = field(default_factory=list)
    """Sentences about shards that could not be summed and are not to blame: a full disk, a worker that died."""

    def unfinished(self, shards: list[Shard]) -> list[Shard]:
        """Those that are not finished; one whose files have changed since is refused, or it would count twice."""
        finished, left = {**self.in_model, **self.stock.finished}, []
        for shard in shards:
            note = finished.get(shard.place, "").partition(" ")[0]
            if not note:
                left.append(shard)
            elif note == shard.stamp():
                self.found.known += 1
            else:
                self._damaged(
                    f"{shard.name} has changed since its images were learned, which would count twice: give the new "
                    "images as a shard of their own"
                )
        return left

    def end(self, shard: Shard, done: Done, advance: Advance) -> None:
        """Add a finished shard, or say why it is none."""
        if done.path is None:
            if done.damaged:
                self._damaged(done.failure)
            else:
                self._lost(done.failure)
        else:
            try:
                self._add(done, done.path)
            except ShardError as error:
                self._damaged(f"{shard.name}: {error}")
        if self.then is not None:
            self.then(shard, done)
        advance(f"{self.found.images:,} images")

    def _add(self, done: Done, path: Path) -> None:
        if path.stem.removeprefix(PART) in digests(self.in_model):
            path.unlink(missing_ok=True)
            self.found.known += 1
        elif not self.stock.take(path):
            self.found.known += 1
        else:
            self.found.shards += 1
            self.found.images += done.images
            self.found.skipped_images += done.skipped

    def share(self, executor: Executor, shards: list[Shard], orders: Orders, most: int, advance: Advance) -> None:
        """Let an executor sum the shards; one whose worker dies is begun again once."""
        waiting = [(shard, 1) for shard in reversed(shards)]
        pending: dict[Future[Done], tuple[Shard, int]] = {}
        number = 0
        with _cancelled(pending):
            while waiting or pending:
                while waiting and len(pending) < most:
                    shard, begun = waiting.pop()
                    pending[_submitted(executor, shard, number, orders)] = shard, begun
                    number += 1
                ended, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in ended:
                    shard, begun = pending.pop(future)
                    try:
                        done = future.result()
                    except Exception as error:  # our own errors are values: this is the engine's
                        if begun < ATTEMPTS:
                            waiting.append((shard, begun + 1))
                            continue
                        done = Done(
                            failure=f"{shard.name}: its worker ended {begun} times ({type(error).__name__}): it was "
                            "killed, or the memory is full; give fewer --jobs"
                        )
                    if done.abandoned:  # this process was stopped for so long that its workers gave up
                        waiting.append((shard, begun))
                        continue
                    self.end(shard, done, advance)

    def complete(self) -> None:
        """Raise if shards were lost: all others are kept on disk, and the model stays what it was."""
        if self.lost:
            self.stock.save()
            more = f" ({len(self.lost)} shards failed like this)" if len(self.lost) > 1 else ""
            raise WorkerError(
                f"{self.lost[0]}{more}; the other shards are kept, and the same command goes on from there"
            )

    def _lost(self, sentence: str) -> None:
        self.lost.append(sentence)
        if len(self.lost) >= MOST_LOST:
            self.complete()

    def _damaged(self, sentence: str) -> None:
        if not self.skip_bad:
            self.stock.save()
            raise DataError(sentence)
        self.found.damaged.append(sentence)


def _submitted(executor: Executor, shard: Shard, number: int, orders: Orders) -> Future[Done]:
    """A shard in the hands of an executor; engines that are gone raise errors of their own, which the future holds."""
    try:
        return executor.submit(work, shard, number, orders, expected=shard.stamp())
    except Exception as error:
        failed: Future[Done] = Future()
        failed.set_exception(error)
        return failed


@contextmanager
def _cancelled(pending: dict[Future[Done], tuple[Shard, int]]) -> Iterator[None]:
    try:
        yield
    finally:
        for future in pending:
            future.cancel()
