from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError

from adagauss import make_method
from adagauss.backbones.registry import BackboneInfo, backbone_info
from adagauss.classifier import IncrementalClassifier, default_method
from adagauss.core.learn import Learner
from adagauss.errors import CheckpointError, ConfigError, DataError
from adagauss.utils.progress import Advance, Reporter

Array = npt.NDArray[Any]

QUICK: dict[str, Any] = {
    "backbone.features": 8,
    "representation.first.epochs": 4,
    "representation.later.epochs": 2,
    "representation.first.batch_size": 64,
    "representation.later.batch_size": 64,
    "representation.first.learning_rate": 0.05,
    "representation.label_augmentation.kind": "none",
    "drift.recipe.epochs": 2,
    "drift.samples": 200,
    "augmentation.crop_padding": 0,
    "augmentation.flip": False,
    "augmentation.policy": "none",
    "memory.flips": False,
}
DIGITS = load_digits()
PIXELS: Array = np.rint(DIGITS.images * (255 / 16)).astype(np.uint8)


def quick(**settings: Any) -> IncrementalClassifier:
    return IncrementalClassifier(
        **{"method": "adagauss", "backbone": "convnet", "settings": QUICK, "device": "cpu", **settings}
    )


def task(*digits: int) -> tuple[Array, Array]:
    chosen = np.isin(DIGITS.target, digits)
    return PIXELS[chosen], DIGITS.target[chosen]


@pytest.fixture(scope="module")
def taught() -> IncrementalClassifier:
    """Two tasks learned, the later one of smaller labels; not to be changed."""
    return quick().partial_fit(*task(5, 6)).partial_fit(*task(0, 1))


def test_two_tasks(taught: IncrementalClassifier) -> None:
    images, labels = task(0, 1, 5, 6)
    np.testing.assert_array_equal(taught.classes_, [0, 1, 5, 6])
    assert taught.learner_.classes == [5, 6, 0, 1]
    assert taught.score(images, labels) == pytest.approx(np.mean(taught.predict(images) == labels))
    assert taught.score(images, labels, sample_weight=labels < 2) == pytest.approx(taught.score(*task(0, 1)))
    assert taught.score(*task(0, 1)) > 0.6


def test_columns_follow_the_sorted_classes(taught: IncrementalClassifier) -> None:
    images, _ = task(0, 1, 5, 6)
    probabilities = taught.predict_proba(images)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    np.testing.assert_array_equal(taught.classes_[probabilities.argmax(1)], taught.predict(images))
    assert taught.predict(images).tolist() == taught.learner_.predict(_Stored(images))


def test_layouts_and_kinds_of_pixels_agree(taught: IncrementalClassifier) -> None:
    images = task(0, 1)[0][:20]
    expected = taught.predict_proba(images)
    read_only = images.copy()
    read_only.flags.writeable = False
    for same in (
        images[:, None],
        images[..., None],
        images / 255,
        torch.from_numpy(images),
        images.astype(np.uint16),
        images.tolist(),
        np.flip(np.flip(images, 1).copy(), 1),
        read_only,
    ):
        np.testing.assert_allclose(taught.predict_proba(same), expected, atol=1e-6)


def test_save_load_and_go_on(taught: IncrementalClassifier, tmp_path: Path) -> None:
    images, _ = task(0, 1, 2, 3, 5, 6)
    taught.save(tmp_path / "digits.adagauss")
    loaded = IncrementalClassifier.load(tmp_path / "digits.adagauss", device="cpu")
    np.testing.assert_array_equal(loaded.predict_proba(images), taught.predict_proba(images))
    assert loaded.get_params() == taught.get_params()
    loaded.partial_fit(*task(2, 3))
    np.testing.assert_array_equal(loaded.classes_, [0, 1, 2, 3, 5, 6])
    assert loaded.score(*task(2, 3)) > 0.6
    # A classifier that was saved in between learns as one that never was.
    unbroken = quick().partial_fit(*task(5, 6)).partial_fit(*task(0, 1)).partial_fit(*task(2, 3))
    np.testing.assert_array_equal(loaded.predict_proba(images), unbroken.predict_proba(images))
    np.testing.assert_array_equal(taught.classes_, [0, 1, 5, 6])


def test_loads_a_plain_learner(tmp_path: Path) -> None:
    method = make_method("adagauss", settings={**QUICK, "backbone.name": "convnet"})
    learner = Learner(method, (1, 8, 8), (0.3,), (0.4,))
    learner.save(tmp_path / "learner")
    classifier = IncrementalClassifier.load(tmp_path / "learner", device="cpu").partial_fit(*task(0, 1))
    assert classifier.score(*task(0, 1)) > 0.8


def test_same_seed_same_classifier() -> None:
    images, labels = task(0, 1)
    settings = {**QUICK, "representation.first.epochs": 1}
    first, again, other = (
        quick(settings=settings, seed=seed).fit(images, labels).predict_proba(images) for seed in (1, np.int64(1), 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_text_labels_and_a_new_start(tmp_path: Path) -> None:
    names = np.array(["zero", "one", "two", "three"])
    images, labels = task(0, 1)
    classifier = quick(verbose=True).fit(images, names[labels])
    assert classifier.classes_.tolist() == ["one", "zero"]
    assert set(classifier.predict(images)) <= {"one", "zero"}
    assert classifier.score(images, names[labels].tolist()) > 0.8
    classifier.save(tmp_path / "text")
    assert IncrementalClassifier.load(tmp_path / "text").classes_.tolist() == ["one", "zero"]
    copy = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(copy.predict(images), classifier.predict(images))
    images, labels = task(2, 3)
    assert classifier.fit(images, names[labels]).classes_.tolist() == ["three", "two"]


def test_folders(tmp_path: Path) -> None:
    for digit in range(4):
        folder = tmp_path / ("first" if digit < 2 else "second") / f"digit {digit}"
        folder.mkdir(parents=True)
        for number, pixels in enumerate(task(digit)[0][:40]):
            Image.fromarray(pixels).save(folder / f"{number:03}.png")
    settings = {**QUICK, "augmentation.resized_crop": False, "representation.first.epochs": 8}
    classifier = quick(settings=settings, image_size=8).partial_fit(tmp_path / "first")
    classifier.partial_fit(str(tmp_path / "second"))
    assert classifier.classes_.tolist() == ["digit 0", "digit 1", "digit 2", "digit 3"]
    assert classifier.learner_.shape == (3, 8, 8)
    assert classifier.score(tmp_path / "second") > 0.5
    assert len(classifier.predict(tmp_path / "first" / "digit 0")) == 40
    with pytest.raises(DataError, match="brings its own labels"):
        classifier.partial_fit(tmp_path / "first", [0])
    with pytest.raises(DataError, match="no such file or folder"):
        classifier.predict(tmp_path / "nowhere")


def test_folders_after_arrays_take_their_size(taught: IncrementalClassifier, tmp_path: Path) -> None:
    images, _ = task(0, 1)
    for number, pixels in enumerate(images[:5]):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    np.testing.assert_allclose(taught.predict_proba(tmp_path), taught.predict_proba(images[:5]), atol=1e-6)


def test_normalisation_is_that_of_the_first_task(taught: IncrementalClassifier) -> None:
    first = task(5, 6)[0] / 255
    np.testing.assert_allclose(taught.learner_.mean, first.mean())
    np.testing.assert_allclose(taught.learner_.std, first.std())
    flat = quick(settings={**QUICK, "representation.first.epochs": 1})
    flat.fit(np.full((8, 8, 8), 7, np.uint8), [0, 0, 0, 0, 1, 1, 1, 1])
    assert flat.learner_.std == (1.0,)


def test_epochs_shorten_every_training() -> None:
    classifier = quick(epochs=1, settings={"backbone.features": 8}).fit(*task(0, 1))
    method = classifier.learner_.method
    first, later = method.representation.first, method.representation.later
    assert first is not None
    assert later is not None
    assert first.epochs == later.epochs == 1
    assert method.backbone.name == "convnet"


def test_parameters_and_clone(taught: IncrementalClassifier) -> None:
    fresh = clone(taught)
    assert fresh.get_params() == taught.get_params()
    assert not hasattr(fresh, "learner_")
    assert fresh.set_params(epochs=3, verbose=True).get_params()["epochs"] == 3
    assert "epochs=3" in repr(fresh)


def test_not_fitted(tmp_path: Path) -> None:
    images, labels = task(0)
    classifier = IncrementalClassifier(method="not checked before it is used")
    for act in (
        classifier.predict,
        classifier.predict_proba,
        classifier.classify,
        lambda images: classifier.score(images, labels),
    ):
        with pytest.raises(NotFittedError, match="knows no classes yet: teach it some with partial_fit"):
            act(images)
    with pytest.raises(NotFittedError):
        classifier.save(tmp_path / "never")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "adagaus"}, "did you mean 'adagauss'"),
        ({"preset": "papre"}, "did you mean 'paper'"),
        ({"backbone": "convnt"}, "did you mean 'convnet'"),
        ({"settings": {"classifier.shrinkge": 1}}, "did you mean 'classifier.shrinkage'"),
        ({"settings": "classifier.shrinkage=1"}, "dictionary"),
        ({"epochs": 0}, "greater than 0"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"seed": None}, "seed must be a whole number"),
        ({"device": "abacus"}, "device"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    classifier = quick(**{"settings": {"backbone.features": 8}, **settings})
    with pytest.raises(ConfigError, match=message):
        classifier.fit(*task(0, 1))
    assert not hasattr(classifier, "learner_")


def test_wrong_data_changes_nothing(taught: IncrementalClassifier) -> None:
    images, labels = task(2, 3)
    before = taught.predict_proba(images)
    with pytest.raises(DataError, match="one label per image"):
        taught.partial_fit(images, labels[:-1])
    with pytest.raises(DataError, match="a row of features per image use"):
        quick().partial_fit(np.full((20, 8), -3.0), np.arange(20) % 2)
    with pytest.raises(DataError, match="labels are missing"):
        taught.partial_fit(images)
    with pytest.raises(DataError, match="one kind"):
        taught.partial_fit(images, labels.astype(str))
    with pytest.raises(DataError, match="text or numbers"):
        taught.partial_fit(images, labels[:, None])
    with pytest.raises(DataError, match="must be a sequence"):
        taught.partial_fit(images, object())  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"0\.\.1"):
        taught.predict(images.astype(float))
    with pytest.raises(DataError, match="one per image"):
        taught.predict([images[0].tolist(), images[1][:4].tolist()])
    np.testing.assert_array_equal(taught.predict_proba(images), before)


def test_load_refuses_other_files(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a classifier", encoding="utf-8")
    for name in ("text", "missing"):
        with pytest.raises(CheckpointError):
            IncrementalClassifier.load(tmp_path / name)


class _Stored:
    """Images as a learner takes them."""

    def __init__(self, pixels: Array) -> None:
        self.pixels = torch.from_numpy(pixels).unsqueeze(1)
        self.shape = (1, 8, 8)

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, indices: torch.Tensor) -> torch.Tensor:
        return self.pixels[indices]


def test_without_a_method_the_pretrained_network_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackboneInfo, "available", True)
    assert default_method() == "analytic"
    monkeypatch.setattr(BackboneInfo, "available", False)
    with pytest.warns(UserWarning, match=r"adagauss\[pretrained\]"):
        classifier = IncrementalClassifier(settings={"backbone.options.filters": 8}).fit(*task(0, 1))
    assert classifier.learner_.method.backbone.name == "patches"


def test_epochs_for_a_method_that_trains_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="trains nothing: leave epochs out"):
        IncrementalClassifier("exact", epochs=3).fit(*task(0, 1))


def test_scoring_a_class_that_was_never_taught_is_refused() -> None:
    classifier = IncrementalClassifier("exact", settings={"backbone.options.filters": 8}).fit(*task(0, 1))
    with pytest.raises(DataError, match="3 was never taught"):
        classifier.score(*task(1, 3))


def test_images_of_other_sizes_are_brought_to_the_size_taught(taught: IncrementalClassifier, tmp_path: Path) -> None:
    images, _ = task(0, 1)
    large = [np.kron(image, np.ones((4, 4), np.uint8)) for image in images[:6]]
    wide = [np.pad(image, ((0, 0), (9, 9))) for image in large]
    colour = [np.stack([image] * 3, 2) for image in wide]
    for number, image in enumerate(colour):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    as_files = taught.predict_proba(tmp_path)
    for same in (wide, np.stack(wide), colour, [Image.fromarray(image) for image in colour]):
        np.testing.assert_allclose(taught.predict_proba(same), as_files, atol=1e-6)


def test_classify_names_its_answers(taught: IncrementalClassifier, tmp_path: Path) -> None:
    images, _ = task(0, 5)
    Image.fromarray(images[0]).save(tmp_path / "zero.png")
    (answer,) = taught.classify(tmp_path)
    assert answer.name == "zero.png"
    probabilities = taught.predict_proba(images)
    for row, prediction in enumerate(taught.classify(images, top=2)):
        assert prediction.name == str(row)
        assert prediction.label == taught.classes_[probabilities[row].argmax()]
        assert prediction.probability == pytest.approx(probabilities[row].max())
        assert prediction.top[0] == (prediction.label, prediction.probability)
        assert [share for _, share in prediction.top] == pytest.approx(sorted(probabilities[row])[:-3:-1])
    assert len(taught.classify(images[:1], top=100)[0].top) == 4
    with pytest.raises(ConfigError, match="top"):
        taught.classify(images, top=0)


def test_one_label_is_for_all_images(tmp_path: Path) -> None:
    settings = {"backbone.options.filters": 8}
    (zeros, labels), (ones, more) = task(0), task(1)
    each = IncrementalClassifier("exact", settings=settings).partial_fit(zeros, labels).partial_fit(ones, more)
    once = IncrementalClassifier("exact", settings=settings).partial_fit(zeros, 0).partial_fit(ones, np.int64(1))
    np.testing.assert_array_equal(once.predict_proba(zeros), each.predict_proba(zeros))
    for number, pixels in enumerate(zeros[:9]):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    files = IncrementalClassifier("exact", settings=settings).partial_fit(tmp_path, "zero")
    files.partial_fit([str(tmp_path / "1.png"), str(tmp_path / "2.png")], ["first", "second"])
    assert files.classes_.tolist() == ["first", "second", "zero"]


def test_bad_files_are_left_out_on_request(tmp_path: Path) -> None:
    images, labels = task(0, 1)
    for number, (pixels, label) in enumerate(zip(images[:20], labels[:20], strict=True)):
        (tmp_path / str(label)).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / str(label) / f"{number:02}.png")
    paths = sorted(tmp_path.rglob("*.png"))
    paths[3].write_bytes(b"torn")
    settings = {"backbone.options.filters": 8}
    with pytest.raises(DataError, match="skip_bad=True"):
        IncrementalClassifier("exact", settings=settings).fit(tmp_path)
    classifier = IncrementalClassifier("exact", settings=settings, skip_bad=True).fit(tmp_path)
    names = [answer.name for answer in classifier.classify(tmp_path)]
    assert names == [str(path.relative_to(tmp_path)) for path in paths if path != paths[3]]
    again = IncrementalClassifier("exact", settings=settings, skip_bad=True)
    again.fit(paths, [path.parent.name for path in paths])
    sound = [path for path in paths if path != paths[3]]
    np.testing.assert_array_equal(again.predict_proba(sound), classifier.predict_proba(sound))
    with pytest.raises(DataError, match="images of class 'b'"):
        again.partial_fit([paths[0], paths[3]], ["a", "b"])


class Counting(Reporter):
    """Counts the steps of each work."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}

    @contextmanager
    def progress(self, title: str, total: float) -> Iterator[Advance]:
        def advance(note: str = "", step: float = 1.0) -> None:
            self.steps[title] = self.steps.get(title, 0) + 1

        yield advance


def test_progress_moves_while_features_are_extracted_and_within_epochs() -> None:
    counting = Counting()
    images = np.kron(task(0, 1)[0][:40], np.ones((1, 28, 28), np.uint8))
    labels = task(0, 1)[1][:40]
    exact = IncrementalClassifier("exact", settings={"backbone.options.filters": 2}, verbose=counting).fit(
        images, labels
    )
    assert counting.steps["task 1: features"] >= 3
    exact.predict(images)
    assert counting.steps["features"] >= 3
    quick(epochs=2, verbose=counting).fit(*task(0, 1))
    trained = next(steps for title, steps in counting.steps.items() if "features" not in title and "task 1" in title)
    assert trained > 2


@pytest.mark.parametrize("settings", [None, {"backbone.train_blocks": "last:1", "backbone.bottleneck_init": "random"}])
def test_a_method_that_trains_learns_only_a_bottleneck_on_a_pretrained_backbone(
    settings: dict[str, Any] | None,
) -> None:
    for module in backbone_info("efficientnet_lite0").modules:
        pytest.importorskip(module)
    small = {"backbone.features": 4, "classifier.shrinkage": 1.0, "backbone.input_size": 32, **(settings or {})}
    classifier = IncrementalClassifier("adagauss", backbone="efficientnet_lite0", epochs=1, settings=small)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
    classifier.partial_fit(pixels, [0, 1] * 4)
    backbone = classifier.learner_.method.backbone
    assert (backbone.train_blocks, backbone.bottleneck_init) == (("last:1", "random") if settings else ("none", "pca"))
