"""Exact methods: what they learn depends neither on the order of the classes nor on their division into tasks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from adagauss.core.learn import Learner
from adagauss.methods import methods
from tests.contracts.toy import NAMES, learner_of, quick_method, toy_images

EXACT = [name for name, info in methods().items() if info.family == "analytic"]
DIVISIONS: dict[str, Sequence[Sequence[str]]] = {
    "all at once": [NAMES],
    "one by one": [(name,) for name in NAMES],
    "in another order": [NAMES[4:], NAMES[:3], NAMES[3:4]],
}


DISCRIMINANT = {"classifier.strengths": (), "classifier.shrinkages": (0.3,)}


def learned(name: str, division: Sequence[Sequence[str]], **settings: object) -> Learner:
    """One rule for all: it is chosen by the images that come first. Features depend on no image."""
    method = quick_method(name)
    fixed: dict[str, object] = {}
    if "classifier.shrinkages" in settings:
        return taught_in(division, learner_of(quick_method(name, None, **settings)))
    if "strengths" in type(method.classifier).model_fields:
        fixed["classifier.strengths"] = (30.0,)
    if method.classifier.kind == "closed_form":
        fixed["classifier.shrinkages"] = ()
    if name == "analytic":
        fixed["classifier.group_weights"] = ((1.0, 0.5),)
    return taught_in(division, learner_of(quick_method(name, None, **fixed, **settings)))


def taught_in(division: Sequence[Sequence[str]], learner: Learner) -> Learner:
    for classes in division:
        learner.learn(toy_images().of_classes(classes))
    return learner


def solution(learner: Learner, classes: Sequence[str] = NAMES) -> Tensor:
    """Scores of the test images less their mean, as they are before evidence makes probabilities of them."""
    with torch.no_grad():
        scores: Tensor = learner.state.scorer(learner.features(toy_images(test=True).images))
    values = scores.double()[:, [learner.classes.index(name) for name in classes]]
    return values - values.mean(1, keepdim=True)


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize(("name", "rule"), [*((name, {}) for name in EXACT), ("analytic-patches", DISCRIMINANT)])
def test_tasks_and_their_order_do_not_matter(name: str, rule: dict[str, object], division: str) -> None:
    usual, other = (solution(learned(name, tasks, **rule)) for tasks in ([NAMES[:2], NAMES[2:]], DIVISIONS[division]))
    # The temperature comes from images left out when few classes were known, which differ; it scales all scores alike.
    ratio = (usual * other).sum() / other.square().sum()
    assert float((usual - ratio * other).abs().max()) < 1e-3 * float(usual.abs().max())
    assert (usual.argmax(1) == other.argmax(1)).float().mean() > 0.995
