from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adagauss.data.dataset import ReadOptions, load_dataset
from adagauss.data.folders import seeded_split
from adagauss.errors import DataError
from adagauss.utils.progress import Advance, Reporter, ignore

SMALL = 8


def write_classes(folder: Path, write_image: Any, classes: tuple[str, ...], images: int = 10) -> None:
    for number, name in enumerate(classes):
        for index in range(images):
            write_image(folder / name / f"{index}.png", seed=100 * number + index, size=(SMALL, SMALL))


def test_folder_split_by_seed(tmp_path: Path, write_image: Any, check: Any) -> None:
    write_classes(tmp_path, write_image, ("b", "a", "École ünïcode"))
    dataset = load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL, root=tmp_path / "absent"))
    assert dataset.classes == ("a", "b", "École ünïcode")
    check(dataset, (3, SMALL, SMALL), [0] * 8 + [1] * 8 + [2] * 8, [0, 0, 1, 1, 2, 2])
    assert not (tmp_path / "absent").exists()
    train = {tuple(row) for row in dataset.train.images.batch(torch.arange(24)).flatten(1).tolist()}
    test = {tuple(row) for row in dataset.test.images.batch(torch.arange(6)).flatten(1).tolist()}
    assert len(train | test) == 30


@pytest.mark.parametrize("other", ["test", "val"])
def test_folder_with_its_own_split(tmp_path: Path, write_image: Any, other: str, check: Any) -> None:
    write_classes(tmp_path / "train", write_image, ("a", "b"), images=3)
    write_classes(tmp_path / other, write_image, ("a", "b"), images=1)
    dataset = load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL))
    check(dataset, (3, SMALL, SMALL), [0, 0, 0, 1, 1, 1], [0, 1])
    write_classes(tmp_path / other, write_image, ("c",), images=1)
    with pytest.raises(DataError, match=r"train.c is missing"):
        load_dataset(f"folder:{tmp_path}")


def test_foreign_files_and_loops_are_left_aside(tmp_path: Path, write_image: Any, check: Any) -> None:
    write_classes(tmp_path, write_image, ("a", "b"), images=5)
    (tmp_path / "a" / "notes.txt").touch()
    (tmp_path / "a" / "._0.png").touch()
    (tmp_path / "readme.md").touch()
    (tmp_path / ".hidden").mkdir()
    for link, target in (("a/up", ".."), ("a/self", "."), ("loop", "."), ("b/dead", "nowhere")):
        (tmp_path / link).symlink_to(target)
    (tmp_path / "ring").symlink_to("ring")
    dataset = load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL))
    check(dataset, (3, SMALL, SMALL), [0] * 4 + [1] * 4, [0, 1])
    assert dataset.classes == ("a", "b")


def test_linked_folders_are_followed(tmp_path: Path, write_image: Any) -> None:
    write_classes(tmp_path / "store", write_image, ("x",), images=4)
    write_classes(tmp_path / "images", write_image, ("a",), images=4)
    (tmp_path / "images" / "b").symlink_to(tmp_path / "store" / "x")
    dataset = load_dataset(f"folder:{tmp_path / 'images'}", ReadOptions(size=SMALL))
    assert dataset.train.counts().tolist() == [3, 3]


def test_folder_errors(tmp_path: Path, write_image: Any) -> None:
    with pytest.raises(DataError, match="the folder does not exist"):
        load_dataset(f"folder:{tmp_path / 'absent'}")
    with pytest.raises(DataError, match="holds no class folders"):
        load_dataset(f"folder:{tmp_path}")
    write_classes(tmp_path / "one", write_image, ("a",), images=1)
    with pytest.raises(DataError, match=r"a holds one image"):
        load_dataset(f"folder:{tmp_path / 'one'}")
    write_classes(tmp_path / "empty", write_image, ("a",), images=2)
    (tmp_path / "empty" / "blank").mkdir()
    with pytest.raises(DataError, match="blank holds no images"):
        load_dataset(f"folder:{tmp_path / 'empty'}")
    write_classes(tmp_path / "half" / "train", write_image, ("a",), images=2)
    with pytest.raises(DataError, match="no test/"):
        load_dataset(f"folder:{tmp_path / 'half'}")
    with pytest.raises(DataError, match="folder:path"):
        load_dataset("folder")


def test_bad_images_in_a_folder(tmp_path: Path, write_image: Any) -> None:
    write_classes(tmp_path, write_image, ("a", "b"), images=10)
    (tmp_path / "b" / "3.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"3\.png.*--skip-bad"):
        load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL))
    dataset = load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL, skip_bad_images=True))
    assert len(dataset.train) + len(dataset.test) == 19
    for path in (tmp_path / "b").iterdir():
        path.write_bytes(b"broken")
    with pytest.raises(DataError, match="no training images after bad ones were skipped, the first being 'b'"):
        load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL, skip_bad_images=True))


def test_train_and_test_share_the_memory_budget(tmp_path: Path, write_image: Any) -> None:
    write_classes(tmp_path, write_image, ("a", "b"), images=10)
    budget = 16 * 3 * SMALL * SMALL
    dataset = load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL, cache_bytes=budget))
    assert dataset.train.images.in_memory  # type: ignore[attr-defined]
    assert not dataset.test.images.in_memory  # type: ignore[attr-defined]


@settings(max_examples=50, deadline=None)
@given(count=st.integers(2, 200), share=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_a_seeded_split_is_a_partition(count: int, share: float, seed: int) -> None:
    train, test = seeded_split(count, share, seed)
    assert sorted(train + test) == list(range(count))
    assert train
    assert test
    assert (train, test) == seeded_split(count, share, seed)


@pytest.mark.parametrize("stray", ["train/preview.png", "test/preview.png"])
def test_stray_images_next_to_class_folders_make_no_class(
    tmp_path: Path, write_image: Any, stray: str, check: Any
) -> None:
    write_classes(tmp_path / "train", write_image, ("a", "b"), images=3)
    write_classes(tmp_path / "test", write_image, ("a", "b"), images=1)
    write_image(tmp_path / stray)
    dataset = load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL))
    assert dataset.classes == ("a", "b")
    check(dataset, (3, SMALL, SMALL), [0, 0, 0, 1, 1, 1], [0, 1])


@pytest.mark.parametrize("there", [("test", "val"), ("test",), ("val",)])
@pytest.mark.parametrize("train", ["absent", "empty", "flat"])
def test_a_split_without_training_images_is_refused(
    tmp_path: Path, write_image: Any, there: tuple[str, ...], train: str
) -> None:
    for part in there:
        write_classes(tmp_path / part, write_image, ("a", "b"), images=2)
    if train == "empty":
        (tmp_path / "train" / "a").mkdir(parents=True)
    if train == "flat":
        write_image(tmp_path / "train" / "0.png")
    with pytest.raises(DataError, match=rf"has {there[0]}/ but no train/ with class folders, expected at .*train"):
        load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL))


@pytest.mark.parametrize("classes", [("bus", "train"), ("control", "test")])
def test_train_or_test_may_be_a_class(tmp_path: Path, write_image: Any, classes: tuple[str, ...]) -> None:
    write_classes(tmp_path, write_image, classes, images=2)
    assert load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL)).classes == classes


def test_reading_reports_progress_of_both_parts(tmp_path: Path, write_image: Any) -> None:
    shown: list[float] = []

    class Totals(Reporter):
        @contextmanager
        def progress(self, title: str, total: float) -> Iterator[Advance]:
            shown.append(total)
            yield ignore

    write_classes(tmp_path, write_image, ("a", "b"), images=5)
    load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL, reporter=Totals()))
    assert shown == [8, 2]
