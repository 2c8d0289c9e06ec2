"""Many runs: what each is, who computes it, and the grid of methods and seeds."""

from __future__ import annotations

import socket
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
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
from adagauss.experiments.logs import require_trackers
from adagauss.experiments.protocols import Protocol
from adagauss.experiments.run import Run, RunFolder
from adagauss.experiments.runner import ValidationSplit, run
from adagauss.methods import Method, make_method, method_info
from adagauss.methods import methods as all_methods
from adagauss.utils.process import is_out_of_memory
from adagauss.utils.progress import Advance, Reporter, ignore
from adagauss.utils.runtime import RuntimeConfig

TRACEBACK = "error.txt"
"""Traceback of an unexpected error, in the run folder."""
ATTEMPTS = 2
"""Attempts of a run whose worker dies; the second one resumes."""
REFRESH_SECONDS = 1.0
MOST_SHOWN = 3
"""Largest number of running runs in the note next to the progress."""
REMEDY = (
    "it was killed, or the memory is full, or its machine is gone; make fewer runs at once (--jobs): the same command "
    "continues from here"
)
SILENT = Reporter()
"""One for all, so that equal options are equal."""

Reader = Callable[[StreamConfig], Dataset]


@dataclass(frozen=True)
class RunSpec:
    """A configuration and the folder of its run; an existing run is continued, or only read if it is finished."""

    name: str
    config: RunConfig
    folder: Path
    trackers: tuple[str, ...] = ()
    split: ValidationSplit | None = None
    """Run only this part of the data."""
    until: int | None = None
    """Stop after this many tasks."""


@dataclass(frozen=True)
class Outcome:
    """The run of a spec, or why there is none."""

    result: Run | None = None
    failure: AdagaussError | None = None
    messages: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.failure) if self.result is None else f"{100 * self.result.curve[-1]:.1f} %"


Then = Callable[[RunSpec, Outcome], RunSpec | None]
"""Called with each outcome; returns a spec to run next, if there is one."""


def attempt(spec: RunSpec, dataset: Callable[[], Dataset], reporter: Reporter) -> Outcome:
    """Run a spec here. Every error is a value, except those that stop the whole process."""
    try:
        config, data = spec.config, dataset()
        if spec.split is not None:
            config, data = spec.split.of(config, data)
        options: dict[str, Any] = {"trackers": spec.trackers, "until": spec.until}
        return Outcome(run(config, spec.folder, resume=True, reporter=reporter, dataset=data, **options))
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


class _Messages(Reporter):
    """Collects the messages of a worker."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


def work(spec: RunSpec, out: Path, options: ReadOptions) -> Outcome:
    """Run a spec in a worker: the function that executors are given. All workers must see the folder ``out``."""
    torch.set_num_threads(1)
    if not out.exists():
        return Outcome(
            failure=WorkerError(
                f"{socket.gethostname()} does not see {out}: runs on several machines need an --out folder "
                "that all of them share under one path"
            )
        )
    reporter, stream = _Messages(), spec.config.stream
    options = replace(options, size=stream.image_size, skip_bad_images=stream.skip_bad_images)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        outcome = attempt(spec, lambda: _read(stream.dataset, options), reporter)
    messages = [*reporter.texts, *(str(warning.message) for warning in caught)]
    return replace(outcome, messages=tuple(dict.fromkeys(messages)))


@lru_cache(maxsize=1)
def _read(name: str, options: ReadOptions) -> Dataset:
    """Read once per process, not once per spec."""
    try:
        return load_dataset(name, options)
    except DataError as error:
        raise DataError(f"{socket.gethostname()}: {error}") from error


def run_specs(
    specs: Iterable[RunSpec],
    out: Path,
    read: Reader,
    *,
    then: Then = lambda spec, outcome: None,
    total: int | None = None,
    executor: Executor | None = None,
    most: int | None = None,
    options: ReadOptions | None = None,
    reporter: Reporter | None = None,
    title: str = "runs",
) -> list[tuple[RunSpec, Outcome]]:
    """Run specs, and those that ``then`` returns; outcomes are in the order in which the runs ended.

    Args:
        specs: taken one by one, when there is room.
        out: the folder of all runs.
        read: reads the data of a stream in this process; workers read data for themselves.
        then: called with each outcome in this process.
        total: number of specs, if ``specs`` is not a list.
        executor: makes the runs; None makes one after another here.
        most: how many are submitted to the executor at a time; None submits all.
        options: how workers read the data.
        reporter: shows progress: a table of specs with an executor, bars of the current run without one.
        title: name of the whole.
    """
    reporter = reporter or Reporter()
    total = total if total is not None else len(specs) if isinstance(specs, list) else None
    if executor is None:
        return list(_one_by_one(specs, read, then, total, reporter, title))
    out.mkdir(parents=True, exist_ok=True)
    options = options or ReadOptions()
    options = replace(options, reporter=SILENT, root=options.root.absolute())
    scheduler = _Scheduler(executor, out.absolute(), options, then, reporter, iter(specs), total, title)
    try:
        return scheduler.run(most)
    finally:
        for future in scheduler.pending:
            future.cancel()


def _one_by_one(
    specs: Iterable[RunSpec], read: Reader, then: Then, total: int | None, reporter: Reporter, title: str
) -> Iterator[tuple[RunSpec, Outcome]]:
    with reporter.progress(title, total or 1) as advance:
        for first in specs:
            spec: RunSpec | None = first
            while spec is not None:
                outcome = attempt(spec, partial(read, spec.config.stream), reporter)
                yield spec, outcome
                note = f"{spec.name} {outcome if outcome.result else 'failed'}"
                spec = then(spec, outcome)
            advance(note)


@dataclass
class _Scheduler:
    """The specs that an executor has, and those that wait."""

    executor: Executor
    out: Path
    options: ReadOptions
    then: Then
    reporter: Reporter
    source: Iterator[RunSpec]
    total: int | None
    title: str
    again: list[tuple[RunSpec, int]] = field(default_factory=list)
    """Runs to continue, each with its number of attempts."""
    pending: dict[Future[Outcome], tuple[RunSpec, int]] = field(default_factory=dict)
    outcomes: list[tuple[RunSpec, Outcome]] = field(default_factory=list)
    failed: int = 0
    advance: Advance = ignore

    def run(self, most: int | None) -> list[tuple[RunSpec, Outcome]]:
        with self.reporter.progress(self.title, self.total or 0) as self.advance:
            while self._submit(most):
                ended, _ = wait(self.pending, timeout=REFRESH_SECONDS, return_when=FIRST_COMPLETED)
                for future in ended:
                    self._end(future)
                folders = {spec.name: RunFolder(spec.folder) for spec, _ in self.pending.values()}
                running = [f"{name} ({one.finished_tasks()} tasks)" for name, one in folders.items() if one.exists()]
                failures = [f"{self.failed} failed"] if self.failed else []
                self.advance("; ".join([*failures, *running[:MOST_SHOWN]]), step=0)
        return self.outcomes

    def _submit(self, most: int | None) -> bool:
        """Submit as many specs as there is room for; whether any are pending."""
        while most is None or len(self.pending) < most:
            spec, attempts = self.again.pop(0) if self.again else (next(self.source, None), 0)
            if spec is None:
                break
            try:
                # Workers may have another current folder.
                future = self.executor.submit(
                    work, replace(spec, folder=spec.folder.absolute()), self.out, self.options
                )
            except Exception as error:  # engines raise their own errors if they are gone
                future = Future()
                future.set_exception(error)
            self.pending[future] = spec, attempts + 1
        return bool(self.pending)

    def _end(self, future: Future[Outcome]) -> None:
        spec, attempts = self.pending.pop(future)
        try:
            outcome = future.result()
        except Exception as error:  # our own errors are values: this is the engine's
            lines = str(error).strip().splitlines()
            lost = f"its worker ended ({type(error).__name__}{': ' + lines[0][:200] if lines else ''})"
            if attempts < ATTEMPTS:
                self.reporter.message(f"{spec.name}: {lost}; it is resumed")
                self.again.append((spec, attempts))
                return
            outcome = Outcome(failure=WorkerError(f"{lost}, {attempts} times: {REMEDY}"))
        for message in outcome.messages:
            self.reporter.message(f"{spec.name}: {message}")
        self.failed += not outcome.result
        self.reporter.message(f"{spec.name}: {'done' if outcome.result else 'failed'} {outcome}".rstrip())
        self.advance()
        self.outcomes.append((spec, outcome))
        if (following := self.then(spec, outcome)) is not None:
            self.again.append((following, 0))


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
    epochs: int | None = None,
    settings: Mapping[str, Any] | None = None,
    runtime: RuntimeConfig | None = None,
    options: ReadOptions | None = None,
    reporter: Reporter | None = None,
    executor: Executor | None = None,
    most: int | None = None,
    trackers: Sequence[str] = (),
) -> Grid:
    """Metrics of every method over every seed; finished runs in ``out`` are read from there.

    A run that cannot be made, fails or loses its worker is a failure of its method, and the others go on; if there is
    no result at all, or if machines read different data, it raises. Without an ``executor`` the runs are made here,
    one after another; ``most`` limits how many an executor has at a time. ``trackers`` follow the logs of the runs.
    """
    require_trackers(trackers)
    recipe = OLD_RECIPES.get(recipe, recipe)
    if recipe not in RECIPES:
        raise unknown_name("recipe", recipe, RECIPES)
    chosen = all_methods() if methods == "all" else (name.strip() for name in methods.split(","))
    names = list(dict.fromkeys(chosen))
    for name in names:
        method_info(name)
    known = {name: flatten(plain(make_method(name))).keys() for name in names}
    for key in settings or {}:
        if not any(key in keys for keys in known.values()):
            raise unknown_name("setting", key, set().union(*known.values()))
    dataset = load_dataset(stream.dataset, options)
    specs: list[RunSpec] = []
    failures: dict[str, AdagaussError] = {}
    for name, seed in product(names, dict.fromkeys(seeds)):
        try:
            config = make_config(
                name,
                stream,
                # Settings of a grid apply only to the methods that have them.
                settings={key: value for key, value in (settings or {}).items() if key in known[name]},
                recipe=recipe_of(name, recipe),
                epochs=epochs,
                seed=seed,
                runtime=runtime,
                protocol=protocol,
            )
            if protocol is not None:
                protocol.check_weights(config.method)
        except (ConfigError, DataError) as error:
            failures[name] = error
        else:
            folder = out / f"{name}-{config.digest()}-seed{seed}"
            specs.append(RunSpec(f"{name}, seed {seed}", config, folder, tuple(trackers)))
    outcomes = run_specs(
        specs,
        out,
        lambda _: dataset,
        executor=executor,
        most=most,
        options=options,
        reporter=reporter,
        title="comparison",
    )
    failures.update({spec.config.method_name: one.failure for spec, one in outcomes if one.failure is not None})
    # Workers end in any order; tables have the order of the seeds.
    done = {spec: one.result for spec, one in outcomes if one.result is not None}
    if failures and not done:
        raise next(iter(failures.values()))
    if len({tuple(result.data.items()) for result in done.values()}) > 1:
        raise DataError(f"the runs in {out} read different data: give all machines the same files, and start again")
    results: dict[str, list[Run]] = {}
    for spec in specs:
        if spec in done:
            results.setdefault(spec.config.method_name, []).append(done[spec])
    return Grid(results, {name: str(error) for name, error in failures.items()})


def _leaves(prefix: str, config: Config) -> dict[str, Any]:
    return {f"{prefix}.{key}": value for key, value in flatten(plain(config)).items()}
