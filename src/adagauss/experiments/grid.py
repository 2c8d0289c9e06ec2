"""Many runs: what each is, who computes it, and the grid of methods and seeds."""

from __future__ import annotations

import socket
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import count, product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from adagauss.core.config import Config, flatten, plain
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation
from adagauss.data.dataset import Dataset, ReadOptions, load_dataset
from adagauss.data.fingerprint import fingerprints
from adagauss.data.stream import StreamConfig
from adagauss.errors import AdagaussError, CheckpointError, ConfigError, DataError, WorkerError, unknown_name
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.engines import HEARTBEAT_TIMEOUT, CancelledError, HeartbeatReporter, session, status
from adagauss.experiments.logs import require_trackers
from adagauss.experiments.protocols import Protocol
from adagauss.experiments.run import Run
from adagauss.experiments.runner import ValidationSplit, run
from adagauss.methods import Method, make_method, method_info
from adagauss.methods import methods as all_methods
from adagauss.utils.process import is_out_of_memory
from adagauss.utils.progress import Reporter, TableRow
from adagauss.utils.runtime import RuntimeConfig

TRACEBACK = "error.txt"
"""Traceback of an unexpected error, in the run folder."""


SILENT = Reporter()
"""One for all, so that equal options are equal."""


@dataclass(frozen=True)
class RunSpec:
    """A configuration and the folder of its run; a run that is there already is continued, or only read."""

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
    """What became of a spec."""

    result: Run | None = None
    failure: AdagaussError | None = None
    messages: tuple[str, ...] = ()
    cancelled: bool = False
    """Whether it stopped because the heartbeat of the waiting process ended."""


@dataclass(frozen=True)
class WorkerContext:
    """What a worker needs in addition to its run."""

    session: Path
    options: ReadOptions = field(default_factory=ReadOptions)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Of the spec's data as the waiting process sees them; empty if it cannot read them."""
    threads: int = 1
    patience: float = HEARTBEAT_TIMEOUT

    @classmethod
    def of(cls, session: Path, options: ReadOptions | None) -> WorkerContext:
        """WorkerContext that can be sent to other processes: a reporter cannot."""
        root = (options or ReadOptions()).root.absolute()
        return cls(session.absolute(), replace(options or ReadOptions(), reporter=SILENT, root=root))


def attempt(spec: RunSpec, dataset: Callable[[], Dataset], reporter: Reporter) -> Outcome:
    """Run a spec here. Whatever goes wrong is a value, except what stops the whole process."""
    try:
        config, data = spec.config, dataset()
        if spec.split is not None:
            config, data = spec.split.of(config, data)
        ways: dict[str, Any] = {"trackers": spec.trackers, "until": spec.until}
        return Outcome(run(config, spec.folder, resume=True, reporter=reporter, dataset=data, **ways))
    except CancelledError as error:
        return Outcome(failure=error, cancelled=True)
    except AdagaussError as error:
        return Outcome(failure=error)
    except OSError as error:
        return Outcome(failure=CheckpointError(f"{error.filename or spec.folder}: {error.strerror or error}"))
    except Exception as error:
        if is_out_of_memory(error):
            return Outcome(failure=WorkerError("the memory is full: run fewer specs at once, or a smaller network"))
        with suppress(OSError):
            spec.folder.mkdir(parents=True, exist_ok=True)
            (spec.folder / TRACEBACK).write_text(traceback.format_exc(), encoding="utf-8", errors="backslashreplace")
        found = f"unexpected error ({type(error).__name__}: {error})"
        return Outcome(failure=WorkerError(f"{found}; {spec.folder / TRACEBACK} shows where"))


def work(spec: RunSpec, number: int, context: WorkerContext) -> Outcome:
    """Run a spec in a worker, as number ``number`` of a session; this is what executors are given."""
    torch.set_num_threads(context.threads)
    try:
        reporter = HeartbeatReporter(context.session, number, context.patience)
    except AdagaussError as error:
        return Outcome(failure=error)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        outcome = attempt(spec, lambda: _same_data(spec, context), reporter)
    messages: Sequence[str] = [*reporter.messages, *(str(warning.message) for warning in caught)]
    return replace(outcome, messages=tuple(dict.fromkeys(messages)))


def data_of(spec: RunSpec, options: ReadOptions | None) -> Dataset:
    """The data of a spec, read here; those of the spec before are kept, since cells of a dataset follow each other."""
    return _read(*_what(spec, options or ReadOptions()))[0]


def digests_of(spec: RunSpec, options: ReadOptions) -> dict[str, str]:
    """The fingerprints of the data of a spec, read here."""
    return _read(*_what(spec, options))[1]


def _same_data(spec: RunSpec, context: WorkerContext) -> Dataset:
    """The data as this machine has them, which must be those of the process that waits."""
    try:
        dataset, found = _read(*_what(spec, context.options))
    except DataError as error:
        raise DataError(f"{socket.gethostname()}: {error}") from error
    differing = [aspect for aspect, digest in context.fingerprints.items() if found.get(aspect) != digest]
    if differing:
        raise DataError(
            f"{socket.gethostname()} reads other data ({', '.join(differing)}) below {context.options.root}: "
            "give all machines the same files, or a folder that they share"
        )
    return dataset


def _what(spec: RunSpec, options: ReadOptions) -> tuple[str, ReadOptions]:
    stream = spec.config.stream
    chosen = replace(options, size=stream.image_size, skip_bad_images=stream.skip_bad_images, reporter=SILENT)
    return stream.dataset, chosen


@lru_cache(maxsize=1)
def _read(name: str, options: ReadOptions) -> tuple[Dataset, dict[str, str]]:
    """Read once per process, not once per spec."""
    dataset = load_dataset(name, options)
    return dataset, fingerprints(dataset)


ATTEMPTS = 2
"""Attempts of a run whose worker dies; the second one resumes."""
REFRESH_SECONDS = 0.5
WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"
REMEDY = (
    "it was killed, or the memory is full, or its machine is gone; run fewer specs at once (--jobs): the same command "
    "goes on from here"
)
INTEREST = (RUNNING, FAILED, DONE, WAITING)

Then = Callable[[RunSpec, Outcome], RunSpec | None]
"""Called with each outcome; returns a spec to run next, if there is one."""


def run_specs(
    specs: Iterable[RunSpec],
    out: Path,
    dataset: Dataset | None = None,
    *,
    then: Then | None = None,
    total: int | None = None,
    executor: Executor | None = None,
    most: int | None = None,
    options: ReadOptions | None = None,
    reader: Callable[[StreamConfig], Dataset] | None = None,
    reporter: Reporter | None = None,
    title: str = "runs",
) -> list[tuple[RunSpec, Outcome]]:
    """Run specs, and what ``then`` lets follow; outcomes in the order in which they came.

    Args:
        specs: taken one by one, when there is room.
        out: a folder that all workers see, for their sessions.
        dataset: the data of all specs. None if specs have several datasets: each is then read by ``reader`` or with
            ``options``. Workers read data for themselves, and must find those that this process finds.
        then: called with each outcome in this process.
        total: number of specs, if ``specs`` does not know it.
        executor: who runs them; None runs one after another here.
        most: how many are handed to the executor at a time; None hands over all.
        options: how the data are read, by workers, or here without a ``reader``.
        reader: reads the data of a spec in this process.
        reporter: shows progress: a table of specs if there is an executor, else bars of the one that runs.
        title: what they are together.
    """
    reporter = reporter or Reporter()
    count_of = total if total is not None else len(specs) if isinstance(specs, list) else None
    follow = then or (lambda spec, outcome: None)

    def data(spec: RunSpec) -> Dataset:
        if dataset is not None:
            return dataset
        return reader(spec.config.stream) if reader is not None else data_of(spec, options)

    if executor is None:
        return list(_one_by_one(specs, data, follow, count_of, reporter, title))
    with session(out) as folder:
        common = WorkerContext.of(folder, options)

        def digests(spec: RunSpec) -> Mapping[str, str]:
            here = dataset is not None or reader is not None
            return fingerprints(data(spec)) if here else digests_of(spec, common.options)

        context = _contexts(common, digests, reporter)
        crew = _Scheduler(executor, folder, context, follow, reporter, iter(specs), count_of, title)
        try:
            return crew.run(most)
        finally:
            crew.cancel()


def _contexts(
    common: WorkerContext, digests: Callable[[RunSpec], Mapping[str, str]], reporter: Reporter
) -> Callable[[RunSpec], WorkerContext]:
    """WorkerContext for each spec, with the fingerprints of its data; every dataset is looked at once."""
    known: dict[tuple[object, ...], WorkerContext] = {}

    def of(spec: RunSpec) -> WorkerContext:
        stream = spec.config.stream
        what = stream.dataset, stream.image_size, stream.skip_bad_images
        if what not in known:
            known[what] = common
            try:
                known[what] = replace(common, fingerprints=digests(spec))
            except (AdagaussError, OSError) as error:  # a worker may have data that are not here
                reporter.message(f"{stream.dataset} cannot be read here, so what workers read is not compared: {error}")
        return known[what]

    return of


def _one_by_one(
    specs: Iterable[RunSpec],
    data: Callable[[RunSpec], Dataset],
    then: Then,
    total: int | None,
    reporter: Reporter,
    title: str,
) -> Iterator[tuple[RunSpec, Outcome]]:
    with reporter.progress(title, total or 1) as advance:
        for first in specs:
            spec = first
            while True:
                outcome = attempt(spec, partial(data, spec), reporter)
                yield spec, outcome
                following = then(spec, outcome)
                if following is None:
                    break
                spec = following
            advance(f"{spec.name} {summary(outcome) if outcome.result else FAILED}")


def summary(outcome: Outcome) -> str:
    """An outcome in a few words."""
    if outcome.result is None:
        return str(outcome.failure)
    return f"{100 * outcome.result.curve[-1]:.1f} %"


@dataclass
class _Scheduler:
    """The specs that an executor has, and those that wait."""

    executor: Executor
    session: Path
    context: Callable[[RunSpec], WorkerContext]
    then: Then
    reporter: Reporter
    source: Iterator[RunSpec]
    total: int | None
    title: str
    waiting: list[tuple[RunSpec, int]] = field(default_factory=list)
    """Runs to continue, each with its number of attempts."""
    pending: dict[Future[Outcome], tuple[RunSpec, int, int]] = field(default_factory=dict)
    """Each with its number and its attempts."""
    numbers: Iterator[int] = field(default_factory=count)
    outcomes: list[tuple[RunSpec, Outcome]] = field(default_factory=list)
    rows: dict[str, TableRow] = field(default_factory=dict)

    def run(self, most: int | None) -> list[tuple[RunSpec, Outcome]]:
        with self.reporter.table() as show:
            while self._fill(most):
                ended, _ = wait(self.pending, timeout=REFRESH_SECONDS, return_when=FIRST_COMPLETED)
                for future in ended:
                    self._end(future)
                self._look()
                show(self._summary(), sorted(self.rows.values(), key=lambda row: INTEREST.index(row.state)))
        return self.outcomes

    def cancel(self) -> None:
        """Cancel runs that have not started; started ones stop when the session ends."""
        for future in self.pending:
            future.cancel()

    def _fill(self, most: int | None) -> bool:
        """Hand over as many specs as there is room for; whether any are under way."""
        while most is None or len(self.pending) < most:
            if self.waiting:
                spec, attempts = self.waiting.pop(0)
            elif (fresh := next(self.source, None)) is not None:
                spec, attempts = fresh, 0
            else:
                break
            number, context = next(self.numbers), self.context(spec)
            try:
                # Workers may have another current folder.
                theirs = replace(spec, folder=spec.folder.absolute())
                future: Future[Outcome] = self.executor.submit(work, theirs, number, context)
            except Exception as error:  # engines raise errors of their own if they are gone
                future = Future()
                future.set_exception(error)
            self.pending[future] = spec, number, attempts + 1
            self.rows[spec.name] = TableRow(spec.name, WAITING)
        return bool(self.pending)

    def _end(self, future: Future[Outcome]) -> None:
        spec, _, attempts = self.pending.pop(future)
        try:
            outcome = future.result()
        except Exception as error:  # our own errors are values: this is the engine's
            if attempts < ATTEMPTS:
                self.reporter.message(f"{spec.name}: {_lost_worker(error)}; it is resumed")
                self.waiting.append((spec, attempts))
                return
            outcome = Outcome(failure=WorkerError(f"{_lost_worker(error)}, {attempts} times: {REMEDY}"))
        if outcome.cancelled:  # this process was stopped for so long that its workers gave up
            self.waiting.append((spec, attempts - 1))
            return
        for message in outcome.messages:
            self.reporter.message(f"{spec.name}: {message}")
        self.rows[spec.name] = TableRow(spec.name, DONE if outcome.result else FAILED, summary(outcome))
        self.outcomes.append((spec, outcome))
        following = self.then(spec, outcome)
        if following is not None:
            self.waiting.append((following, 0))

    def _look(self) -> None:
        for spec, number, _ in self.pending.values():
            if found := status(self.session, number):
                self.rows[spec.name] = TableRow(
                    spec.name, RUNNING, f"{found.get('now')} ({found.get('where')})".strip()
                )

    def _summary(self) -> str:
        states = Counter(row.state for row in self.rows.values())
        known = [f"{states[state]} {state}" for state in (RUNNING, DONE, FAILED) if states[state]]
        left = (self.total or len(self.rows)) - sum(states[state] for state in (RUNNING, DONE, FAILED))
        return f"{self.title}: " + ", ".join([*known, *([f"{left} {WAITING}"] if left > 0 else [])])


def _lost_worker(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"its worker ended ({type(error).__name__}{': ' + lines[0][:200] if lines else ''})"


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
    no result at all, it raises. Without an ``executor`` the runs are made here, one after another; ``most`` limits how
    many an executor has at a time. ``trackers`` follow the logs of the runs.
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
        specs, out, dataset, executor=executor, most=most, options=options, reporter=reporter, title="comparison"
    )
    failures.update({spec.config.method_name: one.failure for spec, one in outcomes if one.failure is not None})
    # Workers end in any order; tables have the order of the seeds.
    done = {spec: one.result for spec, one in outcomes if one.result is not None}
    if failures and not done:
        raise next(iter(failures.values()))
    results: dict[str, list[Run]] = {}
    for spec in specs:
        if spec in done:
            results.setdefault(spec.config.method_name, []).append(done[spec])
    return Grid(results, {name: str(error) for name, error in failures.items()})


def _leaves(prefix: str, config: Config) -> dict[str, Any]:
    return {f"{prefix}.{key}": value for key, value in flatten(plain(config)).items()}
