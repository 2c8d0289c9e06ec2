"""EWC, LwF, PASS, IL2A and SSRE, each through whole tasks of small digits."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adagauss.data.dataset import load_dataset
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.learner import Learner
from adagauss.methods import make_method, method_info
from adagauss.methods.traits import dataset_layers
from adagauss.runtime import Runtime, RuntimeConfig

NAMES = ["ewc", "lwf", "pass", "il2a", "ssre"]
WORDS = ["zero", "one", "two", "three", "four", "five"]
UNEVEN = [(0, 1), (2,), (3, 4, 5)]
DIGITS = load_dataset("digits")


def digits(classes: tuple[int, ...], images: int = 24, test: bool = False) -> LabelledImages:
    """Some images of each class, with text as labels."""
    part = DIGITS.test if test else DIGITS.train
    chosen = torch.cat([torch.nonzero(part.targets == digit).flatten()[:images] for digit in classes])
    return LabelledImages.from_labels(ArrayImages(part.images.batch(chosen)), [WORDS[t] for t in part.targets[chosen]])


def learner(name: str, preset: str | None = None, epochs: int = 1, **settings: Any) -> Learner:
    """A learner of few epochs."""
    quick = {f"representation.{when}.epochs": epochs for when in ("first", "later")}
    given = {key.replace("__", "."): value for key, value in settings.items()}
    method = make_method(name, preset, {**quick, **given}, dataset_layers("digits"))
    return Learner(method, (1, 8, 8), DIGITS.mean, DIGITS.std, Runtime(RuntimeConfig(device="cpu"), seed=3))


def scores(model: Learner) -> Tensor:
    """Of held-out images of all classes."""
    return model.scores(model.features(digits((0, 1, 2, 3, 4, 5), 5, test=True).images))


def state(model: Learner) -> dict[str, Tensor]:
    """Everything that learning changes."""
    return {**model.network.state_dict(), **model.memory.state_dict(), **model.method.representation.state_dict()}


@pytest.mark.parametrize("features", [None, 16])
@pytest.mark.parametrize("name", NAMES)
def test_uneven_tasks_of_words_with_batches_smaller_than_the_features(name: str, features: int | None) -> None:
    model = learner(name, backbone__features=features, representation__later__batch_size=10)
    for index, classes in enumerate(UNEVEN):
        report = model.learn(digits(classes))
        assert all(torch.isfinite(torch.tensor(list(losses.values()))).all() for losses in report.history)
        used = {term for term, part in model.method.representation.terms.items() if part.weight and index}
        assert used <= set(report.history[0])  # from the second task on every term of the method takes part
    result = scores(model)
    assert result.shape == (30, 6)
    assert bool(torch.isfinite(result).all())
    assert set(model.predict(digits((0, 5), 5, test=True).images)) <= set(WORDS)


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_learner_predicts_and_goes_on_as_if_never_saved(name: str, tmp_path: Path) -> None:
    model = learner(name)
    for classes in UNEVEN[:2]:
        model.learn(digits(classes))
    model.save(tmp_path / "learner.safetensors")
    again = Learner.load(tmp_path / "learner.safetensors", Runtime(RuntimeConfig(device="cpu")))
    assert torch.equal(scores(again), scores(model))
    for one in (model, again):
        one.learn(digits(UNEVEN[2]))
    assert torch.equal(scores(again), scores(model))
    ours, theirs = state(model), state(again)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[key]) for key, value in ours.items())


@pytest.mark.parametrize("name", NAMES)
def test_the_previous_network_and_the_learner_survive_a_task_that_fails(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = learner(name)
    model.learn(digits((0, 1)))
    before = {key: value.clone() for key, value in state(model).items()}
    with monkeypatch.context() as patch:
        patch.setattr(type(model.method.memory), "add", _fail)
        with pytest.raises(ZeroDivisionError):
            model.learn(digits((2, 3)))
    assert all(torch.equal(value, before[key]) for key, value in state(model).items())
    assert not any(module._forward_hooks for module in model.network.modules())


def _fail(*args: object) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(("name", "preset"), [(n, p) for n in NAMES for p in method_info(n).presets])
def test_every_preset_resolves_and_learns(name: str, preset: str) -> None:
    small: dict[str, Any] = {"augmentation.resized_crop": False, "backbone.name": "convnet"}
    model = learner(name, preset, **small)
    for classes in UNEVEN[:2]:
        model.learn(digits(classes, 12))
    assert scores(model).shape == (30, 3)


@functools.cache
def kept(name: str) -> float:
    """Accuracy on the first of two tasks after the second."""
    model = learner(name, epochs=4)
    for classes in ((0, 1), (2, 3)):
        model.learn(digits(classes, 40))
    old = digits((0, 1), 50, test=True)
    return sum(a == b for a, b in zip(model.predict(old.images), old.labels, strict=True)) / len(old)


@pytest.mark.parametrize("name", NAMES)
def test_old_classes_are_kept_better_than_by_fine_tuning(name: str) -> None:
    """Fine-tuning over all outputs forgets the first task; each of these keeps a good part of it."""
    assert kept(name) > kept("finetune") + 0.2


def test_the_penalty_holds_the_weights_that_matter() -> None:
    """Over the same training, a larger λ leaves Σ F (θ − θ*)² of the second task smaller, by far."""

    def moved(weight: float) -> float:
        model = learner("ewc", epochs=4, representation__terms__ewc__weight=weight)
        model.learn(digits((0, 1), 60))
        fisher = model.method.representation.state_dict()
        before = {key: value.clone() for key, value in model.network.extractor.named_parameters()}
        model.learn(digits((2, 3), 60))
        after = dict(model.network.extractor.named_parameters())
        distances = [
            float((fisher[f"ewc.fisher.{key}"] * (after[key] - value).detach().square()).sum())
            for key, value in before.items()
        ]
        return sum(distances)

    assert moved(2e5) < 0.4 * moved(1e-6)
