"""An installed adagauss learns two tasks, predicts, also after saving and loading."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import adagauss

images, labels = load_digits(return_X_y=True)
images = (images.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
classifier = adagauss.IncrementalClassifier(backbone="convnet", epochs=2, settings={"backbone.features": 8})
for task in ([0, 1], [2, 3]):
    now = np.isin(labels, task)
    classifier.partial_fit(images[now], labels[now])
predicted = classifier.predict(images[labels < 4])
assert set(predicted) <= {0, 1, 2, 3}, "unknown labels"
with tempfile.TemporaryDirectory() as folder:
    classifier.save(Path(folder) / "digits.safetensors")
    again = adagauss.IncrementalClassifier.load(Path(folder) / "digits.safetensors")
    assert (again.predict(images[labels < 4]) == predicted).all(), "a loaded classifier predicts differently"
assert "site-packages" in adagauss.__file__, f"{adagauss.__file__} is not the installed package"
