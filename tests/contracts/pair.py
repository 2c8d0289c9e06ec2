"""What two processes do that learn together, for the contract: every method, and all that may go wrong."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from adagauss.core import task
from adagauss.core.calibration import CalibrationStats
from adagauss.core.config import Layer
from adagauss.core.learn import Learner
from adagauss.data.images import LabelledImages, Subset
from adagauss.data.stream import StreamConfig
from adagauss.distributed.processes import Processes
from adagauss.experiments.config import RunConfig
from adagauss.experiments.runner import run
from adagauss.methods import Method, dataset_layers, make_method, methods
from adagauss.utils.checkpoint import save_json, save_tensors
from adagauss.utils.runtime import Runtime, RuntimeConfig
from tests.contracts.toy import NAMES, QUICK, STAND_INS, digits, state, toy_images
from tests.faults.budget import TORTURE

SHORT = {
    **QUICK,
    "backbone.name": "convnet",  # in a narrower network, more depends on the rounding of single numbers
    "representation.first.epochs": 1,
    "representation.later.epochs": 1,
    "representation.first.batch_size": 7,  # odd: shares are unequal
    "representation.later.batch_size": 7,
    # Where a gradient is zero but for rounding, Adam takes a step of full length in the direction of the rounding.
    "representation.first.optimizer": "sgd",
    "representation.later.optimizer": "sgd",
    "representation.first.learning_rate": 0.001,
    "representation.later.learning_rate": 0.001,
    "drift.recipe.epochs": 1,
    "drift.adam.epochs": 1,
    "drift.min_steps": 2,
    "classifier.recipe.epochs": 1,
}
ENLARGING = ("pass", "il2a", "ssre")
IMAGES = 10
FEATURE_BATCH = 8
CPU = RuntimeConfig(device="cpu")

DIVIDED = {"adagauss", "ewc", "pass", "acil", "exact", "analytic-patches"}
"""Methods that divide work between processes in every way: losses, Fisher information, copies, sums, features."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in methods() if TORTURE > 1 or name in DIVIDED},
    "warm-up of the head": ("adagauss", {"representation.first.epochs": 2, "representation.first.head_warmup": 0.5}),
    "clipped gradients": ("adagauss", {"representation.first.clip_norm": 0.5}),
    "uneven last batch": ("finetune", {"representation.first.drop_last": False}),
    "a last batch of one image each": (
        "adagauss",
        {"representation.first.batch_size": 9, "representation.first.drop_last": False},
    ),
    "its own labels": ("ewc", {"representation.terms.ewc.labels": "true"}),
}
"""What is learned by one process and by two: the methods, and settings that divide work differently."""


def short_method(name: str, settings: Mapping[str, Any]) -> Method:
    """A method whose tasks take a moment."""
    # A batch is divided by the number of turned or mixed copies, and one image alone would be noise.
    larger = {f"representation.{when}.batch_size": 28 for when in ("first", "later") if name in ENLARGING}
    layers = [*dataset_layers("digits"), Layer("short", {**SHORT, **larger}, strict=False), *STAND_INS.get(name, ())]
    return make_method(name, None, settings, layers)


def short_tasks() -> list[LabelledImages]:
    """Two tasks of two classes and one, of ten images each."""
    data = toy_images(NAMES[:3])
    rows = torch.cat([torch.nonzero(data.targets == target).flatten()[:IMAGES] for target in range(3)])
    few = LabelledImages(Subset(data.images, rows), data.targets[rows], data.classes)
    return [few.of_classes(NAMES[:2]), few.of_classes(NAMES[2:3])]


def new_learner(name: str, settings: Mapping[str, Any], processes: Processes | None = None) -> Learner:
    """A learner that knows nothing yet."""
    runtime = Runtime(CPU, processes=processes)
    return Learner(short_method(name, settings), digits().train.images.shape, digits().mean, digits().std, runtime)


def learn_all(folder: Path, processes: Processes | None = None) -> None:
    """Learn everything, and write down what is known after it and what the training said."""
    task.FEATURE_BATCH = FEATURE_BATCH  # several batches of features, so that processes have something to divide
    for title, (name, settings) in VARIANTS.items():
        learner = new_learner(name, settings, processes)
        histories = [learner.learn(data).history for data in short_tasks()]
        rank = 0 if processes is None else processes.rank
        save_tensors(folder / f"{title}-{rank}", "learner", state(learner), {"history": histories})


def take_part(processes: Processes, folder: Path, config: RunConfig) -> None:
    """All that the pair does, one thing after another."""
    learn_all(folder, processes)
    result = run(config, folder / "run", resume=True, processes=processes)
    found = {
        "snapshot": _snapshot(processes),
        "confusions": _confusions(processes),
        "metrics": result.metrics,
    }
    save_json(folder / f"found-{processes.rank}.json", found)
    processes.sum_(torch.zeros(1))
    if not processes.first:
        os.kill(os.getpid(), signal.SIGKILL)
    processes.sum_(torch.zeros(1))  # the first process waits for one that is gone


def _snapshot(processes: Processes) -> list[Any]:
    """A snapshot that only the first process has, as every process receives it."""
    saved = ({"step": torch.tensor(3), "weights": torch.eye(2)}, {"history": [{"loss": 0.1}]})
    tensors, facts = processes.broadcast(lambda: saved)
    return [{name: tensor.tolist() for name, tensor in tensors.items()}, facts]


def _confusions(processes: Processes) -> list[list[int]]:
    """Confusions, whose number differed between the processes, after synchronisation."""
    found = CalibrationStats()
    found.observe(torch.eye(2)[[0, 0, 1][processes.rank :]], torch.tensor([0, 1, 1][processes.rank :]))
    processes.sync(found)
    confusions: list[list[int]] = found.confusions.tolist()
    return confusions


def run_config() -> RunConfig:
    """A short run."""
    stream = StreamConfig(dataset="digits", tasks=2, classes=4)
    larger = {"representation.first.batch_size": 64, "representation.later.batch_size": 64}
    return RunConfig(method_name="lwf", stream=stream, method=short_method("lwf", larger), runtime=CPU)
