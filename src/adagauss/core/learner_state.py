"""The state of a learner: network, class statistics and the state of each part; and the facts in its file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError, model_validator
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from adagauss.backbones import Network, build_extractor
from adagauss.core.calibration import CalibrationStats
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.predictor import Predictor
from adagauss.core.state import Scorer, State
from adagauss.data.decode import ResizeMode
from adagauss.data.images import Label, normal_label
from adagauss.errors import AdagaussError, CheckpointError, DataError
from adagauss.methods import Method
from adagauss.parts.representation import TERMS
from adagauss.utils.runtime import Runtime


class LearnerState(nn.Module):
    """Everything learned after some tasks. It is immutable: a further task or a change of the classes makes a new one.

    ``tasks`` are the classes of each task that are still known; see `add_tasks`. A task may repeat a class, and is
    empty if all of its classes were forgotten. Labels are stored as facts next to the tensors.
    """

    def __init__(
        self,
        network: Network,
        memory: ClassGaussians,
        states: Mapping[str, State],
        tasks: tuple[tuple[Label, ...], ...],
    ) -> None:
        super().__init__()
        self.network = network
        self.memory = memory
        self.parts = nn.ModuleDict(states)
        self.tasks = tasks

    @property
    def classes(self) -> list[Label]:
        """All classes in the order of the score columns: by their first task."""
        return list(dict.fromkeys(label for task in self.tasks for label in task))

    @property
    def states(self) -> dict[str, State]:
        """The state of each part after the last task, by the part's name in the method."""
        return {name: state for name, state in self.parts.items() if isinstance(state, State)}

    @property
    def term_states(self) -> dict[str, State]:
        """The states of the loss terms, by the term's name."""
        return {name.removeprefix(TERMS): state for name, state in self.states.items() if name.startswith(TERMS)}

    @property
    def scorer(self) -> Scorer:
        """The module that maps features to scores."""
        scorer = self.states.get("classifier")
        if not isinstance(scorer, Scorer):
            raise DataError("nothing has been learned yet: call learn first")
        return scorer

    @property
    def evidence(self) -> CalibrationStats:
        """Calibration statistics."""
        evidence = self.states.get("evidence")
        return evidence if isinstance(evidence, CalibrationStats) else CalibrationStats(len(self.classes))

    @cached_property
    def predictor(self) -> Predictor:
        """The module that maps images to scores, built once; it is not saved."""
        return Predictor(self.network.extractor, self.scorer, self.evidence, self.memory, self.classes).eval()

    def _apply(self, *args: Any, **settings: Any) -> LearnerState:
        """Move to another device or memory format, which resets the cached predictor."""
        self.__dict__.pop("predictor", None)
        super()._apply(*args, **settings)  # type: ignore[no-untyped-call]
        return self

    @property
    def bytes_per_class(self) -> int:
        """Bytes of the memory per class."""
        memory = self.memory
        return (memory.size + memory.packed.shape[1]) * memory.means.element_size() if len(memory) else 0

    @property
    def part_bytes(self) -> int:
        """Bytes of the parts' states, without network and memory (Fisher information, ridge sums)."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.parts.state_dict().values())

    def facts(self) -> dict[str, Any]:
        """The facts that a file stores with the tensors."""
        return {
            "tasks": [list(task) for task in self.tasks],
            "remembered": self.memory.labels,
            "head": self.network.head.sizes,
            "parts": sorted(self.states),
        }

    def restored(
        self, method: Method, facts: StateFacts, tensors: Mapping[str, Tensor], runtime: Runtime
    ) -> LearnerState:
        """The saved state; the network of this one, which is empty, becomes its network."""
        network = self.network
        for index, outputs in enumerate(facts.head):  # before memory is allocated for them
            for part, number in zip(("blocks", "auxiliary"), outputs, strict=True):
                weight = tensors.get(f"network.head.{part}.{index}.weight")
                if (0 if weight is None else len(weight)) != number:
                    raise ValueError(f"the weights of the {number} outputs of task {index + 1} are missing")
        with runtime.seeded("restored"):
            for classes, auxiliary in facts.head:
                network.head.grow(classes, auxiliary)
        parts = method.parts()
        states: dict[str, State] = {}
        for name in facts.parts:
            state = parts[name].empty_state() if name in parts else None
            if state is None:
                raise ValueError(f"{name} has no state in this method, but the file holds one")
            states[name] = state
        names = {label: normal_label(label) for task in facts.tasks for label in task}
        if len(set(names.values())) < len(names):  # version 0.2.0 kept two forms of one name apart
            names = {}
        tasks = tuple(tuple(names.get(label, label) for label in task) for task in facts.tasks)
        known = LearnerState(network, self.memory.empty_like(), states, tasks)
        known.load_state_dict(dict(tensors))
        known.memory.labels = [names.get(label, label) for label in facts.remembered]
        known.check()
        runtime.place(known)
        if known.tasks:
            known.network.extractor.end_first_task()
        return known.eval()

    def check(self) -> None:
        """Raise an error if tensors, labels and classes do not match."""
        classes, memory = self.classes, self.memory
        if any(len(set(task)) != len(task) for task in self.tasks):
            raise ValueError("a class is named twice in a task")
        memory.check()
        weights = sum(parameter.numel() for parameter in self.network.extractor.parameters())
        sizes = {"c": len(classes), "s": memory.size, "w": weights}
        for name, state in self.states.items():
            state.check()
            for part in (module for module in state.modules() if isinstance(module, State)):
                for buffer, letters in part.dims.items():
                    for letter, size in zip(letters, part.get_buffer(buffer).shape, strict=True):
                        if sizes.get(letter, size) != size:
                            raise ValueError(f"{buffer} of {name} has the size {size} instead of {sizes[letter]}")
        for name, values in self.network.named_buffers():
            if name.endswith(("running_var", "deviation")) and bool((values < 0).any()):
                raise ValueError(f"{name} of the network holds variances below zero")
        if len(memory) and memory.labels != classes:
            raise ValueError(f"the memory has {len(memory)} classes, but {len(classes)} were taught")
        if classes:
            with torch.inference_mode():
                scores = self.scorer(torch.zeros(1, self.network.extractor.size, device=memory.means.device))
            if not bool(torch.isfinite(scores).all()):
                raise ValueError("the scores of the classifier are not finite")
            if scores.shape[1] != len(classes):
                raise ValueError(f"the classifier has {scores.shape[1]} classes, but {len(classes)} were taught")


Tasks = tuple[tuple[Label, ...], ...]


def add_tasks(tasks: Tasks, *later: tuple[Label, ...]) -> Tasks:
    """Add tasks to a record. A task without new classes adds nothing, so that the record of many updates stays small.

    >>> add_tasks((("cat", "dog"),), ("dog",), ("dog", "owl"))
    (('cat', 'dog'), ('dog', 'owl'))
    """
    for task in later:
        if not tasks or not {label for known in tasks for label in known}.issuperset(task):
            tasks = (*tasks, task)
    return tasks


SOURCES = "sources"
"""Key in the facts about a learner: the hashed path and stamp of each folder that a class was taught from."""


def move_sources(about: Mapping[str, Any], renamed: Mapping[Label, Label], classes: Sequence[Label]) -> dict[str, Any]:
    """The facts about a learner with other classes: notes of sources follow their class, or are dropped with it.

    >>> move_sources({"sources": {"cat": {"a": "1"}, "dog": {"b": "2"}}}, {"cat": "Cat"}, ["Cat"])
    {'sources': {'Cat': {'a': '1'}}}
    """
    names = {str(old): str(new) for old, new in renamed.items()}
    moved: dict[str, dict[str, str]] = {}
    for label, sources in noted_sources(about).items():
        name = names.get(label, label)
        if name in map(str, classes):
            moved[name] = {**moved.get(name, {}), **sources}
    rest = {key: value for key, value in about.items() if key != SOURCES}
    return {**rest, SOURCES: moved} if moved else rest


def noted_sources(about: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """For each class, the stamp of each folder that it was taught from, by its hashed path."""
    noted = about.get(SOURCES)
    return {label: one for label, one in noted.items() if isinstance(one, dict)} if isinstance(noted, dict) else {}


def single_image_classes(state: LearnerState) -> list[Label]:
    """Classes of one image, of which a mean or a sum is stored: it equals the feature of that image.

    A mirrored copy of the image does not count as a second one.
    """
    if not len(state.memory) and state.scorer.class_sums is None:
        return []
    learned = state.evidence.learned.tolist()
    return [label for label, count in zip(state.classes, learned, strict=True) if count == 1]


Name = StrictStr | StrictBool | StrictInt | Annotated[float, Field(strict=True, allow_inf_nan=False)]
Pixel = Annotated[int, Field(strict=True, ge=0, le=255)]
Side = Annotated[int, Field(strict=True, ge=1, le=2**14)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
Outputs = Annotated[int, Field(strict=True, ge=0)]
MISFIT = (AdagaussError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that arise if the parts of a file do not match."""


class StateFacts(BaseModel):
    """The classes, and which states there are."""

    model_config = ConfigDict(frozen=True)

    tasks: list[list[Name]]
    remembered: list[Name]
    head: list[tuple[Outputs, Outputs]]
    parts: list[str]


class InputFacts(BaseModel):
    """How images are prepared."""

    model_config = ConfigDict(frozen=True)

    mean: list[Number]
    std: list[Positive]
    size: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = None


class LearnerFacts(BaseModel):
    """All facts of a saved learner."""

    model_config = ConfigDict(frozen=True)

    method: dict[str, Any]
    state: StateFacts = Field(alias="knowledge")
    shape: tuple[Side, Side, Side]
    mean: tuple[Number, ...]
    std: tuple[Positive, ...]
    input: InputFacts
    seed: Annotated[int, Field(strict=True)]
    resize_mode: ResizeMode = "crop"
    """How images of other proportions are resized."""
    scale: tuple[Pixel, Pixel] | None = None
    """The smallest and largest pixel of all tasks."""
    about: dict[str, Any]

    @model_validator(mode="after")
    def _statistics_of_channels(self) -> LearnerFacts:
        if not {len(self.mean), len(self.std)} <= {1, self.shape[0]}:
            raise ValueError("images have one mean and one deviation for each channel, or for all of them")
        return self

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> LearnerFacts:
        """Validate facts; an error names the first wrong one."""
        try:
            return cls.model_validate(facts)
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(map(str, problem["loc"])) or "facts"
            raise DataError(f"{place}: {problem['msg']}") from None


SPARE = 2**22
"""Numbers that a network may have beyond those in the file."""


class _SkipInit(TorchFunctionMode):
    """Skips the initialisation of weights, for which torch would load its compiler on the meta device."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return args[0] if function in (Tensor.normal_, Tensor.uniform_) else function(*args, **(kwargs or {}))


def check_size(method: Method, facts: LearnerFacts, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a network that is far larger than the file or has another number of channels."""
    if ":" in method.backbone.name:  # a network of another library, which may download its description
        return
    try:
        with torch.device("meta"), _SkipInit():  # nothing is allocated
            network = build_extractor(method.backbone, facts.shape, facts.mean, facts.std, False)
    except AdagaussError:
        raise
    except Exception:  # a network that cannot be built on the meta device
        return
    channels, numbers = network.mean.numel(), sum(tensor.numel() for tensor in network.state_dict().values())
    if {len(facts.input.mean), len(facts.input.std)} != {channels}:
        raise DataError(f"its network takes {channels} channels, and images are prepared for another number")
    found = sum(tensor.numel() for tensor in tensors.values())
    if numbers > found + SPARE:
        raise DataError(f"its network would have {numbers:,} numbers, and the file holds {found:,}")


def check_labels(labels: Sequence[Label]) -> None:
    """Refuse a label that a file cannot hold."""
    for label in labels:
        if not isinstance(label, str | int | float) or (isinstance(label, float) and not math.isfinite(label)):
            raise CheckpointError(
                f"label {label!r} of type {type(label).__name__} cannot be saved: rename the class to text or a number"
            )
