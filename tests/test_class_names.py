"""Composed and decomposed forms of a name (Unicode NFC and NFD) are one class, wherever it is given."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adagauss import IncrementalClassifier
from adagauss.analytic.batches import teach_shards
from adagauss.core.learn import Learner
from adagauss.data.dataset import ReadOptions, load_dataset
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.data.stream import class_order
from adagauss.deploy.serve.model import Model
from adagauss.utils.checkpoint import load_tensors, save_tensors
from adagauss.utils.progress import Reporter
from tests.conftest import WriteImage
from tests.shards.conftest import packed, png

NFC, NFD = (unicodedata.normalize(form, "Kohlröschen") for form in ("NFC", "NFD"))
RNG = np.random.default_rng(0)


def noise(level: int, count: int = 6) -> Any:
    return RNG.integers(level, level + 60, (count, 12, 12, 3), dtype=np.uint8)


def classifier() -> IncrementalClassifier:
    settings = {"backbone.options.filters": 20, "backbone.options.patches": 200}
    return IncrementalClassifier("analytic-patches", settings=settings)


def taught() -> IncrementalClassifier:
    """Taught with both forms and another class."""
    return classifier().fit(noise(0), [NFC] * 3 + [NFD] * 3).partial_fit(noise(100), ["ant"] * 6)


def counts(one: IncrementalClassifier) -> dict[Any, int]:
    return {summary.label: summary.images for summary in one.summary()}


def write_both(folder: Path, write_image: WriteImage) -> Path:
    for seed, name in enumerate((NFC, NFD, "ant", "ant")):
        for number in range(3):
            write_image(folder / name / f"{seed}{number}.png", seed=10 * seed + number, size=(12, 12))
    return folder


def test_labels_in_python() -> None:
    one = taught().partial_fit(noise(0), NFD)
    assert counts(one) == {NFC: 12, "ant": 6}
    assert one.score(noise(0, 2), [NFD, NFC]) == one.score(noise(0, 2), NFC)
    assert one.rename(NFD, "moth").rename("moth", NFD).classes_.tolist() == [NFC, "ant"]
    assert one.forget(NFD).classes_.tolist() == ["ant"]


def test_images_of_a_class_to_forget() -> None:
    images = noise(0)
    one = classifier().fit(images, NFC).partial_fit(noise(100), "ant").forget(NFD, images={NFD: images})
    assert one.classes_.tolist() == ["ant"]
    assert taught().merge_classes(NFD, "ant").classes_.tolist() == [NFC]


def test_folders(tmp_path: Path, write_image: WriteImage) -> None:
    folder = write_both(tmp_path, write_image)
    one = classifier().fit(folder)
    assert counts(one) == {NFC: 6, "ant": 6}
    assert one.score(folder) > 0
    assert one.forget(NFD, images=folder).classes_.tolist() == ["ant"]
    dataset = load_dataset(f"folder:{folder}", ReadOptions(size=12))
    assert set(dataset.classes) == {NFC, "ant"}
    assert sorted(dataset.train.counts().tolist() + dataset.test.counts().tolist()) == [1, 2, 4, 5]


def test_a_dataset_with_its_own_split(tmp_path: Path, write_image: WriteImage) -> None:
    for part, names in (("train", (NFC, "Kohlsprosse")), ("test", (NFD, "Kohlsprosse"))):
        for name in names:
            write_image(tmp_path / part / name / "a.png", seed=len(unicodedata.normalize("NFC", name)))
    dataset = load_dataset(f"folder:{tmp_path}", ReadOptions(size=12))
    assert set(dataset.train.classes) == {NFC, "Kohlsprosse"}
    for target in range(2):
        one, other = (
            part.images.batch((part.targets == target).nonzero()[:, 0]) for part in (dataset.train, dataset.test)
        )
        assert one.equal(other)


def test_class_orders() -> None:
    assert class_order([NFD, "ant"], ["ant", NFC]) == class_order([NFC, "ant"], ["ant", NFD]) == [1, 0]


def test_shards(tmp_path: Path, write_image: WriteImage) -> None:
    learner = taught().learner_.empty_like()
    write_both(tmp_path / "classes", write_image)
    members: list[tuple[str, bytes]] = []
    for number, name in enumerate((NFC, NFD)):
        label = json.dumps({"label": name}).encode()
        members += [(f"{number}.png", png(noise(0, 1)[0])), (f"{number}.json", label)]
    np.savez(tmp_path / "x.npz", images=noise(0, 2), labels=np.array([NFD, NFC]))
    teach_shards(learner, [tmp_path / "classes", packed(tmp_path / "x.tar", members), tmp_path / "x.npz"])
    assert {one.label: one.images for one in learner.summary()} == {NFC: 10, "ant": 6}


def test_the_server() -> None:
    model = Model(taught())
    after = model.taught(list(noise(0, 2).transpose(0, 3, 1, 2)), [NFD, NFC], Reporter())
    assert counts(after.classifier) == {NFC: 8, "ant": 6}
    assert [*after.renamed(NFD, "moth").labels] == ["ant", "moth"]
    assert [*after.forgot([NFD]).labels] == ["ant"]


@pytest.mark.parametrize("both", [False, True])
def test_a_file_with_a_decomposed_name(tmp_path: Path, both: bool) -> None:
    learner = Learner(classifier()._method(False), (3, 12, 12), [0.5] * 3, [0.5] * 3)
    labels = ["x", NFC if both else "y"]
    for level, label in zip((0, 100), labels, strict=True):
        learner.learn(LabelledImages.from_labels(ArrayImages(noise(level)), [label] * 6))
    learner.save(tmp_path / "new")
    tensors, facts = load_tensors(tmp_path / "new", "learner")
    facts = json.loads(json.dumps(facts).replace('"x"', json.dumps(NFD)))
    save_tensors(tmp_path / "old", "learner", tensors, facts)
    old = Learner.load(tmp_path / "old")
    # Two forms that version 0.2.0 kept apart stay apart.
    assert old.classes == ([NFD, NFC] if both else [NFC, "y"])
    old.forget([NFD])
    assert old.classes == ([NFD] if both else ["y"])
