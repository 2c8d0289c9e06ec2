"""Groups of images that are held out together: detection of near-duplicates, and what users name."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from adagauss import IncrementalClassifier
from adagauss.core.calibration import holdout_mask
from adagauss.core.near_duplicates import near_duplicates, rows_by_size, sketched, whole_groups
from adagauss.data.images import ArrayImages
from adagauss.data.inputs import Array, NamedImages
from adagauss.errors import DataError

SETTINGS = {"backbone.options.filters": 20, "backbone.options.patches": 500}


def bursts(copies: int, noise: float, size: int = 60) -> tuple[Tensor, Tensor]:
    """Features of 3 classes of 12 objects, and copies of each that differ by noise."""
    generator = torch.Generator().manual_seed(0)
    targets = (torch.arange(36) % 3).repeat_interleave(copies)
    objects = 1 + torch.randn(36, size, generator=generator).repeat_interleave(copies, 0)
    return objects + noise * torch.randn(len(objects), size, generator=generator), targets


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.25])
def test_near_duplicates_are_found(noise: float) -> None:
    features, targets = bursts(5, noise)
    groups = near_duplicates(sketched(features), targets)
    assert torch.equal(torch.unique(groups, return_inverse=True)[1], torch.arange(36).repeat_interleave(5))


@pytest.mark.parametrize("size", [10, 30, 200])
def test_images_of_different_objects_are_not_near_duplicates(size: int) -> None:
    """In few dimensions neighbours are closer."""
    features, targets = 4 + torch.randn(600, size, generator=torch.Generator().manual_seed(1)), torch.arange(600) % 3
    groups = near_duplicates(sketched(features), targets)
    assert len(torch.unique(groups)) > 570


@pytest.mark.parametrize("targets", [[0], [0, 1], [0, 0], [0, 0, 1]])
def test_few_or_equal_images_have_groups(targets: list[int]) -> None:
    groups = near_duplicates(sketched(torch.ones(len(targets), 8)), torch.tensor(targets))
    assert len(groups) == len(targets)


def test_a_sample_is_of_whole_groups() -> None:
    groups = torch.tensor([0, 0, 0, 1, 1, 2, 3, 4])
    order = torch.tensor([3, 7, 0, 6, 1, 2, 4, 5])
    assert whole_groups(order, torch.arange(8), 4, 8).tolist() == [3, 7, 0, 6]
    assert whole_groups(order, groups, 4, 8).tolist() == [3, 4, 7, 0, 1, 2]
    assert whole_groups(order, groups, 4, 4).tolist() == [3, 4, 7, 6]  # the group of three does not fit
    assert [rows.tolist() for rows in rows_by_size(groups)] == [[[5], [6], [7]], [[3, 4]], [[0, 1, 2]]]


def test_the_holdout_split_is_of_whole_groups() -> None:
    targets, groups = torch.arange(60) % 2, torch.arange(60) // 6
    held = ~holdout_mask(targets, 0.1, torch.Generator().manual_seed(0), groups)
    assert torch.bincount(targets[held]).tolist() == [3, 3]
    for target in range(2):
        assert len(set(groups[held & (targets == target)].tolist())) == 1


def noise_with_copies(copies: int) -> tuple[Array, list[str]]:
    """Images of noise, whose labels mean nothing, and copies of each."""
    pixels = np.random.default_rng(0).integers(0, 256, (60, 12, 12, 3), dtype=np.uint8)
    return pixels.repeat(copies, 0), [label for index in range(60) for label in ["abc"[index % 3]] * copies]


def test_copies_do_not_make_estimates_optimistic() -> None:
    classifier = IncrementalClassifier("analytic-patches", settings=SETTINGS).fit(*noise_with_copies(4))
    assert all(one.images == 80 and (one.expected_accuracy or 0) < 0.6 for one in classifier.summary())


def test_the_groups_of_the_user_replace_detection() -> None:
    images, labels = noise_with_copies(4)
    alone = IncrementalClassifier("analytic-patches", settings=SETTINGS)
    alone.fit(images, labels, groups=list(range(len(labels))))
    assert all((one.expected_accuracy or 0) > 0.9 for one in alone.summary())  # a copy of each image is in the sums
    noisy = np.clip(images + np.random.default_rng(1).integers(-90, 90, images.shape), 0, 255).astype(np.uint8)
    named = IncrementalClassifier("analytic-patches", settings=SETTINGS)
    named.fit(noisy, labels, groups=np.arange(len(labels)) // 4)
    assert all((one.expected_accuracy or 0) < 0.6 for one in named.summary())


def test_a_class_of_one_burst_has_no_estimate_and_a_warning() -> None:
    images, labels = noise_with_copies(2)
    labels[-20:] = ["single"] * 20
    groups = [*range(100), *[100] * 20]
    with pytest.warns(UserWarning, match="class 'single' are one group, so .* cannot be estimated"):
        classifier = IncrementalClassifier("analytic-patches", settings=SETTINGS).fit(images, labels, groups=groups)
    assert {one.label for one in classifier.summary() if one.expected_accuracy is None} == {"single"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier.partial_fit(images[:20], ["single"] * 20, groups=[0] * 20)  # now it has two


def files(folder: Path) -> Path:
    images, labels = noise_with_copies(2)
    for index, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / label / f"object{index // 6}" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ("^track(.*)_", "matches none of 120 file names, such as 'object0/0.png'"),
        ("(", "not a regular expression"),
        ("", "the pattern is empty"),
        ([1, 2], "120 images but 2 groups"),
    ],
)
def test_groups_that_cannot_be_right_are_refused(groups: object, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        IncrementalClassifier("analytic-patches", settings=SETTINGS).fit(files(tmp_path), groups=groups)  # type: ignore[arg-type]


def test_a_pattern_names_the_folders_of_objects(tmp_path: Path) -> None:
    read = NamedImages(ArrayImages(torch.zeros(3, 1, 2, 2)), ("b/1.png", "a/2.png", "b/3.png"), torch.arange(3), 3)
    found = read.grouped("^([^/]+)/")
    assert found is not None
    assert found.tolist() == [0, 1, 0]
    classifier = IncrementalClassifier("analytic-patches", settings=SETTINGS)
    classifier.fit(files(tmp_path), groups="^[^/]+/")
    assert all(one.expected_accuracy is not None for one in classifier.summary())
    with pytest.warns(UserWarning, match=r"class 'a', 'b', 'c' are one group of the pattern '\^obj'"):
        classifier.fit(files(tmp_path), groups="^obj")
