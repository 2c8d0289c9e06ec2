"""Every memory with every drift and every classifier: refused when the method is made, or learns two tasks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest
import torch

from adagauss.core.config import Part, flatten, override, plain
from adagauss.core.learn import Learner
from adagauss.data.dataset import load_dataset
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.errors import ConfigError
from adagauss.methods import Method
from adagauss.utils.runtime import Runtime
from tests.contracts.toy import NAMES, QUICK, quick_method, toy_images
from tests.faults.budget import TORTURE

KINDS = {role: sorted(Part.kinds(role)) for role in ("memory", "drift", "classifier")}
BASES = {
    "moving": (
        "finetune",
        {
            "representation.terms.feature_matrix.kind": "feature_matrix",
            "representation.terms.cycle_distillation.kind": "cycle_distillation",
        },
    ),
    "frozen": ("frozen", {}),
}
"""Representations that provide all that a drift or a classifier may need of them, but for one thing each."""
TINY = {
    **QUICK,
    "representation.first.epochs": 1,
    "representation.later.epochs": 1,
    "drift.recipe.epochs": 1,
    "drift.min_steps": 0,
    "drift.candidates": 4,
    "drift.iterations": 1,
    "classifier.recipe.epochs": 1,
    "classifier.views": 1,
    "classifier.expansion_size": 32,
}


def with_kinds(base: str, kinds: Mapping[str, str]) -> Method:
    """A method of parts of the given kinds, made small."""
    name, settings = BASES[base]
    spec = override(plain(quick_method(name)), {**settings, **kinds})
    fields = {
        f"{role}.{field}": TINY[f"{role}.{field}"]
        for role in KINDS
        for field in flatten(plain(Part.build(role, spec[role])))
        if f"{role}.{field}" in TINY
    }
    return Method.of(override(spec, {**fields, "representation.first.epochs": 1}))


def made_or_refused(base: str, kinds: Mapping[str, str]) -> Method | None:
    """The method, or None if it is refused because one part needs what another does not provide."""
    try:
        return with_kinds(base, kinds)
    except ConfigError as error:
        if "needs" not in str(error):
            raise
        return None


def few_images() -> list[LabelledImages]:
    """Two tasks of two and one classes with eight images each."""
    data = toy_images().of_classes(NAMES[:3])
    rows = torch.cat([torch.nonzero(data.targets == target).flatten()[:8] for target in range(3)])
    images = ArrayImages(data.images.batch(rows))
    small = LabelledImages(images, data.targets[rows], data.classes)
    return [small.of_classes(NAMES[:2]), small.of_classes(NAMES[2:3])]


@pytest.mark.parametrize(("base", "drift"), [("frozen", "none"), *(("moving", kind) for kind in KINDS["drift"])])
def test_a_combination_is_refused_at_once_or_learns_two_tasks(base: str, drift: str) -> None:
    digits, tasks = load_dataset("digits"), few_images()
    worked = 0
    # A classifier does not depend on the drift, only on the memory: without drift, all classifiers are tried.
    classifiers = KINDS["classifier"] if drift == "none" or TORTURE > 1 else ["bayes", "nearest_mean"]
    for memory, classifier in product(KINDS["memory"], classifiers):
        kinds = {"memory.kind": memory, "drift.kind": drift, "classifier.kind": classifier}
        method = made_or_refused(base, kinds)
        if method is None:
            continue
        learner = Learner(method, digits.train.images.shape, digits.mean, digits.std, Runtime())
        for task in tasks:
            learner.learn(task)
        values = learner.scores(learner.features(tasks[1].images))
        assert values.shape[1] == 3, (memory, drift, classifier)
        assert torch.isfinite(values).all(), (memory, drift, classifier)
        worked += 1
    assert worked


@pytest.mark.parametrize(
    ("method", "settings", "need"),
    [
        ("sdc", {"classifier.kind": "ridge"}, "covariance of each class"),
        ("sdc", {"drift.kind": "dual_projection"}, "covariance of each class"),
        ("lwf", {"drift.kind": "efc", "memory.kind": "means"}, "feature matrix"),
        ("finetune", {"classifier.kind": "nearest_mean"}, "mean of each class"),
        ("adagauss", {"classifier.kind": "learned_head"}, "outputs of every task"),
        ("adagauss", {"classifier.kind": "analytic"}, "are fixed"),
        ("adagauss", {"classifier.tukey": 0.5}, "never negative"),
    ],
)
def test_what_cannot_work_is_refused_with_the_way_out(method: str, settings: dict[str, str], need: str) -> None:
    with pytest.raises(ConfigError, match=need) as refusal:
        quick_method(method, **settings)
    assert "set " in str(refusal.value) or "add " in str(refusal.value) or "use " in str(refusal.value)
