from __future__ import annotations

import gzip
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adagauss.data.dataset import Dataset, ReadOptions, dataset_info, datasets, load_dataset
from adagauss.data.datasets import imagenet_subset
from adagauss.data.listing import seeded_split
from adagauss.data.safe_pickle import load_plain_pickle
from adagauss.errors import ConfigError, DataError

SMALL = 8


def read(name: str, root: Path, **options: Any) -> Dataset:
    return load_dataset(name, ReadOptions(root=root, **options))


def write_lines(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def check(dataset: Dataset, shape: tuple[int, int, int], train: list[int], test: list[int]) -> None:
    for part, targets in ((dataset.train, train), (dataset.test, test)):
        assert part.targets.tolist() == targets
        assert part.targets.dtype == torch.long
        assert part.images.batch(torch.arange(len(part))).shape == (len(targets), *shape)
        assert part.classes == dataset.classes
    assert len(dataset.mean) == len(dataset.std) == shape[0]


# CIFAR


def write_cifar100(root: Path, images: int = 6, protocol: int = 2) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for part in ("train", "test"):
        content = {
            "data": generator.integers(0, 256, (images, 3072), dtype=np.uint8),
            "fine_labels": [index % 3 for index in range(images)],
        }
        (folder / part).write_bytes(pickle.dumps(content, protocol=protocol))
    (folder / "meta").write_bytes(
        pickle.dumps({"fine_label_names": ["apple", "bear", "cloud"]}, protocol=protocol)
    )
    return folder


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_cifar100(tmp_path: Path, protocol: int, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_cifar100(tmp_path, protocol=protocol)
    dataset = read("cifar100", tmp_path)
    check(dataset, (3, 32, 32), [0, 1, 2] * 2, [0, 1, 2] * 2)
    assert dataset.classes == ("apple", "bear", "cloud")
    assert dataset.mean == (0.5071, 0.4867, 0.4408)
    assert "not the official file" in caplog.text
    rows = pickle.loads((folder / "train").read_bytes())["data"]
    assert dataset.train.images.batch(torch.tensor([1])).flatten().tolist() == rows[1].tolist()


def test_cifar10(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number, file in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        content = {"data": np.full((2, 3072), number, dtype=np.uint8), "labels": [number % 2, 1]}
        (folder / file).write_bytes(pickle.dumps(content))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["cat", "dog"]}))
    dataset = read("cifar10", tmp_path)
    check(dataset, (3, 32, 32), [0, 1, 1, 1, 0, 1, 1, 1, 0, 1], [1, 1])
    (folder / "data_batch_4").unlink()
    with pytest.raises(DataError, match=r"data_batch_4 is missing.*fetch cifar10"):
        read("cifar10", tmp_path)


class Malicious:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self.mark}'",)


def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    folder = write_cifar100(tmp_path)
    (folder / "train").write_bytes(pickle.dumps({"data": Malicious(tmp_path / "mark")}))
    with pytest.raises(DataError, match="system, which plain data never does"):
        read("cifar100", tmp_path)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("name", ["builtins\neval", "numpy\nload", "_codecs\ndecode", "numpy.f2py\nmain"])
def test_no_name_but_those_of_plain_arrays_is_looked_up(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(f"c{name}\n.".encode())
    with pytest.raises(DataError, match="was refused"):
        load_plain_pickle(tmp_path / "file")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_plain_pickles_are_read(tmp_path: Path, protocol: int) -> None:
    content: dict[str, Any] = {"text": ["é", b"bytes"], "array": np.arange(6, dtype=np.int64).reshape(2, 3)}
    (tmp_path / "file").write_bytes(pickle.dumps(content, protocol=protocol))
    loaded = load_plain_pickle(tmp_path / "file")
    assert loaded["text"] == content["text"]
    assert np.array_equal(loaded["array"], content["array"])


def test_half_extracted_cifar(tmp_path: Path) -> None:
    folder = write_cifar100(tmp_path)
    train = folder / "train"
    train.write_bytes(train.read_bytes()[:-100])
    with pytest.raises(DataError, match="extracted only in part"):
        read("cifar100", tmp_path)
    train.write_bytes(pickle.dumps({"data": np.zeros((2, 5), dtype=np.uint8), "fine_labels": [0, 1]}))
    with pytest.raises(DataError, match="damaged"):
        read("cifar100", tmp_path)
    train.write_bytes(pickle.dumps({"data": np.zeros((1, 3072), dtype=np.uint8), "fine_labels": [7]}))
    with pytest.raises(DataError, match="3 class names"):
        read("cifar100", tmp_path)


# TinyImageNet


@pytest.fixture
def tiny(tmp_path: Path, write_image: Any) -> Path:
    folder = tmp_path / "tiny-imagenet-200"
    for wnid in ("n02", "n01"):
        for index in range(2):
            write_image(folder / "train" / wnid / "images" / f"{wnid}_{index}.JPEG", size=(64, 64))
        write_lines(folder / "train" / wnid / f"{wnid}_boxes.txt", "a box")
    write_lines(folder / "wnids.txt", "n02", "n01")
    write_lines(
        folder / "val" / "val_annotations.txt", "val_0.JPEG\tn02\t0\t1\t2\t3", "val_1.JPEG\tn01\t0\t1\t2\t3"
    )
    for index in range(2):
        write_image(folder / "val" / "images" / f"val_{index}.JPEG", size=(64, 64))
    return folder


def test_tiny(tiny: Path) -> None:
    dataset = read("tiny", tiny.parent)
    check(dataset, (3, 64, 64), [0, 0, 1, 1], [1, 0])
    assert dataset.classes == ("n01", "n02")
    assert dataset.settings["augmentation.crop_padding"] == 8


def test_tiny_half_extracted(tiny: Path) -> None:
    (tiny / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(DataError, match=r"1 of 2 listed images.*val_1\.JPEG.*fetch tiny"):
        read("tiny", tiny.parent)
    write_lines(tiny / "wnids.txt", "n01", "n02", "n03")
    with pytest.raises(DataError, match=r"n03.*in part"):
        read("tiny", tiny.parent)
    (tiny / "val" / "val_annotations.txt").unlink()
    write_lines(tiny / "wnids.txt", "n01", "n02")
    with pytest.raises(DataError, match=r"val_annotations\.txt is missing"):
        read("tiny", tiny.parent)


# ImageNet subsets


def test_the_two_imagenet_subsets_share_nine_classes() -> None:
    first, seeded = imagenet_subset.FIRST_100, imagenet_subset.SEED_1993
    assert len(set(first)) == len(set(seeded)) == 100
    assert list(first) == sorted(first)
    assert list(seeded) == sorted(seeded)
    assert len(set(first) & set(seeded)) == 9
    drawn = np.random.RandomState(1993).permutation(1000)[:100]
    assert sorted(set(first) & set(seeded)) == [first[i] for i in sorted(drawn) if i < 100]


def test_imagenet_subset(tmp_path: Path, write_image: Any) -> None:
    for name, wnids in (
        ("imagenet-subset-first100", imagenet_subset.FIRST_100),
        ("imagenet-subset-seed1993", imagenet_subset.SEED_1993),
    ):
        root = tmp_path / name
        for part in ("train", "val"):
            for wnid in (*wnids, "n99999999"):
                write_image(root / "imagenet" / part / wnid / "a.JPEG")
        dataset = read(name, root, size=SMALL)
        assert dataset.classes == wnids
        check(dataset, (3, SMALL, SMALL), list(range(100)), list(range(100)))
        missing = root / "imagenet" / "val" / wnids[5]
        (missing / "a.JPEG").unlink()
        with pytest.raises(DataError, match=rf"{wnids[5]} holds no images"):
            read(name, root, size=SMALL)
        missing.rmdir()
        with pytest.raises(DataError, match=rf"{wnids[5]} is missing.*image-net\.org"):
            read(name, root, size=SMALL)


# CUB, Aircraft, Cars


def test_cub(tmp_path: Path, write_image: Any) -> None:
    folder = tmp_path / "CUB_200_2011"
    names = ["001.Gull/a b.jpg", "001.Gull/b.jpg", "002.Tern/c.jpg", "002.Tern/d.jpg"]
    for name in names:
        write_image(folder / "images" / name)
    write_lines(folder / "classes.txt", "1 001.Gull", "2 002.Tern")
    write_lines(folder / "images.txt", *(f"{i + 1} {name}" for i, name in enumerate(names)))
    write_lines(folder / "image_class_labels.txt", "1 1", "2 1", "3 2", "4 2")
    write_lines(folder / "train_test_split.txt", "1 1", "2 0", "3 0", "4 1")
    dataset = read("cub", tmp_path, size=SMALL)
    check(dataset, (3, SMALL, SMALL), [0, 1], [0, 1])
    assert dataset.classes == ("001.Gull", "002.Tern")
    assert dataset.settings == {"augmentation.resized_crop": True, "augmentation.crop_padding": 0}
    assert read("cub", tmp_path).train.images.shape == (3, 224, 224)
    (folder / "images" / names[2]).unlink()
    with pytest.raises(DataError, match=r"c\.jpg.*fetch cub"):
        read("cub", tmp_path, size=SMALL)
    write_lines(folder / "image_class_labels.txt", "1 1", "2 1")
    with pytest.raises(DataError, match="do not fit each other"):
        read("cub", tmp_path, size=SMALL)
    write_lines(folder / "image_class_labels.txt")
    with pytest.raises(DataError, match="empty or damaged"):
        read("cub", tmp_path, size=SMALL)


def test_aircraft(tmp_path: Path, write_image: Any) -> None:
    folder = tmp_path / "fgvc-aircraft-2013b" / "data"
    write_lines(folder / "variants.txt", "737-200", "Cessna 172")
    write_lines(folder / "images_variant_trainval.txt", "0001 Cessna 172", "0002 737-200")
    write_lines(folder / "images_variant_test.txt", "0003 737-200", "0004 Cessna 172")
    for number in range(1, 5):
        write_image(folder / "images" / f"000{number}.jpg")
    dataset = read("aircraft", tmp_path, size=SMALL)
    check(dataset, (3, SMALL, SMALL), [1, 0], [0, 1])
    assert dataset.classes == ("737-200", "Cessna 172")
    write_lines(folder / "variants.txt", "737-200")
    with pytest.raises(DataError, match="'Cessna 172', which variants"):
        read("aircraft", tmp_path, size=SMALL)
    (folder / "variants.txt").unlink()
    with pytest.raises(DataError, match=r"variants\.txt is missing.*fetch aircraft"):
        read("aircraft", tmp_path)


@pytest.mark.parametrize("place", ["", "devkit"])
def test_cars(tmp_path: Path, write_image: Any, place: str) -> None:
    from scipy.io import savemat

    folder = tmp_path / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    names = np.array(["Audi R8", "BMW M3"], dtype=object)
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names})
    columns = [("bbox_x1", "i4"), ("class", "i4"), ("fname", object)]
    train = np.array([(1, 2, "1.jpg"), (1, 1, "2.jpg")], dtype=columns)
    test = np.array([(1, 1, "1.jpg"), (1, 2, "2.jpg")], dtype=columns)
    savemat(folder / "devkit" / "cars_train_annos.mat", {"annotations": train})
    savemat(folder / place / "cars_test_annos_withlabels.mat", {"annotations": test})
    for part in ("cars_train", "cars_test"):
        for number in (1, 2):
            write_image(folder / part / f"{number}.jpg")
    dataset = read("cars", tmp_path, size=SMALL)
    check(dataset, (3, SMALL, SMALL), [1, 0], [0, 1])
    assert dataset.classes == ("Audi R8", "BMW M3")
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names[:1]})
    with pytest.raises(DataError, match="names class 2"):
        read("cars", tmp_path, size=SMALL)
    (folder / "devkit" / "cars_meta.mat").write_bytes(b"damaged")
    with pytest.raises(DataError, match="cannot be read"):
        read("cars", tmp_path, size=SMALL)


# MNIST


def idx(array: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("zipped", [True, False])
def test_mnist(tmp_path: Path, name: str, zipped: bool) -> None:
    folder = tmp_path / name
    folder.mkdir()
    pixels = np.arange(3 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(3, 28, 28)
    labels = np.array([9, 0, 4], dtype=np.uint8)

    def write(file: str, content: bytes) -> None:
        (folder / (f"{file}.gz" if zipped else file)).write_bytes(
            gzip.compress(content) if zipped else content
        )

    for part in ("train", "t10k"):
        write(f"{part}-images-idx3-ubyte", idx(pixels))
        write(f"{part}-labels-idx1-ubyte", idx(labels))
    dataset = read(name, tmp_path)
    check(dataset, (1, 28, 28), [9, 0, 4], [9, 0, 4])
    assert dataset.train.images.batch(torch.tensor([2])).flatten().tolist() == pixels[2].flatten().tolist()
    assert (dataset.settings.get("augmentation.flip", True) is False) == (name == "mnist")
    write("t10k-labels-idx1-ubyte", idx(labels)[:-1])
    with pytest.raises(DataError, match="damaged"):
        read(name, tmp_path)
    write("t10k-labels-idx1-ubyte", idx(labels[:2]))
    with pytest.raises(DataError, match="do not fit"):
        read(name, tmp_path)
    for file in folder.glob("train-images*"):
        file.unlink()
    with pytest.raises(DataError, match=rf"train-images-idx3-ubyte.*fetch {name}"):
        read(name, tmp_path)


def test_a_damaged_gzip_file(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"abc" * 99)[:-12])
    with pytest.raises(DataError, match="damaged"):
        read("mnist", tmp_path)


# Omniglot


def test_omniglot(tmp_path: Path, write_image: Any) -> None:
    for part, alphabet in (("images_background", "Latin"), ("images_evaluation", "Avesta")):
        for character in ("character01", "character02"):
            for drawing in range(20):
                path = tmp_path / "omniglot" / part / alphabet / character / f"{drawing:02}.png"
                write_image(path, seed=drawing, size=(32, 32), mode="1")
    dataset = read("omniglot", tmp_path)
    check(dataset, (1, 32, 32), [i // 15 for i in range(60)], [i // 5 for i in range(20)])
    assert dataset.classes == tuple(f"{a}/character0{c}" for a in ("Avesta", "Latin") for c in (1, 2))
    again = read("omniglot", tmp_path)
    everything = torch.arange(20)
    assert torch.equal(dataset.test.images.batch(everything), again.test.images.batch(everything))


def test_omniglot_needs_both_parts(tmp_path: Path, write_image: Any) -> None:
    write_image(tmp_path / "omniglot" / "images_background" / "Latin" / "character01" / "1.png")
    with pytest.raises(DataError, match=r"images_evaluation is missing.*fetch omniglot"):
        read("omniglot", tmp_path)


# Folders


def write_classes(folder: Path, write_image: Any, classes: tuple[str, ...], images: int = 10) -> None:
    for number, name in enumerate(classes):
        for index in range(images):
            write_image(folder / name / f"{index}.png", seed=100 * number + index, size=(SMALL, SMALL))


def test_folder_split_by_seed(tmp_path: Path, write_image: Any) -> None:
    write_classes(tmp_path, write_image, ("b", "a", "École ünïcode"))
    dataset = load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL, root=tmp_path / "absent"))
    assert dataset.classes == ("a", "b", "École ünïcode")
    check(dataset, (3, SMALL, SMALL), [0] * 8 + [1] * 8 + [2] * 8, [0, 0, 1, 1, 2, 2])
    assert not (tmp_path / "absent").exists()
    train = {tuple(row) for row in dataset.train.images.batch(torch.arange(24)).flatten(1).tolist()}
    test = {tuple(row) for row in dataset.test.images.batch(torch.arange(6)).flatten(1).tolist()}
    assert len(train | test) == 30


@pytest.mark.parametrize("other", ["test", "val"])
def test_folder_with_its_own_split(tmp_path: Path, write_image: Any, other: str) -> None:
    write_classes(tmp_path / "train", write_image, ("a", "b"), images=3)
    write_classes(tmp_path / other, write_image, ("a", "b"), images=1)
    dataset = load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL))
    check(dataset, (3, SMALL, SMALL), [0, 0, 0, 1, 1, 1], [0, 1])
    write_classes(tmp_path / other, write_image, ("c",), images=1)
    with pytest.raises(DataError, match=r"train.c is missing"):
        load_dataset(f"folder:{tmp_path}")


def test_train_may_be_a_class(tmp_path: Path, write_image: Any) -> None:
    write_classes(tmp_path, write_image, ("bus", "train"), images=2)
    assert load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL)).classes == ("bus", "train")


def test_foreign_files_and_loops_are_left_aside(tmp_path: Path, write_image: Any) -> None:
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
    with pytest.raises(DataError, match="no such folder"):
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
    with pytest.raises(DataError, match=r"3\.png.*--skip-bad-images"):
        load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL))
    dataset = load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL, skip_bad_images=True))
    assert len(dataset.train) + len(dataset.test) == 19
    for path in (tmp_path / "b").iterdir():
        path.write_bytes(b"broken")
    with pytest.raises(
        DataError, match="no training images after bad ones were skipped, the first being 'b'"
    ):
        load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL, skip_bad_images=True))


def test_train_and_test_share_the_memory_budget(tmp_path: Path, write_image: Any) -> None:
    write_classes(tmp_path, write_image, ("a", "b"), images=10)
    budget = 16 * 3 * SMALL * SMALL
    dataset = load_dataset(f"folder:{tmp_path}", ReadOptions(size=SMALL, cache_bytes=budget))
    assert dataset.train.images.in_memory  # type: ignore[attr-defined]
    assert not dataset.test.images.in_memory  # type: ignore[attr-defined]


def test_decoded_images_are_kept_below_the_root(tmp_path: Path, write_image: Any) -> None:
    write_classes(tmp_path / "images", write_image, ("a", "b"), images=5)
    load_dataset(f"folder:{tmp_path / 'images'}", ReadOptions(size=SMALL, root=tmp_path))
    assert len(list((tmp_path / ".cache").glob("*.npy"))) == 4
    load_dataset(f"folder:{tmp_path / 'images'}", ReadOptions(size=SMALL, cache_dir=tmp_path / "elsewhere"))
    assert (tmp_path / "elsewhere").is_dir()


@settings(max_examples=50, deadline=None)
@given(count=st.integers(2, 200), share=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_a_seeded_split_is_a_partition(count: int, share: float, seed: int) -> None:
    train, test = seeded_split(count, share, seed)
    assert sorted(train + test) == list(range(count))
    assert train
    assert test
    assert (train, test) == seeded_split(count, share, seed)


# The registry


def test_every_dataset_that_needs_files_says_what_is_missing(tmp_path: Path) -> None:
    for name, info in datasets().items():
        if not info.folder:
            continue
        assert not info.present(tmp_path)
        with pytest.raises(DataError, match=f"{name}.*expected at"):
            read(name, tmp_path)


def test_registry() -> None:
    known = datasets()
    assert known["cifar100"].fetchable
    assert not known["cars"].fetchable
    assert not known["folder"].fetchable
    with pytest.raises(ConfigError, match="did you mean 'cifar100'"):
        dataset_info("cifar-100")
    with pytest.raises(ConfigError, match="unknown dataset"):
        dataset_info("cifar100:/some/path")


def test_folder_info(tmp_path: Path) -> None:
    info = dataset_info(f"folder:{tmp_path}")
    assert info.name == f"folder:{tmp_path}"
    assert info.present(Path("anywhere"))
    assert not dataset_info(f"folder:{tmp_path / 'absent'}").present(tmp_path)


# Real data


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "classes", "train", "test", "shape"),
    [
        ("cifar100", 100, 50000, 10000, (3, 32, 32)),
        ("tiny", 50, 25000, 2500, (3, 64, 64)),
        ("cub", 200, 5994, 5794, (3, 224, 224)),
        ("omniglot", 1623, 24345, 8115, (1, 32, 32)),
    ],
)
def test_real_data(
    data_root: Path, name: str, classes: int, train: int, test: int, shape: tuple[int, int, int]
) -> None:
    if not dataset_info(name).present(data_root):
        pytest.skip(f"{name} is not there")
    dataset = read(name, data_root, cache_bytes=0)
    assert len(dataset.classes) == classes
    assert (len(dataset.train), len(dataset.test)) == (train, test)
    for part in (dataset.train, dataset.test):
        assert part.counts().min() > 0
        some = torch.arange(0, len(part), 997)
        assert part.images.batch(some).shape == (len(some), *shape)
    sample = dataset.train.images.batch(torch.arange(0, train, 97)).double() / 255
    for channel, (mean, std) in enumerate(zip(dataset.mean, dataset.std, strict=True)):
        assert abs(float(sample[:, channel].mean()) - mean) < 0.1
        assert abs(float(sample[:, channel].std()) - std) < 0.1
