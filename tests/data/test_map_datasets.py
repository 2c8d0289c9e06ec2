"""Datasets of torch and Hugging Face, float images and any number of channels."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from adagauss import Learner
from adagauss.data.augment import Augmentation
from adagauss.data.dataset import Dataset
from adagauss.data.fingerprint import fingerprint
from adagauss.data.images import ArrayImages, ConcatImages, LabelledImages, Subset
from adagauss.data.inputs import labelled_images, pixel_statistics
from adagauss.errors import ConfigError, DataError
from adagauss.methods import make_method

ROWS = torch.arange(4)


class Items:
    """A dataset of given items, as Hugging Face's: with features, if class names are given."""

    def __init__(self, *items: Any, length: int | None = None, names: list[str] | None = None) -> None:
        self.items, self.length = items, length or len(items)
        self.features = {"label": type("ClassLabel", (), {"names": names})()} if names else None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def floats(channels: int = 5, count: int = 4) -> torch.Tensor:
    return torch.rand(count, channels, 9, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_dataset_of_torch_with_float_images_of_five_channels(in_memory: bool) -> None:
    pixels, labels = floats(), torch.tensor([2, 7, 7, 2])
    data = labelled_images(TensorDataset(pixels, labels), in_memory=in_memory)
    assert (data.classes, data.labels, data.images.shape) == ((2, 7), [2, 7, 7, 2], (5, 9, 8))
    assert torch.equal(data.images.batch(ROWS), pixels * 255)
    again = pickle.loads(pickle.dumps(data.images))
    assert torch.equal(again.batch(ROWS), pixels * 255)
    assert data.images.batch(torch.arange(0)).shape == (0, 5, 9, 8)


@pytest.mark.parametrize("layout", ["hwc", "chw", "picture"])
def test_items_of_hugging_face_are_dictionaries_with_class_names(layout: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 9, 8, 3), dtype=np.uint8)
    shown: dict[str, Callable[[Any], Any]] = {
        "hwc": lambda one: one,
        "chw": lambda one: torch.from_numpy(one).permute(2, 0, 1),
        "picture": Image.fromarray,
    }
    items = [{"img": shown[layout](one), "label": label} for one, label in zip(pixels, (1, 0), strict=True)]
    data = labelled_images(Items(*items, names=["owl", "wren"]), image="img")
    assert data.labels == ["wren", "owl"]
    assert torch.equal(data.images.batch(torch.arange(2)), torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert data.images.batch(torch.arange(2)).dtype == torch.uint8


PLAIN = torch.zeros(1, 4, 4)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Items(), "Items must have a length above 0 and items by position"),
        (iter([1]), "must have a length above 0 and items by position"),
        (Items((PLAIN, 0), length=3), r"item 1 of 3 has no image and label \(IndexError"),
        (
            Items({"image": PLAIN, "fine": 0}),
            r"item 0 of 1 has no image and label \(KeyError: 'label'\): give pairs, or",
        ),
        (Items(PLAIN[0, 0, 0]), "item 0 of 1 has no image and label"),
        (Items((PLAIN, 0), (PLAIN[:, :3], 0)), r"image 1 is torch.float32 of shape \(1, 3, 4\), image 0 .*: bring all"),
        (Items((PLAIN, 0), (PLAIN.byte(), 0)), r"image 1 is torch.uint8 of shape"),
        (Items((PLAIN - 2, 0)), r"image 0: float images must lie in 0..1, these lie in -2..-2.*leave it out"),
        (Items((PLAIN / 0, 0)), "image 0: 1 of 1 images hold NaN"),
        (Items((PLAIN.bool(), 0)), "image 0 hold True and False"),
        (Items((PLAIN.to(torch.complex64), 0)), "image 0 must hold numbers"),
        (Items((PLAIN.int() + 300, 0)), r"image 0: integer images must lie in 0..255"),
        (Items(("a.png", 0)), "image 0 is str: it must be a PIL image, an array or a tensor"),
        (Items((PLAIN, None)), "the label of item 0 is None: give one class for each image"),
        (Items((PLAIN, torch.tensor([0, 1]))), r"the label of item 0 is tensor\(\[0, 1\]\): give one class"),
        (Items((PLAIN, float("nan"))), "the label of item 0 is nan"),
        (
            Items({"image": PLAIN, "label": -1}, names=["a"]),
            "the label of item 0 is -1, and the dataset has 1 class",
        ),
    ],
)
def test_a_dataset_that_cannot_be_used_says_why(dataset: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        labelled_images(dataset)


def test_a_dataset_is_normalised_by_its_training_pixels() -> None:
    pixels, labels = floats(), torch.tensor([0, 1, 1, 0])
    data = Dataset.of("mine", TensorDataset(pixels, labels), TensorDataset(pixels, labels + torch.tensor([0, 0, 0, 2])))
    assert data.test.labels == [0, 1, 1]
    assert data.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist())
    assert data.std == pytest.approx(pixels.transpose(0, 1).flatten(1).std(1, correction=0).tolist())
    assert fingerprint(data) == fingerprint(data)
    with pytest.raises(DataError, match="mine: class 1 has no test image"):
        Dataset.of("mine", data.train, TensorDataset(pixels, 0 * labels))


def test_floats_of_one_dataset_are_not_rounded_anywhere() -> None:
    images = ArrayImages.of_floats(floats())
    both = ConcatImages([images, Subset(images, ROWS.flip(0))])
    assert torch.equal(both.batch(torch.tensor([0, 7])), (floats() * 255)[[0, 0]])
    changes = Augmentation(crop_padding=0).draw(4, (9, 8), torch.Generator().manual_seed(0))
    plain = floats() * 255 / 255
    expected = torch.where(changes.flips(4).view(-1, 1, 1, 1), plain.flip(-1), plain)
    assert torch.equal(changes.read(images, ROWS, torch.device("cpu")), expected)
    assert pixel_statistics(images)[0] == pytest.approx(floats().mean((0, 2, 3)).tolist())


def test_a_learner_of_floats_of_five_channels() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(4).repeat(12)
    pixels = (labels.view(-1, 1, 1, 1) / 1000 + torch.rand(48, 5, 8, 8, generator=generator) / 2000).clamp(0, 1)
    data = LabelledImages.from_labels(ArrayImages.of_floats(pixels), labels.tolist())
    mean, std = pixel_statistics(data.images)
    settings = {"backbone.name": "convnet", "augmentation.policy": "none", "augmentation.brightness": 0}
    method = make_method("fecam", settings=settings, epochs=8)
    learner = Learner(method, data.images.shape, mean, std)
    for classes in ((0, 1), (2, 3)):
        learner.learn(data.of_classes(classes))
    predicted = learner.predict(data.images)
    accuracy = sum(a == b for a, b in zip(predicted, data.labels, strict=True)) / len(predicted)
    assert accuracy > 0.5, "all images are the same grey level of 256"
    brighter = make_method("fecam", settings={"augmentation.policy": "trivial", "augmentation.brightness": 0.1})
    with pytest.raises(ConfigError, match=r"set augmentation.policy=none, augmentation.brightness=0.0$"):
        Learner(brighter, data.images.shape, mean, std).learn(data)
