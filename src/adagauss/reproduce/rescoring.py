"""Rows that differ only in memory, drift or classifier are scored on the networks of another run, not trained again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from adagauss.analysis.replay import Curve
from adagauss.analysis.visits import Followed, followed, task_mean, visits
from adagauss.classifiers import Scorer
from adagauss.core.config import Layer, plain, resolve
from adagauss.core.linalg import by_rows
from adagauss.core.task import CurrentTask, extract_features
from adagauss.data.dataset import Dataset
from adagauss.errors import AdagaussError, CheckpointError
from adagauss.methods import Method
from adagauss.reproduce.cells import Cell, Job, Problem, Workshop
from adagauss.reproduce.working import Datasets
from adagauss.runs.configuration import stored_config
from adagauss.runs.results import RunResult
from adagauss.runs.runner import make_stream
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime

REPLAYED = ("memory", "drift", "classifier")


class Rescored(Curve):
    """Accuracy of changed parts, on the networks of a run."""

    run: str
    """Name of the folder of the run."""
    changes: dict[str, Any]


def rescored_file(shop: Workshop, cell: Cell, changes: Mapping[str, Any]) -> Path:
    """Where the scores of changed parts are kept: by the parts themselves, so that equal ones are scored once."""
    method = changed(cell.config.method, changes)
    parts = {role: plain(getattr(method, role)) for role in REPLAYED}
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]
    return shop.out / "rescored" / f"{cell.name}-{digest}.json"


def changed(method: Method, changes: Mapping[str, Any]) -> Method:
    """A method with other memory, drift or classifier."""
    return resolve(method, [Layer("row", changes)], "run").config


def read_rescored(path: Path, shop: Workshop) -> Rescored | Problem:
    """Stored scores, if they are there."""
    try:
        return Rescored.read(path, "run the command again")
    except CheckpointError as error:
        if reason := shop.failures.reason(path.stem):
            return Problem("failed", reason)
        return Problem("missing", str(error) if path.exists() else "it has not been scored")


def rescore_missing(found: Sequence[Job], shop: Workshop, datasets: Datasets, reporter: Reporter) -> None:
    """Score what is not scored yet, for each run in one pass over its networks."""
    wanted: dict[Path, tuple[Cell, dict[Path, Mapping[str, Any]]]] = {}
    for job in found:
        cell, changes = job.cell, job.row.replay
        if changes is None or isinstance(cell, Problem) or not isinstance(cell.result(), RunResult):
            continue
        try:
            file = rescored_file(shop, cell, changes)
        except AdagaussError:  # the findings say why
            continue
        if isinstance(read_rescored(file, shop), Problem):
            wanted.setdefault(cell.folder.path, (cell, {}))[1][file] = changes
    with reporter.progress("scores on finished networks", len(wanted)) as advance:
        for cell, files in wanted.values():
            _rescore(cell, files, datasets.of(cell.config.stream), reporter)
            advance(cell.name)


def _rescore(cell: Cell, files: Mapping[Path, Mapping[str, Any]], dataset: Dataset, reporter: Reporter) -> None:
    """Follow one memory per changed method through the tasks of a run; all share the features of a task."""
    config = stored_config(cell.folder)
    methods = {file: changed(config.method, changes) for file, changes in files.items()}
    runtime = Runtime(config.runtime, config.seed, reporter)
    stream = make_stream(config, dataset)
    memories: dict[Path, Followed] = {}
    scorers: dict[Path, Scorer] = {}
    curves: dict[Path, list[float]] = {file: [] for file in files}
    failed: set[Path] = set()
    with reporter.progress(f"{len(files)} variants of {cell.name}", cell.folder.finished_tasks()) as advance:
        for visit in visits(cell.folder, config, stream, runtime):
            test = dataset.test.of_classes(stream.seen(visit.index))
            features = extract_features(visit.now.network.extractor, test.images, runtime)
            sizes = [len(classes) for classes in stream.task_classes[: visit.index + 1]]
            for file in methods.keys() - failed:
                method = methods[file]
                try:
                    memories[file] = _following(memories.get(file), method, visit.now)
                    scorers[file] = method.classifier.fit(memories[file].bank, visit.now, scorers.get(file))
                except AdagaussError as error:
                    cell.failures.note(file.stem, f"task {visit.index + 1}: {error}")
                    failed.add(file)
                    continue
                with torch.inference_mode():
                    curves[file].append(task_mean(by_rows(scorers[file], features), test.targets, sizes))
            advance("")
    for file in methods.keys() - failed:
        Rescored(run=cell.name, changes=dict(files[file]), accuracy=tuple(curves[file])).write(file)
        cell.failures.forget(file.stem)


def _following(known: Followed | None, method: Method, now: CurrentTask) -> Followed:
    return followed(known, lambda bank, state: method.drift.update(bank, now, state), method.memory, method, now)
