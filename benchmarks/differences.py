"""AdaGauss and its published code, one difference at a time: `python -m benchmarks.differences OUT SEED [SEED ...]`.

A small sibling of `benchmarks.parity`: the same 5 tasks of 4 classes and the same epochs, but 200 training images per
class, batches of 64 and a stem that halves the resolution. The initialisation needs runs of its own; what differs in
the drift is scored on the networks of those runs, which no drift ever touches.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch

from adagauss.analysis.replay import Replay, mean_log_det, replay
from adagauss.data.dataset import Dataset
from adagauss.data.images import LabelledImages, Subset
from adagauss.experiments.compare import Spread, markdown
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.run import RunFolder
from adagauss.experiments.runner import run
from adagauss.parts.drift import Adapter

from .parity import STREAM
from .real_data import read

IMAGES_PER_CLASS = 200
EPOCHS = 20
# In each pair the published code has the second.
INITIALIZATIONS = {"He's": "he", "torch's": "torch"}
VIEWS = {"4 cached": 4, "one per epoch": EPOCHS // 2}
MILESTONES = {"30, 60, 90 %": (0.3, 0.6, 0.9), "epochs 30, 60, 90": (30.0, 60.0, 90.0)}
SETTINGS = {
    "backbone.name": "resnet32",
    "backbone.features": 32,
    "backbone.stem": "halved",
    "representation.first.batch_size": 64,
    "representation.later.batch_size": 64,
    "drift.recipe.batch_size": 64,
    "drift.recipe.milestones": MILESTONES["30, 60, 90 %"],
}
PUBLISHED = "published"
SCORES = "differences.json"


def limited(data: LabelledImages, most: int) -> LabelledImages:
    """The first ``most`` images of each class, in the order of the file."""
    kept = torch.cat([torch.nonzero(data.targets == index)[:most, 0] for index in range(len(data.classes))])
    return LabelledImages(Subset(data.images, kept), data.targets[kept], data.classes)


def configuration(seed: int, initialization: str) -> RunConfig:
    settings = {**SETTINGS, "backbone.initialization": initialization}
    return make_config(
        "adagauss", STREAM, preset="reference", settings=settings, epochs=EPOCHS, seed=seed, diagnostics="none"
    )


def drifts(config: RunConfig) -> dict[str, Adapter]:
    """The adapter with either number of views and either kind of milestones; with torch's start, the first of both."""
    drift = config.method.drift
    assert isinstance(drift, Adapter)
    combinations = list(product(VIEWS, MILESTONES))
    if config.method.backbone.initialization == "torch":
        combinations = combinations[:1]
    return {
        _name(views, when): drift.with_changes(
            views=VIEWS[views], recipe=drift.recipe.with_changes(milestones=MILESTONES[when])
        )
        for views, when in combinations
    }


def measure(folder: Path, dataset: Dataset, config: RunConfig) -> None:
    """One run and its replay; what is finished already is left as it is."""
    if (folder / SCORES).exists():
        return
    run(config, folder, resume=True, dataset=dataset)
    replay(RunFolder(folder), dataset, drifts(config), {PUBLISHED: config.method.classifier}).write(folder / SCORES)


def rows(out: Path) -> list[dict[str, str]]:
    """One row for each combination that was scored; the real statistics of old classes are the ceiling of a drift."""
    table = []
    for start, initialization in INITIALIZATIONS.items():
        found = sorted(out.glob(f"{initialization}-seed*/{SCORES}"))
        results = [Replay.read(path, "remove it and measure again") for path in found]
        for drift in dict.fromkeys(row.drift for result in results for row in result.rows):
            table.append({"initialisation": start, "views; adapter's milestones": drift, **_scores(results, drift)})
    return table


def _scores(results: list[Replay], drift: str) -> dict[str, str]:
    found = [row for result in results for row in result.rows if row.drift == drift]
    return {
        "A_last": str(Spread.of([row.a_last for row in found])),
        "A_inc": str(Spread.of([row.a_inc for row in found])),
        "A_last by seed": ", ".join(f"{100 * row.a_last:.1f}" for row in found),
        "log-determinant, task 1": mean_log_det(results, drift),
    }


def _name(views: str, when: str) -> str:
    return f"{views}; {when}"


def main() -> None:
    out = Path(sys.argv[1])
    whole = read("cifar100")
    dataset = replace(whole, train=limited(whole.train, IMAGES_PER_CLASS))
    for seed, initialization in product(map(int, sys.argv[2:]), INITIALIZATIONS.values()):
        measure(out / f"{initialization}-seed{seed}", dataset, configuration(seed, initialization))
    print(markdown(rows(out)))


if __name__ == "__main__":
    main()
