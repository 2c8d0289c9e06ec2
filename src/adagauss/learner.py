"""What a user keeps: a network and a memory that learn tasks, predict, and can be saved and loaded."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from adagauss.backbones import IncrementalHead, Network, build_extractor
from adagauss.checkpoint import load_tensors, save_tensors
from adagauss.config import plain
from adagauss.data.images import Images, Label, LabelledImages
from adagauss.errors import CheckpointError, DataError
from adagauss.gaussians import ClassGaussians
from adagauss.methods import Method
from adagauss.runtime import Runtime
from adagauss.task import CurrentTask, extract_features
from adagauss.training import History


@dataclass
class TaskReport:
    """What learning a task took."""

    history: History = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each stage: representation, drift, memory, classifier."""


class Learner:
    """A method at work on images of one shape.

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
        with torch.random.fork_rng(devices=self.runtime.seeded_devices):
            torch.manual_seed(self.runtime.seed_for("network"))
            extractor = build_extractor(method.backbone, shape, mean, std, initial_weights)
        head = IncrementalHead(extractor.size, method.representation.head_bias)
        self.network = self.runtime.place(Network(extractor, head)).eval()
        self.memory = method.memory.empty(extractor.size, self.runtime.device)
        self.tasks: list[tuple[Label, ...]] = []
        """The classes of each task learned so far."""
        self.about: dict[str, Any] = {}
        """Facts that whoever saves the learner wants to find again."""

    @property
    def classes(self) -> list[Label]:
        """Every class learned so far, in the order of the score columns."""
        return [label for task in self.tasks for label in task]

    @property
    def bytes_per_class(self) -> int:
        """What the memory keeps of one class."""
        return self.memory.numbers_per_class * self.memory.means.element_size() if len(self.memory) else 0

    @property
    def other_state_bytes(self) -> int:
        """What the representation and the classifier keep beside the network and the memory (Fisher, ridge sums)."""
        states = (self.method.representation.state_dict(), self.method.classifier.state_dict())
        return sum(tensor.numel() * tensor.element_size() for state in states for tensor in state.values())

    def learn(self, data: LabelledImages) -> TaskReport:
        """Learn one task from its images alone: Algorithm 1.

        Either the whole task is learned or, on any error, the learner is as it was before. The caller's random
        numbers are left alone.
        """
        self._check(data)
        self.method.memory.check(data)
        with torch.random.fork_rng(devices=self.runtime.seeded_devices):
            return self._learn(data)

    def _learn(self, data: LabelledImages) -> TaskReport:
        # Parts and network are copies until the task is done; the images are held by `now` alone, and die with it.
        method = copy.deepcopy(self.method)
        previous = self.network.frozen_copy() if self.tasks else None
        network = copy.deepcopy(self.network)
        now = CurrentTask(len(self.tasks), data, network, previous, method.augmentation, self.runtime)
        report = TaskReport()
        clock = _Clock(report.seconds)

        report.history = method.representation.fit(now, self.memory)
        now.forget_features()
        if now.first:
            network.extractor.end_first_task()
        network.eval()
        clock.stop("representation")

        memory = copy.deepcopy(self.memory)
        if previous is not None and method.representation.later is not None:
            memory = method.memory.after_drift(memory, method.drift.update(memory, now))
        clock.stop("drift")

        method.memory.add(memory, now)
        clock.stop("memory")

        method.classifier.fit(memory, now)
        method.representation.finish(now, memory)
        clock.stop("classifier")

        self.method, self.network, self.memory = method, network, memory
        self.tasks.append(tuple(data.classes))
        return report

    def features(self, images: Images) -> Tensor:
        """(N, S) features under the present network."""
        if images.shape != self.shape:
            raise DataError(
                f"this learner was taught images of shape {self.shape}; these have {images.shape}: resize them"
            )
        return extract_features(self.network.extractor, images, self.runtime)

    def scores(self, features: Tensor) -> Tensor:
        """(N, C) scores of features, columns in the order of `classes`."""
        if not self.tasks:
            raise DataError("nothing has been learned yet: call learn first")
        with torch.inference_mode():
            return self.method.classifier.scores(features)

    def predict(self, images: Images) -> list[Label]:
        """The most likely class of each image."""
        classes = self.classes
        return [classes[index] for index in self.scores(self.features(images)).argmax(1).tolist()]

    def probabilities(self, images: Images) -> Tensor:
        """(N, C) class probabilities, columns in the order of `classes`."""
        return torch.softmax(self.scores(self.features(images)).double(), dim=1)

    def save(self, path: Path | str, about: Mapping[str, Any] | None = None) -> None:
        """Write everything needed to go on: one safetensors file, replaced atomically. No image is in it."""
        parts = {
            "network": self.network.state_dict(),
            "memory": self.memory.state_dict(),
            "representation": self.method.representation.state_dict(),
            "classifier": self.method.classifier.state_dict(),
        }
        tensors = {f"{part}/{name}": tensor for part, state in parts.items() for name, tensor in state.items()}
        facts = {
            "method": plain(self.method),
            "tasks": [list(task) for task in self.tasks],
            "remembered": self.memory.labels,
            "head": self.network.head.sizes,
            "shape": self.shape,
            "mean": self.mean,
            "std": self.std,
            "input": self.network.extractor.input_facts(),
            "seed": self.runtime.seed,
            "about": dict(about if about is not None else self.about),
        }
        _check_labels(self.classes)
        save_tensors(Path(path), "learner", tensors, facts)

    @classmethod
    def load(cls, path: Path | str, runtime: Runtime | None = None) -> Learner:
        """The learner that was saved; give a runtime to choose device or progress (its seed is the saved one)."""
        runtime = runtime or Runtime()
        tensors, facts = load_tensors(Path(path), "learner", runtime.device)
        try:
            return cls._restore(tensors, facts, runtime)
        except (RuntimeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} does not fit the learner it describes: {error}") from error

    @classmethod
    def _restore(cls, tensors: dict[str, Tensor], facts: dict[str, Any], runtime: Runtime) -> Learner:
        runtime.seed = facts["seed"]
        method, shape = Method.of(facts["method"]), tuple(facts["shape"])
        # All parameters are in the checkpoint: the weight file the network once started from need not be here.
        learner = cls(method, shape, facts["mean"], facts["std"], runtime, initial_weights=False)
        with torch.random.fork_rng(devices=runtime.seeded_devices):
            for classes, auxiliary in facts["head"]:
                learner.network.head.grow(classes, auxiliary)
        if "input" in facts:
            learner.network.extractor.restore_input(facts["input"])
        runtime.place(learner.network)

        def state(part: str) -> dict[str, Tensor]:
            prefix = f"{part}/"
            return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}

        learner.network.load_state_dict(state("network"))
        method.representation.load_state_dict(state("representation"))
        method.classifier.load_state_dict(state("classifier"))
        learner.memory = ClassGaussians.from_state(state("memory"), facts["remembered"], learner.memory.covariance)
        learner.tasks = [tuple(task) for task in facts["tasks"]]
        learner.about = facts["about"]
        if learner.tasks:
            learner.network.extractor.end_first_task()
        learner.network.eval()
        return learner

    def _check(self, data: LabelledImages) -> None:
        if not len(data):
            raise DataError("the task has no images")
        if data.images.shape != self.shape:
            raise DataError(
                f"this learner takes images of shape {self.shape}; these have {data.images.shape}: resize them"
            )
        again = [label for label in data.classes if label in set(self.classes)]
        if again:
            raise DataError(
                f"class {again[0]!r} was learned in an earlier task: a task may hold new classes only "
                f"({len(again)} of its {len(data.classes)} are known already)"
            )
        empty = [label for label, count in zip(data.classes, data.counts().tolist(), strict=True) if count == 0]
        if empty:
            raise DataError(f"class {empty[0]!r} has no images: leave it out of the task or give it some")


class _Clock:
    """Wall time between calls, by name."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self.since = perf_counter()

    def stop(self, name: str) -> None:
        now = perf_counter()
        self.seconds[name] = now - self.since
        self.since = now


def _check_labels(labels: Sequence[Label]) -> None:
    for label in labels:
        if not isinstance(label, (str, int, float, bool)):
            raise CheckpointError(
                f"label {label!r} is a {type(label).__name__}; a saved learner can hold labels that are text or numbers"
            )
