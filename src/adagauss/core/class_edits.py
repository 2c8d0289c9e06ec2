"""Changes of the classes after learning: forget, merge and rename classes, merge two learners."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from adagauss.backbones import Extractor, Network
from adagauss.core.config import flatten, plain
from adagauss.core.learner_state import LearnerState, add_tasks, move_sources
from adagauss.core.state import ClassMap, State
from adagauss.core.task import ClassEdit, CurrentTask
from adagauss.data.decode import ResizeMode
from adagauss.data.images import Images, Label, LabelledImages, normal_label
from adagauss.errors import DataError, NumericalError, UnsupportedError
from adagauss.methods import Method
from adagauss.utils.runtime import Runtime

MAX_DIFFERENCES = 4
"""Settings that an error names."""
COMMON_FEATURES = (
    "let the second start with the features of the first and no classes (`adagauss teach NEW FOLDER --features-from "
    "MODEL`, or empty_like() in Python)"
)


class ClassEdits:
    """The changes of a `Learner` after learning. Each replaces its state as a whole; an error leaves it unchanged."""

    method: Method
    state: LearnerState
    runtime: Runtime
    shape: tuple[int, int, int]
    resize_mode: ResizeMode
    about: dict[str, Any]

    def forget(self, labels: Sequence[Label], data: LabelledImages | None = None) -> None:
        """Forget classes: they are never predicted again, and their own statistics are deleted.

        Means, covariances, counts, outputs and score columns of these classes are deleted, here and in a later file.
        Trained weights and measurements over all classes together (importance of weights, model selection) do not
        change. The sums of analytic methods lose the mean and the count of a class, but keep its scatter in that of all
        classes; those of ACIL and DS-AL keep its images as images of no class. With ``data``, the images of the
        classes, analytic methods remove their effect exactly, and refuse images that were not learned, where the sums
        show it. Other methods need no images.
        """
        before, labels = self.state, [normal_label(label) for label in labels]
        gone = set(_columns(before.classes, labels))
        if len(gone) == len(before.classes):
            raise DataError("these are all known classes: keep one, or start with a new learner")
        if data is not None:
            self.check_shape(data.images)
            if other := [label for label in data.classes if label not in labels]:
                raise DataError(f"there are images of {other[0]!r}, which is not to be forgotten: leave them out")
        if not gone:
            return
        kept = tuple((column,) for column in range(len(before.classes)) if column not in gone)
        wrong = DataError(
            f"these are not the images that class {' or '.join(map(repr, labels))} was learned from: give the same "
            "files, or no files to remove only their mean and count"
        )
        try:
            after = self._remapped(kept, data)
        except NumericalError as error:
            if data is None:
                raise
            raise wrong from error
        if data is not None:
            try:
                after.scorer.check()  # a file with invalid sums could not be read again
            except DataError as error:
                raise wrong from error
        self._replace(before, after)

    def rename(self, old: Label, new: Label) -> None:
        """Rename a class."""
        before = self.state
        self._replace(before, _renamed(before, old, new), {old: new})

    def merge_classes(self, into: Label, others: Sequence[Label]) -> None:
        """Merge classes into one; ``into`` is a known class or a new name."""
        before, into, others = self.state, normal_label(into), [normal_label(label) for label in others]
        named = list(dict.fromkeys([into, *others] if into in before.classes else others))
        columns = _columns(before.classes, named)
        if len(columns) < 2:
            raise DataError("name at least two classes to merge")
        groups = tuple(
            tuple(columns) if column == columns[0] else (column,)
            for column in range(len(before.classes))
            if column not in columns[1:]
        )
        after = _renamed(self._remapped(groups), named[0], into)
        self._replace(before, after, dict.fromkeys(named, into))

    def merge(self, other: Self) -> None:
        """Merge another learner with the same features: the statistics are those of one learner of all images.

        Each learner selected its regularisation on its own classes, so a few predictions may differ from those of one
        learner. A class of both gets the images of both. To teach in two places, start the second with `empty_like` of
        the first: both then have the same features, and no image is counted twice. The other learner is not changed.
        """
        self._check_frozen()
        _check_same_settings(self, other)
        before, theirs = self.state, other.state
        if theirs.memory.means.device != self.runtime.device:
            theirs = self.runtime.place(copy.deepcopy(theirs))
        _check_same_features(before.network.extractor, theirs.network.extractor)
        tasks = add_tasks(before.tasks, *theirs.tasks)
        if not before.classes or not theirs.classes:
            one = before if before.classes else theirs
            return self._replace(before, LearnerState(one.network, one.memory, one.states, tasks).eval())
        classes = list(dict.fromkeys([*before.classes, *theirs.classes]))
        columns = tuple(classes.index(label) for label in theirs.classes)
        for label in before.classes:
            if label in theirs.classes and _same_images(before, theirs, label):
                raise DataError(
                    f"both learners have the same images of class {label!r}, which would be counted twice: "
                    f"{COMMON_FEATURES}, or forget the class in one of them, with its images"
                )
        network = self._with_head_of(())
        now = ClassEdit(tuple((column,) for column in range(len(classes))), network, self.runtime, len(before.tasks))
        memory = self.method.memory.joined(before.memory, theirs.memory)
        scorer = self.method.classifier.merged(memory, now, before.scorer, theirs.scorer, columns)
        states: dict[str, State] = {**before.states, "classifier": scorer}
        for name in (before.states.keys() & theirs.states.keys()) - {"classifier"}:
            states[name] = before.states[name].merged(theirs.states[name], columns)
        self._replace(before, LearnerState(network, memory, states, tasks).eval())

    def empty_like(self) -> Self:
        """Return a learner with the same features and no classes: to teach elsewhere, and merge."""
        if not self.state.tasks:
            raise DataError("this learner has no features yet: the first task prepares or trains them")
        self._check_frozen()
        memory = self.method.memory.empty(self.state.memory.size, self.runtime.device)
        other = copy.copy(self)
        other.about = {}
        # One empty task: the features are those of a learner whose first task is over.
        other.state = LearnerState(self._with_head_of(()), memory, {}, ((),)).eval()
        return other

    def check_shape(self, images: Images) -> Images:
        """Return images of the shape of the training images; other shapes are a `DataError`."""
        if images.shape != self.shape:
            raise DataError(
                f"this learner was taught images of shape {self.shape}; these have {images.shape}: resize them"
            )
        return images

    def _remapped(self, groups: ClassMap, removed: LabelledImages | None = None) -> LearnerState:
        """The state after classes were forgotten or merged; a merged class has the name of the first of its group."""
        known, runtime = self.state, self.runtime
        classes, index = known.classes, len(known.tasks)
        kept = {classes[group[0]] for group in groups}
        network = self._with_head_of(kept)
        given = None
        if removed is not None:
            augmentation = self.method.augmentation
            given = CurrentTask(index, removed, network, None, augmentation, runtime, known=tuple(classes))
        now = ClassEdit(groups, network, runtime, index, given)
        memory = self.method.memory.remap_classes(known.memory, groups)
        states: dict[str, State] = {
            name: state.remap_classes(groups) for name, state in known.states.items() if name != "classifier"
        }
        states["classifier"] = self.method.classifier.remap_classes(memory, now, known.scorer)
        tasks = tuple(tuple(label for label in task if label in kept) for task in known.tasks)
        return LearnerState(network, memory, states, tasks).eval()

    def _with_head_of(self, kept: Collection[Label]) -> Network:
        """The network with the outputs of some classes."""
        known = self.state
        head = self.runtime.place(self.method.representation.head_of(known.network.head, known.tasks, kept))
        return Network(known.network.extractor, head).eval()

    def _check_frozen(self) -> None:
        """Refuse to merge learners that train their network in every task."""
        if self.method.representation.later is not None:
            raise UnsupportedError(
                "learners of this method cannot be merged, because every task trains the network and changes its "
                "features; teach one learner all classes, or use a method with frozen features, such as analytic"
            )

    def _replace(self, before: LearnerState, after: LearnerState, renamed: Mapping[Label, Label] | None = None) -> None:
        """Replace the state, unless another thread has replaced it."""
        if self.state is not before:
            raise DataError("the learner was changed by another call meanwhile; make one change at a time")
        self.state = after
        self.about = move_sources(self.about, renamed or {}, after.classes)


def _check_same_settings(one: ClassEdits, other: ClassEdits) -> None:
    """Refuse to merge learners with other methods, settings or image shapes; the error names the differences."""
    sides = [
        {**flatten(plain(learner.method)), "shape of images": learner.shape, "resize mode": learner.resize_mode}
        for learner in (one, other)
    ]
    keys = [key for key in sides[0] | sides[1] if sides[0].get(key) != sides[1].get(key)]
    if not keys:
        return
    keys.sort(key=lambda key: not key.endswith((".kind", "backbone.name")))  # parts before their settings
    named = [f"{key} ({sides[0].get(key, 'absent')}, {sides[1].get(key, 'absent')})" for key in keys[:MAX_DIFFERENCES]]
    more = f" and {len(keys) - MAX_DIFFERENCES} more" if len(keys) > MAX_DIFFERENCES else ""
    raise DataError(
        f"these learners cannot be merged, because they differ in {', '.join(named)}{more}: {COMMON_FEATURES}"
    )


def _check_same_features(one: Extractor, other: Extractor) -> None:
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


def _renamed(known: LearnerState, old: Label, new: Label) -> LearnerState:
    """The state with another name for a class."""
    old, new = normal_label(old), normal_label(new)
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
