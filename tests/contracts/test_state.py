"""The state of a part is saved, loaded and given to it again, in every role that has one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from adagauss.core.config import Config, Part
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learn import Learner
from adagauss.core.state import State, as_state
from adagauss.core.task import CurrentTask
from adagauss.data.dataset import load_dataset
from adagauss.methods import Method, methods
from adagauss.parts.classifiers import Classifier, LinearScorer
from adagauss.parts.memory import MeanMemory
from adagauss.parts.representation import (
    Step,
    Term,
)
from adagauss.utils.runtime import Runtime
from tests.contracts.toy import quick_method, taught, toy_tasks


class Count(State):
    """How many tasks a part has seen."""

    def __init__(self, tasks: int = 0) -> None:
        super().__init__()
        self.register_buffer("tasks", torch.tensor(tasks))
        self.tasks: Tensor

    @classmethod
    def one_more(cls, before: State | None) -> Count:
        known = as_state(before, cls)
        return cls(1 if known is None else int(known.tasks) + 1)


class FakeTerm(Term):
    def empty_state(self) -> Count:
        return Count()

    def loss(self, step: Step, before: State | None = None) -> Tensor | None:
        return None

    def finish(self, now: CurrentTask, memory: ClassGaussians, before: State | None) -> Count:
        return Count.one_more(before)


class CountingScorer(LinearScorer):
    def __init__(self, weight: Tensor, bias: Tensor, tasks: int) -> None:
        super().__init__(weight, bias)
        self.register_buffer("tasks", torch.tensor(tasks))
        self.tasks: Tensor


class FakeClassifier(Classifier):
    def empty_state(self) -> CountingScorer:
        return CountingScorer(torch.zeros(0, 0), torch.zeros(0), 0)

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> CountingScorer:
        known = as_state(before, CountingScorer)
        means = memory.means.float()
        return CountingScorer(means, -means.square().sum(1) / 2, 1 if known is None else int(known.tasks) + 1)


FAKES: dict[str, type[Part]] = {
    "term": FakeTerm,
    "classifier": FakeClassifier,
}


@pytest.fixture
def stateful() -> Iterator[Method]:
    """A method all of whose parts count the tasks they have seen; they are known by name while the test runs."""
    for role, fake in FAKES.items():
        fake.kind = "counting"
        Part._registry[role].register("counting", fake, by=fake)
    method = quick_method("frozen")
    representation = method.representation
    yield method.with_changes(
        representation=representation.with_changes(
            later=representation.first,
            terms={**representation.terms, "counting": FakeTerm()},
        ),
        memory=MeanMemory(),
        classifier=FakeClassifier(),
    )
    for role in FAKES:
        Part._registry[role].remove("counting")


def counts(learner: Learner) -> dict[str, int]:
    states = learner.state.states.items()
    return {name: int(state.get_buffer("tasks")) for name, state in states if name != "evidence"}


def test_every_role_keeps_what_it_learns_through_a_file(stateful: Method, tmp_path: Path) -> None:
    digits = load_dataset("digits")
    learner = Learner(stateful, digits.train.images.shape, digits.mean, digits.std, Runtime())
    for task in toy_tasks()[:2]:
        learner.learn(task)
    expected = {"representation/terms/counting": 2, "classifier": 2}
    assert counts(learner) == expected
    learner.save(tmp_path / "learner.safetensors")
    loaded = Learner.load(tmp_path / "learner.safetensors")
    assert counts(loaded) == expected
    loaded.learn(toy_tasks()[2])
    assert counts(loaded) == {name: tasks + 1 for name, tasks in expected.items()}


@pytest.mark.parametrize("name", sorted(methods()))
def test_a_specification_holds_no_tensor_and_cannot_be_changed(name: str) -> None:
    method = quick_method(name)
    for part in method.parts().values():
        assert not part.__private_attributes__, f"{part!r} has private attributes"
        for field, value in dict(part).items():
            assert not isinstance(value, Tensor)
            with pytest.raises(ValueError, match="frozen"):
                setattr(part, field, value)


def test_specifications_compare_and_hash_by_their_settings() -> None:
    one, same, other = quick_method("adagauss"), quick_method("adagauss"), quick_method("adagauss+")
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert isinstance(one, Config)


def test_whoever_took_the_knowledge_before_a_task_goes_on_with_it() -> None:
    learner = taught("adagauss", tasks=1)
    before = learner.state
    tensors = {name: tensor.clone() for name, tensor in before.state_dict().items()}
    learner.learn(toy_tasks()[1])
    assert before.classes == ["zero", "one"]
    assert learner.state is not before
    for name, tensor in before.state_dict().items():
        assert torch.equal(tensor, tensors[name]), f"{name} was changed in place"


def test_predicts_one_whole_state_from_another_thread_while_a_task_is_learned() -> None:
    learner = taught("adagauss", tasks=1)
    images = toy_tasks()[0].images
    seen: list[int] = []
    failed: list[Exception] = []
    first, done = threading.Event(), threading.Event()

    def read() -> None:
        try:
            while True:
                stop = done.is_set()
                seen.append(learner.predictions(images).probabilities.shape[1])
                first.set()
                if stop:
                    return
        except Exception as error:
            failed.append(error)
            first.set()

    reader = threading.Thread(target=read)
    reader.start()
    first.wait()
    learner.learn(toy_tasks()[1])
    done.set()
    reader.join()
    assert not failed
    assert (seen[0], seen[-1]) == (2, 3)
    assert set(seen) == {2, 3}
