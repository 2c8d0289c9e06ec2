"""How long a cell takes: from finished cells of the same kind, or from what such networks have taken before."""

from __future__ import annotations

from collections.abc import Iterable

from adagauss.reproduce.cells import Cell
from adagauss.runs.configuration import RunConfig
from adagauss.runs.results import RunResult

IMAGES_PER_CLASS = {"cifar100": 500, "tiny": 500, "imagenet-subset-seed1993": 1300, "cub": 30, "aircraft": 67}
CLASSES = {"tiny": 200, "cub": 200}
"""The others have a hundred."""
SECONDS = {"resnet18": 0.0005, "resnet_thin": 0.001, "resnet32": 0.002, "convnet": 0.001, "efficientnet_lite0": 0.024}
"""Training seconds per image and epoch: ResNet-18 on the paper's graphics card (86 minutes for ten tasks of CIFAR-100),
the others on one core."""
USUAL_SECONDS = 0.002
RESCORED = 0.1
"""Share of a run's time that scoring other parts on its networks takes."""


def passes(config: RunConfig) -> float:
    """Images times epochs that a run trains on; four images instead of one where labels are rotated.

    Adapters and classifiers learn from features and are not counted: finished cells show what they add.
    """
    stream, representation = config.stream, config.method.representation
    images = IMAGES_PER_CLASS.get(stream.dataset, 100)
    classes = stream.classes or CLASSES.get(stream.dataset, 100)
    first = stream.sizes[0] if stream.sizes else stream.first or classes / stream.tasks
    copies = {"first": (4, 1), "always": (4, 4)}.get(getattr(representation.label_augmentation, "when", ""), (1, 1))
    epochs = [recipe.epochs if recipe else 0 for recipe in (representation.first, representation.later)]
    return images * (first * epochs[0] * copies[0] + (classes - first) * epochs[1] * copies[1])


class Estimate:
    """Minutes of cells, by network and dataset."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        spent: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for cell in cells:
            result = cell.result()
            if isinstance(result, RunResult):
                seconds = sum(result.cost.seconds.values())
                spent.setdefault(_kind(cell.config), []).append((seconds, passes(cell.config)))
        self._seconds = {
            kind: sum(seconds for seconds, _ in pairs) / max(1.0, sum(count for _, count in pairs))
            for kind, pairs in spent.items()
        }

    def minutes(self, config: RunConfig) -> float:
        """Of one run."""
        usual = SECONDS.get(config.method.backbone.name, USUAL_SECONDS)
        return passes(config) * self._seconds.get(_kind(config), usual) / 60


def _kind(config: RunConfig) -> tuple[str, str]:
    return config.method.backbone.name, config.stream.dataset
