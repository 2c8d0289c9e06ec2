"""Changes of the classes after learning: forget, merge and rename classes, merge two learners."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from adagauss.backbones import Extractor, Network
from adagauss.core.config import flatten, plain
from adagauss.core.learner_state import LearnerState
from adagauss.core.state import ClassMap, State
from adagauss.core.task import ClassEdit, CurrentTask
from adagauss.data.images import Label, LabelledImages
from adagauss.errors import DataError, NumericalError, UnsupportedError
from adagauss.methods import Method
from adagauss.utils.runtime import Runtime

MAX_DIFFERENCES = 4
"""Settings that an error names."""
COMMON_FEATURES = (
    "let the second start with the features of the first and no classes (`adagauss teach NEW FOLDER --features-from "
    "MODEL`, or empty_like() in Python)"
)


def remap_classes(
    method: Method, known: LearnerState, groups: ClassMap, runtime: Runtime, removed: LabelledImages | None = None
) -> LearnerState:
    """The state after classes were forgotten or merged; a merged class has the name of the first of its group."""
    classes = known.classes
    kept = {classes[group[0]] for group in groups}
    head = runtime.place(method.representation.head_of(known.network.head, known.tasks, kept)).eval()
    network = Network(known.network.extractor, head).eval()
    given = None
    if removed is not None:
        given = CurrentTask(
            len(known.tasks), removed, network, None, method.augmentation, runtime, known=tuple(classes)
        )
    now = ClassEdit(groups, network, runtime, len(known.tasks), given)
    memory = method.memory.remap_classes(known.memory, groups)
    states: dict[str, State] = {
        name: state.remap_classes(groups) for name, state in known.states.items() if name != "classifier"
    }
    states["classifier"] = method.classifier.remap_classes(memory, now, known.scorer)
    tasks = tuple(tuple(label for label in task if label in kept) for task in known.tasks)
    return LearnerState(network, memory, states, tasks).eval()


def forgotten(
    method: Method, known: LearnerState, labels: Collection[Label], runtime: Runtime, data: LabelledImages | None = None
) -> LearnerState:
    """The state without some classes; ``data`` are their images, to be subtracted from sums."""
    gone = set(_columns(known.classes, labels))
    if len(gone) == len(known.classes):
        raise DataError("these are all known classes: keep one, or start with a new learner")
    if other := [label for label in (data.classes if data is not None else ()) if label not in labels]:
        raise DataError(f"there are images of {other[0]!r}, which is not to be forgotten: leave them out")
    if not gone:
        return known
    kept = tuple((column,) for column in range(len(known.classes)) if column not in gone)
    if data is None:
        return remap_classes(method, known, kept, runtime)
    try:
        left = remap_classes(method, known, kept, runtime, data)
        left.scorer.check()  # a file with invalid sums could not be read again
    except (NumericalError, DataError) as error:
        raise DataError(
            f"without these images the sums are invalid ({error}), so some of them were never "
            "learned: give only the files that the classes were learned from, or none"
        ) from error
    return left


def joined(
    method: Method, known: LearnerState, into: Label, others: Collection[Label], runtime: Runtime
) -> LearnerState:
    """The state after several classes became ``into``, which is one of them or a new name."""
    named = list(dict.fromkeys([into, *others] if into in known.classes else others))
    columns = _columns(known.classes, named)
    if len(columns) < 2:
        raise DataError("name at least two classes to merge")
    groups = tuple(
        tuple(columns) if column == columns[0] else (column,)
        for column in range(len(known.classes))
        if column not in columns[1:]
    )
    return renamed(remap_classes(method, known, groups, runtime), named[0], into)


def renamed(known: LearnerState, old: Label, new: Label) -> LearnerState:
    """The state with another name for a class."""
    _columns(known.classes, [old])
    if new == old:
        return known
    if new in known.classes:
        raise DataError(
            f"class {new!r} already exists: choose another name, or merge both (`adagauss rename --merge`, or "
            "merge_classes in Python)"
        )
    memory = known.memory.copy()
    memory.labels = [new if label == old else label for label in memory.labels]
    tasks = tuple(tuple(new if label == old else label for label in task) for task in known.tasks)
    return LearnerState(known.network, memory, known.states, tasks).eval()


def empty_like(method: Method, known: LearnerState, runtime: Runtime) -> LearnerState:
    """A state with the same features and no classes."""
    check_frozen(method)
    head = runtime.place(method.representation.head_of(known.network.head, known.tasks, ())).eval()
    memory = method.memory.empty(known.memory.size, runtime.device)
    # One empty task: the features are those of a learner whose first task is over.
    return LearnerState(Network(known.network.extractor, head), memory, {}, ((),)).eval()


def merged(method: Method, one: LearnerState, other: LearnerState, runtime: Runtime) -> LearnerState:
    """Merge the states of two learners with the same features: sums and calibration statistics add up."""
    check_frozen(method)
    check_features(one.network.extractor, other.network.extractor)
    if not one.classes or not other.classes:
        known = one if one.classes else other
        return LearnerState(known.network, known.memory, known.states, (*one.tasks, *other.tasks)).eval()
    classes = list(dict.fromkeys([*one.classes, *other.classes]))
    columns = tuple(classes.index(label) for label in other.classes)
    for label in one.classes:
        if label in other.classes and _same_images(one, other, label):
            raise DataError(
                f"both learners have the same images of class {label!r}, which would be counted twice: "
                f"{COMMON_FEATURES}, or forget the class in one of them, with its images"
            )
    head = runtime.place(method.representation.head_of(one.network.head, one.tasks, ())).eval()
    network = Network(one.network.extractor, head).eval()
    now = ClassEdit(tuple((column,) for column in range(len(classes))), network, runtime, len(one.tasks))
    memory = method.memory.joined(one.memory, other.memory)
    scorer = method.classifier.merged(memory, now, one.scorer, other.scorer, columns)
    states: dict[str, State] = {**one.states, "classifier": scorer}
    for name in (one.states.keys() & other.states.keys()) - {"classifier"}:
        states[name] = one.states[name].merged(other.states[name], columns)
    return LearnerState(network, memory, states, (*one.tasks, *other.tasks)).eval()


def check_known(method: Method, again: Sequence[Label]) -> None:
    """Refuse more images of known classes where the method cannot use them."""
    if again and (reason := method.why_no_known_classes):
        raise UnsupportedError(
            f"class {again[0]!r} was learned in an earlier task, and this method cannot learn more of it: {reason}. "
            "Forget the class and teach it again with all its images, or use a method that predicts from class "
            "statistics, such as analytic or adagauss+"
        )


def check_frozen(method: Method) -> None:
    """Refuse to merge learners that train their network in every task."""
    if method.representation.later is not None:
        raise UnsupportedError(
            "learners of this method cannot be merged, because every task trains the network and changes its features; "
            "teach one learner all classes, or use a method with frozen features, such as analytic"
        )


def check_same_settings(one: tuple[Method, tuple[int, ...]], other: tuple[Method, tuple[int, ...]]) -> None:
    """Refuse to merge learners with other methods, settings or image shapes; the error names the differences."""
    if one == other:
        return
    sides = [{**flatten(plain(method)), "shape of images": list(shape)} for method, shape in (one, other)]
    keys = [key for key in sides[0] | sides[1] if sides[0].get(key) != sides[1].get(key)]
    keys.sort(key=lambda key: not key.endswith((".kind", "backbone.name")))  # parts before their settings
    named = [f"{key} ({sides[0].get(key, 'absent')}, {sides[1].get(key, 'absent')})" for key in keys[:MAX_DIFFERENCES]]
    more = f" and {len(keys) - MAX_DIFFERENCES} more" if len(keys) > MAX_DIFFERENCES else ""
    raise DataError(
        f"these learners cannot be merged, because they differ in {', '.join(named)}{more}: {COMMON_FEATURES}"
    )


def check_features(one: Extractor, other: Extractor) -> None:
    """Refuse to merge learners whose networks or dictionaries differ."""
    mine, theirs = one.state_dict(), other.state_dict()
    same = mine.keys() == theirs.keys() and all(_equal(tensor, theirs[name]) for name, tensor in mine.items())
    if not same or one.input_facts() != other.input_facts():
        raise DataError(
            f"these learners cannot be merged, because their features differ: {COMMON_FEATURES}; or use features that "
            "depend on no task (method analytic) with the same settings and image size"
        )


def _same_images(one: LearnerState, other: LearnerState, label: Label) -> bool:
    mine, theirs = one.classes.index(label), other.classes.index(label)
    if len(one.memory):
        return int(one.memory.counts[mine]) == int(other.memory.counts[theirs]) and _equal(
            one.memory.means[mine], other.memory.means[theirs]
        )
    own, others = one.scorer.class_sums, other.scorer.class_sums
    return own is not None and others is not None and _equal(own[:, mine], others[:, theirs])


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other.to(one.device))


def _columns(known: Sequence[Label], labels: Collection[Label]) -> list[int]:
    position = {label: column for column, label in enumerate(known)}
    if missing := [label for label in labels if label not in position]:
        raise DataError(f"class {missing[0]!r} is not among the {len(known)} known classes")
    return [position[label] for label in labels]


def on_device(known: LearnerState, runtime: Runtime) -> LearnerState:
    """The state on the device of ``runtime``."""
    there = known.memory.means.device
    return known if there == runtime.device else runtime.place(copy.deepcopy(known))
