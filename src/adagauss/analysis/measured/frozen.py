"""What the network of the first task would do alone: exact Gaussians of all classes in features that never move."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adagauss.analysis.measured.kept import Tables
from adagauss.analysis.measured.real import drawn_classes, in_plane, plane_of, prediction_features, statistics
from adagauss.analysis.visits import task_mean
from adagauss.backbones import Network
from adagauss.core.learn import Learner
from adagauss.core.linalg import by_rows
from adagauss.data.stream import TaskStream
from adagauss.errors import UnsupportedError
from adagauss.experiments.config import RunConfig
from adagauss.experiments.run import RunFolder
from adagauss.parts.classifiers import MemoryClassifier
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime


@dataclass
class Still:
    """The occasion of fitting a classifier to the network of the first task."""

    network: Network
    runtime: Runtime
    name: str = "frozen after the first task"


def measure_frozen(folder: RunFolder, config: RunConfig, stream: TaskStream, reporter: Reporter) -> Tables:
    """``frozen.accuracy`` (1,) over all finished tasks, and ``frozen.plane_*`` as of the last network."""
    classifier = config.method.classifier
    if not isinstance(classifier, MemoryClassifier):
        raise UnsupportedError(f"the classifier {classifier.kind} does not follow from Gaussians alone")
    runtime = Runtime(config.runtime, config.seed, reporter)
    last = folder.finished_tasks() - 1
    network = Learner.load(folder.checkpoint(0), Runtime(config.runtime, config.seed)).network
    real, _ = statistics(network.extractor, stream, last, config, runtime)
    test = stream.dataset.test.of_classes(stream.seen(last))
    features = prediction_features(network.extractor, test.images, runtime)
    scorer = classifier.of_memory(real, Still(network, runtime))
    sizes = [len(classes) for classes in stream.task_classes[: last + 1]]
    with torch.inference_mode():
        accuracy = task_mean(by_rows(scorer, features), test.targets, sizes)
    plane, centre = plane_of(real)
    means, covariances = in_plane(real, drawn_classes(len(real)), plane, centre)
    return {
        "frozen.accuracy": torch.tensor([accuracy], dtype=torch.float64),
        "frozen.plane_means": means,
        "frozen.plane_covariances": covariances,
    }
