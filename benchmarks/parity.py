"""AdaGauss as published, small: `python -m benchmarks.parity OUT SEED [SEED ...]`, and a table of what is in OUT.

CIFAR-100 in iCaRL's order, the first 20 classes as 5 tasks of 4, ResNet-32 with S = 32, 20 epochs per task, batches of
128, the `reference` preset. It also measures the time of the networks' forward and backward passes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from lightning_fabric import Fabric
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from adagauss.analysis.tables import Spread, markdown
from adagauss.backbones import Extractor
from adagauss.data.dataset import Dataset
from adagauss.data.stream import StreamConfig
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.run import Run
from adagauss.experiments.runner import run

from .real_data import read

STREAM = StreamConfig(dataset="cifar100", classes=20, tasks=5)
SETTINGS = {
    "backbone.name": "resnet32",
    "backbone.features": 32,
    "representation.first.batch_size": 128,
    "representation.later.batch_size": 128,
    "drift.recipe.batch_size": 128,
}
STAGES = ("representation", "drift", "memory", "classifier", "evaluation")
COST = "network.json"


class NetworkClock:
    """Wall time inside the extractors' forward pass and inside backward, everywhere in the program. Make one only."""

    def __init__(self) -> None:
        self.forward = self.backward = 0.0
        self._since = 0.0
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave)
        inner = Fabric.backward

        def backward(fabric: Fabric, *args: Any, **kwargs: Any) -> None:
            started = perf_counter()
            inner(fabric, *args, **kwargs)
            self.backward += perf_counter() - started

        Fabric.backward = backward  # type: ignore[method-assign, assignment]

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if isinstance(module, Extractor):
            self._since = perf_counter()

    def _leave(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        if isinstance(module, Extractor):
            self.forward += perf_counter() - self._since


def configuration(dataset: Dataset, seed: int) -> RunConfig:
    return make_config("adagauss", STREAM, preset="reference", settings=SETTINGS, epochs=20, seed=seed)


def measure(folder: Path, dataset: Dataset, seed: int, clock: NetworkClock) -> None:
    """One run; a folder that is finished already is left as it is. A resumed run is measured from there on."""
    if (folder / COST).exists():
        return
    clock.forward = clock.backward = 0.0
    started = perf_counter()
    run(configuration(dataset, seed), folder, resume=True, dataset=dataset)
    facts = {"wall": perf_counter() - started, "forward": clock.forward, "backward": clock.backward}
    (folder / COST).write_text(json.dumps(facts, indent=1), encoding="utf-8")


def rows(out: Path) -> list[dict[str, str]]:
    """One row per seed, and their mean."""
    found = [path.parent for path in sorted(out.glob(f"*/{COST}"))]
    results = [Run.open(folder) for folder in found]
    table = []
    for folder, result in zip(found, results, strict=True):
        cost = json.loads((folder / COST).read_text(encoding="utf-8"))
        table.append(
            {
                "seed": str(result.seed),
                "A_last": f"{100 * result.metrics['a_last']:.1f}",
                "A_inc": f"{100 * result.metrics['a_inc']:.1f}",
                **{f"{stage}, s": f"{result.cost.seconds[stage]:.0f}" for stage in STAGES},
                "whole run, min": f"{sum(result.cost.seconds[stage] for stage in STAGES) / 60:.1f}",
                "in forward and backward": f"{100 * (cost['forward'] + cost['backward']) / cost['wall']:.0f} %",
                "config": result.digest,
            }
        )
    mean = dict.fromkeys(table[0], "")
    mean["seed"] = "mean"
    for column, name in (("A_last", "a_last"), ("A_inc", "a_inc")):
        mean[column] = str(Spread.of([result.metrics[name] for result in results]))
    return [*table, mean]


def main() -> None:
    out = Path(sys.argv[1])
    dataset = read("cifar100")
    clock = NetworkClock()
    for seed in map(int, sys.argv[2:]):
        measure(out / f"seed{seed}", dataset, seed, clock)
    print(markdown(rows(out)))


if __name__ == "__main__":
    main()
