"""Many runs: their specifications, their workers, and the grid of methods and seeds."""

from __future__ import annotations

import socket
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from adagauss.core.config import Config, flatten, plain
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation
from adagauss.data.dataset import Dataset, ReadOptions, load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.errors import AdagaussError, CheckpointError, ConfigError, DataError, WorkerError, unknown_name
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.logs import check_logger
from adagauss.experiments.protocols import Protocol
from adagauss.experiments.run import Run, RunFolder
from adagauss.experiments.runner import ValidationSplit, run
from adagauss.methods import Method, make_method, method_info
from adagauss.methods import methods as all_methods
from adagauss.utils.process import is_out_of_memory
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import RuntimeConfig

TRACEBACK = "error.txt"
"""Traceback of an unexpected error, in the run folder."""
REMEDY = (
    "it was killed, or the memory is full, or its machine is gone; make fewer runs at once (--jobs): the same command "
    "continues from here"
)
SILENT = Reporter()
"""One for all, so that equal options are equal."""


@dataclass(frozen=True)
class RunSpec:
    """A configuration and the folder of its run; an existing run is continued, or only read if it is finished."""

    name: str
    config: RunConfig
    folder: Path
    logger: str | None = None
    split: ValidationSplit | None = None
    """Run only this part of the data."""


@dataclass(frozen=True)
class Outcome:
    """The run of a spec, or why there is none."""

    result: Run | None = None
    failure: AdagaussError | None = None
    messages: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.failure) if self.result is None else f"{100 * self.result.curve[-1]:.1f} %"


def read_dataset(stream: StreamConfig, options: ReadOptions) -> Dataset:
    """Read the dataset of a stream. The last one stays in memory, because runs on one dataset follow each other."""
    return _load(stream.dataset, replace(options, size=stream.image_size, skip_bad_images=stream.skip_bad_images))


@lru_cache(maxsize=1)
def _load(name: str, options: ReadOptions) -> Dataset:
    return load_dataset(name, options)


def attempt(spec: RunSpec, options: ReadOptions, reporter: Reporter) -> Outcome:
    """Run a spec here. Every error is a value, except those that stop the whole process."""
    try:
        config, data = spec.config, read_dataset(spec.config.stream, options)
        if spec.split is not None:
            config, data = spec.split.of(config, data)
        return Outcome(run(config, spec.folder, resume=True, reporter=reporter, dataset=data, logger=spec.logger))
    except AdagaussError as error:
        return Outcome(failure=error)
    except OSError as error:
        return Outcome(failure=CheckpointError(f"{error.filename or spec.folder}: {error.strerror or error}"))
    except Exception as error:
        if is_out_of_memory(error):
            return Outcome(failure=WorkerError("the memory is full: make fewer runs at once, or use a smaller network"))
        with suppress(OSError):
            spec.folder.mkdir(parents=True, exist_ok=True)
            (spec.folder / TRACEBACK).write_text(traceback.format_exc(), encoding="utf-8", errors="backslashreplace")
        found = f"unexpected error ({type(error).__name__}: {error})"
        return Outcome(failure=WorkerError(f"{found}; {spec.folder / TRACEBACK} shows where"))


class Messages(Reporter):
    """Collects messages."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


def work(spec: RunSpec, out: Path, options: ReadOptions) -> Outcome:
    """Run a spec in a worker: the function that executors are given. All workers must see the folder ``out``."""
    torch.set_num_threads(1)
    host = socket.gethostname()
    if not out.exists():
        return Outcome(
            failure=WorkerError(
                f"{host} does not see {out}: runs on several machines need an --out folder "
                "that all of them share under one path"
            )
        )
    reporter = Messages()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        outcome = attempt(spec, replace(options, reporter=SILENT), reporter)
    if isinstance(outcome.failure, DataError):
        outcome = Outcome(failure=DataError(f"{host}: {outcome.failure}"))
    messages = [*reporter.texts, *(str(warning.message) for warning in caught)]
    return replace(outcome, messages=tuple(dict.fromkeys(messages)))


@dataclass(frozen=True)
class Workers:
    """Makes runs, here or with an executor."""

    executor: Executor | None = None
    """Makes the runs; None makes one after another in this process."""
    most: int | None = None
    """How many the executor has at a time; None for all."""
    options: ReadOptions = field(default_factory=ReadOptions)
    """How the data are read, here or by the workers."""
    reporter: Reporter = SILENT
    """Shows progress."""

    def submit(self, spec: RunSpec, out: Path) -> Future[Outcome]:
        """Start a run; without an executor it has ended afterwards."""
        future: Future[Outcome] = Future()
        try:
            if self.executor is None:
                future.set_result(attempt(spec, self.options, self.reporter))
            else:  # workers may have another current folder
                out.mkdir(parents=True, exist_ok=True)
                options = replace(self.options, reporter=SILENT, root=self.options.root.absolute())
                spec = replace(spec, folder=spec.folder.absolute())
                future = self.executor.submit(work, spec, out.absolute(), options)
        except Exception as error:  # engines raise their own errors if they are gone
            future.set_exception(error)
        return future


def run_specs(
    specs: Iterable[RunSpec], out: Path, workers: Workers | None = None, *, total: int = 0, title: str = "runs"
) -> Iterator[tuple[RunSpec, Outcome]]:
    """Run specs, and yield the outcome of each when its run ends.

    Args:
        specs: taken one by one, when there is room.
        out: the folder of all runs.
        workers: makes the runs.
        total: number of specs.
        title: name of the progress bar.
    """
    workers = workers or Workers()
    most = 1 if workers.executor is None else workers.most
    source = iter(specs)
    pending: dict[Future[Outcome], RunSpec] = {}
    with workers.reporter.progress(title, total) as advance:
        while True:
            for spec in islice(source, None if most is None else most - len(pending)):
                pending[workers.submit(spec, out)] = spec
            if not pending:
                return
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                spec = pending.pop(future)
                try:
                    outcome = future.result()
                except Exception as error:  # our own errors are values: this is the engine's
                    lines = [": " + line[:200] for line in str(error).strip().splitlines()[:1]]
                    lost = f"its worker ended ({type(error).__name__}{''.join(lines)})"
                    outcome = Outcome(failure=WorkerError(f"{lost}: {REMEDY}"))
                for message in (*outcome.messages, f"{'done' if outcome.result else 'failed'} {outcome}".rstrip()):
                    workers.reporter.message(f"{spec.name}: {message}")
                advance(f"{spec.name} {outcome if outcome.result else 'failed'}")
                yield spec, outcome


SHARED_RATES: dict[str, dict[str, float]] = {
    "shared": {"first": 0.1, "later": 0.05},
    "short": {"first": 0.1, "later": 0.1},
}
"""Learning rates of the recipes that all methods share."""
RECIPES = ("own", *SHARED_RATES)
OLD_RECIPES = {"brisk": "short"}


class Grid(NamedTuple):
    """The outcome of a grid."""

    results: dict[str, list[Run]]
    """Metrics of every run, by method."""
    failures: dict[str, str]
    """Why a method has no results, or not for all seeds."""


def shared_recipe(method: Method, name: str = "shared") -> dict[str, Any]:
    """The same epochs, optimizer, schedule, clipping and augmentation for every method.

    ``shared`` also makes the first task the same: rotations in that task only are switched off, while rotations in
    every task are part of a method (PASS) and stay. ``short`` is for short schedules: the rate of the first task in
    every task, as in the paper's text, and each method rotates the first task's images if its authors do.
    """
    recipe = _leaves("augmentation", Augmentation())
    for stage, rate in SHARED_RATES[name].items():
        if getattr(method.representation, stage) is not None:
            recipe.update(_leaves(f"representation.{stage}", Recipe(learning_rate=rate, clip_norm=1.0)))
    if name == "shared" and getattr(method.representation.label_augmentation, "when", None) == "first":
        recipe["representation.label_augmentation.kind"] = "none"
    return recipe


def recipe_of(method: str, name: str) -> dict[str, Any] | None:
    """The settings of a recipe for a method; None leaves it its own."""
    name = OLD_RECIPES.get(name, name)
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return None if name == "own" else shared_recipe(make_method(method), name)


def run_grid(
    methods: str,
    seeds: Sequence[int],
    stream: StreamConfig,
    out: Path,
    *,
    protocol: Protocol | None = None,
    recipe: str = "own",
    preset: str | None = None,
    epochs: int | None = None,
    settings: Mapping[str, Any] | None = None,
    runtime: RuntimeConfig | None = None,
    workers: Workers | None = None,
    logger: str | None = None,
) -> Grid:
    """Metrics of every method over every seed; finished runs in ``out`` are read from there.

    A run that cannot be made, fails or loses its worker is a failure of its method, and the others go on; if there is
    no result at all, or if machines read different data, it raises. ``logger`` is that of each run.
    """
    check_logger(logger)
    workers = workers or Workers()
    chosen = all_methods() if methods == "all" else (name.strip() for name in methods.split(","))
    known = {name: flatten(plain(make_method(name))).keys() for name in chosen}
    for key in settings or {}:
        if not any(key in keys for keys in known.values()):
            raise unknown_name("setting", key, set().union(*known.values()))
    if preset and not any(preset in method_info(name).presets for name in known):
        raise unknown_name("preset", preset, {one for name in known for one in method_info(name).presets})
    specs: list[RunSpec] = []
    failures: dict[str, AdagaussError] = {}
    for name, keys in known.items():
        try:
            config = make_config(
                name,
                stream,
                # Settings of a grid, and its preset, apply only to the methods that have them.
                preset=preset if preset in method_info(name).presets else None,
                settings={key: value for key, value in (settings or {}).items() if key in keys},
                recipe=recipe_of(method_info(name).name, recipe),
                epochs=epochs,
                runtime=runtime,
                protocol=protocol,
            )
            if protocol is not None:
                protocol.check_weights(config.method)
            own = [config.model_copy(update={"seed": seed}) for seed in dict.fromkeys(seeds)]
            if not all(RunFolder(out / one.folder_name).learned_tasks() for one in own):
                config.check_inputs()
        except (ConfigError, DataError) as error:
            failures[name] = error
            continue
        specs += [RunSpec(f"{name}, seed {one.seed}", one, out / one.folder_name, logger) for one in own]
    if not specs:
        raise next(iter(failures.values()))
    read_dataset(stream, workers.options)  # so that data that cannot be read are one error, not one of each run
    outcomes = dict(run_specs(specs, out, workers, total=len(specs), title="comparison"))
    failures.update({spec.config.method_name: one.failure for spec, one in outcomes.items() if one.failure})
    results: dict[str, list[Run]] = {}
    for spec in specs:  # workers end in any order
        if run := outcomes[spec].result:
            results.setdefault(spec.config.method_name, []).append(run)
    if failures and not results:
        raise next(iter(failures.values()))
    if len({tuple(run.data.items()) for runs in results.values() for run in runs}) > 1:
        raise DataError(f"the runs in {out} read different data: give all machines the same files, and start again")
    return Grid(results, {name: str(error) for name, error in failures.items()})


def _leaves(prefix: str, config: Config) -> dict[str, Any]:
    return {f"{prefix}.{key}": value for key, value in flatten(plain(config)).items()}
