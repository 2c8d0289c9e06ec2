"""One HTML page about runs: results, curves, tasks, classes, cost, settings, and how the runs were made.

The page is one file without scripts. Python prepares groups of runs and plain tables; the template
``templates/report.html.jinja`` lays them out. Every text passes through `clipped` and is escaped, so names of classes,
files and settings cannot become markup.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from adagauss import __version__
from adagauss.analysis.confusion import confusion_figure
from adagauss.analysis.figures import gaussians_figure
from adagauss.analysis.grouping import differing, labels, settings_of
from adagauss.analysis.plotting import new_figure, shown
from adagauss.analysis.studies import Drawn, analyse, find_study
from adagauss.analysis.studies import studies as all_studies
from adagauss.analysis.tables import Spread
from adagauss.core.config import flatten, plain
from adagauss.core.learner_state import single_image_classes, stored_items
from adagauss.data.dataset import Dataset
from adagauss.data.images import Label
from adagauss.data.stream import StreamConfig
from adagauss.errors import AdagaussError, ConfigError
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.environment import COMMAND, COMMIT, source_digest
from adagauss.experiments.metrics import METRICS
from adagauss.experiments.protocols import PROTOCOLS, Protocol
from adagauss.experiments.published import published
from adagauss.experiments.run import ProtocolFacts, Run, SkippedRun, open_runs, run_folders
from adagauss.methods import method_info
from adagauss.methods.base import USER
from adagauss.utils.files import as_yaml, write_atomically
from adagauss.utils.progress import Reporter, clipped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST = 400
"""Columns of one text; longer ones are cut."""
LONGEST_COMMAND = 20_000
COLOURS = 10
"""Colours of the page, the CSS variables ``--s0`` to ``--s9``."""
MOST_CARDS = 6
MOST_FIGURES = 6
"""Methods with figures of their own."""
MOST_TASKS = 30
"""Tasks up to which each has its own row and column; of more, evenly spaced ones are shown."""
WORST_CLASSES = 10
MOST_CLASS_ROWS = 2500
"""Rows of all tables of classes together; beyond that each table shows only its worst classes."""
CONFUSED = 3
SWEEPS = ("beta", "distillation", "ranks-by-distillation", "shrink", "strength")
"""Studies of runs that differ in one setting; others do not need them."""
STAGES = {
    "representation": "training the network",
    "drift": "drift compensation",
    "memory": "statistics of new classes",
    "classifier": "fitting the classifier",
    "evidence": "calibration",
    "evaluation": "inference on test images",
}
DEFINITIONS = {
    "A_last": "accuracy on all classes after the last task, every task weighted equally, task-agnostic (CIL)",
    "A_inc": "mean over the tasks of the accuracy on all classes seen so far",
    "forgetting": "mean over old tasks of the best accuracy of a task minus its final accuracy (lower is better)",
    "plasticity": "mean accuracy on a task when it was learned, from the second task on",
    "backward transfer": "mean over old tasks of the final accuracy minus the accuracy when learned",
    "per image": "every test image, instead of every task, has the same weight",
    "task-aware (TIL)": "accuracy if the task of each image were known; the gap to A_last is confusion between tasks",
    "±": "standard deviation over seeds (n − 1); a single run has none",
}

Cell = object
"""A text, a number, markup, or a mapping with ``text``, ``kind`` and ``v`` for a shaded cell."""


class Table(NamedTuple):
    """A table of the page; columns in ``words`` hold text, the others numbers."""

    label: str
    heads: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    words: Sequence[int] = (0,)
    kind: str = ""
    """Class of the table in the style sheet."""


@dataclass(frozen=True)
class Group:
    """Runs of one configuration with different seeds and equally many finished tasks."""

    label: str
    runs: Sequence[Run]

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    def spread(self, metric: str, percent: bool = True) -> Spread:
        """Mean and deviation of a metric over seeds."""
        return Spread.of([run.metrics[metric] for run in self.runs], percent)


@dataclass(frozen=True)
class Section:
    """All runs of one protocol: the same classes and tasks, at one scale, on the same data."""

    title: str
    groups: Sequence[Group]
    """The best first; unfinished ones last."""

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    @property
    def furthest(self) -> Run:
        """The run with the most finished tasks."""
        return max(self.runs, key=lambda run: run.done)


class Report(NamedTuple):
    """A written report: its file, the runs on it, and the folders that it leaves out."""

    path: Path
    sections: Sequence[Section]
    skipped: Sequence[SkippedRun]


def write_report(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    study: str = "usual",
    data: Callable[[StreamConfig], Dataset] | None = None,
    reporter: Reporter | None = None,
) -> Report:
    """Write one HTML file about runs; it needs no network and no script.

    Each protocol has its own part of the page. A folder that cannot be read, or repeats another run, is listed with the
    reason. If no run can be shown, nothing is written.

    Args:
        runs: run folders, or folders that contain some.
        out: the file; an older one is replaced when the new one is complete.
        study: names of studies, separated by commas, or usual, all or none (no figures but curves).
        data: reads the data of a stream, to measure studies that need images; without it only studies that need none,
            or were measured before, are drawn.
        reporter: shows progress.
    """
    reporter = reporter or Reporter()
    names = chosen_studies(study)
    folders = run_folders([Path(run) for run in runs])
    with reporter.progress("reading runs", len(folders)) as advance:
        found, skipped = open_runs(folders, advance)
    sections, repeated = group_runs(found)
    skipped += repeated
    if not sections:
        raise ConfigError(f"none of the runs can be shown: {skipped[0].reason}")
    parts = []
    with reporter.progress("drawing", len(sections)) as advance:
        for place, section in enumerate(sections):
            dataset = data(section.runs[0].config.stream) if data else None
            parts.append(_part(section, f"p{place}", names, dataset, reporter))
            advance(section.title)
    page = _template().render(
        sections=parts,
        skipped=skipped,
        version=__version__,
        commits=list(dict.fromkeys(one.environment[COMMIT] for one in found if COMMIT in one.environment)),
        definitions=DEFINITIONS,
    )
    # A name may contain bytes that are not UTF-8; they are escaped where it is shown.
    write_atomically(Path(out), page.encode("utf-8", "backslashreplace"))
    return Report(Path(out), sections, skipped)


def _template() -> Any:
    """The template in an environment that clips and escapes every value."""
    environment = Environment(
        loader=PackageLoader("adagauss.analysis"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else clipped(value, LONGEST),
    )
    environment.filters["name"] = name
    environment.filters["commands"] = lambda lines: Markup("\n").join(clipped(line, LONGEST_COMMAND) for line in lines)
    return environment.get_template("report.html.jinja")


def name(label: object, width: int = 110) -> Markup:
    """The name of a class, a method or a file; its writing direction does not affect the text around it.

    A name that is cut is shown in full while the pointer rests on it.
    """
    full, cut = clipped(label, LONGEST), clipped(label, width)
    if full == cut:
        return Markup("<bdi>{}</bdi>").format(cut)
    return Markup('<bdi title="{}">{}</bdi>').format(full, cut)


# Groups of runs.


def group_runs(runs: Iterable[Run]) -> tuple[list[Section], list[SkippedRun]]:
    """Sections by protocol in the order of the runs, and runs that repeat another one."""
    distinct: dict[tuple[str, int, str], Run] = {}
    repeated: list[SkippedRun] = []
    for run in runs:
        key = run.digest, run.seed, json.dumps(run.data, sort_keys=True)
        before = distinct.setdefault(key, run)
        if before is not run:
            less, more = (run, before) if before.done >= run.done else (before, run)
            distinct[key] = more
            reason = f"it has the configuration and the seed of {more.path}, so it would be counted twice"
            repeated.append(SkippedRun(less.path, reason))
    by_protocol: dict[str, list[Run]] = {}
    for run in distinct.values():
        protocol = json.dumps([plain(run.config)["stream"], run.config.scale, run.data], sort_keys=True)
        by_protocol.setdefault(protocol, []).append(run)
    titles = _distinct_titles(list(by_protocol.values()))
    return [Section(title, _groups(own)) for title, own in zip(titles, by_protocol.values(), strict=True)], repeated


def _groups(runs: Sequence[Run]) -> list[Group]:
    named = labels({run.digest: run.config for run in runs})
    members: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        members.setdefault((run.digest, run.done), []).append(run)
    groups = []
    for (digest, done), own in members.items():
        label = named[digest] if own[0].finished else f"{named[digest]}, {done} of {own[0].planned_tasks} tasks"
        groups.append(Group(label, sorted(own, key=lambda run: run.seed)))
    best = METRICS[0].name
    return sorted(groups, key=lambda group: (not group.first.finished, -group.spread(best).mean))


def _distinct_titles(sections: Sequence[Sequence[Run]]) -> list[str]:
    """Titles of protocols, with the settings of the stream or the data where only those differ."""
    titles = []
    for runs in sections:
        run = max(runs, key=lambda run: run.done)
        # The sizes of tasks that are not learned yet are unknown; the title uses only their number.
        sizes = run.sizes + run.sizes[-1:] * (run.planned_tasks - run.done)
        facts = {"dataset": run.config.stream.dataset, "scale": run.config.scale, "tasks": sizes}
        titles.append(ProtocolFacts(**facts, classes=(), test_images=0).title)
    distinct = []
    for title, runs in zip(titles, sections, strict=True):
        same = [others[0] for other, others in zip(titles, sections, strict=True) if other == title]
        if len(same) > 1:
            streams = [flatten(plain(run.config)["stream"]) for run in same]
            own = flatten(plain(runs[0].config)["stream"])
            details = [f"{key}={own.get(key)}" for key in differing(streams)]
            if any(run.data != same[0].data for run in same):
                digest = runs[0].data.get("content of the test images", "")
                details.append(f"test images {digest[:8]}" if digest else "data not recorded")
            title = f"{title} ({', '.join(details)})"
        distinct.append(title)
    return distinct


def chosen_studies(names: str) -> list[str]:
    """Studies by name, separated by commas, or ``usual`` (without sweeps of one setting), ``all`` or ``none``.

    >>> chosen_studies("recency, pareto"), chosen_studies("none")
    (['recency', 'pareto'], [])
    """
    if names in ("usual", "all"):
        return [one for one in all_studies() if names == "all" or one not in SWEEPS]
    return [] if names == "none" else [find_study(one.strip()).name for one in names.split(",")]


# The parts of a section.


def _part(
    section: Section, key: str, names: Sequence[str], dataset: Dataset | None, reporter: Reporter
) -> dict[str, Any]:
    """Everything that the template shows of a section; ``key`` prefixes the names of its elements."""
    groups = section.groups
    with themed():
        curve = inlined_figure(_curve_figure(section), f"{key}-curve", "accuracy on all seen classes after each task")
    return {
        "key": key,
        "section": section,
        "notes": list(_notes(section)),
        "cards": [_card(group) for group in groups[:MOST_CARDS]],
        "curve": curve,
        "has_deviation": any(len(group.runs) > 1 for group in groups),
        "curve_table": _curve_table(section),
        "metrics": _metrics_table(section),
        "matrices": [(group.label, *_matrix(group)) for group in groups],
        "recency": _recency(section),
        "classes": [(group.label, *_class_tables(group, len(groups))) for group in groups],
        "studies": _studies(section, key, names, dataset, reporter) if names else None,
        "figures": [
            (group.label, list(_figures(group, f"{key}g{place}"))) for place, group in enumerate(groups[:MOST_FIGURES])
        ]
        if names
        else [],
        "without_figures": len(groups) - MOST_FIGURES,
        "stages": _stage_bars(groups),
        "stage_names": [STAGES.get(stage, stage) for stage in _stages(groups)],
        "time": _time_table(groups),
        "other_machines": len(
            {(run.environment.get("processor"), run.environment.get("threads")) for run in section.runs}
        )
        > 1,
        **_storage(section),
        "runs": _runs_table(section),
        "commands": [(group.label, group.first.digest, *_commands(group)) for group in groups],
        "differences": list(_differences(groups)),
        "settings": [(group.label, _settings_table(group)) for group in groups],
        "environments": list(_environments(section.runs)),
        "data": _data_table(section.runs),
    }


def _notes(section: Section) -> Iterator[str]:
    """Reasons why runs must be compared with care."""
    codes = {run.environment.get("source", "unknown") for run in section.runs}
    if len(codes) > 1:
        yield (
            f"The runs were made with {len(codes)} versions of the code ({', '.join(sorted(codes))}): compare their "
            "environments below."
        )
    unfinished = [run for run in section.runs if not run.finished]
    if unfinished:
        yield (
            f"Unfinished runs: {len(unfinished)} of {len(section.runs)}. They are shown up to their last finished task "
            "in rows of their own; their numbers are over fewer classes."
        )
    if len({tuple(group.seeds) for group in section.groups if group.first.finished}) > 1:
        yield "Not all methods have the same seeds."


def _card(group: Group) -> dict[str, str]:
    last, inc = group.spread("a_last"), group.spread("a_inc")
    seeds = f"{len(group.runs)} seeds" if len(group.runs) > 1 else "one seed, no deviation"
    run = group.first
    return {
        "label": group.label,
        "a_last": f"{last.mean:.1f}",
        "deviation": f" ± {last.deviation:.1f}" if last.deviation is not None else "",
        "a_inc": str(inc),
        "state": seeds if run.finished else f"{seeds}; unfinished: after {run.done} of {run.planned_tasks} tasks",
    }


def _curves(section: Section) -> dict[str, list[Spread]]:
    """Accuracy on all seen classes after each task, in percent, by label."""
    return {
        group.label: [Spread.of(values) for values in zip(*(run.curve for run in group.runs), strict=True)]
        for group in section.groups
    }


def _curve_figure(section: Section) -> Figure:
    figure = new_figure(8.5, max(3.6, 1.4 + 0.2 * len(section.groups)))
    axes = figure.add_subplot()
    for index, (label, spreads) in enumerate(_curves(section).items()):
        tasks, means = range(1, len(spreads) + 1), np.array([spread.mean for spread in spreads])
        deviations = np.array([spread.deviation or 0.0 for spread in spreads])
        style = ("-", "--", ":", "-.")[index // COLOURS % 4]
        text = f"{shown(label, 40)}  {means[-1]:.1f}"
        # The first group is the best one: its line is drawn above the others.
        axes.plot(
            tasks, means, style, marker="o", markersize=3.5, label=text, color=f"C{index}", zorder=3 - index / 1000
        )
        axes.fill_between(tasks, means - deviations, means + deviations, alpha=0.15, color=f"C{index}", linewidth=0)
    axes.set(xlabel="tasks learned", ylabel="accuracy on all seen classes, %", ylim=(0, 102))
    axes.set_xticks([task + 1 for task in spaced(section.furthest.planned_tasks, 20)])
    axes.grid(alpha=0.25)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9, frameon=False)
    return figure


def _curve_table(section: Section) -> Table:
    tasks = max(run.planned_tasks for run in section.runs)
    rows = [
        [name(label), *map(str, spreads), *["–"] * (tasks - len(spreads))]
        for label, spreads in _curves(section).items()
    ]
    return Table(f"accuracy after each task: {section.title}", ["after task", *range(1, tasks + 1)], rows)


def _metrics_table(section: Section) -> Table:
    papers = [_in_paper(group) for group in section.groups]
    heads = ["method", "seeds", *(metric.title for metric in METRICS)]
    rows = [
        [
            name(group.label),
            ", ".join(map(str, group.seeds)),
            *(str(group.spread(metric.name, metric.percent)) for metric in METRICS),
            *([paper or "–"] if any(papers) else []),
        ]
        for group, paper in zip(section.groups, papers, strict=True)
    ]
    if any(papers):
        heads.append("paper A_last / A_inc")
    return Table(f"all metrics: {section.title}", heads, rows, (0, 1))


def _in_paper(group: Group) -> str | None:
    """The paper's numbers, if the runs follow its protocol without changes."""
    run = group.first
    if not run.finished or run.config.scale != "paper":
        return None
    method = run.method
    found = published(method_info(method).title, method, run.config.stream.dataset, run.sizes, run.config.scale)
    return f"{found.a_last} / {found.a_inc}" if found and follows_paper(run.config, run.folder.origins) else None


def spaced(count: int, most: int = MOST_TASKS) -> list[int]:
    """Positions 0..count-1; if they are too many, evenly spaced ones with the first and the last.

    >>> spaced(3), spaced(10, 4)
    ([0, 1, 2], [0, 3, 6, 9])
    """
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})


def _matrix(group: Group) -> tuple[Table, str]:
    """The accuracy matrix, mean over seeds, and its caption."""
    size = group.first.done
    mean = [np.mean([run.matrix[row] for run in group.runs], axis=0) for row in range(size)]
    shown_tasks = spaced(size)
    rows = [
        [
            f"task {row + 1}",
            *(
                _shaded(mean[row][column], 0) if column <= row else {"text": "", "kind": "", "v": 0}
                for column in shown_tasks
            ),
        ]
        for row in shown_tasks
    ]
    seeds = f", mean over {len(group.runs)} seeds" if len(group.runs) > 1 else ""
    left = f" {len(shown_tasks)} of {size} tasks are shown." if len(shown_tasks) < size else ""
    heads = ["after", *(f"task {task + 1}" for task in shown_tasks)]
    return Table(f"accuracy by task: {group.label}", heads, rows, kind="heat"), f"{group.label}{seeds}.{left}"


def _shaded(share: float, digits: int) -> dict[str, object]:
    return {"text": f"{100 * share:.{digits}f}", "kind": "", "v": round(100 * share)}


def _recency(section: Section) -> Table:
    """The share of predictions that go to each task, next to the share of images that belong to it."""
    run = section.furthest
    tasks = spaced(run.done)
    fair = _share_of_images(run)
    rows: list[list[Cell]] = [[Markup("<b>test images</b>"), *(f"{100 * fair[task]:.1f}" for task in tasks)]]
    for group in section.groups:
        shares = np.mean([one.evaluations[-1].prediction_share() for one in group.runs], axis=0)
        own = _share_of_images(group.first)
        cells = [_ratio(shares[task], own[task]) if task < group.first.done else "–" for task in tasks]
        rows.append([name(group.label), *cells])
    heads = ["share of predictions, %", *(f"task {task + 1}" for task in tasks)]
    return Table(f"share of predictions by task: {section.title}", heads, rows, kind="ratio")


def _share_of_images(run: Run) -> list[float]:
    counts, _ = np.histogram(run.evaluations[-1].true.numpy(), bins=np.cumsum([0, *run.sizes]))
    shares: list[float] = (counts / counts.sum()).tolist()
    return shares


def _ratio(share: float, fair: float) -> dict[str, object]:
    """A cell whose shade grows with the logarithm of share / fair, full from a factor of four on."""
    factor = np.log2(max(share, 1e-6) / max(fair, 1e-6)) / 2
    return {
        "text": f"{100 * share:.1f}",
        "kind": "over" if factor > 0 else "under",
        "v": round(100 * min(abs(factor), 1)),
    }


@dataclass(frozen=True)
class ClassResult:
    """The test images of one class in all runs of a group."""

    label: Label
    tasks: str
    """Tasks that taught it; orders of classes may differ between seeds."""
    images: int
    """In one run."""
    accuracies: Sequence[float]
    confused_with: Sequence[tuple[Label, float]]
    """The classes most often predicted instead, and their share of the images of this class."""

    @property
    def accuracy(self) -> float:
        return statistics.fmean(self.accuracies)


def class_results(group: Group) -> list[ClassResult]:
    """Each class, the one with the lowest accuracy first; runs may have learned them in different orders."""
    found: dict[Label, list[tuple[int, int, float, dict[Label, float]]]] = {}
    for run in group.runs:
        counts = run.confusion
        images = counts.sum(1)
        task_of = np.repeat(np.arange(1, run.done + 1), run.sizes)
        for place, label in enumerate(run.labels):
            shares = counts[place] / max(1, images[place])
            wrong = {run.labels[other]: shares[other] for other in np.flatnonzero(shares).tolist() if other != place}
            found.setdefault(label, []).append((int(task_of[place]), int(images[place]), float(shares[place]), wrong))
    results = []
    for label, parts in found.items():
        tasks, images_of, accuracies, wrongs = zip(*parts, strict=True)
        total: dict[Label, float] = {}
        for wrong in wrongs:
            for other, share in wrong.items():
                total[other] = total.get(other, 0.0) + share / len(wrongs)
        ranked = sorted(total.items(), key=lambda item: (-item[1], str(item[0])))[:CONFUSED]
        results.append(ClassResult(label, ", ".join(map(str, sorted(set(tasks)))), images_of[0], accuracies, ranked))
    return sorted(results, key=lambda one: (one.accuracy, str(one.label)))


def _class_tables(group: Group, groups: int) -> tuple[Table, str, Table | None]:
    """The worst classes, and a title and a table of all, or of as many as there is room for."""
    classes = class_results(group)
    worst = _class_table(classes[:WORST_CLASSES], group, "worst classes")
    if len(classes) <= WORST_CLASSES:
        return worst, "", None
    kept = classes[: max(50, MOST_CLASS_ROWS // groups)]
    title = f"All {len(classes)} classes" if len(kept) == len(classes) else f"The {len(kept)} worst of {len(classes)}"
    return worst, title, _class_table(kept, group, "classes")


def _class_table(classes: Sequence[ClassResult], group: Group, title: str) -> Table:
    several = len(group.runs) > 1
    heads = [
        "class",
        "task",
        "accuracy, %",
        *(["worst and best seed, %"] if several else []),
        "images",
        "confused with",
    ]
    rows: list[list[Cell]] = [
        [
            name(one.label, 40),
            one.tasks,
            {"text": f"{100 * one.accuracy:.1f}", "kind": "bar", "v": round(100 * one.accuracy)},
            *([f"{100 * min(one.accuracies):.0f} – {100 * max(one.accuracies):.0f}"] if several else []),
            one.images,
            Markup(", ").join(
                Markup("{} ({:.0f} %)").format(name(other, 30), 100 * share) for other, share in one.confused_with
            )
            or "–",
        ]
        for one in classes
    ]
    return Table(f"{title}: {group.label}", heads, rows, (0, len(heads) - 1))


# Cost.


def _stages(groups: Sequence[Group]) -> list[str]:
    present = dict.fromkeys(stage for group in groups for run in group.runs for stage in run.cost.seconds)
    return [*(stage for stage in STAGES if stage in present), *(stage for stage in present if stage not in STAGES)]


def _seconds(group: Group, stage: str) -> float:
    return statistics.fmean(run.cost.seconds.get(stage, 0.0) for run in group.runs)


def _stage_bars(groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """The width of each stage in percent, by method; the slowest method fills the page."""
    seconds = {group.label: [_seconds(group, stage) for stage in _stages(groups)] for group in groups}
    slowest = max(map(sum, seconds.values())) or 1.0
    return [(label, [f"{100 * value / slowest:.2f}" for value in values]) for label, values in seconds.items()]


def _time_table(groups: Sequence[Group]) -> Table:
    stages = _stages(groups)
    rows = [
        [
            name(group.label),
            str(Spread.of([run.cost.training_seconds for run in group.runs], percent=False)),
            *(f"{_seconds(group, stage):.1f}" for stage in stages),
            f"{statistics.fmean(run.cost.images_per_second for run in group.runs):,.0f}",
        ]
        for group in groups
    ]
    heads = ["method", "all but inference", *(STAGES.get(stage, stage) for stage in stages), "images per second"]
    return Table("time", heads, rows)


def _storage(section: Section) -> dict[str, object]:
    """What is stored after the last task: a table of all methods, and the contents of each learner."""
    rows, contents = [], []
    for group in section.groups:
        run = group.first
        learner = run.learner()
        network = "unknown"
        if learner is not None:
            state = learner.network.state_dict().values()
            network = size(sum(tensor.numel() * tensor.element_size() for tensor in state))
            items = [[one.place, f"{one.size:,}", one.contents] for one in stored_items(learner.state)]
            single = single_image_classes(learner.state)
            contents.append(
                {
                    "label": group.label,
                    "table": Table("stored items", ["part", "bytes", "contents"], items, (0, 2)),
                    "is_joint": method_info(run.method).joint,
                    "single": len(single),
                    "single_names": ", ".join(map(str, single[:5])),
                }
            )
        rows.append([name(group.label), f"{run.cost.bytes_per_class:,}", size(run.cost.other_state_bytes), network])
    heads = ["method", "bytes per class", "other state", "network"]
    return {"storage": Table(f"storage: {section.title}", heads, rows), "contents": contents}


def size(count: int) -> str:
    """Bytes in a readable unit.

    >>> size(900), size(2_560), size(3 * 2**20)
    ('900 B', '2.5 KiB', '3.0 MiB')
    """
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} KiB" if count < 2**20 else f"{count / 2**20:.1f} MiB"


# How the runs were made.


def _runs_table(section: Section) -> Table:
    rows = [
        [
            name(run.path, 90),
            name(group.label),
            run.seed,
            f"{run.done} of {run.planned_tasks}",
            run.digest,
        ]
        for group in section.groups
        for run in group.runs
    ]
    heads = ["run folder", "method", "seed", "tasks", "configuration"]
    return Table(f"runs: {section.title}", heads, rows, (0, 1, 4))


def _commands(group: Group) -> tuple[list[str], list[str]]:
    """The commands that started the runs, and those that repeat each alone; none if options cannot express them."""
    recorded = dict.fromkeys(run.environment[COMMAND] for run in group.runs if COMMAND in run.environment)
    lines = [line for run in group.runs if (line := command(run.config, run.folder.origins)) is not None]
    return list(recorded), lines if len(lines) == len(group.runs) else []


def _differences(groups: Sequence[Group]) -> Iterator[tuple[str, Table]]:
    """Of several configurations of one method: the settings in which they differ."""
    for method in dict.fromkeys(group.first.method for group in groups):
        own = [group for group in groups if group.first.method == method]
        settings = [settings_of(group.first.config) for group in own]
        rows = [[key, *(as_yaml(one[key]) if key in one else "–" for one in settings)] for key in differing(settings)]
        if rows:
            heads = ["setting", *(name(group.label) for group in own)]
            yield method, Table(f"differing settings of {method}", heads, rows, range(len(heads)), "settings")


def _settings_table(group: Group) -> Table:
    run = group.first
    origins = run.folder.origins
    settings = {
        key.removeprefix("method."): value for key, value in flatten(plain(run.config)).items() if key != "seed"
    }
    rows = [[key, as_yaml(value), origins.get(key, "")] for key, value in settings.items()]
    return Table(f"settings: {group.label}", ["setting", "value", "origin"], rows, (0, 1, 2), "settings")


def _environments(runs: Sequence[Run]) -> Iterator[tuple[str, list[Path], Table]]:
    """Versions and machines, each once, with the runs that they belong to; commands differ and are elsewhere."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        facts = {key: value for key, value in run.environment.items() if key != COMMAND}
        found.setdefault(json.dumps(facts, sort_keys=True), []).append(run)
    for text, own in found.items():
        facts = json.loads(text)
        ordered = {key: facts[key] for key in own[0].environment if key in facts}
        rows = [[key, _code(value) if key == "source" else value] for key, value in ordered.items()]
        whose = f"{len(own)} run{'s' * (len(own) > 1)}" if len(found) > 1 else "all runs"
        folders = [run.path for run in own] if len(found) > 1 else []
        yield whose, folders, Table("environment", ["item", "version or value"], rows, (0, 1))


def _code(digest: str) -> str:
    same = "the code that made this report" if digest == source_digest() else "not the code that made this report"
    return f"{digest} (digest of the library's source: {same})"


def _data_table(runs: Sequence[Run]) -> Table | None:
    facts = next((run.data for run in runs if run.data), {})
    rows = [[key, value[:16]] for key, value in facts.items()]
    return Table("data", ["item", "SHA-256"], rows, (0, 1)) if rows else None


# Commands of runs.

CHOSEN = (USER, "epochs", "shared recipe")
"""Origins of settings that neither the method nor its data or protocol imply."""


def command(config: RunConfig, origins: Mapping[str, str]) -> str | None:
    """``adagauss run ...`` that resolves to this configuration; None if options cannot express it."""
    protocol, settings = protocol_of(config), chosen_settings(config, origins)
    try:
        made = make_config(
            config.method_name,
            config.stream,
            preset=config.preset,
            settings=settings,
            seed=config.seed,
            runtime=config.runtime,
            diagnostics=config.diagnostics,
            protocol=protocol,
        )
    except AdagaussError:
        return None
    if made.digest() != config.digest() or not (protocol or _is_option(config.stream.class_order)):
        return None
    words = ["adagauss", "run", "--method", config.method_name]
    if config.preset and config.preset != method_info(config.method_name).default_preset:
        words += ["--preset", config.preset]
    words += ["--protocol", protocol.name] if protocol else _stream_words(config.stream)
    for key, value in settings.items():
        words += ["--set", f"{key}={as_yaml(value)}"]
    words += ["--seed", str(config.seed)]
    runtime = config.runtime
    words += ["--diagnostics", config.diagnostics] if config.diagnostics != "last" else []
    words += ["--device", runtime.device] if runtime.device != "auto" else []
    words += ["--set", f"runtime.precision={runtime.precision}"] if runtime.precision != "32-true" else []
    words += ["--set", "runtime.compile=true"] if runtime.compile else []
    return shlex.join(words)


def chosen_settings(config: RunConfig, origins: Mapping[str, str]) -> dict[str, Any]:
    """The settings of the user, by dotted key."""
    return {key: value for key, value in flatten(plain(config.method)).items() if origins.get(key) in CHOSEN}


def protocol_of(config: RunConfig) -> Protocol | None:
    """The named protocol with these tasks at this scale."""
    return next((one for one in PROTOCOLS.values() if (one.stream, one.scale) == (config.stream, config.scale)), None)


def follows_paper(config: RunConfig, origins: Mapping[str, str]) -> bool:
    """Whether it is a protocol of the paper, with the method's own settings for it."""
    protocol = protocol_of(config)
    return protocol is not None and bool(origins) and protocol.is_papers(chosen_settings(config, origins))


def _stream_words(stream: StreamConfig) -> list[str]:
    tasks = f"{stream.first}+{stream.tasks - 1}" if stream.first else str(stream.tasks)
    words = ["--dataset", stream.dataset, "--tasks", ",".join(map(str, stream.sizes)) if stream.sizes else tasks]
    words += ["--set", f"stream.classes={stream.classes}"] if stream.classes else []
    words += ["--image-size", str(stream.image_size)] if stream.image_size else []
    if (order := stream.class_order) is not None:
        words += ["--class-order", ",".join(map(str, order)) if isinstance(order, tuple) else str(order)]
        words += ["--set", f"stream.class_order_seed={stream.class_order_seed}"] if order == "seeded" else []
    return [*words, "--skip-bad"] if stream.skip_bad_images else words


def _is_option(order: object) -> bool:
    """Whether ``--class-order`` can express it: numbers come out of the command line as text."""
    if isinstance(order, tuple):
        return len(order) > 1 and all(isinstance(one, str) and one == one.strip() and "," not in one for one in order)
    return order is None or isinstance(order, str)


# Figures in the colours of the page.

INK = "#010203"
"""Placeholder for the colour of text in figures. Black in a figure stays black."""
SMALL_PRINT = "#555555"
PALETTE = [f"#0102{4 + index:02d}" for index in range(COLOURS)]
"""Placeholders for the colours of the page."""
PIXELS_PER_POINT = 1.25
SMALLEST = 0.72
"""A figure is not made smaller than this share of its size; it scrolls then."""
THEME: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "legend.edgecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color", "grid.color"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor"), "none"),
    "svg.fonttype": "none",
    "svg.hashsalt": "adagauss",
}


@contextmanager
def themed() -> Iterator[None]:
    """Figures made within take the colours of the page."""
    import matplotlib
    from cycler import cycler

    with matplotlib.rc_context({**THEME, "axes.prop_cycle": cycler(color=PALETTE)}):
        yield


def inlined_figure(figure: Figure, key: str, label: str) -> Markup:
    """A figure made within `themed` as SVG; ``key`` distinguishes its parts from those of other figures."""
    file = io.BytesIO()
    with themed(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message=".*does not currently support .* natively")
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return inlined_svg(file.getvalue().decode(), key, label)


def inlined_svg(svg: str, key: str, label: str) -> Markup:
    """An SVG of matplotlib, which escapes its texts, as part of a page: with prefixed names, in the page's colours."""
    svg = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r' id="[A-Za-z.0-9]+_\d+"', "", svg)  # groups are numbered, and nothing refers to them
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{key}-", svg)
    for index, colour in enumerate(PALETTE):
        svg = svg.replace(colour, f"var(--s{index})")
    svg = svg.replace(INK, "currentColor").replace(SMALL_PRINT, "var(--quiet)")
    head, _, content = svg.partition(">")
    box = re.search(r'viewBox="0 0 ([\d.]+) [\d.]+"', head)
    # As large as it was drawn where there is room; where there is not, small print must stay readable.
    width = float(box[1] if box else 600) * PIXELS_PER_POINT
    style = f"width:{width:.0f}px;min-width:{SMALLEST * width:.0f}px"
    opened = Markup('<svg {} role="img" aria-label="{}" style="{}">').format(
        Markup(box[0] if box else ""), clipped(label, 120), style
    )
    return opened + Markup(content)


def _studies(
    section: Section, key: str, names: Sequence[str], dataset: Dataset | None, reporter: Reporter
) -> dict[str, Any]:
    """The studies that these runs allow, and the reasons why others are missing."""
    groups = {group.label: [run.folder for run in group.runs if run.has_learner] for group in section.groups}
    groups = {label: folders for label, folders in groups.items() if folders}
    if not groups:
        return {
            "error": "The learners of these runs were not stored, so there are no studies.",
            "drawn": [],
            "missing": [],
        }
    with TemporaryDirectory() as place, themed():
        try:
            drawn = analyse(groups, Path(place), names=names, dataset=dataset, reporter=reporter)
        except AdagaussError as error:
            return {"error": f"The studies could not be drawn: {error}", "drawn": [], "missing": []}
        figures = [_study(one, f"{key}-{one.name}") for one in drawn if one.missing is None]
    missing = [(one.title, one.missing) for one in drawn if one.missing is not None]
    return {"error": "", "drawn": figures, "missing": missing}


def _study(one: Drawn, key: str) -> tuple[str, str, Markup]:
    """Title, caption and figure of a study."""
    study = find_study(one.name)
    paper = f" In the paper: {study.paper}." if study.paper else ""
    note = f" {one.note[:1].upper()}{one.note[1:]}." if one.note else ""
    figure = inlined_svg(one.files["svg"].read_text(encoding="utf-8"), key, one.title)
    return one.title, f"{study.claim}{paper}{note}", figure


def _figures(group: Group, key: str) -> Iterator[tuple[str, Markup]]:
    """The confusion matrix of a method, and memorised and real Gaussians if the run stored both; with captions."""
    run = group.first
    title = f"{run.method}, seed {run.seed}"
    with themed():
        matrix = confusion_figure(run.confusion, run.labels, run.sizes, title)
        figure = inlined_figure(matrix, f"{key}c", f"confusion matrix: {group.label}")
    yield "Rows are true classes, columns predictions, ordered by task.", figure
    learner = run.learner() if (run.folder.task(run.done - 1) / "real.safetensors").exists() else None
    if learner is None or not len(learner.memory) or learner.memory.covariance == "none":
        return
    try:
        real, sample, targets = run.folder.real(run.done - 1)
    except AdagaussError:  # a damaged file costs only the figure
        return
    with themed():
        gaussians = gaussians_figure(learner.memory, real, sample, targets, title)
        figure = inlined_figure(gaussians, f"{key}m", f"Gaussians: {title}")
    yield "Memorised and real Gaussians of classes, in the plane of their real means.", figure
