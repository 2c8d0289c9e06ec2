"""Methods whose extractor is frozen after the first task."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from adagauss.backbones import Extractor
from adagauss.methods import make_method, methods
from tests.contracts.toy import IMAGES, LEARNING, accuracy, longer, same, taught, thorough, toy_tasks

FROZEN = [
    (name, preset)
    for name in LEARNING
    if make_method(name).representation.later is None
    for preset in (None, *methods()[name].presets)
]


def test_these_are_among_them() -> None:
    assert {name for name, _ in FROZEN} >= {"acil", "dsal", "fecam", "fetril", "frozen"}


@pytest.mark.parametrize(("name", "preset"), FROZEN)
def test_a_frozen_extractor_sees_each_image_of_a_later_task_once(
    name: str, preset: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = taught(name, 1, preset)
    before = {key: value.clone() for key, value in learner.network.state_dict().items()}
    passed: list[int] = []
    forward = Extractor.forward

    def counted(self: Extractor, images: Tensor, *given: Any, **settings: Any) -> Tensor:
        passed.append(len(images))
        return forward(self, images, *given, **settings)

    monkeypatch.setattr(Extractor, "forward", counted)
    learner.learn(toy_tasks()[1])
    assert passed == [IMAGES]
    assert same(before, dict(learner.network.state_dict()))


@pytest.mark.parametrize("name", [*thorough(sorted({name for name, _ in FROZEN})), "dpcr"])
def test_uneven_tasks_are_learned_better_than_by_chance(name: str) -> None:
    assert accuracy(taught(name, 3, **longer(name))) > 2 / 6
