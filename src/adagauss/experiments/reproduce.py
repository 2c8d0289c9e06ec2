"""Reproduce tables and figures of the paper: make missing runs, then write tables, figures and verdicts.

An item of `adagauss.experiments.paper` expands to rows, benchmarks and seeds. Each distinct configuration and seed is
one run folder, however many items use it. Rows that differ only in memory, drift or classifier are scored on the
networks of another run. Failures are values: a table shows them, and the next call tries again.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jinja2 import Environment, PackageLoader
from scipy.stats import combine_pvalues, kendalltau

from adagauss.analysis.rescore import Curve, rescore
from adagauss.analysis.studies import analyse, find_study
from adagauss.analysis.tables import FORMATS, Spread, markdown
from adagauss.backbones.registry import backbone_info
from adagauss.core.config import Layer, plain, resolve
from adagauss.data.dataset import ReadOptions, dataset_info
from adagauss.errors import AdagaussError, CheckpointError
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.environment import code_name
from adagauss.experiments.grid import Outcome, RunSpec, read_dataset, recipe_of, run_specs
from adagauss.experiments.paper import (
    BEYOND,
    SCALES,
    Benchmark,
    Claim,
    FigureValue,
    Item,
    Row,
    Scale,
    Size,
    TableValue,
    Value,
    paper_row,
)
from adagauss.experiments.run import METRICS_FILE, InUseError, Run, RunFolder
from adagauss.methods import Method
from adagauss.utils.files import read_text, write_atomically
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import RuntimeConfig

ACCURACY = {"a_last": "A_last", "a_inc": "A_inc"}
TIMES = {"training_min": "training, min", "inference_sec": "inference, s"}
RESCORED = ("memory", "drift", "classifier")
"""Parts that a row may change without training."""
MISSING = "–"
SIGNIFICANT = 0.05
"""Largest p value of a trend."""
ROUNDING = 1e-6
"""Tolerance of claims on bounds, for the rounding of the CSV file."""


@dataclass(frozen=True)
class ReproductionConfig:
    """Scale, folders, data and seeds of a reproduction."""

    scale: Scale
    out: Path
    options: ReadOptions = field(default_factory=ReadOptions)
    seeds: tuple[int, ...] | None = None
    """Seeds of every row; None takes those of the scale and its benchmarks."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    weights: Path | None = None
    """Weights of ResNet-18 for the protocols that start from them."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why runs and rescorings failed in this process; another one tries them again."""

    @property
    def runs(self) -> Path:
        """Folder of the runs of all scales, named as `adagauss compare` names them."""
        return self.out / "cells"

    def folder(self, item: Item) -> Path:
        """Folder of the tables and figures of an item."""
        return self.out / self.scale.name / item.name

    def figure(self, item: Item, benchmark: Benchmark, ending: str) -> Path:
        """A file of the figure of an item on one benchmark."""
        return self.folder(item) / benchmark.protocol / f"{item.study}.{ending}"


class Problem(NamedTuple):
    """Why a number is missing."""

    kind: Literal["unavailable", "missing", "failed"]
    reason: str


@dataclass(frozen=True)
class PlannedRow:
    """One row of an item on one benchmark with one seed, and the run that it needs."""

    item: Item
    benchmark: Benchmark
    row: Row
    seed: int
    run: RunSpec | Problem
    rescored: Path | None = None
    """File of the accuracies of changed parts, if the row has some."""


def plan(items: Iterable[Item], config: ReproductionConfig) -> list[PlannedRow]:
    """Expand items to rows, benchmarks and seeds."""
    configured: dict[str, tuple[RunConfig, str] | Problem] = {}
    planned = []
    for item, benchmark in ((one, benchmark) for one in items for benchmark in one.benchmarks[config.scale.size]):
        seeds = config.seeds if config.seeds is not None else config.scale.seeds[: benchmark.seeds]
        for row in item.rows:
            if benchmark.only and row.label not in benchmark.only:
                continue
            # Many items share a row, and settings take longer to resolve than to compare.
            key = f"{benchmark.protocol} {row.method} {sorted(row.settings.items())} {row.rescore}"
            if key not in configured:
                configured[key] = _configured(row, benchmark.protocol, config)
            for seed in seeds:
                found = configured[key]
                if isinstance(found, Problem):
                    planned.append(PlannedRow(item, benchmark, row, seed, found))
                    continue
                made, changes = found[0].model_copy(update={"seed": seed}), found[1]
                run = RunSpec(made.folder_name, made, config.runs / made.folder_name)
                rescored = config.out / "rescored" / f"{run.name}-{changes}.json" if row.rescore is not None else None
                planned.append(PlannedRow(item, benchmark, row, seed, run, rescored))
    return planned


def _configured(row: Row, protocol_name: str, config: ReproductionConfig) -> tuple[RunConfig, str] | Problem:
    """The configuration of a row and a digest of its changed parts, or why it cannot be run here."""
    protocol = config.scale.find(protocol_name)
    dataset = dataset_info(protocol.stream.dataset)
    if not dataset.present(config.options.root):
        return Problem("unavailable", f"{dataset.title} is not in {config.options.root / dataset.folder}")
    settings = dict(row.settings)
    if protocol.needs_weights and "backbone.name" not in settings:
        if config.weights is None:
            return Problem("unavailable", "needs torchvision's weights of ResNet-18: --weights resnet18-f37072fd.pth")
        settings["backbone.weights"] = str(config.weights)
    try:
        made = make_config(
            row.method,
            protocol.stream,
            settings=settings,
            recipe=recipe_of(row.method, config.scale.recipe),
            runtime=config.runtime,
            protocol=protocol,
        )
        protocol.check_weights(made.method)
        changed = changed_method(made.method, row)
    except AdagaussError as error:
        return Problem("unavailable", str(error))
    backbone = backbone_info(made.method.backbone.name)
    if not backbone.available:
        return Problem("unavailable", f"backbone {backbone.name} needs the package {backbone.modules[0]}")
    parts = {role: plain(getattr(changed, role)) for role in RESCORED}
    return made, hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def changed_method(method: Method, row: Row) -> Method:
    """The method of a run with the memory, drift or classifier of a row."""
    return resolve(method, [Layer("row", row.rescore or {})], "run").config


def distinct_runs(planned: Iterable[PlannedRow]) -> list[RunSpec]:
    """The runs of planned rows, each once: one seed of everything before the next, dataset by dataset.

    Most tables and figures are thus complete for one seed long before all runs are.
    """
    specs = {one.run.folder: one.run for one in planned if isinstance(one.run, RunSpec)}.values()
    seeds = list(dict.fromkeys(spec.config.seed for spec in specs))
    datasets = list(dict.fromkeys(spec.config.stream.dataset for spec in specs))
    return sorted(specs, key=lambda spec: (seeds.index(spec.config.seed), datasets.index(spec.config.stream.dataset)))


def finished_run(spec: RunSpec, config: ReproductionConfig) -> Run | Problem:
    """The run of a spec, if it is finished."""
    file = spec.folder / METRICS_FILE
    if file.exists():
        try:
            return _open_run(spec.folder, file.stat().st_mtime_ns)
        except CheckpointError as error:
            return Problem("missing", str(error))
    if spec.name in config.failures:
        return Problem("failed", config.failures[spec.name])
    done = RunFolder(spec.folder).finished_tasks()
    return Problem("missing", f"{done} of {spec.config.stream.tasks} tasks are done" if done else "not run yet")


@lru_cache(maxsize=1024)
def _open_run(folder: Path, written: int) -> Run:
    """Many items use a run; it is read again only after it was written again."""
    return Run.open(folder)


# Running and rescoring.


def run_missing(
    runs: Iterable[RunSpec],
    config: ReproductionConfig,
    reporter: Reporter,
    executor: Executor | None = None,
    most: int | None = None,
) -> None:
    """Run or resume what is not finished, here or through an executor, at most ``most`` at a time.

    Runs that another process works on are skipped: the same command may be started several times.
    """

    def note(spec: RunSpec, outcome: Outcome) -> None:
        if isinstance(outcome.failure, InUseError):
            reporter.message(f"{spec.name}: another process runs it")
        elif outcome.failure is not None:
            config.failures[spec.name] = str(outcome.failure)

    config.failures.clear()
    missing = [spec for spec in runs if isinstance(finished_run(spec, config), Problem)]
    if missing:
        run_specs(
            missing, config.runs, then=note, executor=executor, most=most, options=config.options, reporter=reporter
        )


class Rescored(Curve):
    """Accuracy of changed parts on the networks of a run."""

    run: str
    """Name of the run's folder."""
    changes: dict[str, Any]


def read_rescored(path: Path, config: ReproductionConfig) -> Rescored | Problem:
    """Stored accuracies of changed parts."""
    try:
        return Rescored.read(path, "run the command again")
    except CheckpointError as error:
        if path.stem in config.failures:
            return Problem("failed", config.failures[path.stem])
        return Problem("missing", str(error) if path.exists() else "not scored yet")


def rescore_missing(planned: Iterable[PlannedRow], config: ReproductionConfig, reporter: Reporter) -> None:
    """Score changed parts of finished runs that are not scored yet; equal ones are scored once."""
    rows = {one.rescored: one for one in planned if one.rescored is not None}
    with reporter.progress("rescoring finished runs", len(rows)) as advance:
        for file, one in rows.items():
            assert isinstance(one.run, RunSpec)
            run = finished_run(one.run, config)
            if isinstance(run, Run) and isinstance(read_rescored(file, config), Problem):
                method = changed_method(run.config.method, one.row)
                parts = {"row": method.drift}, {"row": method.classifier}
                try:
                    data = read_dataset(run.config.stream, config.options)
                    scored = rescore(run, data, *parts, reporter, method.memory, oracle=False)
                    changes = dict(one.row.rescore or {})
                    Rescored(run=one.run.name, changes=changes, accuracy=scored.rows[0].accuracy).write(file)
                except AdagaussError as failure:
                    config.failures[file.stem] = str(failure)
            advance(one.row.label)


# Results of an item.

Numbers = Mapping[str, float]
"""The numbers of one row with one seed, by their names in the paper's tables; accuracies in percent."""


@dataclass(frozen=True)
class ItemResults:
    """The numbers of an item on one benchmark."""

    item: Item
    benchmark: Benchmark
    protocol: str
    """Name of the protocol at this scale."""
    dataset: str
    tasks: int
    """T of the paper's benchmark, which does not count a first task with half of the classes."""
    outcomes: Mapping[str, Mapping[int, Numbers | Problem]]
    """By row and seed."""
    runs: Mapping[str, Sequence[Run]]
    """Finished runs of rows without rescoring."""
    drawn: Sequence[Mapping[str, str]] = ()
    """Rows of the CSV file of the figure."""
    size: Size = "paper"
    """Size of the scale."""

    def numbers(self, row: str) -> dict[int, Numbers]:
        """The numbers of a row by seed, where there are some."""
        return {seed: one for seed, one in self.outcomes.get(row, {}).items() if not isinstance(one, Problem)}

    def problems(self) -> dict[str, Problem]:
        """The first problem of every row that has one."""
        found = {
            row: [one for one in outcomes.values() if isinstance(one, Problem)]
            for row, outcomes in self.outcomes.items()
        }
        return {row: problems[0] for row, problems in found.items() if problems}

    def by_seed(self, value: Value) -> dict[int, float]:
        """A number of the table or the figure by seed; empty if it was not measured."""
        if isinstance(value, TableValue):
            found = self.numbers(value.row).items()
            return {seed: numbers[value.quantity] for seed, numbers in found if value.quantity in numbers}
        return {seed: SUMMARIES[value.summary](one) for seed, one in self.series(value).items()}

    def series(self, value: FigureValue) -> dict[int, list[Point]]:
        """The numbers of the figure with these columns by seed, in the order of the file."""
        found: dict[int, list[Point]] = {}
        for row in self.drawn:
            if row.get("seed") and all(row.get(key) == expected for key, expected in value.columns.items()):
                point = Point(row.get("task", ""), float(row[value.value]))
                found.setdefault(int(row["seed"]), []).append(point)
        return found

    @property
    def features(self) -> float | None:
        """S, the number of features of the networks; None without finished runs."""
        return next((run.config.method.backbone.features for runs in self.runs.values() for run in runs), None)

    @property
    def code(self) -> str:
        """Version and digest of the code of the runs."""
        codes = {code_name(run.environment) for runs in self.runs.values() for run in runs}
        return "; ".join(f"adagauss {code}" for code in sorted(codes)) or "no finished runs"

    def paper_values(self, label: str) -> dict[str, Any]:
        """The row of the paper's table; empty if it has none."""
        row = next(row for row in self.item.rows if row.label == label)
        return paper_row(self.item.tables, self.dataset, self.tasks, row.paper) or {}


class Point(NamedTuple):
    """A number of a figure."""

    task: str
    number: float


def _spread(points: Sequence[Point]) -> float:
    tasks: dict[str, list[float]] = {}
    for task, number in points:
        tasks.setdefault(task, []).append(number)
    return statistics.fmean(max(one) / max(min(one), 1e-12) for one in tasks.values())


SUMMARIES: Mapping[str, Callable[[Sequence[Point]], float]] = {
    "mean": lambda points: statistics.fmean(point.number for point in points),
    "first": lambda points: points[0].number,
    "last": lambda points: points[-1].number,
    "min": lambda points: min(point.number for point in points),
    "spread": _spread,
}


def results(planned: Iterable[PlannedRow], config: ReproductionConfig) -> list[ItemResults]:
    """Read the numbers of items from finished runs, benchmark by benchmark; nothing is run."""
    groups: dict[tuple[str, str], list[PlannedRow]] = {}
    for one in planned:
        groups.setdefault((one.item.name, one.benchmark.protocol), []).append(one)
    found = []
    for group in groups.values():
        item, benchmark = group[0].item, group[0].benchmark
        outcomes: dict[str, dict[int, Numbers | Problem]] = {}
        runs: dict[str, list[Run]] = {}
        for one in group:
            run = one.run if isinstance(one.run, Problem) else finished_run(one.run, config)
            outcomes.setdefault(one.row.label, {})[one.seed] = (
                run if isinstance(run, Problem) else _numbers(run, one.rescored, config)
            )
            if isinstance(run, Run) and one.rescored is None:
                runs.setdefault(one.row.label, []).append(run)
        stream = SCALES["paper"].find(benchmark.protocol).stream
        tasks = stream.tasks - 1 if stream.first else stream.tasks
        file = config.figure(item, benchmark, "csv")
        drawn = list(csv.DictReader(io.StringIO(read_text(file)))) if file.exists() else ()
        scaled = config.scale.find(benchmark.protocol).name
        found.append(
            ItemResults(item, benchmark, scaled, stream.dataset, tasks, outcomes, runs, drawn, config.scale.size)
        )
    return found


def _numbers(run: Run, rescored: Path | None, config: ReproductionConfig) -> Numbers | Problem:
    if rescored is not None:
        scored = read_rescored(rescored, config)
        return scored if isinstance(scored, Problem) else {"a_last": 100 * scored.a_last, "a_inc": 100 * scored.a_inc}
    cost = run.cost
    if cost.cpu_seconds and run.environment.get("device") == "cpu":  # other processes may slow down the wall clock
        cost = cost.model_copy(update={"seconds": cost.cpu_seconds})
    times = {"training_min": cost.training_seconds / 60, "inference_sec": cost.seconds["evaluation"]}
    return {**{name: 100 * run.metrics[name] for name in ACCURACY}, **times}


Word = Literal["holds", "does not hold", "inconclusive", "cannot tell", "not measured"]


class Verdict(NamedTuple):
    """Whether a claim holds, the numbers, and the agreement of the seeds."""

    word: Word
    numbers: str = ""
    seeds: str = ""

    def __str__(self) -> str:
        return f"{self.numbers}; {self.seeds}: {self.word}" if self.numbers else self.word


def check_claim(claim: Claim, found: ItemResults) -> Verdict:
    """Compare seed by seed: a claim holds if it is true in every seed, and there are at least two.

    A trend must be significant over all seeds too. No verdict is possible if one side alone was tuned.
    """
    checked = _trend(claim, found) if claim.relation in ("rising", "falling") else _comparison(claim, found)
    if checked.word != "not measured" and (reason := claim.biased.get(found.size)):
        return Verdict("cannot tell", checked.numbers, f"{checked.seeds}, but {reason}")
    return checked


def _trend(claim: Claim, found: ItemResults) -> Verdict:
    """Test the trend over tasks of a figure's value by Kendall's τ, one-sided, with the seeds combined by Fisher."""
    (value,) = claim.values
    assert isinstance(value, FigureValue)
    rising = claim.relation == "rising"
    series = [[point.number for point in points] for points in found.series(value).values() if len(points) > 1]
    if not series:
        return Verdict("not measured")
    taus = [float(kendalltau(range(len(one)), one).statistic) for one in series]
    checked = verdict(
        [tau if rising else -tau for tau in taus],
        f"{value.name}: Kendall's τ over tasks {statistics.fmean(taus):+.2f}",
    )
    side = "greater" if rising == (checked.word != "does not hold") else "less"
    tests = [kendalltau(range(len(one)), one, alternative=side).pvalue for one in series]
    p = float(combine_pvalues(tests).pvalue)
    checked = checked._replace(numbers=f"{checked.numbers} (p = {p:.2g})")
    if checked.word == "inconclusive" or p < SIGNIFICANT:
        return checked
    return Verdict("inconclusive", checked.numbers, f"{checked.seeds}, but not significant")


def _comparison(claim: Claim, found: ItemResults) -> Verdict:
    """Compare means over seeds in the text, and the numbers of each seed in the verdict."""
    measured = {value.name: numbers for value in claim.values if (numbers := found.by_seed(value))}
    first, *others = (value.name for value in claim.values)
    missing = [name for name in others if name not in measured]
    seeds = set.intersection(*map(set, measured.values())) if measured else set()
    bound = found.features if claim.bound == "features" else claim.bound
    alone = claim.relation == "at least"
    if first not in measured or not seeds or (bound is None if alone else len(measured) < 2):
        return Verdict("not measured")
    digits = ".1f" if isinstance(claim.values[0], TableValue) else ".3g"
    means = {name: statistics.fmean(numbers[seed] for seed in seeds) for name, numbers in measured.items()}
    amounts = {name: f"{name} {mean:{digits}}" for name, mean in means.items()}
    if alone:
        assert bound is not None
        name = "features" if claim.bound == "features" else "bound"
        margins = [number - bound + ROUNDING for number in measured[first].values()]
        return verdict(margins, f"{amounts[first]}, {name} {bound:{digits}}")
    if claim.relation == "decreasing":
        if missing:
            return Verdict("not measured")
        pairs = list(itertools.pairwise(measured.values()))
        margins = [min(one[seed] - two[seed] for one, two in pairs) for seed in seeds]
        return verdict(margins, f"claimed order: {', '.join(amounts.values())}")
    extreme, sign = (max, 1) if claim.relation == "highest" else (min, -1)
    rest = [name for name in measured if name != first]
    margins = [sign * (measured[first][seed] - extreme(measured[name][seed] for name in rest)) for seed in seeds]
    nearest = extreme(rest, key=lambda name: means[name])
    facts = f"{amounts[first]}, {amounts[nearest]}"
    if claim.change is not None:
        facts += f" ({means[nearest] / means[first] - 1:+.0%}; paper: {claim.change:+.0%})"
    if missing:
        facts += f" (without {', '.join(missing)})"
    if isinstance(claim.values[0], TableValue):
        quoted = [found.paper_values(row).get(claim.values[0].quantity) for row in (first, nearest)]
        facts += f" (paper: {quoted[0]:.1f} and {quoted[1]:.1f})" if None not in quoted else ""
    return verdict(margins, facts)


def verdict(differences: Sequence[float], numbers: str) -> Verdict:
    """The verdict on a claim that a difference is positive in every seed.

    >>> verdict([1.0, 0.5], "A 2.0, B 1.2").word
    'holds'
    >>> str(verdict([1.0, -0.5], "A 2.0, B 1.8"))
    'A 2.0, B 1.8; the 2 seeds disagree: inconclusive'
    >>> str(verdict([1.0], "A 2.0, B 1.0"))
    'A 2.0, B 1.0; one seed, where it is true: inconclusive'
    """
    signs = {difference > 0 for difference in differences}
    truth = "true" if signs == {True} else "false"
    if len(differences) == 1:
        return Verdict("inconclusive", numbers, f"one seed, where it is {truth}")
    if len(signs) > 1:
        return Verdict("inconclusive", numbers, f"the {len(differences)} seeds disagree")
    word: Word = "holds" if signs == {True} else "does not hold"
    return Verdict(word, numbers, f"{truth} in each of {len(differences)} seeds")


# Tables, figures and the page.


def table_rows(found: Sequence[ItemResults]) -> list[dict[str, str]]:
    """One line per benchmark and row; the paper's number follows every quantity."""
    return [_table_row(one, label) for one in found for label in one.outcomes]


def _table_row(found: ItemResults, label: str) -> dict[str, str]:
    count, paper = len(found.numbers(label)), found.paper_values(label)
    line = {"benchmark": found.protocol, "row": label, "seeds": str(count)}
    for name, title in (TIMES if found.item.times else ACCURACY).items():
        values = list(found.by_seed(TableValue(label, name)).values())
        line[title] = str(Spread.of(values, percent=False)) if values else MISSING
        deviation = f" ± {paper[f'{name}_std']}" if paper.get(f"{name}_std") is not None else ""
        line[f"paper {title}"] = f"{paper[name]}{deviation}" if paper.get(name) is not None else MISSING
    problem, absent = found.problems().get(label), len(found.outcomes[label]) - count
    some = f"{absent} seed{'s' * (absent > 1)} " if count else ""
    return {**line, "note": f"{some}{problem.kind}: {problem.reason}"} if problem else line


@dataclass(frozen=True)
class Reproduced:
    """An item as far as it could be reproduced."""

    item: Item
    planned: Sequence[PlannedRow]
    results: Sequence[ItemResults]
    files: Sequence[Path]
    notes: Sequence[str]
    """Figures that could not be drawn, and why."""

    @property
    def measured(self) -> list[ItemResults]:
        """The benchmarks with some number."""
        return [one for one in self.results if any(map(one.numbers, one.outcomes))]

    def problems(self) -> Iterator[tuple[str, Problem]]:
        """Rows without a number, named by benchmark and label."""
        for one in self.results:
            for label, problem in one.problems().items():
                yield f"{one.protocol}, {label}", problem

    def verdicts(self) -> Iterator[tuple[Claim, ItemResults, Verdict]]:
        """The verdicts on measured claims."""
        for claim, one in itertools.product(self.item.claims, self.results):
            if (checked := check_claim(claim, one)).word != "not measured":
                yield claim, one, checked

    def remarks(self) -> Iterator[str]:
        """Reasons for missing numbers, verdicts on measured claims, and notes."""
        yield from (f"{name}: {problem.kind} ({problem.reason})" for name, problem in self.problems())
        yield from (f"{claim.text} {one.protocol}: {checked}." for claim, one, checked in self.verdicts())
        yield from self.notes


def list_lines(items: Sequence[Item], config: ReproductionConfig) -> Iterator[str]:
    """Each item with its number of finished and of all runs, and the reasons why runs cannot be made or have failed."""
    for item in items:
        planned = plan([item], config)
        runs = distinct_runs(planned)
        states = [finished_run(spec, config) for spec in runs]
        done = sum(isinstance(state, Run) for state in states)
        yield f"{item.name}: {item.title} ({item.paper}); {done} of {len(runs)} runs are finished"
        if deviation := item.deviations.get(config.scale.size):
            yield f"  at this scale: {deviation}"
        problems = [state for state in (*states, *(one.run for one in planned)) if isinstance(state, Problem)]
        for problem, count in Counter(one for one in problems if one.kind != "missing").items():
            yield f"  {problem.kind}: {problem.reason} ({count})"


def reproduce(
    items: Sequence[Item],
    config: ReproductionConfig,
    reporter: Reporter | None = None,
    executor: Executor | None = None,
    most: int | None = None,
    *,
    run: bool = True,
) -> list[Reproduced]:
    """Make the tables and figures of items, and resume an earlier call that was stopped.

    Args:
        items: tables and figures, see `adagauss.experiments.paper.find_items`.
        config: scale, folders, data and seeds.
        reporter: shows progress.
        executor: makes the runs; None makes them here, one after another.
        most: how many runs an executor has at a time.
        run: whether missing runs are made; without it the finished ones are used.
    """
    reporter = reporter or Reporter()
    planned = plan(items, config)
    if run:
        run_missing(distinct_runs(planned), config, reporter, executor, most)
    rescore_missing(planned, config, reporter)
    made = []
    with reporter.progress("tables and figures", len(items)) as advance:
        for item in items:
            made.append(_reproduced(item, [one for one in planned if one.item is item], config, reporter))
            advance(item.name)
    return made


def _reproduced(
    item: Item, planned: Sequence[PlannedRow], config: ReproductionConfig, reporter: Reporter
) -> Reproduced:
    command = f"adagauss reproduce {item.name} --scale {config.scale.name}"
    found, files, notes = results(planned, config), [], []
    if rows := table_rows(found):
        codes = "; ".join(dict.fromkeys(one.code for one in found))
        caption = f"{item.title}; {config.scale.note}; {codes}; {command}"
        for ending, text in FORMATS.items():
            files.append(config.folder(item) / f"table.{ending}")
            write_atomically(files[-1], text(rows, caption).encode("utf-8", "backslashreplace"))
    for one in found:
        if item.study is None or not one.runs:
            continue
        try:
            (drawn,) = analyse(
                one.runs,
                config.figure(item, one.benchmark, "csv").parent,
                names=[item.study],
                dataset=read_dataset(config.scale.find(one.benchmark.protocol).stream, config.options),
                reporter=reporter,
                command=command,
            )
            files += drawn.files.values()
            missing: object = drawn.missing
        except AdagaussError as error:
            missing = error
        notes += [f"{one.protocol}: no figure ({missing})"] if missing else []
    # The claims use the figures that were drawn just now.
    return Reproduced(item, planned, results(planned, config), files, notes)


def write_page(made: Sequence[Reproduced], config: ReproductionConfig, path: Path) -> None:
    """Write a Markdown page on all claims, and copy its figures and tables next to it.

    The copies are in the folders ``images/paper`` and ``tables/paper``.
    """

    def copied(file: Path, name: str) -> str:
        (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, path.parent / name)
        return name

    def counts(rows: Sequence[Mapping[str, str]]) -> str:
        found = Counter(row["verdict"].partition(" (")[0] for row in rows)
        return ", ".join(f"{word}: {count}" for word, count in found.most_common())

    claims: dict[bool, list[dict[str, str]]] = {False: [], True: []}
    for one in made:
        for claim, found, checked in one.verdicts():
            place = f"[{one.item.title}](#{_anchor(one.item.title)})"
            word = f"{checked.word} ({checked.seeds})"
            row = {"item": place, "claim": claim.text, "benchmark": found.protocol, "verdict": word}
            claims[one.item.paper == BEYOND].append(row)
    states = [finished_run(spec, config) for spec in distinct_runs(row for one in made for row in one.planned)]
    done = [state for state in states if isinstance(state, Run)]
    loader = PackageLoader("adagauss.analysis")
    environment = Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    text = environment.get_template("paper.md.jinja").render(
        config=config,
        scale=config.scale,
        runs=len(states),
        finished=len(done),
        hours=sum(sum(run.cost.seconds.values()) for run in done) / 3600,
        summaries={"## All claims": claims[False], "### Beyond the paper": claims[True]},
        made=made,
        beyond=BEYOND,
        **{one.__name__: one for one in (copied, counts, find_study, markdown, table_rows)},
    )
    write_atomically(path, text.encode("utf-8"))


def _anchor(title: str) -> str:
    """The name that Markdown gives to a heading."""
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")
