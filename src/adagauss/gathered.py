"""Images of which only sums are at hand: gathered in pieces, anywhere and in any order, then taught as one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from adagauss.classifiers.exact import ExactClassifier, Portion
from adagauss.core.learner_state import LearnerState
from adagauss.core.task import ClassEdit
from adagauss.data.images import Label, PixelScale
from adagauss.errors import DataError, UnsupportedError
from adagauss.methods import Method
from adagauss.sums import FeatureSums
from adagauss.utils.runtime import Runtime

KEY_BITS = 63


@dataclass
class Gathered:
    """Sums over images, and the features of the few that will judge: those with the smallest keys.

    A key is a hash of an image, so which images judge depends neither on their order nor on their division into pieces:
    the smallest keys of a whole are among the smallest of its pieces. Memory does not grow with the number of images.
    """

    sums: FeatureSums
    views: int
    """Features of each image: 2 with those of its mirror image."""
    most: int
    """How many images judge."""
    labels: list[Label] = field(default_factory=list)
    """The classes of the sums, in their order."""
    keys: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    shown: Tensor = field(default_factory=lambda: torch.zeros(0))
    """(K, V, width) features of the images with these keys, and their ``targets`` among the labels."""
    targets: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    scale: PixelScale | None = None

    def __post_init__(self) -> None:
        self._position = {label: column for column, label in enumerate(self.labels)}
        if not len(self.keys):
            self.shown = torch.zeros(0, self.views, self.sums.width)

    @property
    def images(self) -> int:
        """How many images there are, mirror images not counted."""
        return int(self.sums.counts.sum()) // self.views

    def add_(self, views: Sequence[Tensor], labels: Sequence[Label], keys: Tensor) -> Self:
        """Take in some images: for each view their (N, width) features, then one label and one key per image."""
        targets = torch.tensor(self._columns(labels), dtype=torch.long)
        for view in views:
            self.sums.add_(view, targets, len(self.labels))
        worth = self._worth(keys)
        self._judge(keys[worth], torch.stack([view[worth.to(view.device)].cpu() for view in views], 1), targets[worth])
        return self

    def merge_(self, other: Gathered) -> Self:
        """Take in all images of another piece; it stays as it is."""
        if (other.sums.width, other.views) != (self.sums.width, self.views):
            raise DataError("these sums are over other features: gather all pieces with one model")
        columns = self._columns(other.labels)
        self.sums.merge_(other.sums, columns)
        self._judge(other.keys, other.shown, torch.tensor(columns, dtype=torch.long)[other.targets])
        self.noticed_(other.scale)
        return self

    def noticed_(self, scale: PixelScale | None) -> None:
        """Widen the range of pixels that were seen."""
        known = [one for one in (self.scale, scale) if one is not None]
        if known:
            self.scale = PixelScale(min(one.low for one in known), max(one.high for one in known))

    def tensors(self) -> dict[str, Tensor]:
        """What a file keeps, beside `facts`."""
        held = {"keys": self.keys, "shown": self.shown.contiguous(), "targets": self.targets}
        return {**{f"sums.{name}": tensor for name, tensor in self.sums.state_dict().items()}, **held}

    def facts(self) -> dict[str, Any]:
        """What a file keeps beside tensors."""
        scale = self.scale and [self.scale.low, self.scale.high]
        return {"views": self.views, "most": self.most, "labels": self.labels, "scale": scale}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Self:
        """What `tensors` and `facts` describe, checked."""
        sums = FeatureSums(0)
        sums.load_state_dict({name[5:]: tensor for name, tensor in tensors.items() if name.startswith("sums.")})
        sums.check()
        keys, shown, targets = (tensors[name] for name in ("keys", "shown", "targets"))
        labels, views = list(facts["labels"]), int(facts["views"])
        if len(labels) != sums.classes or shown.shape != (len(keys), views, sums.width) or len(targets) != len(keys):
            raise DataError("the parts of these sums do not belong together")
        scale = facts["scale"] and PixelScale(*facts["scale"])
        return cls(sums, views, int(facts["most"]), labels, keys, shown, targets, scale)

    def _columns(self, labels: Sequence[Label]) -> list[int]:
        for label in labels:
            if label not in self._position:
                self._position[label] = len(self.labels)
                self.labels.append(label)
        return [self._position[label] for label in labels]

    def _worth(self, keys: Tensor) -> Tensor:
        """Which of these images may be among those that judge: most of a long stream are not."""
        if len(self.keys) < self.most:
            return torch.ones(len(keys), dtype=torch.bool)
        return keys < self.keys.max()

    def _judge(self, keys: Tensor, shown: Tensor, targets: Tensor) -> None:
        if not len(keys):
            return
        keys = torch.cat([self.keys, keys])
        order = torch.argsort(keys, stable=True)[: self.most]
        self.keys = keys[order]
        self.shown = torch.cat([self.shown, shown])[order]
        self.targets = torch.cat([self.targets, targets])[order]


def exact_classifier(method: Method) -> ExactClassifier:
    """The classifier of a method that learns from sums alone; an error that says so for another method."""
    classifier = method.classifier
    if not isinstance(classifier, ExactClassifier) or method.trains or method.memory.kind != "none":
        raise UnsupportedError(
            "this method cannot be taught from sums that were gathered elsewhere: it trains a network, or keeps more "
            "than sums over all images. Use exact, exact-auto, exact-pretrained or another one of the family exact "
            "that trains nothing"
        )
    return classifier


def nothing_gathered(method: Method, known: LearnerState, runtime: Runtime) -> Gathered:
    """Sums over no images, of the features that are known."""
    classifier = exact_classifier(method)
    width = classifier.begun(occasion(known, runtime)).sums.width
    return Gathered(FeatureSums(width).to(runtime.device), 2 if classifier.flips else 1, classifier.judged)


def occasion(known: LearnerState, runtime: Runtime) -> ClassEdit:
    """When the classifier of gathered images is made."""
    return ClassEdit((), known.network, runtime, len(known.tasks))


def with_gathered(method: Method, known: LearnerState, part: Gathered, runtime: Runtime) -> LearnerState:
    """What is known after gathered images were learned as one task; nothing is extracted."""
    classifier = exact_classifier(method)
    task = sorted(part.labels, key=lambda label: (isinstance(label, str), label))
    position = {label: column for column, label in enumerate(dict.fromkeys([*known.classes, *task]))}
    columns = [position[label] for label in part.labels]
    views, targets = part.shown.transpose(0, 1).contiguous(), torch.tensor(columns, dtype=torch.long)[part.targets]
    portion = Portion(part.sums, columns, views, targets)
    fitted = classifier.gathered(occasion(known, runtime), known.states.get("classifier"), portion)
    assert fitted.left_out is not None
    counts = torch.zeros(len(position), dtype=torch.long, device=runtime.device)
    counts[columns] = part.sums.counts.to(runtime.device) // part.views
    evidence = method.evidence.gathered(known.states.get("evidence"), counts, fitted.left_out)
    states = {**known.states, "classifier": fitted.scorer, "evidence": evidence}
    return LearnerState(known.network, known.memory, states, (*known.tasks, tuple(task))).eval()
