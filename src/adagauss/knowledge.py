"""All that a learner has learned, as one module: the network, the memory, and what each part handed back."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from adagauss import linalg
from adagauss.backbones import Extractor, Network
from adagauss.classifiers import Scorer
from adagauss.data.images import Images, Label
from adagauss.errors import DataError
from adagauss.gaussians import ClassGaussians
from adagauss.methods import Method
from adagauss.runtime import Runtime
from adagauss.state import Learned
from adagauss.task import extract_features


class Predictor(nn.Module):
    """Images in 0..1 to scores: extractor and scorer as one module, to be exported, served or measured."""

    def __init__(self, extractor: Extractor, scorer: Scorer) -> None:
        super().__init__()
        self.extractor = extractor
        self.scorer = scorer

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.scorer(self.extractor.for_prediction(images))
        return scores


class Knowledge(nn.Module):
    """What is known after some tasks. It is never changed: a further task, or a change of the classes, makes a new one.

    ``tasks`` are the classes that each task brought, of those that are still known: a task may bring a class again, and
    is empty if all of its classes were forgotten.

    Saving, loading, copying and moving it between devices are torch's. Names (classes, tasks) are facts beside the
    tensors.
    """

    def __init__(
        self,
        network: Network,
        memory: ClassGaussians,
        states: Mapping[str, Learned],
        tasks: tuple[tuple[Label, ...], ...],
    ) -> None:
        super().__init__()
        self.network = network
        self.memory = memory
        self.parts = nn.ModuleDict(states)
        self.tasks = tasks

    @property
    def classes(self) -> list[Label]:
        """Every class, in the order of the score columns: that in which tasks first brought them."""
        return list(dict.fromkeys(label for task in self.tasks for label in task))

    @property
    def states(self) -> dict[str, Learned]:
        """What each part handed back after the last task, by the part's name in the method."""
        return {name: state for name, state in self.parts.items() if isinstance(state, Learned)}

    def states_below(self, prefix: str) -> dict[str, Learned]:
        """The states whose names begin with ``prefix``, by the rest of the name."""
        return {name[len(prefix) :]: state for name, state in self.states.items() if name.startswith(prefix)}

    @property
    def scorer(self) -> Scorer:
        """What turns features into scores."""
        scorer = self.states.get("classifier")
        if not isinstance(scorer, Scorer):
            raise DataError("nothing has been learned yet: call learn first")
        return scorer

    @property
    def predictor(self) -> Predictor:
        """What turns images into scores, whole."""
        return Predictor(self.network.extractor, self.scorer).eval()

    def features(self, images: Images, runtime: Runtime) -> Tensor:
        """(N, S) features."""
        return extract_features(self.network.extractor, images, runtime, prediction=True)

    def scores(self, features: Tensor) -> Tensor:
        """(N, C) scores of features, columns in the order of `classes`."""
        with torch.inference_mode():
            return linalg.by_rows(self.scorer, features)

    @property
    def bytes_per_class(self) -> int:
        """What the memory keeps of one class."""
        return self.memory.numbers_per_class * self.memory.means.element_size() if len(self.memory) else 0

    @property
    def part_bytes(self) -> int:
        """What the parts keep beside the network and the memory (Fisher information, ridge sums)."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.parts.state_dict().values())

    def check(self) -> None:
        """Raise where the tensors, the labels and the classes do not belong together."""
        classes, memory = self.classes, self.memory
        if any(len(set(task)) != len(task) for task in self.tasks):
            raise ValueError("a class is named twice in a task")
        memory.check()
        if len(memory) and memory.labels != classes:
            raise ValueError(f"{len(memory)} classes are remembered, but {len(classes)} were taught")
        if classes:
            with torch.inference_mode():
                size = self.network.extractor.prediction_size
                columns = self.scorer(torch.zeros(1, size, device=memory.means.device)).shape[1]
            if columns != len(classes):
                raise ValueError(f"the classifier tells {columns} classes apart, but {len(classes)} were taught")

    def facts(self) -> dict[str, Any]:
        """What a file needs beside the tensors to be loaded again."""
        return {
            "tasks": [list(task) for task in self.tasks],
            "remembered": self.memory.labels,
            "head": self.network.head.sizes,
            "parts": sorted(self.states),
        }

    def restored(
        self, method: Method, facts: Mapping[str, Any], tensors: Mapping[str, Tensor], runtime: Runtime
    ) -> Knowledge:
        """What was saved, given knowledge of nothing with a network of the same kind."""
        network = copy.deepcopy(self.network)
        with torch.random.fork_rng(devices=runtime.seeded_devices):
            for classes, auxiliary in facts["head"]:
                network.head.grow(classes, auxiliary)
        parts = dict(method.parts())
        states: dict[str, Learned] = {}
        for name in facts["parts"]:
            state = parts[name].empty_state()
            if state is None:
                raise ValueError(f"{name} learns nothing in this method, but something learned is stored for it")
            states[name] = state
        memory = ClassGaussians(self.memory.size, self.memory.covariance)
        known = Knowledge(network, memory, states, tuple(tuple(task) for task in facts["tasks"]))
        known.load_state_dict(dict(tensors))
        known.memory.labels = list(facts["remembered"])
        known.check()
        runtime.place(known)
        if known.tasks:
            known.network.extractor.end_first_task()
        return known.eval()
