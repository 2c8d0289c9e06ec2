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
from dataclasses import dataclass, field, replace
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
from adagauss.data.dataset import Dataset, ReadOptions, dataset_info, load_dataset
from adagauss.errors import AdagaussError, CheckpointError
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.environment import code_name
from adagauss.experiments.grid import Outcome, Reader, RunSpec, recipe_of, run_specs
from adagauss.experiments.paper import (
    BEYOND,
    SCALES,
    Benchmark,
    Claim,
    FigureValue,
    Item,
    Row,
    Scale,
    Settings,
    Size,
    TableValue,
    Value,
    paper_row,
)
from adagauss.experiments.run import ENVIRONMENT, METRICS_FILE, InUseError, Run, RunFolder
from adagauss.methods import Method
from adagauss.utils.checkpoint import save_json
from adagauss.utils.files import IrregularFileError, read_text, write_atomically
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

BySeed = Mapping[int, float]


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

    def failure(self, name: str) -> Path:
        """File with the reason why a run or a rescoring failed."""
        return self.out / "failures" / f"{name}.json"


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


def plan(items: Iterable[Item], config: ReproductionConfig) -> list[PlannedRow]:
    """Expand items to rows, benchmarks and seeds."""
    configured: dict[str, RunConfig | Problem] = {}
    planned = []
    for item in items:
        for benchmark in item.benchmarks[config.scale.size]:
            for row in item.rows:
                if benchmark.only and row.label not in benchmark.only:
                    continue
                # Many items share a row, and settings take longer to resolve than to compare.
                key = f"{benchmark.protocol} {row.method} {sorted(row.settings.items())}"
                if key not in configured:
                    configured[key] = run_config(row, benchmark.protocol, config)
                seeds = config.seeds if config.seeds is not None else config.scale.seeds[: benchmark.seeds]
                for seed in seeds:
                    planned.append(PlannedRow(item, benchmark, row, seed, _spec(configured[key], seed, config)))
    return planned


def run_config(row: Row, protocol_name: str, config: ReproductionConfig) -> RunConfig | Problem:
    """The configuration of a row, or why it cannot be run here: data, weights or a package are missing."""
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
    except AdagaussError as error:
        return Problem("unavailable", str(error))
    backbone = backbone_info(made.method.backbone.name)
    if not backbone.available:
        return Problem("unavailable", f"backbone {backbone.name} needs the package {backbone.modules[0]}")
    return made


def _spec(made: RunConfig | Problem, seed: int, config: ReproductionConfig) -> RunSpec | Problem:
    if isinstance(made, Problem):
        return made
    name = f"{made.method_name}-{made.digest()}-seed{seed}"
    return RunSpec(name, made.model_copy(update={"seed": seed}), config.runs / name)


def distinct_runs(planned: Sequence[PlannedRow]) -> list[RunSpec]:
    """The runs of planned rows, each once: one seed of everything before the next, dataset by dataset.

    Most tables and figures are thus complete for one seed long before all runs are.
    """
    seeds = list(dict.fromkeys(one.seed for one in planned))
    specs = {one.run.folder: one.run for one in planned if isinstance(one.run, RunSpec)}.values()
    datasets = list(dict.fromkeys(spec.config.stream.dataset for spec in specs))
    return sorted(specs, key=lambda spec: (seeds.index(spec.config.seed), datasets.index(spec.config.stream.dataset)))


def finished_run(spec: RunSpec, config: ReproductionConfig) -> Run | Problem:
    """The run of a spec, if it is finished."""
    folder, file = RunFolder(spec.folder), spec.folder / METRICS_FILE
    if file.exists():
        try:
            return _open_run(spec.folder, file.stat().st_mtime_ns)
        except CheckpointError as error:
            return Problem("missing", str(error))
    if reason := failure_reason(config, spec.name):
        return Problem("failed", reason)
    done = folder.finished_tasks()
    return Problem("missing", f"{done} of {spec.config.stream.tasks} tasks are done" if done else "not run yet")


@lru_cache(maxsize=1024)
def _open_run(folder: Path, written: int) -> Run:
    """Many items use a run; it is read again only after it was written again."""
    return Run.open(folder)


def failure_reason(config: ReproductionConfig, name: str) -> str | None:
    """Why a run or a rescoring failed; None if it did not, or if the file is damaged."""
    try:
        return str(json.loads(read_text(config.failure(name)))["reason"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError, IrregularFileError):
        return None


# Running and rescoring.


def dataset_reader(options: ReadOptions) -> Reader:
    """A function that reads the dataset of a stream and caches the last one: runs on one dataset follow each other."""

    @lru_cache(maxsize=1)
    def load(name: str, size: int | None, skip_bad_images: bool) -> Dataset:
        return load_dataset(name, replace(options, size=size, skip_bad_images=skip_bad_images))

    return lambda stream: load(stream.dataset, stream.image_size, stream.skip_bad_images)


def run_missing(
    runs: Sequence[RunSpec],
    config: ReproductionConfig,
    read: Reader,
    reporter: Reporter,
    executor: Executor | None = None,
    most: int | None = None,
) -> None:
    """Run or resume what is not finished, here or through an executor, at most ``most`` at a time.

    Runs that another process works on are skipped: the same command may be started several times.
    """
    missing = [spec for spec in runs if isinstance(finished_run(spec, config), Problem)]

    def note(spec: RunSpec, outcome: Outcome) -> None:
        if isinstance(outcome.failure, InUseError):
            reporter.message(f"{spec.name}: another process runs it")
        elif outcome.failure is not None:
            save_json(config.failure(spec.name), {"reason": str(outcome.failure)})
        else:
            config.failure(spec.name).unlink(missing_ok=True)

    if missing:
        run_specs(
            missing,
            config.runs,
            read,
            then=note,
            executor=executor,
            most=most,
            options=config.options,
            reporter=reporter,
        )


class Rescored(Curve):
    """Accuracy of changed parts on the networks of a run."""

    run: str
    """Name of the run's folder."""
    changes: dict[str, Any]


def changed_method(method: Method, changes: Mapping[str, Any]) -> Method:
    """A method with another memory, drift or classifier."""
    return resolve(method, [Layer("row", changes)], "run").config


def rescored_file(config: ReproductionConfig, spec: RunSpec, changes: Mapping[str, Any]) -> Path:
    """File of the accuracies of changed parts: named by the parts, so that equal ones are scored once."""
    method = changed_method(spec.config.method, changes)
    parts = {role: plain(getattr(method, role)) for role in RESCORED}
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]
    return config.out / "rescored" / f"{spec.name}-{digest}.json"


def read_rescored(path: Path, config: ReproductionConfig) -> Rescored | Problem:
    """Stored accuracies of changed parts."""
    try:
        return Rescored.read(path, "run the command again")
    except CheckpointError as error:
        if reason := failure_reason(config, path.stem):
            return Problem("failed", reason)
        return Problem("missing", str(error) if path.exists() else "not scored yet")


def rescore_missing(
    planned: Sequence[PlannedRow], config: ReproductionConfig, read: Reader, reporter: Reporter
) -> None:
    """Score changed parts of finished runs that are not scored yet."""
    rescored = [one for one in planned if one.row.rescore is not None]
    with reporter.progress("rescoring finished runs", len(rescored)) as advance:
        for one in rescored:
            if isinstance(one.run, RunSpec) and isinstance(run := finished_run(one.run, config), Run):
                _rescore(one.run, run, one.row.rescore or {}, config, read, reporter)
            advance(one.row.label)


def _rescore(
    spec: RunSpec, run: Run, changes: Settings, config: ReproductionConfig, read: Reader, reporter: Reporter
) -> None:
    try:
        file = rescored_file(config, spec, changes)
    except AdagaussError:  # the results show the reason
        return
    if isinstance(read_rescored(file, config), Rescored):
        return
    method = changed_method(run.config.method, changes)
    drifts, classifiers = {"row": method.drift}, {"row": method.classifier}
    try:
        scored = rescore(run, read(spec.config.stream), drifts, classifiers, reporter, method.memory, oracle=False)
    except AdagaussError as error:
        save_json(config.failure(file.stem), {"reason": str(error)})
        return
    Rescored(run=spec.name, changes=dict(changes), accuracy=scored.rows[0].accuracy).write(file)
    config.failure(file.stem).unlink(missing_ok=True)


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
    runs: Mapping[str, Sequence[RunSpec]]
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
        if value.summary == "spread":
            tasks = dict.fromkeys(row["task"] for row in self.drawn if "task" in row)
            spreads = [self.series(replace(value, columns={**value.columns, "task": task})) for task in tasks]
            ratios: dict[int, list[float]] = {}
            for seed, values in itertools.chain.from_iterable(one.items() for one in spreads):
                ratios.setdefault(seed, []).append(max(values) / max(min(values), 1e-12))
            return {seed: statistics.fmean(values) for seed, values in ratios.items()}
        return {seed: SUMMARIES[value.summary](values) for seed, values in self.series(value).items()}

    def series(self, value: FigureValue) -> dict[int, list[float]]:
        """The numbers of the figure with these columns by seed, in the order of the file."""
        found: dict[int, list[float]] = {}
        for row in self.drawn:
            if row.get("seed") and all(row.get(key) == expected for key, expected in value.columns.items()):
                found.setdefault(int(row["seed"]), []).append(float(row[value.value]))
        return found

    @property
    def features(self) -> float | None:
        """S, the number of features of the networks; None without finished runs."""
        return next((spec.config.method.backbone.features for runs in self.runs.values() for spec in runs), None)

    @property
    def code(self) -> str:
        """Version and digest of the code of the runs."""
        specs = [spec for runs in self.runs.values() for spec in runs]
        codes = {code_name(RunFolder(spec.folder).read_json_or_nothing(ENVIRONMENT)) for spec in specs}
        return "; ".join(f"adagauss {code}" for code in sorted(codes)) or "no finished runs"

    def paper_values(self, label: str) -> dict[str, Any]:
        """The row of the paper's table; empty if it has none."""
        row = next(row for row in self.item.rows if row.label == label)
        return paper_row(self.item.tables, self.dataset, self.tasks, row.paper) or {}


SUMMARIES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "min": min,
}


def results(planned: Iterable[PlannedRow], config: ReproductionConfig) -> list[ItemResults]:
    """Read the numbers of items from finished runs, benchmark by benchmark; nothing is run."""
    groups: dict[tuple[str, str], list[PlannedRow]] = {}
    for one in planned:
        groups.setdefault((one.item.name, one.benchmark.protocol), []).append(one)
    return [_results(group, config) for group in groups.values()]


def _results(group: Sequence[PlannedRow], config: ReproductionConfig) -> ItemResults:
    item, benchmark = group[0].item, group[0].benchmark
    outcomes: dict[str, dict[int, Numbers | Problem]] = {}
    runs: dict[str, list[RunSpec]] = {}
    for one in group:
        outcome = _outcome(one, config)
        outcomes.setdefault(one.row.label, {})[one.seed] = outcome
        if isinstance(one.run, RunSpec) and one.row.rescore is None and not isinstance(outcome, Problem):
            runs.setdefault(one.row.label, []).append(one.run)
    stream = SCALES["paper"].find(benchmark.protocol).stream
    file = config.figure(item, benchmark, "csv")
    return ItemResults(
        item,
        benchmark,
        config.scale.find(benchmark.protocol).name,
        stream.dataset,
        stream.tasks - 1 if stream.first else stream.tasks,
        outcomes,
        runs,
        list(csv.DictReader(io.StringIO(read_text(file)))) if file.exists() else (),
        config.scale.size,
    )


def _outcome(one: PlannedRow, config: ReproductionConfig) -> Numbers | Problem:
    if isinstance(one.run, Problem):
        return one.run
    run = finished_run(one.run, config)
    if isinstance(run, Problem):
        return run
    if one.row.rescore is None:
        cost = run.cost
        if cost.cpu_seconds and run.environment.get("device") == "cpu":  # other processes may slow down the wall clock
            cost = cost.model_copy(update={"seconds": cost.cpu_seconds})
        times = {"training_min": cost.training_seconds / 60, "inference_sec": cost.seconds["evaluation"]}
        return {**{name: 100 * run.metrics[name] for name in ACCURACY}, **times}
    try:
        scored = read_rescored(rescored_file(config, one.run, one.row.rescore), config)
    except AdagaussError as error:
        return Problem("failed", str(error))
    return scored if isinstance(scored, Problem) else {"a_last": 100 * scored.a_last, "a_inc": 100 * scored.a_inc}


class Verdict(NamedTuple):
    """Whether a claim holds, the numbers, and the agreement of the seeds."""

    word: Literal["holds", "does not hold", "inconclusive", "cannot tell", "not measured"]
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
    sign = 1 if claim.relation == "rising" else -1
    series = {seed: numbers for seed, numbers in found.series(value).items() if len(numbers) > 1}
    if not series:
        return Verdict("not measured")
    tests = {
        side: {seed: kendalltau(range(len(one)), one, alternative=side) for seed, one in series.items()}
        for side in ("greater", "less")
    }
    claimed, opposite = ("greater", "less") if sign == 1 else ("less", "greater")
    taus = {seed: sign * float(test.statistic) for seed, test in tests[claimed].items()}
    checked = verdict(taus, f"{value.name}: Kendall's τ over tasks {sign * statistics.fmean(taus.values()):+.2f}")
    side = opposite if checked.word == "does not hold" else claimed
    p = float(combine_pvalues([test.pvalue for test in tests[side].values()]).pvalue)
    numbers = f"{checked.numbers} (p = {p:.2g})"
    if checked.word in ("holds", "does not hold") and not p < SIGNIFICANT:
        return Verdict("inconclusive", numbers, f"{checked.seeds}, but not significant")
    return checked._replace(numbers=numbers)


def _comparison(claim: Claim, found: ItemResults) -> Verdict:
    form = ".1f" if isinstance(claim.values[0], TableValue) else ".3g"
    first, *others = (value.name for value in claim.values)
    measured = {value.name: numbers for value in claim.values if (numbers := found.by_seed(value))}
    missing = [name for name in others if name not in measured]
    seeds = sorted(set.intersection(*map(set, measured.values()))) if measured else []
    means = {name: statistics.fmean(numbers[seed] for seed in seeds) for name, numbers in measured.items() if seeds}
    amounts = {name: f"{name} {mean:{form}}" for name, mean in means.items()}
    others = [name for name in others if name in means]
    if first not in means:
        return Verdict("not measured")
    if claim.relation == "at least":
        bound, name = (found.features, "features") if claim.bound == "features" else (claim.bound, "bound")
        if bound is None:
            return Verdict("not measured")
        differences = {seed: number - bound + ROUNDING for seed, number in measured[first].items()}
        return verdict(differences, f"{amounts[first]}, {name} {bound:{form}}")
    if not others or (missing and claim.relation == "decreasing"):
        return Verdict("not measured")
    if claim.relation == "decreasing":
        order = list(measured.values())
        steps = {seed: min(one[seed] - two[seed] for one, two in itertools.pairwise(order)) for seed in seeds}
        return verdict(steps, f"claimed order: {', '.join(amounts.values())}")
    extreme, sign = (max, 1) if claim.relation == "highest" else (min, -1)
    gaps = {seed: sign * (measured[first][seed] - extreme(measured[name][seed] for name in others)) for seed in seeds}
    nearest = extreme(others, key=lambda name: means[name])
    facts = f"{amounts[first]}, {amounts[nearest]}"
    if claim.change is not None:
        facts += f" ({means[nearest] / means[first] - 1:+.0%}; paper: {claim.change:+.0%})"
    if missing:
        facts += f" (without {', '.join(missing)})"
    if isinstance(claim.values[0], TableValue):
        quoted = [found.paper_values(row).get(claim.values[0].quantity) for row in (first, nearest)]
        facts += f" (paper: {quoted[0]:.1f} and {quoted[1]:.1f})" if None not in quoted else ""
    return verdict(gaps, facts)


def verdict(differences: BySeed, numbers: str) -> Verdict:
    """The verdict on a claim that a difference is positive.

    >>> verdict({0: 1.0, 1: 0.5}, "A 2.0, B 1.2").word
    'holds'
    >>> str(verdict({0: 1.0, 1: -0.5}, "A 2.0, B 1.8"))
    'A 2.0, B 1.8; the 2 seeds disagree: inconclusive'
    >>> str(verdict({0: 1.0}, "A 2.0, B 1.0"))
    'A 2.0, B 1.0; one seed, where it is true: inconclusive'
    """
    signs = {difference > 0 for difference in differences.values()}
    truth = "true" if signs == {True} else "false"
    if len(differences) == 1:
        return Verdict("inconclusive", numbers, f"one seed, where it is {truth}")
    if len(signs) > 1:
        return Verdict("inconclusive", numbers, f"the {len(differences)} seeds disagree")
    return Verdict(
        "holds" if signs == {True} else "does not hold", numbers, f"{truth} in each of {len(differences)} seeds"
    )


# Tables, figures and the page.


def table_rows(found: Sequence[ItemResults]) -> list[dict[str, str]]:
    """One line per benchmark and row; the paper's number follows every quantity."""
    rows = [_table_row(one, label) for one in found for label in one.outcomes]
    if not any(row["note"] for row in rows):
        return [{key: value for key, value in row.items() if key != "note"} for row in rows]
    return rows


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
    line["note"] = f"{some}{problem.kind}: {problem.reason}" if problem else ""
    return line


@dataclass(frozen=True)
class Reproduced:
    """An item as far as it could be reproduced."""

    item: Item
    results: Sequence[ItemResults]
    files: Sequence[Path]
    notes: Sequence[str]
    """Figures that could not be drawn, and why."""

    def failures(self) -> Iterator[tuple[str, Problem]]:
        """Rows that failed, named by benchmark and label."""
        for one in self.results:
            for label, problem in one.problems().items():
                if problem.kind == "failed":
                    yield f"{one.protocol}, {label}", problem

    def remarks(self) -> Iterator[str]:
        """Reasons for missing numbers, verdicts on measured claims, and notes."""
        for one in self.results:
            for label, problem in one.problems().items():
                yield f"{one.protocol}, {label}: {problem.kind} ({problem.reason})"
        for claim in self.item.claims:
            for one in self.results:
                if (checked := check_claim(claim, one)).word != "not measured":
                    yield f"{claim.text} {one.protocol}: {checked}."
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
    read = dataset_reader(config.options)
    planned = plan(items, config)
    if run:
        run_missing(distinct_runs(planned), config, read, reporter, executor, most)
    rescore_missing(planned, config, read, reporter)
    made = []
    with reporter.progress("tables and figures", len(items)) as advance:
        for item in items:
            made.append(_reproduced(item, [one for one in planned if one.item is item], config, read, reporter))
            advance(item.name)
    return made


def _reproduced(
    item: Item, planned: Sequence[PlannedRow], config: ReproductionConfig, read: Reader, reporter: Reporter
) -> Reproduced:
    command = f"adagauss reproduce {item.name} --scale {config.scale.name}"
    found = results(planned, config)
    files, notes = _write_table(item, found, config, command), []
    for one in found:
        if item.study is None or not one.runs:
            continue
        try:
            (drawn,) = analyse(
                {label: [Run.open(spec.folder) for spec in specs] for label, specs in one.runs.items()},
                config.figure(item, one.benchmark, "csv").parent,
                names=[item.study],
                dataset=read(config.scale.find(one.benchmark.protocol).stream),
                reporter=reporter,
                command=command,
            )
            files += drawn.files.values()
            notes += [f"{one.protocol}: no figure ({drawn.missing})"] if drawn.missing else []
        except AdagaussError as error:
            notes.append(f"{one.protocol}: no figure ({error})")
    # The claims use the figures that were drawn just now.
    return Reproduced(item, results(planned, config), files, notes)


def _write_table(item: Item, found: Sequence[ItemResults], config: ReproductionConfig, command: str) -> list[Path]:
    rows, files = table_rows(found), []
    if rows:
        codes = "; ".join(dict.fromkeys(one.code for one in found))
        for ending, text in FORMATS.items():
            path = config.folder(item) / f"table.{ending}"
            caption = f"{item.title}; {config.scale.note}; {codes}; {command}"
            write_atomically(path, text(rows, caption).encode("utf-8", "backslashreplace"))
            files.append(path)
    return files


def write_page(items: Sequence[Item], config: ReproductionConfig, path: Path) -> None:
    """Write a Markdown page on all claims from finished runs, and copy its figures and tables next to it.

    The copies are in the folders ``images/paper`` and ``tables/paper``.
    """
    planned = plan(items, config)
    runs = distinct_runs(planned)
    done = [run for spec in runs if isinstance(run := finished_run(spec, config), Run)]
    found = results(planned, config)
    sections = [_section(item, [one for one in found if one.item is item], config, path.parent) for item in items]
    template = Environment(
        loader=PackageLoader("adagauss.analysis"), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    ).get_template("paper.md.jinja")
    text = template.render(
        scale=config.scale,
        seeds=config.seeds or config.scale.seeds,
        runs=len(runs),
        finished=len(done),
        hours=sum(sum(run.cost.seconds.values()) for run in done) / 3600,
        summaries={
            title: _summary([section for section in sections if (section["item"].paper == BEYOND) == beyond])
            for title, beyond in (("## All claims", False), ("### Beyond the paper", True))
        },
        sections=sections,
    )
    write_atomically(path, text.encode("utf-8"))


def _section(item: Item, found: Sequence[ItemResults], config: ReproductionConfig, place: Path) -> dict[str, Any]:
    """An item with its verdicts, its table, and copies of its files below ``place``."""
    checked = {claim.text: [(one, check_claim(claim, one)) for one in found] for claim in item.claims}
    measured = [one for one in found if any(map(one.numbers, one.outcomes))]
    pictures = {
        f"{item.title}, {one.protocol}": _copied(
            picture, place, f"images/paper/{item.name}-{one.benchmark.protocol}.png"
        )
        for one in found
        if (picture := config.figure(item, one.benchmark, "png")).exists()
    }
    files = {name: config.folder(item) / f"table.{ending}" for name, ending in (("LaTeX", "tex"), ("CSV", "csv"))}
    return {
        "item": item,
        "study": find_study(item.study) if item.study else None,
        "beyond": item.paper == BEYOND,
        "deviation": item.deviations.get(config.scale.size),
        "is_run": bool(item.benchmarks[config.scale.size]),
        "verdicts": {
            text: [(one, verdict) for one, verdict in verdicts if verdict.word != "not measured"]
            for text, verdicts in checked.items()
        },
        "pictures": pictures,
        "table": markdown(table_rows(measured)).rstrip() if measured else "",
        "files": {
            name: _copied(file, place, f"tables/paper/{item.name}{file.suffix}")
            for name, file in files.items()
            if measured and item.tables and file.exists()
        },
    }


def _copied(file: Path, place: Path, name: str) -> str:
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, place / name)
    return name


def _summary(sections: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """How many claims have which verdict, and all of them as a Markdown table; empty if nothing was measured."""
    rows = [
        {
            "item": f"[{section['item'].title}](#{_anchor(section['item'].title)})",
            "claim": text,
            "benchmark": found.protocol,
            "verdict": f"{one.word} ({one.seeds})",
        }
        for section in sections
        for text, verdicts in section["verdicts"].items()
        for found, one in verdicts
    ]
    frequencies = Counter(row["verdict"].partition(" (")[0] for row in rows).most_common()
    counts = f"Of {len(rows)}: {', '.join(f'{word}: {count}' for word, count in frequencies)}."
    return (counts, markdown(rows).rstrip()) if rows else ("", "")


def _anchor(title: str) -> str:
    """The name that Markdown gives to a heading."""
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")
