"""One HTML page about runs: results, curves, tasks, classes, figures, cost, settings, and how the runs were made.

The page is one file without scripts. The template ``templates/report.html.jinja`` lays it out; every text passes
through `clipped` and is escaped, so names of classes, files and settings cannot become markup.
"""

from __future__ import annotations

import base64
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from adagauss import __version__
from adagauss.analysis.accuracy_figures import accuracy_curve, confusion_figure
from adagauss.analysis.plotting import colour, places, svg_of
from adagauss.analysis.studies import analyse, differing, find_study, labels, planned_protocol, studies
from adagauss.analysis.tables import Spread
from adagauss.core.config import flatten, plain
from adagauss.data.dataset import Dataset
from adagauss.data.images import Label, evenly_spaced
from adagauss.data.stream import StreamConfig
from adagauss.errors import AdagaussError, ConfigError
from adagauss.experiments.environment import COMMAND, source_digest
from adagauss.experiments.metrics import METRICS
from adagauss.experiments.paper import Published, published
from adagauss.experiments.run import Run, SkippedRun, open_runs, run_folders
from adagauss.utils.files import as_yaml, write_atomically
from adagauss.utils.progress import Reporter, clipped

LONGEST = 400
"""Columns of one text; longer ones are cut."""
LONGEST_COMMAND = 20_000
MOST_CARDS = 6
MOST_FIGURES = 6
"""Groups with figures of their own."""
MOST_TASKS = 30
"""Tasks up to which each has its own row and column; of more, evenly spaced ones are shown."""
WORST_CLASSES = 10
MOST_CLASS_ROWS = 2500
"""Rows of all tables of classes together; beyond that, each table shows only its worst classes."""
CONFUSED = 3
SWEEPS = ("accuracy", "beta", "distillation", "ranks-by-distillation", "shrink", "strength")
"""Studies that usual reports do not show: sweeps of one setting, and the curve that each section has already."""


class ClassResult(NamedTuple):
    """The test images of one class in all runs of a group."""

    label: Label
    tasks: str
    """Tasks of the class; orders of classes may differ between seeds."""
    images: int
    """In one run."""
    accuracies: Sequence[float]
    confused_with: Sequence[tuple[Label, float]]
    """The most frequent wrong predictions, and their share of the images of this class."""

    @property
    def accuracy(self) -> float:
        return statistics.fmean(self.accuracies)


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

    @property
    def curve(self) -> list[Spread]:
        """Accuracy on all seen classes after each task, in percent."""
        return [Spread.of(values) for values in zip(*(run.curve for run in self.runs), strict=True)]

    @property
    def matrix(self) -> list[list[float]]:
        """The accuracy matrix, mean over seeds."""
        return [np.mean([run.matrix[row] for run in self.runs], axis=0).tolist() for row in range(self.first.done)]

    @property
    def paper(self) -> Published | None:
        """The paper's numbers, if the runs follow its protocol without changes."""
        return published(self.first)

    @cached_property
    def classes(self) -> list[ClassResult]:
        """Each class, the one with the lowest accuracy first; runs may have learned them in different orders."""
        found: dict[Label, list[tuple[int, int, float, dict[Label, float]]]] = {}
        for run in self.runs:
            images = run.confusion.sum(1)
            for place, label in enumerate(run.labels):
                shares = run.confusion[place] / max(1, images[place])
                wrong = {
                    run.labels[other]: shares[other] for other in np.flatnonzero(shares).tolist() if other != place
                }
                facts = int(run.task_of_class[place]) + 1, int(images[place]), float(shares[place]), wrong
                found.setdefault(label, []).append(facts)
        results = []
        for label, parts in found.items():
            tasks, counts, accuracies, wrongs = zip(*parts, strict=True)
            total: dict[Label, float] = {}
            for other, share in (item for wrong in wrongs for item in wrong.items()):
                total[other] = total.get(other, 0.0) + share / len(wrongs)
            ranked = sorted(total.items(), key=lambda item: (-item[1], str(item[0])))[:CONFUSED]
            results.append(ClassResult(label, ", ".join(map(str, sorted(set(tasks)))), counts[0], accuracies, ranked))
        return sorted(results, key=lambda one: (one.accuracy, str(one.label)))

    @property
    def commands(self) -> list[str]:
        """The commands that started the runs."""
        return list(dict.fromkeys(run.environment[COMMAND] for run in self.runs if COMMAND in run.environment))

    @property
    def settings(self) -> list[tuple[str, Any, str]]:
        """Every setting with its value and origin."""
        origins = self.first.origins
        values = {key.removeprefix("method."): value for key, value in flatten(plain(self.first.config)).items()}
        return [(key, value, origins.get(key, "")) for key, value in values.items() if key != "seed"]


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

    @property
    def sources(self) -> list[str]:
        """Digests of the code of the runs."""
        return sorted({run.environment.get("source", "unknown") for run in self.runs})

    @property
    def has_equal_seeds(self) -> bool:
        return len({tuple(group.seeds) for group in self.groups if group.first.finished}) <= 1

    @property
    def stages(self) -> list[str]:
        """Timed stages of the runs."""
        return list(dict.fromkeys(stage for run in self.runs for stage in run.cost.seconds))

    @property
    def environments(self) -> list[tuple[list[Run], dict[str, str]]]:
        """Versions and machines, each once, with the runs that they belong to."""
        found: dict[str, tuple[list[Run], dict[str, str]]] = {}
        for run in self.runs:
            facts = {key: value for key, value in run.environment.items() if key != COMMAND}
            found.setdefault(json.dumps(facts, sort_keys=True), ([], facts))[0].append(run)
        return list(found.values())

    @property
    def data(self) -> Mapping[str, str]:
        """Fingerprints of the data; empty if they were not stored."""
        return next((run.data for run in self.runs if run.data), {})


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
            or are measured already, are drawn.
        reporter: shows progress.
    """
    reporter = reporter or Reporter()
    names = studies_by_option(study)
    folders = run_folders([Path(run) for run in runs])
    with reporter.progress("reading runs", len(folders)) as advance:
        found, skipped = open_runs(folders, advance)
    sections, repeated = group_runs(found)
    skipped += repeated
    if not sections:
        raise ConfigError(f"none of the runs can be shown: {skipped[0].reason}")
    parts = []
    with reporter.progress("drawing", len(sections)) as advance:
        for section in sections:
            dataset = data(section.runs[0].config.stream) if data and names else None
            parts.append(_part(section, names, dataset, reporter))
            advance(section.title)
    page = _template().render(
        parts=parts,
        skipped=skipped,
        version=__version__,
        metrics=METRICS,
        source=source_digest(),
        limits={"cards": MOST_CARDS, "worst": WORST_CLASSES, "classes": MOST_CLASS_ROWS, "figures": MOST_FIGURES},
    )
    # A name may contain bytes that are not UTF-8; they are escaped where it is shown.
    write_atomically(Path(out), page.encode("utf-8", "backslashreplace"))
    return Report(Path(out), sections, skipped)


def _part(section: Section, names: Sequence[str], dataset: Dataset | None, reporter: Reporter) -> dict[str, Any]:
    """A section with its figures."""
    curve = accuracy_curve({group.label: group.runs for group in section.groups}, section.title)
    figures = []
    for group in section.groups[: MOST_FIGURES if names else 0]:
        run = group.first
        figure = confusion_figure(run.confusion, run.labels, run.sizes, f"{run.method}, seed {run.seed}")
        figures.append((group.label, inlined(svg_of(figure), f"confusion matrix: {group.label}")))
    return {
        "section": section,
        "tones": [colour(place) for place in places({group.label: group.runs for group in section.groups})],
        "curve": inlined(svg_of(curve), "accuracy on all seen classes after each task"),
        "figures": figures,
        "studies": _studies(section, names, dataset, reporter) if names else None,
    }


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
    environment.filters["average"] = average
    environment.filters["yaml"] = as_yaml
    environment.filters["spaced"] = lambda count: evenly_spaced(count, MOST_TASKS).tolist()
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


def average(values: Iterable[float]) -> Spread:
    """Mean and deviation over seeds, not in percent."""
    return Spread.of(list(values), percent=False)


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
    return sorted(groups, key=lambda group: (not group.first.finished, -group.spread(METRICS[0].name).mean))


def _distinct_titles(sections: Sequence[Sequence[Run]]) -> list[str]:
    """Titles of protocols, with the settings of the stream or the data where only those differ."""
    titles = [planned_protocol(max(runs, key=lambda run: run.done)).title for runs in sections]
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


def studies_by_option(names: str) -> list[str]:
    """Studies by name, separated by commas, or ``usual`` (without sweeps of one setting), ``all`` or ``none``.

    >>> studies_by_option("recency, pareto"), studies_by_option("none")
    (['recency', 'pareto'], [])
    """
    if names in ("usual", "all"):
        return [one for one in studies() if names == "all" or one not in SWEEPS]
    return [] if names == "none" else [find_study(one.strip()).name for one in names.split(",")]


# Figures.


def inlined(svg: bytes, label: str) -> Markup:
    """An SVG as an image of the page."""
    data = base64.b64encode(svg).decode()
    return Markup('<img src="data:image/svg+xml;base64,{}" alt="{}">').format(data, clipped(label, 120))


def _studies(section: Section, names: Sequence[str], dataset: Dataset | None, reporter: Reporter) -> dict[str, Any]:
    """The studies that these runs allow, and the reasons why others are missing."""
    groups = {
        group.label: [run for run in group.runs if run.checkpoint(run.done - 1).exists()] for group in section.groups
    }
    groups = {label: runs for label, runs in groups.items() if runs}
    found: dict[str, Any] = {"error": "", "drawn": [], "missing": []}
    if not groups:
        return {**found, "error": "The learners of these runs were not stored, so there are no studies."}
    with TemporaryDirectory() as place:
        try:
            drawn = analyse(groups, Path(place), names=names, dataset=dataset, reporter=reporter)
        except AdagaussError as error:
            return {**found, "error": f"The studies could not be drawn: {error}"}
        for one in drawn:
            if one.missing is not None:
                found["missing"].append((one.title, one.missing))
                continue
            found["drawn"].append((find_study(one.name), one.note, inlined(one.files["svg"].read_bytes(), one.title)))
    return found
