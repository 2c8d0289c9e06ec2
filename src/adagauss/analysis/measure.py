"""Measure quantities of a finished run that its predictions do not contain, and store them in the folder of the run.

Every stored file names the checkpoints and the data that it was measured from. A file that is damaged, or measured from
other ones, is measured again. Old images are used for analysis only, and only statistics are stored.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from adagauss.analysis.rescore import ALL, TestFeatures, Variant, checkpoints, real_statistics, rescore
from adagauss.core import linalg
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learn import Learner
from adagauss.core.learner_state import LearnerState
from adagauss.core.task import CurrentTask
from adagauss.data.dataset import Dataset
from adagauss.data.images import evenly_spaced
from adagauss.errors import AdagaussError, CheckpointError, DataError, UnsupportedError
from adagauss.experiments.environment import check_data
from adagauss.experiments.run import Run
from adagauss.experiments.runner import make_stream
from adagauss.methods.efc import EFC, feature_matrix, metric_weights
from adagauss.parts.classifiers import MemoryClassifier, SampledLinear
from adagauss.parts.drift import Adapter
from adagauss.parts.memory import GaussianMemory
from adagauss.utils.checkpoint import load_tensors, save_tensors, stored_digest
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime

Tables = dict[str, Tensor]
"""Measured numbers by name; NaN where there is none."""
Images = Callable[[], Dataset]
"""Reads the data of a run if they are needed."""
Banks = Mapping[str, ClassGaussians]
"""Memories by name."""

OWN, UNMOVED, EFC_UPDATE = "as run", "not adapted", "EFC's update"
TRACKED = (OWN, UNMOVED, EFC_UPDATE)
"""Memories on the same networks: of the run, as first stored, and with EFC's update of the means."""
REAL_MEANS, REAL_COVARIANCES, REAL_BOTH = "real means", "real covariances", "real means and covariances"
BANKS = (*TRACKED, REAL_MEANS, REAL_COVARIANCES, REAL_BOTH)
"""Memories that the classifier of the run is scored with."""
DISTANCES = ("mean", "covariance", "kl")
"""‖μ − μ*‖₂, ‖Σ − Σ*‖_F and the symmetric KL divergence; * marks real statistics."""
AMOUNTS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""γ of Σ + γ·mean(diag Σ)·I."""

LARGEST_COMPARED = 2048
"""Most features for which real covariances of every class are measured: more would fill the memory."""
VERSION = 3
"""Version of the definitions: quantities of another version are measured again."""
BANKS_AT_ONCE = 8
"""Copies of all covariances that are in memory at a time, at most."""
DRAWN = 6
"""Classes in the pictures of the latent space."""
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
    SHRINK = "shrink"
    """Accuracy with covariances shrunk by several amounts when they are stored."""

    @property
    def needs_images(self) -> bool:
        """Whether the images of the run are needed."""
        return self != Quantity.MEMORY


def measure(run: Run, images: Images | None, needs: Iterable[Quantity], reporter: Reporter | None = None) -> Run:
    """Return the run with its measured quantities; ``missing`` holds the reason for each that cannot be measured.

    Args:
        run: the run.
        images: reads its data; without it, only quantities that need no images or are stored are available.
        needs: what to measure.
        reporter: shows progress.
    """
    reporter = reporter or Reporter()
    tables: Tables = {}
    missing: dict[str, str] = {}
    for quantity in sorted(set(needs), key=list(Quantity).index):
        try:
            found = stored_tables(run, quantity)
            tables.update(_measured(run, quantity, images, reporter) if found is None else found)
        except AdagaussError as error:
            missing[quantity] = str(error)
    return run.with_tables(tables, missing)


def _measured(run: Run, quantity: Quantity, images: Images | None, reporter: Reporter) -> Tables:
    if not all(run.checkpoint(index).exists() for index in range(run.done)):
        raise UnsupportedError("the run stores only its last checkpoint, not the networks of earlier tasks")
    if quantity == Quantity.MEMORY:
        tables = measure_memory(run, reporter)
    elif images is None:
        raise UnsupportedError("it needs the images of the run, which `adagauss analyse --data-root FOLDER` reads")
    else:
        try:
            dataset = images()
            check_data(run, dataset, reporter)
        except (CheckpointError, DataError) as error:
            raise UnsupportedError(f"the images of the run are not available: {error}") from None
        tables = (measure_real if quantity == Quantity.REAL else measure_shrink)(run, dataset, reporter)
    try:
        save_tensors(quantity_file(run, quantity), "measured", tables, {"source": _source(run)})
    except (AdagaussError, OSError) as error:
        reporter.message(f"measurements of {run.path} are not stored and will be repeated ({error})")
    return tables


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


def _numbers(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def _padded(tables: list[Tensor]) -> Tensor:
    """Tables of each task as one, with NaN for classes or tasks that came later."""
    return pad_sequence(tables, batch_first=True, padding_value=torch.nan)


# Gaussians.


def distances(memory: ClassGaussians, real: ClassGaussians, comparable: bool = True) -> Tensor:
    """(C, 3): the `DISTANCES` of each class of ``memory``.

    They are NaN where the memory has no covariances, or none that are ``comparable``, such as those of powers of
    features.
    """
    rows = [torch.zeros(0, len(DISTANCES), dtype=torch.float64)]
    for mine in memory.blocks():
        theirs = real.select(mine.labels)
        apart: Tensor = torch.linalg.vector_norm(mine.means - theirs.means, dim=1)
        wide = kl = torch.full_like(apart, torch.nan)
        if comparable and memory.covariance != "none":
            own, matrices = mine.covariances, theirs.covariances
            wide = torch.linalg.matrix_norm(own - matrices)
            kl = linalg.symmetric_kl(mine.means, own, theirs.means, matrices)
        rows.append(torch.stack([apart, wide, kl], 1).cpu())
    return torch.cat(rows)


def class_spectra(bank: ClassGaussians) -> Tensor:
    """(C, S) eigenvalues of each covariance, the largest first."""
    rows = [linalg.spectrum(block.covariances).cpu() for block in bank.blocks()]
    return torch.cat([torch.zeros(0, bank.size, dtype=torch.float64), *rows])


# Memory.


def measure_memory(run: Run, reporter: Reporter) -> Tables:
    """Eigenvalues of the memorised covariances, and shifts of the means, after each task.

    ``memory.spectra`` is (T, C, S); ``memory.shift`` is (T, C, 2): ‖μ_c after − μ_c before‖₂ of the drift in each task,
    and the same over √tr Σ_c before. They are NaN where a class was not learned yet.
    """
    spectra: list[Tensor] = []
    shifts: list[Tensor] = []
    before: ClassGaussians | None = None
    with reporter.progress(f"memory of {run.path.name}", run.done) as advance:
        for index in range(run.done):
            bank = Learner.load(run.checkpoint(index), Runtime(run.config.runtime, run.seed)).memory
            if not len(bank):
                raise UnsupportedError(f"{run.method} stores no statistics per class")
            shift = torch.full((len(bank), 2), torch.nan, dtype=torch.float64)
            if before is not None:
                moved = torch.linalg.vector_norm(before.means - bank.select(before.labels).means, dim=1).cpu()
                # √tr Σ is the root of the sum of the eigenvalues.
                spread = spectra[-1].sum(1).clamp_min(0).sqrt() if spectra else torch.full_like(moved, torch.nan)
                shift[: len(before)] = torch.stack([moved, moved / spread], 1)
            shifts.append(shift)
            if bank.covariance != "none":
                spectra.append(class_spectra(bank))
            before = bank
            advance()
    return {"memory.shift": _padded(shifts), **({"memory.spectra": _padded(spectra)} if spectra else {})}


# Real statistics.


def measure_real(run: Run, dataset: Dataset, reporter: Reporter) -> Tables:
    """The tables ``real.*``; T finished tasks, C classes, S features.

    | name | shape | |
    |---|---|---|
    | task_spectra | (T, T, S) | of all features of each task, classes together |
    | all_spectra | (T, S) | of all features of all seen tasks |
    | distances | (T, C, 3, 3) | `DISTANCES` of the memories `TRACKED` to the real statistics |
    | accuracy | (T, 6) | of the classifier of the run with the memories `BANKS` |
    | mahalanobis | (2, C) | mean squared distance of all test images at the end: published and plain |
    | logits | (C,) | mean logit of all test images at the end |
    | plane_classes, plane_means, plane_covariances | (K,), (3, K, 2), (3, K, 2, 2) | real, own, not adapted |
    | frozen_accuracy, frozen_means, frozen_covariances | (1,), (K, 2), (K, 2, 2) | with the network of the first task |
    """
    method, stream = run.config.method, make_stream(run.config, dataset)
    runtime = Runtime(run.config.runtime, run.seed)
    first = Learner.load(run.checkpoint(0), Runtime(run.config.runtime, run.seed)).network
    size, classes, free = first.extractor.size, len(stream.seen(run.done - 1)), runtime.free_memory
    needed = BANKS_AT_ONCE * 8 * classes * linalg.packed_size(size)
    if size > LARGEST_COMPARED or (free is not None and needed > free):
        raise UnsupportedError(
            f"real covariances of {classes} classes of {size} features need {needed / 2**30:.1f} GiB of memory"
        )
    has_plain_features = getattr(method.memory, "tukey", None) is None
    classifier = method.classifier if isinstance(method.classifier, MemoryClassifier) else None
    by_task: defaultdict[str, list[Tensor]] = defaultdict(list)
    followed: dict[str, ClassGaussians] = {}
    matrix = torch.zeros(0, 0)
    with reporter.progress(f"real statistics of {run.path.name}", run.done) as advance:
        for state, now in checkpoints(run, stream, runtime):
            real, tasks = real_statistics(now.network.extractor, stream, now.index, method.memory, runtime)
            by_task["task_spectra"].append(class_spectra(tasks.select(range(now.index + 1))))
            by_task["all_spectra"].append(class_spectra(tasks.select([ALL]))[0])
            advance()
            own = state.memory
            if not len(own):
                continue
            followed = _followed(followed, matrix, own, now)
            matrix = _feature_matrix(state, now, real)
            found = [distances(bank, real, has_plain_features) for bank in followed.values()]
            by_task["distances"].append(torch.stack(found, 1))
            test = TestFeatures(now.network, stream, now.index, runtime)
            if classifier is not None and classifier.cheap:
                banks = {**followed, REAL_MEANS: own.with_statistics(real.means, None)}
                if own.covariance != "none":
                    banks[REAL_COVARIANCES] = own.with_statistics(own.means, real.covariances)
                    banks[REAL_BOTH] = own.with_statistics(real.means, real.covariances)
                scores = {name: test.accuracy(classifier.fit(bank, now)) for name, bank in banks.items()}
                by_task["accuracy"].append(_numbers(scores.get(name, torch.nan) for name in BANKS))
    tables = {name: _padded(found) for name, found in by_task.items()}
    if followed and followed[OWN].covariance != "none" and has_plain_features:
        own = followed[OWN]
        means, covariances = in_plane(real, [real, own, followed[UNMOVED]])
        with torch.inference_mode():
            logits = linalg.by_rows(HEAD.fit(own, now), test.features.float()).double().mean(0).cpu()
        apart = [mean_squared_distances(own, test.features, published) for published in (True, False)]
        tables |= {
            "mahalanobis": torch.stack(apart),
            "logits": logits,
            "plane_classes": evenly_spaced(len(real), DRAWN),
            "plane_means": means,
            "plane_covariances": covariances,
        }
    if followed and classifier is not None:
        real, _ = real_statistics(first.extractor, stream, now.index, method.memory, runtime)
        scorer = classifier.fit(real, replace(now, network=first))
        accuracy = TestFeatures(first, stream, now.index, runtime).accuracy(scorer)
        means, covariances = in_plane(real, [real])
        tables |= {
            "frozen_accuracy": _numbers([accuracy]),
            "frozen_means": means[0],
            "frozen_covariances": covariances[0],
        }
    return {f"real.{name}": table for name, table in tables.items()}


def _followed(before: Banks, matrix: Tensor, own: ClassGaussians, now: CurrentTask) -> dict[str, ClassGaussians]:
    """The memories `TRACKED` after a task, from those before it and the feature matrix of the previous task."""
    new = own.select(now.classes)
    if not before:
        return {OWN: own, UNMOVED: new, EFC_UPDATE: new}
    unmoved = before[UNMOVED].copy()
    unmoved.merge(new)
    # μ_c + Σ_i w_ci (F_t(x_i) − F_{t−1}(x_i)), as `methods.efc.EFC`, over the plain images of the task.
    old, current = now.features(previous=True).double(), now.features().double()
    means = before[EFC_UPDATE].means
    means = means + metric_weights(means, old, matrix, EFC().sigma) @ (current - old)
    efc = unmoved.with_statistics(torch.cat([means, new.means]), None)
    return {OWN: own, UNMOVED: unmoved, EFC_UPDATE: efc}


def _feature_matrix(state: LearnerState, now: CurrentTask, real: ClassGaussians) -> Tensor:
    """EFC's matrix of a task.

    If the method stores no outputs, linear discriminants of its own Gaussians replace them, with the covariance of the
    classes of the task.
    """
    head = state.network.head
    if head.blocks and sum(classes for classes, _ in head.sizes) == len(state.classes):
        return feature_matrix(now.features(), *head.class_parameters())
    within = real.select(now.classes).mean_covariance
    return feature_matrix(now.features(), *linear_discriminants(state.memory.means, within))


def linear_discriminants(means: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs w_c = Σ⁻¹μ_c and b_c = −½ μ_cᵀΣ⁻¹μ_c: their softmax is Bayes' rule for Gaussians of one covariance."""
    weight = torch.cholesky_solve(means.double().T, linalg.safe_cholesky(covariance).factor).T
    return weight, -0.5 * (weight * means.double()).sum(1)


def in_plane(real: ClassGaussians, banks: Sequence[ClassGaussians]) -> tuple[Tensor, Tensor]:
    """Means and covariances of `DRAWN` classes by bank, in the two principal directions between their real means."""
    chosen = evenly_spaced(len(real), DRAWN).tolist()
    centred = real.means[chosen] - real.means[chosen].mean(0)
    directions = torch.linalg.svd(centred, full_matrices=False)[2][:2].T
    some = [bank.select([bank.labels[place] for place in chosen]) for bank in banks]
    means = torch.stack([(one.means - real.means[chosen].mean(0)) @ directions for one in some])
    return means.cpu(), torch.stack([directions.T @ one.covariances @ directions for one in some]).cpu()


def mean_squared_distances(bank: ClassGaussians, features: Tensor, published: bool) -> Tensor:
    """(C,): mean over all images of (x − μ_c)ᵀ M_c (x − μ_c), on raw features.

    M_c is Σ_c⁻¹ or, as ``published``, the inverse of the correlation matrix of Σ_c + 3·mean(diag Σ_c)·I.
    """
    matrices = bank.covariances
    if published:
        matrices = linalg.correlation(linalg.shrink_to_identity(matrices, PUBLISHED_SHRINKAGE))
    whitening = linalg.whiten(bank.means, matrices, torch.float64)
    return linalg.by_rows(lambda some: linalg.squared_distances(some, whitening), features.double()).mean(0).cpu()


# The shrink sweep.


def measure_shrink(run: Run, dataset: Dataset, reporter: Reporter) -> Tables:
    """``shrink.amounts`` (G,) and ``shrink.accuracy`` (G, T), the accuracy on all seen classes after each task.

    The memory is tracked through all tasks once per amount, and shrunk again after every adaptation, as in the
    published code.
    """
    memory, drift, classifier = run.config.method.memory, run.config.method.drift, run.config.method.classifier
    if not isinstance(memory, GaussianMemory):
        raise UnsupportedError("only memories of Gaussians can be shrunk")
    if not isinstance(classifier, MemoryClassifier) or not classifier.cheap:
        raise UnsupportedError(f"the classifier {classifier.kind} does not follow from the memory alone")
    if isinstance(drift, Adapter):
        drift = drift.with_changes(samples=min(drift.samples, MOST_SAMPLES))
    variants = {str(amount): Variant(drift, memory.with_changes(shrinkage=amount)) for amount in AMOUNTS}
    curves = rescore(run, dataset, variants, {"": classifier}, reporter, oracle=False)
    return {"shrink.amounts": _numbers(AMOUNTS), "shrink.accuracy": torch.stack([*map(_numbers, curves.values())])}
