"""Memory of a learner over many tasks: only the class statistics may grow."""

from __future__ import annotations

import gc

import torch

from adagauss.core.learn import Learner
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.methods import make_method

from .measure import Ratio, _resident, mebibytes

TASKS, IMAGES = 30, 400


def run() -> list[Ratio]:
    settings = {
        "backbone.name": "convnet",
        "backbone.features": 64,
        "representation.first.epochs": 1,
        "representation.later.epochs": 1,
        "drift.recipe.epochs": 1,
        "drift.samples": 500,
        "drift.views": 1,
    }
    learner = Learner(make_method("adagauss", settings=settings), (3, 16, 16), (0.5,) * 3, (0.25,) * 3)
    sizes = []
    for task in range(TASKS):
        pixels = torch.randint(0, 256, (IMAGES, 3, 16, 16), dtype=torch.uint8)
        labels = [f"{task}-{index % 4}" for index in range(IMAGES)]
        learner.learn(LabelledImages.from_labels(ArrayImages(pixels), labels))
        gc.collect()
        sizes.append(_resident())
    growth = sizes[-1] - sizes[TASKS // 3]
    statistics = learner.state.bytes_per_class * 4 * (TASKS - TASKS // 3 - 1)
    images = IMAGES * 3 * 16 * 16 * (TASKS - TASKS // 3 - 1)
    what = f"resident memory after {TASKS} tasks and after {TASKS // 3} (statistics grew by {mebibytes(statistics)}, "
    what += f"the images would be {mebibytes(images)})"
    before, after = sizes[TASKS // 3], sizes[-1]
    return [Ratio(what, mebibytes(before), mebibytes(after), after / before, f"<= 1.1 (grew {mebibytes(growth)})")]
