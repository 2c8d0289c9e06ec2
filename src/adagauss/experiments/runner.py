"""Run a method on a stream of tasks, into a run folder that can be resumed."""

from __future__ import annotations

import itertools
import json
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adagauss.core.config import flatten, plain
from adagauss.core.learn import Learner, TaskReport
from adagauss.data.dataset import Dataset, ReadOptions, dataset_info, load_dataset, short_name
from adagauss.data.fingerprint import fingerprints
from adagauss.data.images import LabelledImages, Subset
from adagauss.data.stream import TaskStream
from adagauss.distributed.processes import Processes
from adagauss.errors import CheckpointError, ConfigError, DataError
from adagauss.experiments.config import RunConfig
from adagauss.experiments.environment import check_data, command, environment
from adagauss.experiments.logs import RunLog
from adagauss.experiments.metrics import Evaluation, mean, task_aware_predictions
from adagauss.experiments.run import (
    DATA,
    ENVIRONMENT,
    METRICS_FILE,
    ORIGINS,
    FileSnapshots,
    Run,
    RunFolder,
    TaskFacts,
)
from adagauss.methods import method_info
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime, derive_seed

Times = npt.NDArray[np.float64]
"""Wall time and CPU time, in seconds."""


def run(
    config: RunConfig,
    path: Path | str,
    *,
    resume: bool = False,
    reporter: Reporter | None = None,
    options: ReadOptions | None = None,
    dataset: Dataset | None = None,
    logger: str | None = None,
    processes: Processes | None = None,
) -> Run:
    """Learn the stream task by task and evaluate after each; returns the run, which the folder stores.

    Args:
        config: everything that the numbers depend on.
        path: the run folder.
        resume: whether to continue a run that the folder holds.
        reporter: shows progress.
        options: how the dataset is read.
        dataset: the dataset, if it has been read already.
        logger: ``tensorboard`` for its files in addition to ``log.csv``.
        processes: those that learn together. All of them call this; the first alone uses the folder and reports.
    """
    processes = processes or Processes()
    reporter = reporter if reporter is not None and processes.first else Reporter()
    folder = RunFolder(path)
    # User errors are checked first: a refused run leaves no folder behind.
    default = ReadOptions(size=config.stream.image_size, skip_bad_images=config.stream.skip_bad_images)
    dataset = dataset or load_dataset(config.stream.dataset, options or default)
    stream = make_stream(config, dataset)
    snapshots = FileSnapshots(folder.path / "snapshots") if processes.first else None
    log = RunLog(folder, logger, flatten(plain(config)), reporter) if processes.first else None
    runtime = Runtime(config.runtime, config.seed, reporter, snapshots, log, processes)
    # A started run no longer needs the weight file: its checkpoints hold the network.
    fresh = None if processes.broadcast(folder.learned_tasks) else _new_learner(config, dataset, runtime)
    with folder.lock() if processes.first else nullcontext():
        if processes.first:
            _begin(folder, config, dataset, runtime, resume, reporter)
        count = len(stream)
        done = processes.broadcast(lambda: count if folder.finished_tasks() == count else folder.learned_tasks())
        test = _TestFeatures(stream, config)
        learner = fresh
        if done < count and (done or fresh is None):
            learner = Learner.load(folder.checkpoint(done - 1), runtime)
        title = f"{config.method_name}, {short_name(config.stream.dataset)}, seed {config.seed}"
        with log or nullcontext(), reporter.progress(title, count) as advance:
            for index in range(count):
                note = "resumed"
                if index >= done:
                    if log is not None:
                        log.begin(index)
                    assert learner is not None
                    learner, report = _learn(learner, stream, index, folder, config)
                    if snapshots is not None:
                        snapshots.clear()
                    note = f"accuracy {100 * _evaluate(learner, test, folder, index, report):.1f} %"
                    if processes.first and index and not config.method.trains:
                        # No network was trained, so nothing is rescored; and sums of features can take a gigabyte.
                        with suppress(OSError):  # it only takes space
                            folder.checkpoint(index - 1).unlink(missing_ok=True)
                if log is not None:
                    log.evaluation(index, folder.evaluation(index)[0])
                advance(note)
        result = Run(folder.path, count)
        vars(result)["labels"] = tuple(stream.seen(count - 1))  # without reading the learner again
        processes.broadcast(lambda: folder.write_json(METRICS_FILE, result.stored_metrics()))
        return result


def _clock() -> Times:
    """Wall time and CPU time, in seconds."""
    return np.array([perf_counter(), process_time()])


def make_stream(config: RunConfig, dataset: Dataset) -> TaskStream:
    """The tasks of a run."""
    return TaskStream(dataset, config.stream, dataset_info(config.stream.dataset).class_order, config.seed)


def _new_learner(config: RunConfig, dataset: Dataset, runtime: Runtime) -> Learner:
    return Learner(config.method, dataset.train.images.shape, dataset.mean, dataset.std, runtime)


def _learn(
    learner: Learner, stream: TaskStream, index: int, folder: RunFolder, config: RunConfig
) -> tuple[Learner, TaskReport]:
    """Learn a task and save a checkpoint; the given learner, that before the task, may be changed."""
    runtime, path = learner.runtime, folder.checkpoint(index)
    if runtime.processes.broadcast(path.exists):
        # The run was killed between checkpoint and evaluation.
        learner = Learner.load(path, runtime)
        return learner, TaskReport(**learner.about["report"])
    if method_info(config.method_name).joint:
        # The upper bound is trained from scratch on all seen classes: only the runner has old images.
        learner = _new_learner(config, stream.dataset, runtime)
        report = learner.learn(stream.dataset.train.of_classes(stream.seen(index)))
    else:
        report = learner.learn(stream[index].train)
    if runtime.processes.first:
        folder.require_present()
        learner.save(path, {"dataset": config.stream.dataset, "report": asdict(report)})
    return learner, report


def check_continued(folder: RunFolder, config: RunConfig, resume: bool) -> bool:
    """Return whether the folder holds a run that is continued; raise if it holds one that cannot be."""
    saved = any((folder.path / name).exists() for name in ("tasks", "snapshots"))
    if not folder.exists() or not (resume or saved):
        return False
    if not resume:
        raise CheckpointError(f"{folder.path} already holds a run: continue it with --resume, or choose another --out")
    # JSON turns tuples into lists on both sides, so that equal configurations compare equal.
    theirs, ours = (flatten(json.loads(json.dumps(plain(one)))) for one in (folder.config, config))
    differing = sorted(key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key))
    if differing:
        key = differing[0]
        raise CheckpointError(
            f"{folder.path} was started with other settings ({len(differing)} differ; {key}: "
            f"{theirs.get(key)!r} there, {ours.get(key)!r} now): use the same settings, or another --out"
        )
    return True


def _begin(
    folder: RunFolder, config: RunConfig, dataset: Dataset, runtime: Runtime, resume: bool, reporter: Reporter
) -> None:
    """Write configuration and environment into a new run folder, or check that a run may be continued."""
    now = environment(runtime.device, runtime.processes, config)
    if not check_continued(folder, config, resume):
        folder.write_json(ENVIRONMENT, {**now, **command()})
        folder.write_json(DATA, fingerprints(dataset))
        folder.write_json(ORIGINS, dict(config.origins))
        folder.write_config(plain(config))
        return
    check_data(folder, dataset, reporter)
    before = {"processes": "1", **folder.environment}  # older runs did not store the processes
    changed = [
        f"{'code' if key == 'source' else key} ({before.get(key)}, now {value})"
        for key, value in now.items()
        if before.get(key) != value
    ]
    if not folder.environment:
        reporter.message(
            f"{folder.path / ENVIRONMENT} is missing or damaged: if the machine or its software has changed, "
            "the numbers may differ"
        )
    elif changed:
        reporter.message(f"{folder.path} was started with other {', '.join(changed)}, so its numbers may differ")


class _TestFeatures:
    """Features of the test images. Those of frozen layers are computed once for the whole run."""

    def __init__(self, stream: TaskStream, config: RunConfig) -> None:
        self.stream = stream
        self.learns_bottleneck = not config.method.is_frozen
        fixed_trunk = config.method.backbone.train_blocks == "none"
        self.frozen = not method_info(config.method_name).joint and (config.method.is_frozen or fixed_trunk)
        self._features: dict[int, Tensor] = {}

    def upto(self, learner: Learner, index: int) -> tuple[Tensor, Tensor, Times]:
        """Features and targets of the test images of all seen classes, and the times of one image."""
        started = _clock()
        if not self.frozen:
            test = self.stream.dataset.test.of_classes(self.stream.seen(index))
            features = learner.features(test.images)
            return features, test.targets, (_clock() - started) / len(test)
        # Task by task even after a resume, so that the batches, and with them the last digits, are always the same.
        tests = [self.stream[task].test for task in range(index + 1)]
        new = [task for task in range(index + 1) if task not in self._features]
        for task in new:
            self._features[task] = learner.features(tests[task].images, bottleneck=not self.learns_bottleneck)
        seconds = (_clock() - started) / sum(len(tests[task]) for task in new)
        starts = itertools.accumulate((len(test.classes) for test in tests), initial=0)
        targets = [test.targets + start for test, start in zip(tests, starts, strict=False)]
        features = torch.cat([self._features[task] for task in range(index + 1)])
        if self.learns_bottleneck:
            with torch.inference_mode():
                features = learner.network.extractor.learned(features)
        return features, torch.cat(targets), seconds


def _evaluate(learner: Learner, test: _TestFeatures, folder: RunFolder, index: int, report: TaskReport) -> float:
    """Predict the test images of all seen classes, with features computed once; returns the accuracy of the tables."""
    features, targets, per_image = test.upto(learner, index)
    started = _clock()
    scores = learner.scores(features).cpu()
    seconds, cpu_seconds = (_clock() - started + per_image * len(targets)).tolist()
    sizes = tuple(len(classes) for classes in test.stream.task_classes[: index + 1])
    aware = task_aware_predictions(scores, targets, sizes)
    evaluation = Evaluation(targets, scores.argmax(1), aware, sizes)
    facts = TaskFacts(
        seconds={**report.seconds, "evaluation": seconds},
        cpu_seconds={**report.cpu_seconds, "evaluation": cpu_seconds},
        images_per_second=len(targets) / seconds,
        bytes_per_class=learner.state.bytes_per_class,
        other_state_bytes=learner.state.part_bytes,
        history=tuple(report.history),
    )
    if learner.runtime.processes.first:
        folder.write_evaluation(index, evaluation, facts)
    return mean(evaluation.accuracy_per_task())


@dataclass(frozen=True)
class ValidationSplit:
    """Validation on held-out training images of the first tasks.

    Test images and later tasks are not in it, so settings chosen with it do not depend on them.
    """

    tasks: int = 2
    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(
                f"--held-out is the share of training images for validation, between 0 and 1; got {self.share}"
            )

    def of(self, config: RunConfig, dataset: Dataset) -> tuple[RunConfig, Dataset]:
        """The configuration of a run of the first tasks, and their training images, divided by class into two."""
        stream = make_stream(config, dataset)
        if self.tasks > len(stream):
            raise ConfigError(f"--first-tasks {self.tasks}: the stream has {len(stream)} tasks; choose fewer")
        images = stream.dataset.train.of_classes(stream.seen(self.tasks - 1))
        generator = torch.Generator().manual_seed(derive_seed(config.seed, "held out"))
        validation = torch.zeros(len(images), dtype=torch.bool)
        for target, label in enumerate(images.classes):
            rows = torch.nonzero(images.targets == target).flatten()
            if len(rows) < 2:
                raise DataError(
                    f"class {label} has {len(rows)} training image(s): at least 2 are needed, "
                    "one for training and one for validation"
                )
            count = min(len(rows) - 1, max(1, round(self.share * len(rows))))
            validation[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
        train, test = (
            LabelledImages(Subset(images.images, rows), images.targets[rows], images.classes)
            for rows in (torch.nonzero(~validation).flatten(), torch.nonzero(validation).flatten())
        )
        # Classes are numbered in the order of the stream.
        sizes = tuple(len(classes) for classes in stream.task_classes[: self.tasks])
        taken = {"classes": None, "class_order": "natural", "imbalance": None, "shots": None}
        first = config.stream.model_copy(update={"sizes": sizes, **taken})
        validated = Dataset(dataset.name, train, test, mean=dataset.mean, std=dataset.std)
        return config.model_copy(update={"stream": first}), validated
