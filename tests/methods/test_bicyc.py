"""BiCyc: an adapter that is trained with the network, and the drift that starts from it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagauss.core.config import plain
from adagauss.core.task import CurrentTask
from adagauss.core.train import Recipe
from adagauss.errors import ConfigError, UnsupportedError
from adagauss.methods import make_method
from adagauss.methods.bicyc import CycleDistillation, FineTunedAdapter, _Cycle, cosine_error
from tests.contracts.toy import toy_learner, toy_tasks


def test_the_error_of_cosines() -> None:
    one, other = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)).unbind()
    cosines = [torch.stack([F.cosine_similarity(row[None], x) for row in x]) for x in (one, other)]
    torch.testing.assert_close(cosine_error(one, other), (cosines[0] - cosines[1]).square().mean())
    assert float(cosine_error(one, 3 * one)) == pytest.approx(0, abs=1e-12)


class Features:
    """What a term reads of a `Step`."""

    def __init__(self) -> None:
        self.features = torch.randn(8, 3, requires_grad=True)
        self.previous_features = torch.randn(8, 3)


def test_only_the_distiller_sends_gradients_to_the_network() -> None:
    def backbone_gradient(**weights: float) -> Tensor | None:
        torch.manual_seed(0)
        module, step = _Cycle(CycleDistillation(**{"both_ways": 0, "cycle": 0, "pairs": 0} | weights), 3), Features()
        module(step).backward()
        return step.features.grad

    torch.manual_seed(0)
    module, step = _Cycle(CycleDistillation(), 3), Features()
    error = F.mse_loss(module.get_submodule("distiller")(step.features), step.previous_features)
    expected = torch.autograd.grad(error, step.features)[0]
    found = backbone_gradient(both_ways=1)
    assert found is not None
    torch.testing.assert_close(found, expected)
    assert not torch.any(backbone_gradient(cycle=1))  # type: ignore[arg-type]


def test_the_drift_starts_from_the_adapter_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Tensor, Tensor]] = []
    initial = FineTunedAdapter.initial_map

    def noted(self: FineTunedAdapter, now: CurrentTask, size: int) -> nn.Module:
        network = initial(self, now, size)
        trained = now.trained["distillation"].get_submodule("adapter")
        assert not trained.training
        started.extend(zip(network.parameters(), trained.parameters(), strict=True))
        return network

    monkeypatch.setattr(FineTunedAdapter, "initial_map", noted)
    learner = toy_learner("bicyc")
    for task in toy_tasks()[:2]:
        learner.learn(task)
    assert started
    assert not any(mine is theirs for mine, theirs in started)


def test_it_is_adagauss_as_published_but_for_two_parts() -> None:
    ours, base = plain(make_method("bicyc")), plain(make_method("adagauss"))
    assert ours["representation"]["terms"].pop("distillation")["both_ways"] == 5
    assert base["representation"]["terms"].pop("distillation")["weight"] == 10
    assert ours["drift"].pop("kind") != base["drift"].pop("kind")
    assert ours == base


def test_without_its_term_the_drift_says_what_to_add() -> None:
    with pytest.raises(ConfigError, match=r"needs an adapter that is trained with the network.*cycle_distillation"):
        make_method("adagauss", settings={"drift.kind": "fine_tuned_adapter"})


def test_a_drift_without_the_trained_adapter_is_one_message() -> None:
    class Rescored:
        trained: dict[str, nn.Module] = {}  # noqa: RUF012

    part: Any = FineTunedAdapter(recipe=Recipe(epochs=1))
    with pytest.raises(UnsupportedError, match=r"not stored.*drift.kind=adapter"):
        part.initial_map(Rescored(), 3)
