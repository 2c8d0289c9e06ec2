"""Shards of digits: small, and of every kind."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from adagauss.core.learn import Learner
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.methods import make_method

NUMBER = 240
SETTINGS = {
    "backbone.options.filters": 20,
    "backbone.options.patches": 500,
    "classifier.strengths": (100.0, 1000.0),  # a weak ridge would magnify the rounding of features in other batches
}
Pixels = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
Digits = tuple[Pixels, list[str]]
Pack = Callable[[Path, Sequence[tuple[str, bytes]]], Path]


@pytest.fixture(scope="session")
def digits() -> Digits:
    """Pixels (N, 8, 8) and labels."""
    held = load_digits()
    return (held.images[:NUMBER] * 15).astype(np.uint8), [f"digit {label}" for label in held.target[:NUMBER]]


@pytest.fixture(scope="session")
def prepared(digits: Digits) -> Learner:
    """A learner with features and no classes."""
    pixels, labels = digits
    learner = Learner(make_method("exact", settings=SETTINGS), (1, 8, 8), (0.3,), (0.4,))
    learner.learn(LabelledImages.from_labels(ArrayImages(pixels[:100]), labels[:100]))
    return learner.empty_like()


@pytest.fixture(scope="session")
def at_once(digits: Digits, prepared: Learner) -> Learner:
    """The same learner after one task of all images."""
    pixels, labels = digits
    learner = prepared.empty_like()
    learner.learn(LabelledImages.from_labels(ArrayImages(pixels), labels))
    return learner


def png(pixels: Pixels) -> bytes:
    """An encoded image."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def packed(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    """A tar file of these members."""
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def samples(digits: Digits, rows: range, kind: str = "txt") -> list[tuple[str, bytes]]:
    """Members of a tar file: an image and its label for each row."""
    pixels, labels = digits
    found = []
    for row in rows:
        label = json.dumps({"label": labels[row]}) if kind == "json" else labels[row]
        found += [(f"train/{row:05}.png", png(pixels[row])), (f"train/{row:05}.{kind}", label.encode())]
    return found


def mixed(folder: Path, digits: Digits) -> list[Path]:
    """All digits as shards of four kinds, one file each and one folder."""
    pixels, labels = digits
    folder.mkdir(exist_ok=True)
    paths = [
        packed(folder / "a.tar", samples(digits, range(60))),
        packed(folder / "b.tgz", samples(digits, range(60, 90), "json")),
    ]
    np.savez(folder / "c.npz", images=pixels[90:160], labels=np.array(labels[90:160]))
    paths.append(folder / "c.npz")
    for row in range(160, NUMBER):
        place = folder / "classes" / labels[row]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{row}.png").write_bytes(png(pixels[row]))
    return [*paths, folder / "classes"]


def scores(learner: Learner, digits: Digits) -> torch.Tensor:
    """Of all digits."""
    return learner.scores(learner.features(ArrayImages(digits[0])))
