from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adagauss.data.dataset import Dataset, ReadOptions, Trait, dataset_info, load_dataset
from adagauss.data.datasets import imagenet_subset
from adagauss.data.folders import FileImages
from adagauss.errors import DataError

SMALL = 8


def read(name: str, root: Path, **options: Any) -> Dataset:
    return load_dataset(name, ReadOptions(root=root, **options))


def keeps_whole_pictures(dataset: Dataset) -> bool:
    images = [part.images for part in (dataset.train, dataset.test)]
    return all(isinstance(one, FileImages) and one.crops(torch.arange(1), whole_boxes) is not None for one in images)


def whole_boxes(sizes: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.zeros_like(sizes), sizes], dim=1)


def write_lines(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


@pytest.fixture
def tiny(tmp_path: Path, write_image: Any) -> Path:
    folder = tmp_path / "tiny-imagenet-200"
    for wnid in ("n02", "n01"):
        for index in range(2):
            write_image(folder / "train" / wnid / "images" / f"{wnid}_{index}.JPEG", size=(64, 64))
        write_lines(folder / "train" / wnid / f"{wnid}_boxes.txt", "a box")
    write_lines(folder / "wnids.txt", "n02", "n01")
    write_lines(folder / "val" / "val_annotations.txt", "val_0.JPEG\tn02\t0\t1\t2\t3", "val_1.JPEG\tn01\t0\t1\t2\t3")
    for index in range(2):
        write_image(folder / "val" / "images" / f"val_{index}.JPEG", size=(64, 64))
    return folder


def test_tiny(tiny: Path, check: Any) -> None:
    dataset = read("tiny", tiny.parent)
    check(dataset, (3, 64, 64), [0, 0, 1, 1], [1, 0])
    assert not keeps_whole_pictures(dataset)
    assert dataset.classes == ("n01", "n02")


def test_tiny_half_extracted(tiny: Path) -> None:
    (tiny / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(DataError, match=r"1 of 2 listed images.*val_1\.JPEG.*fetch tiny"):
        read("tiny", tiny.parent)
    write_lines(tiny / "wnids.txt", "n01", "n02", "n03")
    with pytest.raises(DataError, match=r"n03.*partly extracted"):
        read("tiny", tiny.parent)
    (tiny / "val" / "val_annotations.txt").unlink()
    write_lines(tiny / "wnids.txt", "n01", "n02")
    with pytest.raises(DataError, match=r"val_annotations\.txt is missing"):
        read("tiny", tiny.parent)


def test_the_two_imagenet_subsets_share_nine_classes() -> None:
    first, seeded = imagenet_subset.FIRST_100, imagenet_subset.SEED_1993
    assert len(set(first)) == len(set(seeded)) == 100
    assert list(first) == sorted(first)
    assert list(seeded) == sorted(seeded)
    assert len(set(first) & set(seeded)) == 9
    drawn = np.random.RandomState(1993).permutation(1000)[:100]
    assert sorted(set(first) & set(seeded)) == [first[i] for i in sorted(drawn) if i < 100]


def test_imagenet_subset(tmp_path: Path, write_image: Any, check: Any) -> None:
    for name, wnids in (
        ("imagenet-subset-first100", imagenet_subset.FIRST_100),
        ("imagenet-subset-seed1993", imagenet_subset.SEED_1993),
    ):
        root = tmp_path / name
        for part in ("train", "val"):
            for wnid in (*wnids, "n99999999"):
                write_image(root / "imagenet" / part / wnid / "a.JPEG")
        dataset = read(name, root, size=SMALL)
        assert keeps_whole_pictures(dataset)
        assert dataset.classes == wnids
        check(dataset, (3, SMALL, SMALL), list(range(100)), list(range(100)))
        missing = root / "imagenet" / "val" / wnids[5]
        (missing / "a.JPEG").unlink()
        with pytest.raises(DataError, match=rf"{wnids[5]} holds no images"):
            read(name, root, size=SMALL)
        missing.rmdir()
        with pytest.raises(DataError, match=rf"{wnids[5]} is missing.*image-net\.org"):
            read(name, root, size=SMALL)


def test_cub(tmp_path: Path, write_image: Any, check: Any) -> None:
    folder = tmp_path / "CUB_200_2011"
    names = ["001.Gull/a b.jpg", "001.Gull/b.jpg", "002.Tern/c.jpg", "002.Tern/d.jpg"]
    for name in names:
        write_image(folder / "images" / name)
    write_lines(folder / "classes.txt", "1 001.Gull", "2 002.Tern")
    write_lines(folder / "images.txt", *(f"{i + 1} {name}" for i, name in enumerate(names)))
    write_lines(folder / "image_class_labels.txt", "1 1", "2 1", "3 2", "4 2")
    write_lines(folder / "train_test_split.txt", "1 1", "2 0", "3 0", "4 1")
    dataset = read("cub", tmp_path, size=SMALL)
    assert keeps_whole_pictures(dataset)
    check(dataset, (3, SMALL, SMALL), [0, 1], [0, 1])
    assert dataset.classes == ("001.Gull", "002.Tern")
    assert dataset_info("cub").traits == (Trait.PHOTOGRAPHS,)
    assert read("cub", tmp_path).train.images.shape == (3, 224, 224)
    (folder / "images" / names[2]).unlink()
    with pytest.raises(DataError, match=r"c\.jpg.*fetch cub"):
        read("cub", tmp_path, size=SMALL)
    write_lines(folder / "image_class_labels.txt", "1 1", "2 1")
    with pytest.raises(DataError, match="are inconsistent"):
        read("cub", tmp_path, size=SMALL)
    write_lines(folder / "image_class_labels.txt")
    with pytest.raises(DataError, match="empty or damaged"):
        read("cub", tmp_path, size=SMALL)


def test_aircraft(tmp_path: Path, write_image: Any, check: Any) -> None:
    folder = tmp_path / "fgvc-aircraft-2013b" / "data"
    write_lines(folder / "variants.txt", "737-200", "Cessna 172")
    write_lines(folder / "images_variant_trainval.txt", "0001 Cessna 172", "0002 737-200")
    write_lines(folder / "images_variant_test.txt", "0003 737-200", "0004 Cessna 172")
    for number in range(1, 5):
        write_image(folder / "images" / f"000{number}.jpg")
    dataset = read("aircraft", tmp_path, size=SMALL)
    assert keeps_whole_pictures(dataset)
    check(dataset, (3, SMALL, SMALL), [1, 0], [0, 1])
    assert dataset.classes == ("737-200", "Cessna 172")
    write_lines(folder / "variants.txt", "737-200")
    with pytest.raises(DataError, match="'Cessna 172', which is not in variants"):
        read("aircraft", tmp_path, size=SMALL)
    (folder / "variants.txt").unlink()
    with pytest.raises(DataError, match=r"variants\.txt is missing.*fetch aircraft"):
        read("aircraft", tmp_path)


@pytest.mark.parametrize("place", ["", "devkit"])
def test_cars(tmp_path: Path, write_image: Any, place: str, check: Any) -> None:
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
    assert keeps_whole_pictures(dataset)
    check(dataset, (3, SMALL, SMALL), [1, 0], [0, 1])
    assert dataset.classes == ("Audi R8", "BMW M3")
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names[:1]})
    with pytest.raises(DataError, match="names class 2"):
        read("cars", tmp_path, size=SMALL)
    (folder / "devkit" / "cars_meta.mat").write_bytes(b"damaged")
    with pytest.raises(DataError, match="cannot be read"):
        read("cars", tmp_path, size=SMALL)


@pytest.mark.parametrize("name", ["../secret.jpg", "/etc/passwd", "", "below/a.jpg"])
def test_a_table_of_cars_cannot_name_files_elsewhere(tmp_path: Path, write_image: Any, name: str) -> None:
    from scipy.io import savemat

    folder = tmp_path / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    write_image(folder / "secret.jpg")
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": np.array(["one", "two"], dtype=object)})
    rows = np.array([(1, name), (2, name)], dtype=[("class", "O"), ("fname", "O")])
    savemat(folder / "devkit" / "cars_train_annos.mat", {"annotations": rows})
    with pytest.raises(DataError, match="does not name a file"):
        read("cars", tmp_path)


def test_omniglot(tmp_path: Path, write_image: Any, check: Any) -> None:
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
