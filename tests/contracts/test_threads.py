"""Several threads of one process learn at once: each gets, to the bit, what it would have got alone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.backbones.resnet import ConvNet
from adagauss.core.learn import Learner
from adagauss.utils.runtime import Runtime
from tests.contracts.toy import digits, quick_method, same, state, toy_tasks

METHODS = ("adagauss", "efc++")


@pytest.fixture(autouse=True)
def _impatient_threads() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(autouse=True)
def _dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that draws random numbers whenever it is trained."""
    plain = ConvNet.forward

    def forward(self: ConvNet, images: Tensor) -> Tensor:
        return F.dropout(plain(self, images), 0.1, self.training)

    monkeypatch.setattr(ConvNet, "forward", forward)


def learn(name: str, seed: int) -> dict[str, Tensor]:
    learner = Learner(quick_method(name), digits().train.images.shape, digits().mean, digits().std, Runtime(seed=seed))
    for task in toy_tasks()[:2]:
        learner.learn(task)
    return state(learner)


@pytest.mark.parametrize("name", METHODS)
def test_two_threads_that_learn_at_once_get_what_each_would_get_alone(name: str) -> None:
    alone = [learn(name, seed) for seed in (0, 1)]
    assert not same(*alone)
    together: dict[int, dict[str, Tensor]] = {}
    start = threading.Barrier(2)

    def work(seed: int) -> None:
        start.wait()
        together[seed] = learn(name, seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in (0, 1):
        assert same(together[seed], alone[seed]), f"seed {seed} learned something else in parallel with another thread"


def test_learning_leaves_the_random_numbers_of_the_caller_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    learn("adagauss", 0)
    assert torch.equal(torch.rand(3), expected)
