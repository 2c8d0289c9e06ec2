"""FeTrIL, FeCAM, ACIL, DS-AL, frozen nearest means and DPCR, each through whole tasks of small digits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from adagauss.backbones import Extractor
from adagauss.data.dataset import dataset_info, load_dataset
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.errors import ConfigError
from adagauss.learner import Learner
from adagauss.methods import make_method
from adagauss.methods.traits import dataset_layers
from adagauss.runtime import Runtime

FROZEN = [("frozen", None), ("fetril", None), ("fetril", "fc"), ("fecam", None), ("acil", None), ("dsal", None)]
ALL = [*FROZEN, ("dpcr", None), ("dpcr", "signed")]
NAMES = ["zero", "one", "two", "three", "four", "five"]
UNEVEN = [(0, 1), (2,), (3, 4, 5)]
DIGITS = load_dataset("digits")


def digits(classes: tuple[int, ...], images: int = 30, test: bool = False) -> LabelledImages:
    """Some images of each class, with text as labels."""
    part = DIGITS.test if test else DIGITS.train
    chosen = torch.cat([torch.nonzero(part.targets == digit).flatten()[:images] for digit in classes])
    labels = [NAMES[int(target)] for target in part.targets[chosen]]
    return LabelledImages.from_labels(ArrayImages(part.images.batch(chosen)), labels)


def learner(name: str, preset: str | None, epochs: int = 1, **settings: object) -> Learner:
    """A learner of few epochs and batches smaller than its features."""
    later = {} if (name, preset) in FROZEN else {"representation.later.epochs": epochs}
    quick = {"representation.first.epochs": epochs, "representation.first.batch_size": 8, **later}
    small = {"classifier.buffer": 48} if name in ("acil", "dsal") else {}
    fc = {"classifier.recipe.epochs": 20} if preset == "fc" else {}
    given = {key.replace("__", "."): value for key, value in settings.items()}
    method = make_method(name, preset, {**quick, **small, **fc, **given}, dataset_layers("digits"))
    return Learner(method, DIGITS.train.images.shape, DIGITS.mean, DIGITS.std, Runtime(seed=3))


def scores(model: Learner) -> Tensor:
    """Of held-out images of all classes."""
    return model.scores(model.features(digits((0, 1, 2, 3, 4, 5), 5, test=True).images))


@pytest.mark.parametrize(("name", "preset"), ALL)
def test_uneven_tasks_are_learned_better_than_by_chance(name: str, preset: str | None) -> None:
    model = learner(name, preset, epochs=4)
    for classes in UNEVEN:
        model.learn(digits(classes))
    test = digits((0, 1, 2, 3, 4, 5), 20, test=True)
    predicted = model.predict(test.images)
    right = sum(guess == label for guess, label in zip(predicted, test.labels, strict=True))
    assert sorted(map(str, model.classes)) == sorted(NAMES)
    assert right / len(predicted) > 2 / 6
    assert bool(torch.isfinite(scores(model)).all())


@pytest.mark.parametrize(("name", "preset"), ALL)
def test_a_first_task_of_one_class_and_no_images_to_predict(name: str, preset: str | None) -> None:
    model = learner(name, preset)
    for classes in ((0,), (1,), (2, 3)):
        model.learn(digits(classes, 12))
    assert scores(model).shape == (30, 4)
    assert bool(torch.isfinite(scores(model)).all())
    assert model.scores(torch.zeros(0, model.network.extractor.size)).shape == (0, 4)


@pytest.mark.parametrize(("name", "preset"), ALL)
def test_a_saved_learner_goes_on_as_if_it_had_never_been_saved(name: str, preset: str | None, tmp_path: Path) -> None:
    model = learner(name, preset)
    for classes in UNEVEN[:2]:
        model.learn(digits(classes))
    model.save(tmp_path / "learner.safetensors")
    again = Learner.load(tmp_path / "learner.safetensors")
    assert torch.equal(scores(again), scores(model))
    model.learn(digits(UNEVEN[2]))
    again.learn(digits(UNEVEN[2]))
    assert torch.equal(scores(again), scores(model))


@pytest.mark.parametrize(("name", "preset"), FROZEN)
def test_a_frozen_extractor_sees_each_image_of_a_later_task_once(
    name: str, preset: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = learner(name, preset)
    model.learn(digits((0, 1)))
    before = {key: value.clone() for key, value in model.network.state_dict().items()}
    passed: list[int] = []
    forward = Extractor.forward

    def counted(self: Extractor, images: Tensor) -> Tensor:
        passed.append(len(images))
        return forward(self, images)

    monkeypatch.setattr(Extractor, "forward", counted)
    model.learn(digits((2, 3)))
    assert passed == [60]
    after = model.network.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())


@pytest.mark.parametrize("name", ["fetril", "acil", "dsal"])
def test_signed_features_serve_the_methods_that_take_no_roots(name: str) -> None:
    model = learner(name, None, backbone__features=16)
    for classes in UNEVEN[:2]:
        model.learn(digits(classes))
    assert bool((model.features(digits((0,)).images) < 0).any())
    assert bool(torch.isfinite(scores(model)).all())


def test_fecam_names_the_remedy_where_features_are_negative() -> None:
    model = learner("fecam", None, backbone__features=16)
    with pytest.raises(ConfigError, match=r"backbone\.features=null"):
        model.learn(digits((0, 1)))
    assert model.classes == []


@pytest.mark.parametrize("name", ["fetril", "fecam", "acil", "dsal", "dpcr"])
def test_a_datasets_bottleneck_is_not_forced_on_methods_without_one(name: str) -> None:
    assert dataset_info("digits").settings["backbone.features"] == 16
    assert make_method(name, layers=dataset_layers("digits")).backbone.features is None
