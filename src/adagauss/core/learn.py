"""Algorithm 1: how one task is learned; and `Learner`, a method with its state."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor

from adagauss.backbones import IncrementalHead, Network, build_extractor
from adagauss.core.calibration import ClassSummary
from adagauss.core.class_edits import ClassEdits
from adagauss.core.config import Requirement, plain
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learner_state import MISFIT, LearnerFacts, LearnerState, add_tasks, check_labels, check_size
from adagauss.core.linalg import by_rows
from adagauss.core.predictor import PredictionBatch, finite
from adagauss.core.state import State
from adagauss.core.task import CurrentTask, extract_features, feature_batch_size
from adagauss.core.train import History
from adagauss.data.decode import ResizeMode
from adagauss.data.images import (
    Images,
    Label,
    LabelledImages,
    PixelRange,
    check_labels_exact,
    evenly_spaced,
    merge_pixel_ranges,
    pixel_range,
)
from adagauss.errors import CheckpointError, ConfigError, DataError, NumericalError, UnsupportedError
from adagauss.methods import Method
from adagauss.parts.drift import collapse_warning
from adagauss.parts.representation import TERMS
from adagauss.utils.checkpoint import load_tensors, require_bounded, require_finite, save_tensors
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime

COMPARED = 256
"""Features that are compared first, before all features of the classes that agree in them."""
SAME = 1e-6
"""Largest difference of equal means, relative to the largest mean."""


@dataclass
class TaskReport:
    """Losses, times and warnings of one task."""

    history: History = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each stage: representation, drift, memory, classifier, evidence."""
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    """CPU time of each stage, over all threads of this process."""
    warnings: list[str] = field(default_factory=list)
    """Problems, each with a remedy."""

    @contextmanager
    def clock(self, stage: str) -> Iterator[None]:
        """Add the wall time and the CPU time of the block to a stage."""
        started, cpu_started = perf_counter(), process_time()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + perf_counter() - started
        self.cpu_seconds[stage] = self.cpu_seconds.get(stage, 0.0) + process_time() - cpu_started


def learn_task(
    method: Method, before: LearnerState, data: LabelledImages, runtime: Runtime
) -> tuple[LearnerState, TaskReport]:
    """Learn one task (Algorithm 1); returns the new state, ``before`` is not changed.

    Only ``now`` and its parts hold the images, and they are discarded with it. Network and drift use the training part
    of the holdout split; memory and classifier use all images, after an optional fit without the held-out ones.
    """
    now = _current_task(method, before, data, runtime)
    network, evidence = now.network, method.evidence
    trains = (method.representation.first if now.first else method.representation.later) is not None
    training = evidence.part(now, evidence.train_holdout) if trains else now
    report, states = TaskReport(warnings=now.warnings), dict[str, State | None](before.states)

    with report.clock("representation"):  # train F_t on the task
        if now.first:
            network.extractor.prepare(data.images, runtime.generator("unlabelled"))
            if method.backbone.bottleneck_init == "pca" and method.backbone.features is not None:
                network.extractor.init_pca(training.trunk_features())
        report.history = method.representation.fit(training, before.memory)
        now.clear_features()
        if now.first:
            network.extractor.end_first_task()
        network.eval()

    old = before.memory
    with report.clock("drift"):  # move μ_c and Σ_c of old classes from F_{t−1} to F_t
        if now.previous is not None:
            old = method.memory.after_drift(old, _checked(method.drift.move(old, training), method, now))

    with report.clock("memory"):  # μ_c and Σ_c of the classes of the task
        memory = method.memory.add(old, now)
        if old is not before.memory:
            now.warn(collapse_warning(now.name, old, memory))

    with report.clock("classifier"):  # argmax_c N(F_t(x); μ_c, Σ_c)
        fitted = method.classifier.update(memory, now, before.states.get("classifier"))
        states["classifier"] = fitted.scorer
        now.warn(fitted.warning)

    with report.clock("evidence"):  # calibration
        stats = before.states.get("evidence")
        if fitted.left_out is not None:
            states["evidence"] = evidence.update_from_scores(stats, now.column_counts, fitted.left_out)
        else:
            part, bank, scorer, scored = training, memory, fitted.scorer, None
            if part is now and not trains and method.classifier.cheap:
                part = evidence.part(now, evidence.share)
            if part is not now and not method.classifier.changes_network:
                bank = method.memory.add(old, part)
                scorer, scored = method.classifier.fit(bank, part, before.states.get("classifier")), part.others()
            states["evidence"] = evidence.update(stats, now, bank, scorer, scored)

    with report.clock("representation"):
        for name, term in method.representation.terms.items() if report.history else ():
            states[TERMS + name] = term.finish(now, memory, before.term_states.get(name))

    with report.clock("drift"):
        states["drift"] = method.drift.finish(now, memory)

    kept = {name: state for name, state in states.items() if state is not None}
    tasks = (*before.tasks, tuple(data.classes))
    if len(network.head.blocks) <= len(before.network.head.blocks):  # the outputs of a task belong to its record
        tasks = add_tasks(before.tasks, tuple(data.classes))
    after = LearnerState(network, memory, kept, tasks)
    now.warn(same_features_warning(after, data.classes))
    runtime.processes.sync(after)
    return after, report


def _checked(moved: object, method: Method, now: CurrentTask) -> ClassGaussians:
    """What a drift compensation returned; it may be code of a plugin."""
    name = f"{now.name}: drift {method.drift.kind!r}"
    if not isinstance(moved, ClassGaussians):
        raise ConfigError(f"{name} returned {type(moved).__name__}: its `move` must return ClassGaussians")
    try:
        State.check(moved)  # numbers and sizes; no factorisation
    except DataError as error:
        raise NumericalError(f"{name} returned wrong statistics ({error}): choose another drift.kind") from error
    return moved


def same_features_warning(state: LearnerState, classes: Sequence[Label]) -> str | None:
    """A warning about one of ``classes`` whose mean features are those of another class: both get one prediction."""
    sums, known = state.scorer.class_sums, state.classes
    if sums is None:
        sums, counts = state.memory.means.mT, torch.ones(len(state.memory), device=state.memory.means.device)
    else:
        counts = state.evidence.learned.clamp_min(1)
    if sums.shape[1] != len(known):
        return None
    some = (sums[evenly_spaced(len(sums), COMPARED)] / counts).mT
    rows = torch.tensor([known.index(label) for label in classes], device=some.device)
    apart = torch.cdist(some[rows], some, p=torch.inf)
    apart[torch.arange(len(rows)), rows] = torch.inf
    for row, other in (apart <= SAME * some.abs().amax()).nonzero().tolist():
        pair = torch.stack([sums[:, column] / counts[column] for column in (int(rows[row]), other)])
        if bool((pair[0] - pair[1]).abs().amax() <= SAME * pair.abs().amax()):
            return (
                f"the images of classes {classes[row]!r} and {known[other]!r} have the same features, so both classes "
                "get the same predictions: check the images (some features ignore brightness), or choose another method"
            )
    return None


def _current_task(method: Method, before: LearnerState, data: LabelledImages, runtime: Runtime) -> CurrentTask:
    """The task, the network that learns it, and F_{t−1} if drift is possible."""
    later, index = method.representation.later is not None, len(before.tasks)
    # A frozen network is shared between states, not copied.
    frozen = bool(before.tasks) and not later and not method.classifier.changes_network
    network = before.network if frozen else copy.deepcopy(before.network)
    previous = before.network.frozen_copy() if before.tasks and later else None
    known, drift = tuple(before.classes), before.states.get("drift")
    return CurrentTask(index, data, network, previous, method.augmentation, runtime, before.term_states, known, drift)


class Learner(ClassEdits):
    """A method and the state that it has learned from images of one shape.

    `learn` replaces the immutable `LearnerState` as a whole when a task is done: a thread that predicts meanwhile uses
    the previous one.

    >>> from adagauss.methods import make_method
    >>> learner = Learner(make_method("adagauss", settings={"backbone.name": "convnet"}), (1, 8, 8), (0.3,), (0.4,))
    >>> learner.classes
    []
    """

    def __init__(
        self,
        method: Method,
        shape: tuple[int, int, int],
        mean: Sequence[float],
        std: Sequence[float],
        runtime: Runtime | None = None,
        *,
        initial_weights: bool = True,
    ) -> None:
        self.method = method
        self.shape = shape
        self.mean, self.std = tuple(mean), tuple(std)
        self.runtime = runtime or Runtime()
        with self.runtime.seeded("network"):
            extractor = build_extractor(method.backbone, shape, mean, std, initial_weights)
        head = IncrementalHead(extractor.size, method.representation.head_bias, method.representation.head)
        network = self.runtime.place(Network(extractor, head)).eval()
        self.state = LearnerState(network, method.memory.empty(extractor.size, self.runtime.device), {}, ())
        self.scale: PixelRange | None = None
        self.resize_mode: ResizeMode = "crop"
        """How images of other proportions become images of ``shape``; see `adagauss.data.decode.fitted`."""
        self.about: dict[str, Any] = {}
        """Further facts to store in the file."""

    @property
    def classes(self) -> list[Label]:
        """All classes learned so far, in the order of the score columns."""
        return self.state.classes

    @property
    def network(self) -> Network:
        """The network after the last task."""
        return self.state.network

    @property
    def memory(self) -> ClassGaussians:
        """The class statistics."""
        return self.state.memory

    @property
    def tasks(self) -> tuple[tuple[Label, ...], ...]:
        """The classes of each task."""
        return self.state.tasks

    def learn(self, data: LabelledImages) -> TaskReport:
        """Learn one task from its images alone: Algorithm 1, see `learn_task`.

        A task brings new classes, more images of known ones, or both. Statistics and sums of a known class count the
        new images as well; a method with one trained output per class takes new classes only. With several processes
        (`Runtime.processes`), all must get the same task. An error leaves the learner unchanged.
        """
        before = self.state
        if not len(data):
            raise DataError("the task has no images")
        self.check_shape(data.images)
        check_labels_exact([*before.classes, *data.classes])
        again = [label for label in data.classes if label in before.classes]
        if again and (reason := self.method.why_no_known_classes):
            raise UnsupportedError(
                f"class {again[0]!r} was learned in an earlier task, and this method cannot learn more of it: {reason}"
                f". Forget the class and teach it again with all its images, or {Requirement.NEW_CLASSES.value[1]}"
            )
        empty = [label for label, count in zip(data.classes, data.counts().tolist(), strict=True) if count == 0]
        if empty:
            raise DataError(f"class {empty[0]!r} has no images: leave it out of the task or give it some")
        self.method.memory.check(data, before.classes)
        self.method.augmentation.check(data.images)
        self.method.classifier.check(before.network, len({*before.classes, *data.classes}), self.runtime)
        scale = merge_pixel_ranges(self.scale, pixel_range(data.images))
        after, report = learn_task(self.method, before, data, self.runtime)
        self._replace(before, after)
        self.scale = scale
        if type(self.runtime.reporter) is Reporter:  # it shows nothing
            for text in report.warnings:
                warnings.warn(text, stacklevel=2)
        return report

    def features(self, images: Images, bottleneck: bool = True) -> Tensor:
        """(N, S) features of the current network, or those before the bottleneck."""
        extractor = self.network.extractor if bottleneck else self.network.extractor.without_bottleneck()
        return extract_features(extractor, self.check_shape(images), self.runtime, prediction=True)

    def scores(self, features: Tensor) -> Tensor:
        """(N, C) calibrated scores of features, columns in the order of `classes`."""
        state = self.state
        with torch.inference_mode():
            return finite(state.evidence.calibration(by_rows(state.scorer, features)))

    @torch.inference_mode()
    def predictions(self, images: Images, reporter: Reporter | None = None) -> PredictionBatch:
        """Predict images: labels, probabilities, prediction sets and out-of-distribution scores, from one scoring."""
        predictor, runtime = self.state.predictor, self.runtime
        parts, at_once = [], feature_batch_size(self.check_shape(images))
        with (reporter or runtime.reporter).progress("features", len(images)) as advance:
            for start in range(0, max(1, len(images)), at_once):
                rows = torch.arange(start, min(start + at_once, len(images)))
                pixels = images.batch(rows).to(runtime.device).float().div_(255)
                parts.append(predictor(pixels.contiguous(memory_format=runtime.memory_format)))
                advance(step=len(rows))
        scores, p_value = (torch.cat(one) for one in zip(*parts, strict=True))
        return PredictionBatch(predictor.classes, finite(scores)[:, predictor.order], p_value, predictor.sets)

    def predict(self, images: Images) -> list[Label]:
        """Return the most probable class of each image."""
        labels: list[Label] = self.predictions(images).labels().tolist()
        return labels

    def summary(self) -> list[ClassSummary]:
        """Calibration statistics of each class."""
        return self.state.evidence.summary(self.classes)

    def save(self, path: Path | str, about: Mapping[str, Any] | None = None) -> None:
        """Write everything needed to continue into one safetensors file, replaced atomically; it holds no image."""
        state = self.state
        check_labels(state.classes)
        facts = {
            "method": plain(self.method),
            "knowledge": state.facts(),
            "shape": self.shape,
            "mean": self.mean,
            "std": self.std,
            "input": state.network.extractor.input_facts(),
            "seed": self.runtime.seed,
            "resize_mode": self.resize_mode,
            "scale": self.scale,
            "about": dict(about if about is not None else self.about),
        }
        tensors = state.state_dict()
        _check_numbers(tensors, Path(path))  # a file that could not be loaded is not written
        save_tensors(Path(path), "learner", tensors, facts)

    @classmethod
    def load(cls, path: Path | str, runtime: Runtime | None = None) -> Learner:
        """Load the file of `save`; a runtime chooses device and progress (its seed is the saved one)."""
        runtime = copy.copy(runtime) if runtime is not None else Runtime()
        tensors, stored = load_tensors(Path(path), "learner", runtime.device)
        _check_numbers(tensors, Path(path))
        try:
            facts = LearnerFacts.of(stored)
            method, runtime.seed = Method.of(facts.method), facts.seed
            check_size(method, facts, tensors)
            # All parameters are in the file: initial weights are not needed.
            learner = cls(method, facts.shape, facts.mean, facts.std, runtime, initial_weights=False)
            learner.state = learner.state.restored(method, facts.state, tensors, runtime)
            learner.network.extractor.restore_input(stored["input"])
            if learner.tasks:  # detects parts of a network that do not belong together
                with torch.inference_mode():
                    learner.network.extractor(torch.zeros(1, *facts.shape, device=runtime.device))
        except MISFIT as error:
            raise CheckpointError(f"{path} does not fit the learner it describes: {error}") from error
        learner.scale = facts.scale
        learner.about, learner.resize_mode = facts.about, facts.resize_mode
        return learner


def _check_numbers(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse numbers that no learner has; a digest of random features has any value, and is compared with a new one."""
    network = {name: one for name, one in tensors.items() if name.startswith("network.")}
    require_finite(network, path)
    others = {name: one for name, one in tensors.items() if name not in network and not name.endswith(".drawn")}
    require_bounded(others, path)
