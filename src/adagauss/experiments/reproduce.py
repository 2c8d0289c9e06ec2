"""Reproduce tables and figures of the paper: make missing runs, then write tables, figures and verdicts.

An item of `adagauss.experiments.paper` expands to benchmarks, rows and seeds. Each distinct configuration and seed is
one run folder, however many items use it. Rows that differ only in memory, drift or classifier are scored on the
networks of another run. Failures are values: a table shows them, and the next call tries again.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import re
import shlex
import shutil
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jinja2 import Environment, PackageLoader
from matplotlib.figure import Figure
from scipy.stats import combine_pvalues, kendalltau

from adagauss.analysis.plotting import METHODS, bar_figure, save_figure, use_style
from adagauss.analysis.rescore import Variant, rescore
from adagauss.analysis.studies import analyse, find_study
from adagauss.analysis.tables import Spread, markdown, write_tables
from adagauss.backbones.registry import backbone_info
from adagauss.core.config import Layer, flatten, plain, resolve
from adagauss.data.dataset import dataset_info
from adagauss.errors import AdagaussError, CheckpointError, ConfigError, DataError
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.grid import RunSpec, Workers, read_dataset, recipe_of, run_specs
from adagauss.experiments.metrics import METRICS, mean
from adagauss.experiments.paper import BEYOND, SCALES, Benchmark, Claim, Item, Row, Scale, Summary, Value, paper_row
from adagauss.experiments.protocols import Protocol, first_tasks
from adagauss.experiments.run import METRICS_FILE, InUseError, Run, RunFolder
from adagauss.methods import Method, make_method, method_info
from adagauss.utils.checkpoint import save_json
from adagauss.utils.files import as_yaml, read_text, write_atomically
from adagauss.utils.runtime import RuntimeConfig

TITLES = {metric.name: metric.title for metric in METRICS} | {
    "training_min": "training, min",
    "inference_sec": "inference, s",
}
"""Columns of the tables."""
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
    workers: Workers = field(default_factory=Workers)
    seeds: tuple[int, ...] | None = None
    """Seeds of every row; None takes those of the scale and its benchmarks."""
    stream: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the stream of every benchmark, such as the class order."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    preset: str | None = None
    """Preset of the methods that have it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Changes of every method that has these settings."""
    first_tasks: int | None = None
    """How many tasks are run; None for all."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why runs and rescorings failed in this process; another one tries them again."""

    @property
    def runs(self) -> Path:
        """Folder of the runs of all scales, named as `adagauss compare` names them."""
        return self.out / "cells"

    def protocol(self, name: str) -> Protocol:
        """The protocol of a benchmark at this scale, with the changes of the stream."""
        found = self.scale.find(name)
        stream = found.stream.with_changes(**self.stream)
        return replace(found, stream=first_tasks(stream, self.first_tasks) if self.first_tasks else stream)

    def command(self, item: Item) -> str:
        """The command that reproduces an item with this configuration, for captions."""
        given: dict[str, object] = {"scale": self.scale.name, "seeds": ",".join(map(str, self.seeds or ()))}
        given |= {"preset": self.preset, "first-tasks": self.first_tasks}
        runtime = self.runtime.model_dump(mode="json", exclude_defaults=True)
        changed = {f"stream.{key}": value for key, value in self.stream.items()} | dict(self.settings)
        changed |= {f"runtime.{key}": value for key, value in runtime.items()}
        words = [word for name, value in given.items() if value for word in (f"--{name}", str(value))]
        words += [word for key, value in changed.items() for word in ("--set", f"{key}={as_yaml(value)}")]
        return shlex.join(["adagauss", "reproduce", item.name, *words])

    def folder(self, item: Item) -> Path:
        """Folder of the tables and figures of an item."""
        return self.out / self.scale.name / item.name


class Problem(NamedTuple):
    """Why a number is missing."""

    kind: Literal["unavailable", "missing", "failed"]
    reason: str


class PlannedRow(NamedTuple):
    """One row with one seed, and the run that it needs."""

    row: Row
    seed: int
    run: RunSpec | Problem
    rescored: Path | None = None
    """File of the accuracies of changed parts, if the row has some."""


Numbers = Mapping[str, float]
"""The numbers of one row with one seed, by their names in the paper's tables; accuracies in percent."""


@dataclass(frozen=True)
class ItemResults:
    """An item on one benchmark: its planned rows, and the numbers of finished runs, read when they are first used."""

    item: Item
    benchmark: Benchmark
    config: ReproductionConfig
    planned: Sequence[PlannedRow] = ()

    @cached_property
    def protocol(self) -> Protocol:
        """The protocol at this scale."""
        return self.config.protocol(self.benchmark.protocol)

    @cached_property
    def outcomes(self) -> Mapping[str, Mapping[int, Numbers | Problem]]:
        """The numbers by row and seed."""
        found: dict[str, dict[int, Numbers | Problem]] = {}
        for one in self.planned:
            found.setdefault(one.row.label, {})[one.seed] = _numbers(one, self.config)
        return found

    @cached_property
    def runs(self) -> Mapping[str, Sequence[Run]]:
        """Finished runs of rows without rescoring."""
        found: dict[str, list[Run]] = {}
        for one in self.planned:
            run = finished_run(one.run, self.config)
            if isinstance(run, Run) and one.rescored is None:
                found.setdefault(one.row.label, []).append(run)
        return found

    @property
    def folder(self) -> Path:
        """Folder of the figure."""
        return self.config.folder(self.item) / self.benchmark.protocol

    @cached_property
    def figure_rows(self) -> Sequence[Mapping[str, str]]:
        """The rows of the figure's CSV file."""
        file = self.folder / f"{self.item.study}.csv"
        return list(csv.DictReader(io.StringIO(read_text(file)))) if file.exists() else []

    def numbers(self, row: str) -> dict[int, Numbers]:
        """The numbers of a row by seed, where there are some."""
        return {seed: one for seed, one in self.outcomes.get(row, {}).items() if not isinstance(one, Problem)}

    @property
    def measured(self) -> bool:
        """Whether there is some number."""
        return any(map(self.numbers, self.outcomes))

    def problems(self) -> dict[str, Problem]:
        """The first problem of every row that has one."""
        found = {
            row: [one for one in by_seed.values() if isinstance(one, Problem)] for row, by_seed in self.outcomes.items()
        }
        return {row: problems[0] for row, problems in found.items() if problems}

    def series(self, value: Value) -> dict[int, list[tuple[str, float]]]:
        """Tasks and numbers with the columns of a value by seed, of table and figure; empty if it was not measured."""
        table = [
            {"row": row, "seed": str(seed), "quantity": name, "value": str(value)}
            for row in self.outcomes
            for seed, numbers in self.numbers(row).items()
            for name, value in numbers.items()
        ]
        found: dict[int, list[tuple[str, float]]] = {}
        for one in (*table, *self.figure_rows):
            if one.get("seed") and value.value in one and value.columns.items() <= one.items():
                found.setdefault(int(one["seed"]), []).append((one.get("task", ""), float(one[value.value])))
        return found

    @property
    def features(self) -> float | None:
        """S, the number of features of the networks; None without finished runs."""
        return next((run.config.method.backbone.features for runs in self.runs.values() for run in runs), None)

    @property
    def code(self) -> str:
        """Version and digest of the code of the runs."""
        codes = {run.code for runs in self.runs.values() for run in runs}
        return "; ".join(f"adagauss {code}" for code in sorted(codes)) or "no finished runs"

    def row(self, label: str) -> Row:
        """The row with this label."""
        return next(row for row in self.item.rows if row.label == label)

    def paper_values(self, label: str) -> dict[str, Any]:
        """The row of the paper's table, with its accuracies as the code of its method reports them."""
        row, stream = self.row(label), SCALES["paper"].find(self.benchmark.protocol).stream
        found = paper_row(self.item.tables, stream, row.paper) or {}
        return {re.sub("^(a_last|a_inc)", r"\1_pooled", key) if row.per_image else key: found[key] for key in found}


def plan(items: Iterable[Item], config: ReproductionConfig) -> list[ItemResults]:
    """Expand items to benchmarks, rows and seeds."""
    found = []
    for item, benchmark in ((one, benchmark) for one in items for benchmark in one.benchmarks[config.scale.size]):
        seeds = config.seeds if config.seeds is not None else config.scale.seeds[: benchmark.seeds]
        planned = []
        for row in item.rows:
            if benchmark.only and row.label not in benchmark.only:
                continue
            try:
                configured, digest = _configured(row, benchmark.protocol, config)
            except AdagaussError as error:
                planned += [PlannedRow(row, seed, Problem("unavailable", str(error))) for seed in seeds]
                continue
            for seed in seeds:
                made = configured.model_copy(update={"seed": seed})
                run = RunSpec(made.folder_name, made, config.runs / made.folder_name)
                rescored = config.out / "rescored" / f"{run.name}-{digest}.json"
                planned.append(PlannedRow(row, seed, run, rescored if row.rescore is not None else None))
        found.append(ItemResults(item, benchmark, config, planned))
    return found


def _configured(row: Row, protocol_name: str, config: ReproductionConfig) -> tuple[RunConfig, str]:
    """The configuration of a row and a digest of its changed parts; an error if it cannot be run here."""
    protocol = config.protocol(protocol_name)
    dataset = dataset_info(protocol.stream.dataset)
    if not dataset.present(config.workers.options.root):
        raise DataError(f"{dataset.title} is not in {config.workers.options.root / dataset.folder}")
    known = flatten(plain(make_method(row.method))).keys()
    settings = {**row.settings, **{key: value for key, value in config.settings.items() if key in known}}
    if not protocol.needs_weights or "backbone.name" in row.settings:
        settings.pop("backbone.weights", None)  # the file is for the networks that protocols start from
    made = make_config(
        row.method,
        protocol.stream,
        preset=config.preset if config.preset in method_info(row.method).presets else None,
        settings=settings,
        recipe=recipe_of(row.method, config.scale.recipe),
        runtime=config.runtime,
        protocol=protocol,
    )
    protocol.check_weights(made.method)
    changed = changed_method(made.method, row)
    backbone = backbone_info(made.method.backbone.name)
    if not backbone.available:
        raise ConfigError(f"backbone {backbone.name} needs the package {backbone.modules[0]}")
    parts = {role: plain(getattr(changed, role)) for role in RESCORED}
    return made, hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def changed_method(method: Method, row: Row) -> Method:
    """The method of a run with the memory, drift or classifier of a row."""
    return resolve(method, [Layer("row", row.rescore or {})], "run").config


def distinct_runs(planned: Iterable[ItemResults]) -> list[RunSpec]:
    """The runs of planned rows, each once: one seed of everything before the next, dataset by dataset.

    Most tables and figures are thus complete for one seed long before all runs are.
    """
    runs = (one.run for found in planned for one in found.planned)
    specs = {run.folder: run for run in runs if isinstance(run, RunSpec)}.values()
    seeds = list(dict.fromkeys(spec.config.seed for spec in specs))
    datasets = list(dict.fromkeys(spec.config.stream.dataset for spec in specs))
    return sorted(specs, key=lambda spec: (seeds.index(spec.config.seed), datasets.index(spec.config.stream.dataset)))


def finished_run(spec: RunSpec | Problem, config: ReproductionConfig) -> Run | Problem:
    """The run of a spec, if it is finished, or why there is none."""
    if isinstance(spec, Problem):
        return spec
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


def run_missing(runs: Iterable[RunSpec], config: ReproductionConfig) -> None:
    """Run or resume what is not finished.

    Runs that another process works on are skipped: the same command may be started several times.
    """
    config.failures.clear()
    missing = []
    for spec in runs:
        if isinstance(finished_run(spec, config), Problem):
            try:
                if not RunFolder(spec.folder).learned_tasks():
                    spec.config.check_inputs()
                missing.append(spec)
            except ConfigError as error:  # before any image is decoded
                config.failures[spec.name] = str(error)
    for spec, outcome in run_specs(missing, config.runs, config.workers, total=len(missing)):
        if isinstance(outcome.failure, InUseError):
            config.workers.reporter.message(f"{spec.name}: another process runs it")
        elif outcome.failure is not None:
            config.failures[spec.name] = str(outcome.failure)


def read_rescored(path: Path, config: ReproductionConfig) -> list[float] | Problem:
    """Stored accuracies of changed parts after each task."""
    if accuracy := RunFolder(path.parent).read_json_or_nothing(path.name).get("accuracy"):
        return list(map(float, accuracy))
    if path.stem in config.failures:
        return Problem("failed", config.failures[path.stem])
    return Problem("missing", "not scored yet")


def rescore_missing(planned: Iterable[ItemResults], config: ReproductionConfig) -> None:
    """Score changed parts of finished runs that are not scored yet; equal ones are scored once."""
    rows = {one.rescored: one for found in planned for one in found.planned if one.rescored is not None}
    reporter = config.workers.reporter
    with reporter.progress("rescoring finished runs", len(rows)) as advance:
        for file, one in rows.items():
            run = finished_run(one.run, config)
            if isinstance(run, Run) and isinstance(read_rescored(file, config), Problem):
                method = changed_method(run.config.method, one.row)
                parts = {"row": Variant(method.drift, method.memory)}, {"row": method.classifier}
                try:
                    data = read_dataset(run.config.stream, config.workers.options)
                    (accuracy,) = rescore(run, data, *parts, reporter, oracle=False).values()
                    facts = {"run": run.path.name, "changes": dict(one.row.rescore or {}), "accuracy": accuracy}
                    save_json(file, facts)
                except AdagaussError as failure:
                    config.failures[file.stem] = str(failure)
            advance(one.row.label)


def _numbers(one: PlannedRow, config: ReproductionConfig) -> Numbers | Problem:
    run = finished_run(one.run, config)
    if isinstance(run, Problem):
        return run
    if one.rescored is not None:
        scored = read_rescored(one.rescored, config)
        return scored if isinstance(scored, Problem) else {"a_last": 100 * scored[-1], "a_inc": 100 * mean(scored)}
    # Other processes may slow down the wall clock.
    on_cpu = run.environment.get("device") == "cpu"
    seconds = (on_cpu and run.cost.cpu_seconds) or run.cost.seconds
    inference = seconds["evaluation"]
    times = {"training_min": (sum(seconds.values()) - inference) / 60, "inference_sec": inference}
    return {**{metric.name: 100 * run.metrics[metric.name] for metric in METRICS}, **times}


# Claims.


def summarised(summary: Summary, points: Sequence[tuple[str, float]]) -> float:
    """One number of those of all tasks."""
    numbers = [number for _, number in points]
    if summary == "spread":
        tasks: dict[str, list[float]] = {}
        for task, number in points:
            tasks.setdefault(task, []).append(number)
        return statistics.fmean(max(one) / max(min(one), 1e-12) for one in tasks.values())
    return {"mean": statistics.fmean(numbers), "first": numbers[0], "last": numbers[-1], "min": min(numbers)}[summary]


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
    if checked.word != "not measured" and (reason := claim.biased.get(found.config.scale.size)):
        return Verdict("cannot tell", checked.numbers, f"{checked.seeds}, but {reason}")
    return checked


def _trend(claim: Claim, found: ItemResults) -> Verdict:
    """Test the trend over tasks of a figure's value by Kendall's τ, one-sided, with the seeds combined by Fisher."""
    (value,) = claim.values
    series = [[number for _, number in points] for points in found.series(value).values() if len(points) > 1]
    if not series:
        return Verdict("not measured")
    sign = 1 if claim.relation == "rising" else -1
    taus = [float(kendalltau(range(len(one)), one).statistic) for one in series]
    checked = verdict([sign * tau for tau in taus], "")
    side = "greater" if (sign > 0) == (checked.word != "does not hold") else "less"
    p = combine_pvalues([kendalltau(range(len(one)), one, alternative=side).pvalue for one in series]).pvalue
    numbers = f"{value.name}: Kendall's τ over tasks {statistics.fmean(taus):+.2f} (p = {p:.2g})"
    if checked.word == "inconclusive" or p < SIGNIFICANT:
        return checked._replace(numbers=numbers)
    return Verdict("inconclusive", numbers, f"{checked.seeds}, but not significant")


def _comparison(claim: Claim, found: ItemResults) -> Verdict:
    """Compare means over seeds in the text, and the numbers of each seed in the verdict."""
    measured = {
        value.name: {seed: summarised(value.summary, points) for seed, points in found.series(value).items()}
        for value in claim.values
    }
    first, *others = measured
    if claim.relation == "at least" and (bound := found.features if claim.bound == "features" else claim.bound):
        others = ["features" if claim.bound == "features" else "bound"]
        measured[others[0]] = dict.fromkeys(measured[first], bound - ROUNDING)
    missing = [name for name in others if not measured[name]]
    names = [name for name in measured if measured[name]]
    seeds = set.intersection(*(set(measured[name]) for name in names)) if names else set()
    chain = claim.relation == "decreasing"
    if first not in names or len(names) < 2 or not seeds or (missing and chain):
        return Verdict("not measured")
    in_table = claim.values[0].row is not None
    means = {name: statistics.fmean(measured[name][seed] for seed in seeds) for name in names}
    amounts = {name: f"{name} {mean:{'.1f' if in_table else '.3g'}}" for name, mean in means.items()}
    sign = -1 if claim.relation == "lowest" else 1
    pairs = list(itertools.pairwise(names)) if chain else [(first, other) for other in names[1:]]
    margins = [min(sign * (measured[one][seed] - measured[other][seed]) for one, other in pairs) for seed in seeds]
    if chain:
        return verdict(margins, f"claimed order: {', '.join(amounts.values())}")
    nearest = min(names[1:], key=lambda name: sign * (means[first] - means[name]))
    facts = f"{amounts[first]}, {amounts[nearest]}"
    if claim.change is not None:
        facts += f" ({means[nearest] / means[first] - 1:+.0%}; paper: {claim.change:+.0%})"
    if missing:
        facts += f" (without {', '.join(missing)})"
    if in_table:
        # As in the paper, whatever the weights of images in the numbers of each method.
        quantity = claim.values[0].columns["quantity"].removesuffix("_pooled")
        papers = [found.paper_values(row) for row in (first, nearest)]
        quoted = [paper.get(quantity, paper.get(f"{quantity}_pooled")) for paper in papers]
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
    truth = {difference > 0 for difference in differences}
    if len(truth) > 1:
        return Verdict("inconclusive", numbers, f"the {len(differences)} seeds disagree")
    holds = truth == {True}
    if len(differences) == 1:
        return Verdict("inconclusive", numbers, f"one seed, where it is {str(holds).lower()}")
    word: Word = "holds" if holds else "does not hold"
    return Verdict(word, numbers, f"{str(holds).lower()} in each of {len(differences)} seeds")


# Tables, figures and the page.


def table_rows(found: Sequence[ItemResults]) -> list[dict[str, str]]:
    """One line per benchmark and row; the paper's number follows every quantity."""
    lines = []
    for one, label in ((results, label) for results in found for label in results.outcomes):
        numbers, paper = one.numbers(label), one.paper_values(label)
        line = {"benchmark": one.protocol.name, "row": label, "seeds": str(len(numbers))}
        if one.config.scale.recipe == "own":
            line["recipe of"] = method_info(one.row(label).method).recipe
        for name in one.item.quantities:
            values = [own[name] for own in numbers.values() if name in own]
            line[TITLES[name]] = str(Spread.of(values, percent=False)) if values else MISSING
            stated = [str(paper[key]) for key in (name, f"{name}_std") if paper.get(key) is not None]
            line[f"paper {TITLES[name]}"] = " ± ".join(stated) or MISSING
        if problem := one.problems().get(label):
            absent = len(one.outcomes[label]) - len(numbers)
            some = f"{absent} seed{'s' * (absent > 1)} " if numbers else ""
            line["note"] = f"{some}{problem.kind}: {problem.reason}"
        lines.append(line)
    return lines


class Reproduced(NamedTuple):
    """An item as far as it could be reproduced."""

    item: Item
    results: Sequence[ItemResults]
    files: Sequence[Path]
    notes: Sequence[str]
    """Figures that could not be drawn, and why."""

    def problems(self) -> Iterator[tuple[str, Problem]]:
        """Rows without a number, named by benchmark and label."""
        for one in self.results:
            for label, problem in one.problems().items():
                yield f"{one.protocol.name}, {label}", problem

    def verdicts(self) -> Iterator[tuple[Claim, ItemResults, Verdict]]:
        """The verdicts on measured claims."""
        for claim, one in itertools.product(self.item.claims, self.results):
            if (checked := check_claim(claim, one)).word != "not measured":
                yield claim, one, checked

    def remarks(self) -> Iterator[str]:
        """Reasons for missing numbers, verdicts on measured claims, and notes."""
        yield from (f"{name}: {problem.kind} ({problem.reason})" for name, problem in self.problems())
        yield from (f"{claim.text} {one.protocol.name}: {checked}." for claim, one, checked in self.verdicts())
        yield from self.notes


def list_lines(items: Sequence[Item], config: ReproductionConfig) -> Iterator[str]:
    """Each item with its number of finished and of all runs, and the reasons why runs cannot be made or have failed."""
    for item in items:
        planned = plan([item], config)
        states = [finished_run(spec, config) for spec in distinct_runs(planned)]
        done = sum(isinstance(state, Run) for state in states)
        yield f"{item.name}: {item.title} ({item.paper}); {done} of {len(states)} runs are finished"
        if deviation := item.deviations.get(config.scale.size):
            yield f"  at this scale: {deviation}"
        problems = [*states, *(one.run for found in planned for one in found.planned)]
        counts = Counter(one for one in problems if isinstance(one, Problem) and one.kind != "missing")
        yield from (f"  {problem.kind}: {problem.reason} ({count})" for problem, count in counts.items())


def reproduce(items: Sequence[Item], config: ReproductionConfig, *, run: bool = True) -> list[Reproduced]:
    """Make the tables and figures of items, and resume an earlier call that was stopped.

    Args:
        items: tables and figures, see `adagauss.experiments.paper.find_items`.
        config: scale, folders, data, seeds and workers.
        run: whether missing runs are made; without it the finished ones are used.
    """
    planned = plan(items, config)
    if run:
        run_missing(distinct_runs(planned), config)
    rescore_missing(planned, config)
    made = []
    with config.workers.reporter.progress("tables and figures", len(items)) as advance:
        for item in items:
            found = [one for one in planned if one.item is item]
            command = config.command(item)
            files, notes = [], []
            if rows := table_rows(found):
                codes = "; ".join(dict.fromkeys(one.code for one in found))
                deviation = item.deviations.get(config.scale.size, "").rstrip(".")
                caption = "; ".join(filter(None, [item.title, config.scale.note, deviation, codes, command]))
                files = write_tables(config.folder(item), rows, caption)
            for one in found:
                drawn, missing = _draw(one, config, command)
                files += drawn
                notes += [f"{one.protocol.name}: no figure ({missing})"] if missing else []
            made.append(Reproduced(item, found, files, notes))
            advance(item.name)
    return made


def _draw(one: ItemResults, config: ReproductionConfig, command: str) -> tuple[Iterable[Path], object]:
    """Draw an item on a benchmark; returns the files, or the reason why there are none. A table is drawn as bars."""
    if not (one.runs if one.item.study else one.measured):
        return [], ""
    if one.item.study is None:
        with use_style():
            file, origin = one.folder / "bars.png", f"{config.scale.note}; {one.code}; {command}"
            save_figure(table_figure(one), file, one.item.title, origin)
        return [file], ""
    try:
        (drawn,) = analyse(
            one.runs,
            one.folder,
            names=[one.item.study],
            images=lambda: read_dataset(one.protocol.stream, config.workers.options),
            reporter=config.workers.reporter,
            command=command,
        )
    except AdagaussError as error:
        return [], error
    return drawn.files.values(), drawn.missing


def table_figure(one: ItemResults) -> Figure:
    """Bars of the first two quantities of a table, in the colours of the methods, with the numbers of the paper."""
    methods = {label: one.row(label).method for label in one.outcomes if one.numbers(label)}
    bars: dict[str, dict[str, list[float]]] = {}
    stated: dict[str, dict[str, float]] = {}
    for name in one.item.quantities[:2]:
        is_accuracy = name.startswith("a_")
        head = TITLES[name] + ", %" * is_accuracy
        bars[head] = {label: [own[name] for own in one.numbers(label).values() if name in own] for label in methods}
        if is_accuracy:  # times are from other machines
            paper = {label: one.paper_values(label).get(name) for label in methods}
            stated[head] = {label: number for label, number in paper.items() if number is not None}
    several = len(set(methods.values())) > 1
    return bar_figure(bars, {label: METHODS.index(own) if several else 0 for label, own in methods.items()}, stated)


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

    rows = [
        {
            "item": f"[{one.item.title}](#{_anchor(one.item.title)})",
            "claim": claim.text,
            "benchmark": found.protocol.name,
            "verdict": f"{checked.word} ({checked.seeds})",
        }
        for one in made
        for claim, found, checked in one.verdicts()
    ]
    beyond = {f"[{one.item.title}](#{_anchor(one.item.title)})" for one in made if one.item.paper == BEYOND}
    states = [finished_run(spec, config) for spec in distinct_runs(found for one in made for found in one.results)]
    done = [state for state in states if isinstance(state, Run)]
    loader = PackageLoader("adagauss.analysis")
    environment = Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    text = environment.get_template("paper.md.jinja").render(
        config=config,
        scale=config.scale,
        runs=len(states),
        finished=len(done),
        hours=sum(sum(run.cost.seconds.values()) for run in done) / 3600,
        summaries={
            "## All claims": [row for row in rows if row["item"] not in beyond],
            "### Beyond the paper": [row for row in rows if row["item"] in beyond],
        },
        made=made,
        beyond=BEYOND,
        **{one.__name__: one for one in (copied, counts, find_study, markdown, table_rows)},
    )
    write_atomically(path, text.encode("utf-8"))


def _anchor(title: str) -> str:
    """The name that Markdown gives to a heading."""
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")
