"""Algorithm 1: how one task is learned, and the learner that users keep."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from adagauss.backbones import IncrementalHead, Network, build_extractor
from adagauss.core.calibration import ClassSummary, HoldoutFit
from adagauss.core.class_edits import (
    check_alike,
    check_known,
    check_still,
    empty_like,
    forgotten,
    joined,
    merged,
    on_device,
    renamed,
)
from adagauss.core.config import plain
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learner_state import UNFIT, LearnerFacts, LearnerState, check_labels, check_size
from adagauss.core.predictor import PredictionBatch
from adagauss.core.state import State
from adagauss.core.task import CurrentTask
from adagauss.core.train import History
from adagauss.data.fingerprint import data_digests
from adagauss.data.images import (
    Images,
    Label,
    LabelledImages,
    PixelScale,
    check_labels_exact,
    update_pixel_range,
)
from adagauss.errors import CheckpointError, DataError
from adagauss.methods import Method
from adagauss.parts.drift import collapse_warning
from adagauss.utils.checkpoint import load_tensors, require_finite, save_tensors
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime


@dataclass
class TaskReport:
    """Losses, times and warnings of one task."""

    history: History = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each stage: representation, drift, memory, classifier, evidence."""
    warnings: list[str] = field(default_factory=list)
    """Problems, each with a remedy."""

    def warn(self, text: str | None, runtime: Runtime) -> None:
        """Store a warning and report it."""
        if text is not None:
            self.warnings.append(text)
            runtime.reporter.message(text)

    @contextmanager
    def clock(self, stage: str) -> Iterator[None]:
        """Add the wall time of the block to a stage."""
        started = perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + perf_counter() - started


def learn_task(
    method: Method, before: LearnerState, data: LabelledImages, runtime: Runtime
) -> tuple[LearnerState, TaskReport]:
    """Learn one task (Algorithm 1); returns the new state, ``before`` is not changed.

    Only ``now`` and its parts hold the images, and they are discarded with it. Network and drift use the training part
    of the holdout split; memory and classifier use all images, after an optional fit without the held-out ones.
    """
    later = method.representation.later is not None
    # A frozen network is shared between states, not copied.
    frozen = bool(before.tasks) and not later and not method.classifier.changes_network
    network = before.network if frozen else copy.deepcopy(before.network)
    previous = before.network.frozen_copy() if before.tasks and later else None
    of_terms = before.states_below("representation/")
    shared = method.representation.shares(of_terms)
    known, index = tuple(before.classes), len(before.tasks)
    now = CurrentTask(index, data, network, previous, method.augmentation, runtime, shared, known)
    trains = (method.representation.first if now.first else method.representation.later) is not None
    training = method.evidence.training_part(now, trains)
    report = TaskReport()
    states: dict[str, State | None] = {}

    with report.clock("representation"):
        if now.first:
            network.extractor.prepare(data.images, runtime.generator("unlabelled"))
        trained = method.representation.fit(training, before.memory, of_terms)
        report.history = trained.history
        now.forget_features()
        if now.first:
            network.extractor.end_first_task()
        network.eval()

    old = before.memory
    with report.clock("drift"):
        states["drift"] = before.states.get("drift")
        if previous is not None:
            moved = method.drift.update(old, training, before.states.get("drift"))
            old, states["drift"] = method.memory.after_drift(old, moved.memory), moved.state
            report.warn(moved.warning, runtime)

    with report.clock("memory"):
        memory, states["memory"] = method.memory.update(old, now, before.states.get("memory"))
        if old is not before.memory:
            report.warn(collapse_warning(now.name, old, memory), runtime)

    affordable = training is not now or (not trains and method.classifier.cheap)

    @cache
    def holdout_fit() -> HoldoutFit | None:
        possible = affordable and not method.classifier.changes_network
        part = method.evidence.fit_part(now, training) if possible else now
        if part is now:
            return None
        bank = method.memory.update(old, part, before.states.get("memory")).bank
        return HoldoutFit(bank, method.classifier.fit(bank, part, before.states.get("classifier")), part.others())

    with report.clock("classifier"):
        fitted = method.classifier.update(memory, now, before.states.get("classifier"), holdout_fit)
        states["classifier"] = fitted.scorer

    with report.clock("evidence"):
        states["evidence"] = method.evidence.update(before.states.get("evidence"), now, holdout_fit, fitted, memory)

    with report.clock("representation"):
        left = of_terms if trained.parts is None else method.representation.finish(trained.parts, now, memory)
        states.update({f"representation/{name}": state for name, state in left.items()})

    kept = {name: state for name, state in states.items() if state is not None}
    after = LearnerState(network, memory, kept, (*before.tasks, tuple(data.classes)))
    runtime.processes.sync_module(after)
    return after, report


class Learner:
    """A method at work on images of one shape.

    All that it has learned is one `Knowledge`, which `learn` replaces whole when a task is done and never changes:
    whoever took it before goes on with the old one, in this thread or another.

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
        self.scale: PixelScale | None = None
        self.about: dict[str, Any] = {}
        """Facts that whoever saves the learner wants to find again."""

    @property
    def classes(self) -> list[Label]:
        """Every class learned so far, in the order of the score columns."""
        return self.state.classes

    @property
    def network(self) -> Network:
        """The network after the last task."""
        return self.state.network

    @property
    def memory(self) -> ClassGaussians:
        """What is remembered of the classes."""
        return self.state.memory

    @property
    def tasks(self) -> tuple[tuple[Label, ...], ...]:
        """The classes of each task learned so far."""
        return self.state.tasks

    def learn(self, data: LabelledImages) -> TaskReport:
        """Learn one task from its images alone: Algorithm 1, see `learn_task`.

        A task brings new classes, more images of known ones, or both. Statistics and sums of a known class count the
        new images as well; a method with one trained output per class takes new classes only.

        Several processes (`Runtime.processes`) must all be given the task, and all know the same afterwards.

        On any error the learner is unchanged. The caller's random
        numbers are left alone.
        """
        before = self.state
        self._check(data, before.classes)
        self.method.memory.check(data, before.classes)
        classes = len({*before.classes, *data.classes})
        self.method.classifier.check(before.network, classes, self.runtime)
        scale = update_pixel_range(self.scale, data.images)
        self.runtime.processes.check_in_sync(lambda: data_digests(data), "images")
        after, report = learn_task(self.method, before, data, self.runtime)
        self._replace(before, after)
        self.scale = scale
        return report

    def forget(self, labels: Sequence[Label], data: LabelledImages | None = None) -> None:
        """Forget classes: they are never predicted again, and nothing that is kept of one class alone remains.

        Means, covariances, counts, outputs and columns of these classes go, and are not in the file of a later `save`.
        Trained weights keep what training on their images left in them, and what was measured over all classes together
        (importance of weights, how well settings did) stays. From the sums of exact methods the mean and the count of a
        class go, and the scatter of its images about their mean stays in that of all classes; ACIL's sums keep them as
        images of no class. With ``data``, their images given again, these are taken out of the sums, which are then as
        if they had never come. Exact methods refuse other images than those, as far as that shows; ACIL and DS-AL take
        out what they are given. Other methods need no images.
        """
        if data is not None:
            self.of_shape(data.images)
        self._change(lambda before: forgotten(self.method, before, labels, self.runtime, data))

    def rename(self, old: Label, new: Label) -> None:
        """Rename a class."""
        self._change(lambda before: renamed(before, old, new))

    def merge_classes(self, into: Label, others: Sequence[Label]) -> None:
        """Make one class of several, as if they had always been one; ``into`` is a known class or a new name."""
        self._change(lambda before: joined(self.method, before, into, others, self.runtime))

    def merge(self, other: Learner) -> None:
        """Merge another learner with the same features: the statistics are those of one learner of all images.

        Each learner selected its regularisation on its own classes, so a few predictions may differ from those of one
        learner. A class of both gets the images of both. To teach in two places, start the second with `empty_like` of
        the first: both then have the same features, and no image is counted twice. The other learner is not changed.
        """
        check_still(self.method)
        check_alike((self.method, self.shape), (other.method, other.shape))
        theirs = on_device(other.state, self.runtime)
        self._change(lambda before: merged(self.method, before, theirs, self.runtime))

    def empty_like(self) -> Learner:
        """Another learner with the same features, which knows no class: to be taught elsewhere, and merged."""
        if not self.tasks:
            raise DataError("there are no features yet: they are prepared or trained with the first task")
        other = copy.copy(self)
        other.about = {}
        other._change(lambda before: empty_like(self.method, before, self.runtime))
        return other

    def _change(self, change: Callable[[LearnerState], LearnerState]) -> None:
        before = self.state
        with self.runtime.seeded("upkeep"):  # a smaller head draws weights, which are replaced
            after = change(before)
        self._replace(before, after)

    def _replace(self, before: LearnerState, after: LearnerState) -> None:
        """The only place where what is known changes, whole."""
        if self.state is not before:
            raise DataError(
                "something else was learned in the meantime, so this is dropped: change one thing at a time"
            )
        self.state = after

    def features(self, images: Images) -> Tensor:
        """(N, S) features under the present network."""
        return self.state.features(self.of_shape(images), self.runtime)

    def scores(self, features: Tensor) -> Tensor:
        """(N, C) scores of features, columns in the order of `classes`."""
        return self.state.scores(features)

    def predictions(self, images: Images, reporter: Reporter | None = None) -> PredictionBatch:
        """Predict images: labels, probabilities, prediction sets and out-of-distribution scores, from one scoring."""
        runtime = self.runtime if reporter is None else Runtime(self.runtime.config, self.runtime.seed, reporter)
        return self.state.predict(self.of_shape(images), runtime)

    def predict(self, images: Images) -> list[Label]:
        """Return the most probable class of each image."""
        found = self.predictions(images)
        return [found.columns[column] for column in found.scores.argmax(1).tolist()]

    def probabilities(self, images: Images) -> Tensor:
        """(N, C) class probabilities, columns in the order of `classes`."""
        return torch.softmax(self.predictions(images).scores.double(), dim=1)

    def prediction_sets(self, images: Images, coverage: float = 0.9) -> list[list[Label]]:
        """For each image, the classes that contain the right one with this probability, most probable first."""
        return self.predictions(images).prediction_sets(coverage)

    def ood_score(self, images: Images) -> Tensor:
        """(N,) the share of images of known classes with a higher margin: near 1 for images of no known class."""
        return self.predictions(images).ood_score()

    def summary(self) -> list[ClassSummary]:
        """Calibration statistics of each class."""
        known = self.state
        return known.evidence.summary(known.classes)

    def save(self, path: Path | str, about: Mapping[str, Any] | None = None) -> None:
        """Write everything needed to go on: one safetensors file, replaced atomically. No image is in it."""
        known = self.state
        check_labels(known.classes)
        facts = {
            "method": plain(self.method),
            "knowledge": known.facts(),
            "shape": self.shape,
            "mean": self.mean,
            "std": self.std,
            "input": known.network.extractor.input_facts(),
            "seed": self.runtime.seed,
            "scale": self.scale and (self.scale.low, self.scale.high),
            "about": dict(about if about is not None else self.about),
        }
        save_tensors(Path(path), "learner", known.state_dict(), facts)

    @classmethod
    def load(cls, path: Path | str, runtime: Runtime | None = None, *, mapped: bool = False) -> Learner:
        """The learner that was saved; give a runtime to choose device or progress (its seed is the saved one).

        With ``mapped`` its tensors are views of the file, on a CPU: pages are read as they are needed and given back
        when memory is short, and several processes that predict share them. The digest is compared in any case. The
        file must not be changed in place as long as the learner is used; `save` puts another file in its place.
        """
        runtime = copy.copy(runtime) if runtime is not None else Runtime()  # its seed becomes the saved one
        tensors, facts = load_tensors(Path(path), "learner", runtime.device, mapped=mapped)
        require_finite({name: tensor for name, tensor in tensors.items() if name.startswith("network.")}, Path(path))
        try:
            return cls._restore(tensors, facts, runtime, mapped)
        except UNFIT as error:
            raise CheckpointError(f"{path} does not fit the learner it describes: {error}") from error

    @classmethod
    def _restore(
        cls, tensors: dict[str, Tensor], facts: dict[str, Any], runtime: Runtime, mapped: bool = False
    ) -> Learner:
        said = LearnerFacts.of(facts)
        runtime.seed = said.seed
        method, shape = Method.of(facts["method"]), said.shape
        check_size(method, said, tensors)
        # All parameters are in the checkpoint: the weight file the network once started from need not be here.
        learner = cls(method, shape, facts["mean"], facts["std"], runtime, initial_weights=False)
        learner.state = learner.state.restored(method, facts["knowledge"], tensors, runtime, mapped)
        learner.state.network.extractor.restore_input(facts["input"])
        if learner.tasks:  # parts of a network that do not fit each other show themselves at its first image
            with torch.inference_mode():
                learner.network.extractor.averaged_over_flips(torch.zeros(1, *shape, device=runtime.device))
        learner.scale = said.scale and PixelScale(*said.scale)
        learner.about = facts["about"]
        return learner

    def of_shape(self, images: Images) -> Images:
        """The images, if they have the shape of the training images; else a `DataError`."""
        if images.shape != self.shape:
            raise DataError(
                f"this learner was taught images of shape {self.shape}; these have {images.shape}: resize them"
            )
        return images

    def _check(self, data: LabelledImages, known: Sequence[Label]) -> None:
        if not len(data):
            raise DataError("the task has no images")
        self.of_shape(data.images)
        check_labels_exact([*known, *data.classes])
        check_known(self.method, [label for label in data.classes if label in known])
        empty = [label for label, count in zip(data.classes, data.counts().tolist(), strict=True) if count == 0]
        if empty:
            raise DataError(f"class {empty[0]!r} has no images: leave it out of the task or give it some")
