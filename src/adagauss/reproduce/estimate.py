"""How long a cell takes: from finished cells of the same kind, or from what such networks have taken before."""

from __future__ import annotations

from collections.abc import Iterable

from adagauss.experiments.config import RunConfig
from adagauss.experiments.run import RunResult
from adagauss.reproduce.cells import Cell
from adagauss.reproduce.lengths import passes

SECONDS = {"resnet18": 0.0005, "resnet_thin": 0.001, "resnet32": 0.002, "convnet": 0.001, "efficientnet_lite0": 0.024}
"""Training seconds per image and epoch: ResNet-18 on the paper's graphics card (86 minutes for ten tasks of CIFAR-100),
the others on one core."""
USUAL_SECONDS = 0.002
RESCORED = 0.1
"""Share of a run's time that scoring other parts on its networks takes."""


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
