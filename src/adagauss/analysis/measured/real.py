"""Real statistics of all classes under every network: one pass over the images that a network has to do with.

Old images are used here for analysis only. Features of one task at a time are in memory, and none of them is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adagauss.analysis.distances import class_spectra, distances
from adagauss.analysis.measured.following import Following
from adagauss.analysis.measured.kept import Tables
from adagauss.analysis.measured.quantities import BANKS, FOLLOWED, OWN, UNMOVED
from adagauss.analysis.measured.testing import (
    accuracies,
    logits_by_class,
    squared_distances_by_class,
    with_real,
)
from adagauss.analysis.visits import Visit, visits
from adagauss.backbones import Extractor
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import packed_size
from adagauss.core.task import extract_features
from adagauss.data.augment import Changes
from adagauss.data.images import Images, LabelledImages, Subset
from adagauss.data.stream import TaskStream
from adagauss.errors import UnsupportedError
from adagauss.experiments.config import RunConfig
from adagauss.experiments.run import RunFolder
from adagauss.experiments.runner import LARGEST_COMPARED
from adagauss.parts.memory import GaussianMemory, Memory
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime

DRAWN = 6
"""Classes in the pictures of the latent space."""
BANKS_AT_ONCE = 8
"""Copies of all covariances that are in memory at a time, at the most."""
WHOLE = "whole"
ENOUGH = 8
"""Images of a class of an earlier task for each feature: n of them know a covariance of S features to about √(S/n)."""


def measure_real(folder: RunFolder, config: RunConfig, stream: TaskStream, reporter: Reporter) -> Tables:
    """The tables ``real.*``; T finished tasks, C classes, S features.

    | name | shape | |
    |---|---|---|
    | spectra | (T, C, S) | eigenvalues of the real covariance of each class |
    | task_spectra | (T, T, S) | of all features of each task, classes together |
    | all_spectra | (T, S) | of all features of all seen tasks |
    | distances | (T, 3, C, 5) | of the memories `FOLLOWED` to the real statistics (`distances.DISTANCES`) |
    | accuracy | (T, 6) | of the run's classifier with the memories `BANKS` |
    | mahalanobis | (2, C) | mean squared distance of all test images at the end: published and plain |
    | logits | (C,) | mean logit of all test images at the end |
    | plane_classes, plane_means, plane_covariances | (K,), (3, K, 2), (3, K, 2, 2) | real, own, not adapted |
    """
    runtime = Runtime(config.runtime, config.seed)
    count = folder.finished_tasks()
    classes = len(stream.seen(count - 1))
    tables: Tables = {}
    following = Following()
    with reporter.progress(f"real statistics of {folder.path.name}", count) as advance:
        for visit in visits(folder, config, stream, runtime):
            index, size = visit.index, visit.now.network.extractor.size
            if not tables:
                _check(config, size, classes, runtime)
                tables = _empty(count, classes, size)
            newest = visit.now.features()
            counted = visit.known.memory.select(visit.now.classes) if _as_measured(config.method.memory) else None
            real, tasks = statistics(visit.now.network.extractor, stream, index, config, runtime, newest, counted)
            known = len(real)
            tables["real.spectra"][index, :known] = class_spectra(real)
            tables["real.task_spectra"][index, : index + 1] = class_spectra(tasks)
            tables["real.all_spectra"][index] = class_spectra(_together(tasks))[0]
            if len(visit.known.memory):
                tables.update(_compared(tables, visit, following, real, stream, config))
            advance()
    return tables


def statistics(
    extractor: Extractor,
    stream: TaskStream,
    index: int,
    config: RunConfig,
    runtime: Runtime,
    known: Tensor | None = None,
    counted: ClassGaussians | None = None,
) -> tuple[ClassGaussians, ClassGaussians]:
    """Gaussians of the classes seen up to a task, and of the whole tasks, from the features of one task at a time.

    If the memory counts mirror images, so do these: both views of the images of the newest task, as the memory has just
    counted them, and every other image mirrored in earlier tasks. That is half the work, and hardly another estimate,
    since a network sees an image and its mirror image alike. Of the classes of earlier tasks, which every later network
    sees again, `ENOUGH` images per feature are taken. ``known`` are features of the newest task, if they were computed
    already, and ``counted`` its statistics, if the memory has them as they are.
    """
    real, tasks = (ClassGaussians(extractor.size, device=runtime.device) for _ in range(2))
    mirroring = bool(getattr(config.method.memory, "flips", False))
    for number in range(index + 1):
        train, newest = stream[number].train, number == index
        if newest and known is not None:
            features = known
        else:
            train = train if newest else some_of_each(train, ENOUGH * extractor.size)
            draw = alternately_mirrored if mirroring and not newest else _plain
            features = extract_features(extractor, train.images, runtime, draw)
        tasks.add(features, [number] * len(features))
        if newest and counted is not None:
            real.merge(counted)
            continue
        real.add(features, train.labels)
        if mirroring and newest:
            real.add(extract_features(extractor, train.images, runtime, _mirrored), train.labels)
    return real.select(stream.seen(index)), tasks


def some_of_each(images: LabelledImages, most: int) -> LabelledImages:
    """At most so many images of each class, evenly spread over all of its images."""
    if int(images.counts().max()) <= most:
        return images
    rows = [torch.nonzero(images.targets == target).flatten() for target in range(len(images.classes))]
    chosen = [own[torch.linspace(0, len(own) - 1, min(most, len(own))).round().long()] for own in rows]
    places = torch.cat(chosen)
    return LabelledImages(Subset(images.images, places), images.targets[places], images.classes)


def _as_measured(memory: Memory) -> bool:
    """Whether the memory has the statistics of the newest classes as they would be measured here."""
    return (
        isinstance(memory, GaussianMemory)
        and memory.covariance == "full"
        and not memory.augmented
        and memory.tukey is None
        and memory.shrinkage == memory.off_diagonal_shrinkage == 0
    )


def alternately_mirrored(number: int) -> Changes:
    """Every second image of a batch mirrored."""
    return Changes.mirroring(torch.arange(number) % 2 == 1)


def prediction_features(extractor: Extractor, images: Images, runtime: Runtime) -> Tensor:
    """Features as a prediction has them."""
    return extract_features(extractor, images, runtime, prediction=True)[:, : extractor.size]


def _compared(
    tables: Tables, visit: Visit, following: Following, real: ClassGaussians, stream: TaskStream, config: RunConfig
) -> Tables:
    """The memories after a task against the real statistics; after the last task also what is drawn of it alone."""
    index, now = visit.index, visit.now
    memories = following.after(visit, real)
    comparable = getattr(config.method.memory, "tukey", None) is None
    for place, name in enumerate(FOLLOWED):
        tables["real.distances"][index, place, : len(real)] = distances(memories[name], real, comparable)
    test = stream.dataset.test.of_classes(stream.seen(index))
    features = prediction_features(now.network.extractor, test.images, now.runtime)
    sizes = [len(some) for some in stream.task_classes[: index + 1]]
    banks = with_real(memories, real)
    tables["real.accuracy"][index] = accuracies(config.method.classifier, banks, features, test.targets, sizes, now)
    own = memories[OWN]
    if index + 1 < len(tables["real.all_spectra"]) or own.covariance == "none" or not comparable:
        return {}
    chosen = drawn_classes(len(real))
    plane, centre = plane_of(real)
    pictures = [in_plane(bank, chosen, plane, centre) for bank in (real, own, memories[UNMOVED])]
    return {
        "real.mahalanobis": torch.stack(
            [squared_distances_by_class(own, features, published=published) for published in (True, False)]
        ),
        "real.logits": logits_by_class(own, features, now),
        "real.plane_classes": torch.tensor(chosen),
        "real.plane_means": torch.stack([means for means, _ in pictures]),
        "real.plane_covariances": torch.stack([matrices for _, matrices in pictures]),
    }


def drawn_classes(count: int) -> list[int]:
    """Positions of the classes that pictures show, spread over all tasks."""
    most = min(DRAWN, count)
    return sorted({round(place * (count - 1) / max(1, most - 1)) for place in range(most)})


def plane_of(real: ClassGaussians) -> tuple[Tensor, Tensor]:
    """The two principal directions (S, 2) between the real means of the drawn classes, and the centre of these."""
    means = real.means[drawn_classes(len(real))]
    centre = means.mean(0)
    _, _, directions = torch.linalg.svd(means - centre, full_matrices=False)
    return directions[:2].T, centre


def in_plane(bank: ClassGaussians, chosen: list[int], plane: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Means and covariances of some classes in a plane."""
    some = bank.select([bank.labels[place] for place in chosen])
    return ((some.means - centre) @ plane).cpu(), (plane.T @ some.covariances @ plane).cpu()


def _together(tasks: ClassGaussians) -> ClassGaussians:
    """All tasks as one, by the law of total covariance."""
    whole = ClassGaussians(tasks.size, device=tasks.means.device)
    for label in tasks.labels:
        part = tasks.select([label])
        part.labels = [WHOLE]
        whole.merge(part)
    return whole


def _plain(number: int) -> Changes:
    return Changes.none()


def _mirrored(number: int) -> Changes:
    return Changes.none(mirrored=True)


def _empty(count: int, classes: int, size: int) -> Tables:
    shapes = {
        "spectra": (count, classes, size),
        "task_spectra": (count, count, size),
        "all_spectra": (count, size),
        "distances": (count, len(FOLLOWED), classes, 5),
        "accuracy": (count, len(BANKS)),
    }
    return {f"real.{name}": torch.full(shape, torch.nan, dtype=torch.float64) for name, shape in shapes.items()}


def _check(config: RunConfig, size: int, classes: int, runtime: Runtime) -> None:
    needed = BANKS_AT_ONCE * 8 * classes * packed_size(size)
    free = runtime.free_memory
    if size > LARGEST_COMPARED or (free is not None and needed > free):
        raise UnsupportedError(
            f"real covariances of {classes} classes of {size} features need {needed / 2**30:.1f} GiB of memory"
        )
