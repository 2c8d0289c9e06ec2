"""Measure quantities of a finished run that its predictions do not tell, and store them in the folder of the run.

Every stored file names the checkpoints and the data that it was measured from. A file that is damaged, or measured from
other ones, is measured again. Old images are used for analysis only; features of one task at a time are in memory, and
only statistics are stored.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adagauss.analysis.rescore import Checkpoint, TrackedMemory, Update, checkpoints, task_mean, track_memory, update_of
from adagauss.backbones import Extractor, Network
from adagauss.core import linalg
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learn import Learner
from adagauss.core.state import Scorer
from adagauss.core.task import CurrentTask, FitContext, extract_features
from adagauss.data.augment import Changes
from adagauss.data.dataset import Dataset
from adagauss.data.images import LabelledImages, Subset
from adagauss.data.stream import TaskStream
from adagauss.errors import AdagaussError, CheckpointError, NumericalError, UnsupportedError
from adagauss.experiments.environment import check_data
from adagauss.experiments.run import Run
from adagauss.experiments.runner import make_stream
from adagauss.methods.efc import EFC, feature_matrix, metric_weights
from adagauss.parts.classifiers import MemoryClassifier, SampledLinear
from adagauss.parts.drift import Adapter, Drift, Moved
from adagauss.parts.memory import GaussianMemory, Memory
from adagauss.utils.checkpoint import load_tensors, save_tensors, stored_digest
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime

Tables = dict[str, Tensor]
"""Measured numbers by name; NaN where there is none."""

OWN, UNMOVED, EFC_UPDATE = "as run", "not adapted", "EFC's update"
TRACKED = (OWN, UNMOVED, EFC_UPDATE)
"""Memories on the same networks: of the run, as first stored, and with EFC's update of the means."""
REAL_MEANS, REAL_COVARIANCES, REAL_BOTH = "real means", "real covariances", "real means and covariances"
BANKS = (*TRACKED, REAL_MEANS, REAL_COVARIANCES, REAL_BOTH)
"""Memories that the classifier of the run is scored with."""
DISTANCES = ("mean", "covariance", "kl", "relative mean", "relative covariance")
"""‖μ − μ*‖₂, ‖Σ − Σ*‖_F and the symmetric KL divergence, as in the paper; and the first two relative to the scale."""
AMOUNTS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""γ of Σ + γ·mean(diag Σ)·I."""

LARGEST_COMPARED = 2048
"""Features for which real covariances of every class are measured: thousands more would fill the memory."""
VERSION = 2
"""Version of the definitions: quantities of another version are measured again."""
BLOCK_BYTES = 1 << 26
"""Bytes of unpacked covariances at a time; those of a thousand classes of 512 features take gigabytes."""
BANKS_AT_ONCE = 8
"""Copies of all covariances that are in memory at a time, at most."""
DRAWN = 6
"""Classes in the pictures of the latent space."""
ENOUGH = 8
"""Images of a class of an earlier task for each feature: n of them know a covariance of S features to about √(S/n)."""
MOST_SAMPLES = 2000
"""Samples per covariance in the shrink sweep, a fifth of the published number."""
HEAD = SampledLinear(recipe=SampledLinear().recipe.with_changes(batch_size=512))
"""The published linear head, 30 epochs of 10,000 samples, in larger batches: a quarter of the steps is enough."""
PUBLISHED_SHRINKAGE = 3.0
"""Of the published classifier, whose distances the figure of the paper shows."""

logger = logging.getLogger(__name__)


class Quantity(StrEnum):
    """A group of measured numbers, stored in one file."""

    MEMORY = "memory"
    """Eigenvalues of the memorised covariances after each task, and shifts of the means."""
    REAL = "real"
    """Real statistics of all classes under each network, and the memory compared with them."""
    FROZEN = "frozen"
    """The network of the first task with exact Gaussians of all classes."""
    SHRINK = "shrink"
    """Accuracy with covariances shrunk by several amounts when they are stored."""

    @property
    def needs_images(self) -> bool:
        """Whether the images of the run are needed."""
        return self != Quantity.MEMORY

    @property
    def costly(self) -> bool:
        """Whether adapters are trained again, so that it is measured only if it is selected."""
        return self == Quantity.SHRINK


def measure(run: Run, dataset: Dataset | None, needs: Iterable[Quantity], reporter: Reporter | None = None) -> Run:
    """Return the run with its measured quantities; ``missing`` holds the reason for each that cannot be measured.

    Args:
        run: the run.
        dataset: its data; without it, only quantities that need no images or are stored are available.
        needs: what to measure.
        reporter: shows progress.
    """
    reporter = reporter or Reporter()
    tables: Tables = {}
    missing: dict[str, str] = {}
    for quantity in sorted(set(needs), key=list(Quantity).index):
        found = stored_tables(run, quantity)
        try:
            tables.update(_measured(run, quantity, dataset, reporter) if found is None else found)
        except (UnsupportedError, NumericalError) as error:
            missing[quantity] = str(error)
    return run.with_tables(tables, missing)


def _measured(run: Run, quantity: Quantity, dataset: Dataset | None, reporter: Reporter) -> Tables:
    if not all(run.checkpoint(index).exists() for index in range(run.done)):
        raise UnsupportedError("the run stores only its last checkpoint, not the networks of earlier tasks")
    if quantity == Quantity.MEMORY:
        tables = measure_memory(run, reporter)
    elif dataset is None:
        raise UnsupportedError("the images of the run are not available: give their folder with --data-root")
    else:
        try:
            check_data(run, dataset, reporter)
        except CheckpointError as error:
            raise UnsupportedError(f"the available images are not those of the run: {error}") from None
        tables = WITH_IMAGES[quantity](run, make_stream(run.config, dataset), reporter)
    try:
        save_tensors(quantity_file(run, quantity), "measured", tables, {"source": _source(run)})
    except (AdagaussError, OSError) as error:
        reporter.message(f"measurements of {run.path} are not stored and will be repeated ({error})")
    return tables


def stored_quantities(run: Run) -> set[Quantity]:
    """Quantities that need no images, or are stored."""
    return {one for one in Quantity if not one.needs_images or stored_tables(run, one) is not None}


def stored_tables(run: Run, quantity: Quantity) -> Tables | None:
    """Read a stored quantity; None if it must be measured."""
    path = quantity_file(run, quantity)
    if not path.exists():
        return None
    try:
        tables, facts = load_tensors(path, "measured")
    except CheckpointError as error:
        logger.warning("%s; it is measured again", error)
        return None
    return tables if facts.get("source") == _source(run) else None


def quantity_file(run: Run, quantity: Quantity) -> Path:
    """The file of a quantity."""
    return run.path / "analysis" / f"{quantity}.safetensors"


def _source(run: Run) -> dict[str, Any]:
    """What the numbers depend on: definitions, data, and the learner after every finished task."""
    files = [run.checkpoint(index) for index in range(run.done)]
    data = json.dumps(run.data, sort_keys=True)
    return {
        "version": VERSION,
        "data": hashlib.sha256(data.encode()).hexdigest(),
        "checkpoints": [stored_digest(path) if path.exists() else "" for path in files],
    }


# Gaussians.


def distances(memory: ClassGaussians, real: ClassGaussians, comparable: bool = True) -> Tensor:
    """(C, 5): the `DISTANCES` of each class of ``memory``; * marks the real statistics.

    ‖μ − μ*‖₂; ‖Σ − Σ*‖_F; KL(N‖N*) + KL(N*‖N); ‖μ − μ*‖₂ / √tr Σ*; ‖Σ − Σ*‖_F / ‖Σ*‖_F. They are NaN where the memory
    has no covariances, or none that are ``comparable``, such as those of powers of features.
    """
    rows = []
    for labels in blocks(memory):
        mine, theirs = memory.select(labels), real.select(labels)
        matrices = theirs.covariances
        apart: Tensor = torch.linalg.vector_norm(mine.means - theirs.means, dim=1)
        spread = matrices.diagonal(dim1=1, dim2=2).sum(1).clamp_min(0).sqrt()
        wide = kl = torch.full_like(apart, torch.nan)
        if comparable and memory.covariance != "none":
            own = mine.covariances
            wide = torch.linalg.matrix_norm(own - matrices)
            kl = linalg.symmetric_kl(mine.means, own, theirs.means, matrices)
        size: Tensor = torch.linalg.matrix_norm(matrices)
        rows.append(torch.stack([apart, wide, kl, apart / spread, wide / size], 1))
    return torch.cat(rows).cpu() if rows else torch.zeros(0, len(DISTANCES), dtype=torch.float64)


def class_spectra(bank: ClassGaussians) -> Tensor:
    """(C, S) eigenvalues of each covariance, the largest first."""
    rows = [linalg.spectrum(bank.select(labels).covariances) for labels in blocks(bank)]
    return torch.cat(rows).cpu() if rows else torch.zeros(0, bank.size, dtype=torch.float64)


def blocks(bank: ClassGaussians) -> Iterator[list[object]]:
    """The labels of a bank, as many at a time as `BLOCK_BYTES` allow."""
    step = max(1, BLOCK_BYTES // (8 * bank.size**2))
    for start in range(0, len(bank), step):
        yield list(bank.labels[start : start + step])


def drawn_classes(count: int) -> list[int]:
    """Places of the classes in the pictures of the latent space."""
    places: list[int] = torch.linspace(0, count - 1, min(count, DRAWN), dtype=torch.float64).round().long().tolist()
    return places


def plane_of(real: ClassGaussians, chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The two principal directions (S, 2) between the real means of some classes, and the centre of these means."""
    means = real.means[list(chosen)]
    centre = means.mean(0)
    return torch.linalg.svd(means - centre, full_matrices=False)[2][:2].T, centre


def in_plane(bank: ClassGaussians, chosen: Sequence[int], plane: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Means and covariances of some classes in a plane."""
    some, (directions, centre) = bank.select([bank.labels[place] for place in chosen]), plane
    return ((some.means - centre) @ directions).cpu(), (directions.T @ some.covariances @ directions).cpu()


# Memory.


def measure_memory(run: Run, reporter: Reporter) -> Tables:
    """Eigenvalues of the memorised covariances, and shifts of the means, after each task.

    ``memory.spectra`` is (T, C, S); ``memory.shift`` is (T, C, 2): ‖μ_c after − μ_c before‖₂ of the drift in each task,
    and the same over √tr Σ_c before. They are NaN where a class was not learned yet.
    """
    banks: list[ClassGaussians] = []
    with reporter.progress(f"memory of {run.path.name}", run.done) as advance:
        for index in range(run.done):
            bank = Learner.load(run.checkpoint(index), Runtime(run.config.runtime, run.seed)).memory
            if not len(bank):
                raise UnsupportedError(f"{run.method} stores no statistics per class")
            banks.append(bank)
            advance()
    classes, size = len(banks[-1]), banks[-1].size
    shift = torch.full((run.done, classes, 2), torch.nan, dtype=torch.float64)
    spectra = torch.full((run.done, classes, size), torch.nan, dtype=torch.float64)
    has_covariances = banks[-1].covariance != "none"
    for index, bank in enumerate(banks):
        if has_covariances:
            spectra[index, : len(bank)] = class_spectra(bank)
        if index:
            before = banks[index - 1]
            moved = torch.linalg.vector_norm(before.means - bank.select(before.labels).means, dim=1)
            # √tr Σ is the root of the sum of the eigenvalues.
            spread = spectra[index - 1, : len(before)].sum(1).clamp_min(0).sqrt().to(moved)
            shift[index, : len(before)] = torch.stack([moved, moved / spread], 1).cpu()
    return {"memory.shift": shift, **({"memory.spectra": spectra} if has_covariances else {})}


# Real statistics.


def measure_real(run: Run, stream: TaskStream, reporter: Reporter) -> Tables:
    """The tables ``real.*``; T finished tasks, C classes, S features.

    | name | shape | |
    |---|---|---|
    | spectra | (T, C, S) | eigenvalues of the real covariance of each class |
    | task_spectra | (T, T, S) | of all features of each task, classes together |
    | all_spectra | (T, S) | of all features of all seen tasks |
    | distances | (T, 3, C, 5) | `DISTANCES` of the memories `TRACKED` to the real statistics |
    | accuracy | (T, 6) | of the classifier of the run with the memories `BANKS` |
    | mahalanobis | (2, C) | mean squared distance of all test images at the end: published and plain |
    | logits | (C,) | mean logit of all test images at the end |
    | plane_classes, plane_means, plane_covariances | (K,), (3, K, 2), (3, K, 2, 2) | real, own, not adapted |
    """
    runtime = Runtime(run.config.runtime, run.seed)
    classes = len(stream.seen(run.done - 1))
    tables: Tables = {}
    memories = MemoryTracker()
    own = run.config.method.memory
    with reporter.progress(f"real statistics of {run.path.name}", run.done) as advance:
        for checkpoint in checkpoints(run, stream, runtime):
            index, state, now = checkpoint
            if not tables:
                size = now.network.extractor.size
                _check_size(size, classes, runtime)
                tables = _empty_tables(run.done, classes, size)
            counted = state.memory.select(now.classes) if _counts_plain_images(own) else None
            real, tasks = statistics(now.network.extractor, stream, index, own, runtime, now.features(), counted)
            tables["real.spectra"][index, : len(real)] = class_spectra(real)
            tables["real.task_spectra"][index, : index + 1] = class_spectra(tasks)
            tables["real.all_spectra"][index] = class_spectra(_pooled(tasks))[0]
            if len(state.memory):
                tables.update(_compared(tables, checkpoint, memories, real, stream, run))
            advance()
    return tables


def _check_size(size: int, classes: int, runtime: Runtime) -> None:
    needed = BANKS_AT_ONCE * 8 * classes * linalg.packed_size(size)
    free = runtime.free_memory
    if size > LARGEST_COMPARED or (free is not None and needed > free):
        raise UnsupportedError(
            f"real covariances of {classes} classes of {size} features need {needed / 2**30:.1f} GiB of memory"
        )


def _empty_tables(count: int, classes: int, size: int) -> Tables:
    shapes = {
        "spectra": (count, classes, size),
        "task_spectra": (count, count, size),
        "all_spectra": (count, size),
        "distances": (count, len(TRACKED), classes, len(DISTANCES)),
        "accuracy": (count, len(BANKS)),
    }
    return {f"real.{name}": torch.full(shape, torch.nan, dtype=torch.float64) for name, shape in shapes.items()}


def statistics(
    extractor: Extractor,
    stream: TaskStream,
    index: int,
    memory: Memory,
    runtime: Runtime,
    known: Tensor | None = None,
    counted: ClassGaussians | None = None,
) -> tuple[ClassGaussians, ClassGaussians]:
    """Gaussians of the classes up to a task, and of the whole tasks, from the features of one task at a time.

    If the memory counts mirror images, both views of the newest task's images are counted. In earlier tasks every
    second image is mirrored, which halves the work and hardly changes the estimate, and at most `ENOUGH` images per
    feature of each class are used.

    Args:
        extractor: the network.
        stream: the tasks.
        index: the newest task, from 0.
        memory: the memory part of the run.
        runtime: the device.
        known: features of the newest task, if they are computed already.
        counted: statistics of the newest task, if the memory holds them unchanged.
    """
    real, tasks = (ClassGaussians(extractor.size, device=runtime.device) for _ in range(2))
    mirrors = bool(getattr(memory, "flips", False))
    for number in range(index + 1):
        train, newest = stream[number].train, number == index
        if newest and known is not None:
            features = known
        else:
            train = train if newest else some_of_each(train, ENOUGH * extractor.size)
            draw = alternately_mirrored if mirrors and not newest else _plain
            features = extract_features(extractor, train.images, runtime, draw)
        tasks.add(features, [number] * len(features))
        if newest and counted is not None:
            real.merge(counted)
            continue
        real.add(features, train.labels)
        if mirrors and newest:
            real.add(extract_features(extractor, train.images, runtime, _mirrored), train.labels)
    return real.select(stream.seen(index)), tasks


def some_of_each(images: LabelledImages, most: int) -> LabelledImages:
    """At most this many images of each class, evenly spread over all of its images."""
    if int(images.counts().max()) <= most:
        return images
    rows = [torch.nonzero(images.targets == target).flatten() for target in range(len(images.classes))]
    chosen = [own[torch.linspace(0, len(own) - 1, min(most, len(own))).round().long()] for own in rows]
    places = torch.cat(chosen)
    return LabelledImages(Subset(images.images, places), images.targets[places], images.classes)


def alternately_mirrored(number: int) -> Changes:
    """Every second image of a batch mirrored."""
    return Changes.mirroring(torch.arange(number) % 2 == 1)


def _plain(number: int) -> Changes:
    return Changes.none()


def _mirrored(number: int) -> Changes:
    return Changes.none(mirrored=True)


def _counts_plain_images(memory: Memory) -> bool:
    """Whether the memory holds the statistics of the newest classes as `statistics` would compute them."""
    return (
        isinstance(memory, GaussianMemory)
        and memory.covariance == "full"
        and not memory.augmented
        and memory.tukey is None
        and memory.shrinkage == memory.off_diagonal_shrinkage == 0
    )


def _pooled(tasks: ClassGaussians) -> ClassGaussians:
    """All tasks as one, by the law of total covariance."""
    pooled = ClassGaussians(tasks.size, device=tasks.means.device)
    for label in tasks.labels:
        part = tasks.select([label])
        part.labels = ["all"]
        pooled.merge(part)
    return pooled


class MemoryTracker:
    """The memories `TRACKED`, task after task. Only EFC's means are computed again; the others are in checkpoints.

    EFC's update needs the feature matrix of the previous task, and so outputs. If the method stores none, linear
    discriminants of its own Gaussians replace them, with the covariance of the classes of that task.
    """

    def __init__(self) -> None:
        self._unmoved: ClassGaussians | None = None
        self._moved_means = torch.zeros(0, 0)
        self._matrix = torch.zeros(0, 0)

    def after(self, checkpoint: Checkpoint, real: ClassGaussians) -> Mapping[str, ClassGaussians]:
        """The memories after a task, classes in the order of learning; ``real`` holds those of the task."""
        state, now = checkpoint.state, checkpoint.now
        own = state.memory
        new = own.select(now.classes)
        if self._unmoved is None:
            self._unmoved, self._moved_means = new, new.means
        else:
            self._unmoved = self._unmoved.copy()
            self._unmoved.merge(new)
            # μ_c + Σ_i w_ci (F_t(x_i) − F_{t−1}(x_i)), as `methods.efc.EFC`, over the plain images of the task.
            before, after = now.features(previous=True).double(), now.features().double()
            weights = metric_weights(self._moved_means, before, self._matrix, EFC().sigma)
            self._moved_means = torch.cat([self._moved_means + weights @ (after - before), new.means])
        head = state.network.head
        if head.blocks and sum(classes for classes, _ in head.sizes) == len(state.classes):
            outputs = head.class_parameters()
        else:
            outputs = linear_discriminants(own.means, real.select(now.classes).covariances.mean(0))
        self._matrix = feature_matrix(now.features(), *outputs)
        efc = self._unmoved.with_statistics(self._moved_means, None)
        return {OWN: own, UNMOVED: self._unmoved, EFC_UPDATE: efc}


def linear_discriminants(means: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs w_c = Σ⁻¹μ_c and b_c = −½ μ_cᵀΣ⁻¹μ_c: their softmax is Bayes' rule for Gaussians of one covariance."""
    weight = torch.cholesky_solve(means.double().T, linalg.safe_cholesky(covariance).factor).T
    return weight, -0.5 * (weight * means.double()).sum(1)


def _compared(
    tables: Tables, checkpoint: Checkpoint, tracker: MemoryTracker, real: ClassGaussians, stream: TaskStream, run: Run
) -> Tables:
    """Compare the memories after a task with the real statistics; after the last task, return the other tables."""
    index, now, method = checkpoint.task, checkpoint.now, run.config.method
    memories = tracker.after(checkpoint, real)
    comparable = getattr(method.memory, "tukey", None) is None
    for place, name in enumerate(TRACKED):
        tables["real.distances"][index, place, : len(real)] = distances(memories[name], real, comparable)
    test = _TestFeatures(now.network, stream, index, now.runtime)
    own = memories[OWN]
    banks = {**memories, REAL_MEANS: own.with_statistics(real.means, None)}
    if own.covariance != "none":
        banks[REAL_COVARIANCES] = own.with_statistics(own.means, real.covariances)
        banks[REAL_BOTH] = own.with_statistics(real.means, real.covariances)
    if isinstance(method.classifier, MemoryClassifier) and method.classifier.cheap:
        for name, bank in banks.items():
            accuracy = test.accuracy(method.classifier.of_memory(bank, now))
            tables["real.accuracy"][index, BANKS.index(name)] = accuracy
    if index + 1 < run.done or own.covariance == "none" or not comparable:
        return {}
    chosen = drawn_classes(len(real))
    plane = plane_of(real, chosen)
    pictures = [in_plane(bank, chosen, plane) for bank in (real, own, memories[UNMOVED])]
    return {
        "real.mahalanobis": torch.stack(
            [squared_distances_by_class(own, test.features, published=published) for published in (True, False)]
        ),
        "real.logits": logits_by_class(own, test.features, now),
        "real.plane_classes": torch.tensor(chosen),
        "real.plane_means": torch.stack([means for means, _ in pictures]),
        "real.plane_covariances": torch.stack([matrices for _, matrices in pictures]),
    }


class _TestFeatures:
    """Features of the test images of all classes up to a task, as used for prediction."""

    def __init__(self, network: Network, stream: TaskStream, index: int, runtime: Runtime) -> None:
        test = stream.dataset.test.of_classes(stream.seen(index))
        extractor = network.extractor
        self.features = extract_features(extractor, test.images, runtime, prediction=True)[:, : extractor.size]
        self._targets = test.targets
        self._sizes = [len(classes) for classes in stream.task_classes[: index + 1]]

    def accuracy(self, scorer: Scorer) -> float:
        """Mean accuracy over tasks."""
        with torch.inference_mode():
            return task_mean(linalg.by_rows(scorer, self.features), self._targets, self._sizes)


def squared_distances_by_class(bank: ClassGaussians, features: Tensor, *, published: bool) -> Tensor:
    """(C,): mean over all images of (x − μ_c)ᵀ M_c (x − μ_c), on raw features.

    M_c is Σ_c⁻¹ or, as ``published``, the inverse of the correlation matrix of Σ_c + 3·mean(diag Σ_c)·I.
    """
    matrices = bank.covariances
    if published:
        matrices = linalg.correlation(linalg.shrink_to_identity(matrices, PUBLISHED_SHRINKAGE))
    whitening = linalg.whiten(bank.means, matrices, torch.float64)
    return _mean_rows(lambda some: linalg.squared_distances(some, whitening), features)


def logits_by_class(bank: ClassGaussians, features: Tensor, now: FitContext) -> Tensor:
    """(C,): mean over all images of the logits of a linear head trained on samples of the Gaussians."""
    scorer = HEAD.of_memory(bank, now)
    with torch.inference_mode():
        return _mean_rows(lambda some: scorer(some.float()).double(), features)


def _mean_rows(function: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
    total = sum((function(some).sum(0) for some in torch.split(features.double(), linalg.ROWS)), torch.zeros(()))
    return (total / len(features)).cpu()


# The frozen network, and the shrink sweep.


@dataclass
class FrozenContext:
    """Where a classifier is fitted to the network of the first task."""

    network: Network
    runtime: Runtime
    name: str = "frozen after the first task"


def measure_frozen(run: Run, stream: TaskStream, reporter: Reporter) -> Tables:
    """``frozen.accuracy`` (1,) over all finished tasks, and ``frozen.plane_*`` in the features of the first network."""
    method = run.config.method
    if not isinstance(method.classifier, MemoryClassifier):
        raise UnsupportedError(f"the classifier {method.classifier.kind} does not follow from Gaussians alone")
    runtime = Runtime(run.config.runtime, run.seed, reporter)
    network = Learner.load(run.checkpoint(0), Runtime(run.config.runtime, run.seed)).network
    real, _ = statistics(network.extractor, stream, run.done - 1, method.memory, runtime)
    test = _TestFeatures(network, stream, run.done - 1, runtime)
    accuracy = test.accuracy(method.classifier.of_memory(real, FrozenContext(network, runtime)))
    chosen = drawn_classes(len(real))
    means, covariances = in_plane(real, chosen, plane_of(real, chosen))
    return {
        "frozen.accuracy": torch.tensor([accuracy], dtype=torch.float64),
        "frozen.plane_means": means,
        "frozen.plane_covariances": covariances,
    }


def measure_shrink(run: Run, stream: TaskStream, reporter: Reporter) -> Tables:
    """``shrink.amounts`` (G,) and ``shrink.accuracy`` (G, T), the accuracy on all seen classes after each task.

    The memory is tracked through all tasks once per amount, and shrunk again after every adaptation, as in the
    published code. An adapter is trained once per task: it does not depend on the memory.
    """
    method = run.config.method
    classifier = method.classifier
    if not isinstance(method.memory, GaussianMemory):
        raise UnsupportedError("only memories of Gaussians can be shrunk")
    if not isinstance(classifier, MemoryClassifier) or not classifier.cheap:
        raise UnsupportedError(f"the classifier {classifier.kind} does not follow from the memory alone")
    runtime = Runtime(run.config.runtime, run.seed)
    memories = [method.memory.with_changes(shrinkage=amount) for amount in AMOUNTS]
    tracked: list[TrackedMemory | None] = [None] * len(AMOUNTS)
    accuracy = torch.full((len(AMOUNTS), run.done), torch.nan, dtype=torch.float64)
    with reporter.progress(f"shrink sweep of {run.path.name}", run.done) as advance:
        for index, _, now in checkpoints(run, stream, runtime):
            test = _TestFeatures(now.network, stream, index, runtime)
            update = _shared_update(method.drift, now)
            for place, part in enumerate(memories):
                tracked[place] = one = track_memory(tracked[place], update, part, method, now)
                accuracy[place, index] = test.accuracy(classifier.of_memory(one.bank, now))
            advance()
    return {"shrink.amounts": torch.tensor(AMOUNTS, dtype=torch.float64), "shrink.accuracy": accuracy}


def _shared_update(drift: Drift, now: CurrentTask) -> Update:
    """The update of a drift in one task for several memories; an adapter is trained once."""
    if not isinstance(drift, Adapter) or now.first:
        return update_of(drift, now)
    old, new, _ = now.pairs(drift.views)
    mapping = drift.train_map(now, old, new)
    shorter = drift.with_changes(samples=min(drift.samples, MOST_SAMPLES))
    return lambda bank, state: Moved(shorter.moved(bank, now, mapping))


WITH_IMAGES: dict[Quantity, Callable[[Run, TaskStream, Reporter], Tables]] = {
    Quantity.REAL: measure_real,
    Quantity.FROZEN: measure_frozen,
    Quantity.SHRINK: measure_shrink,
}
