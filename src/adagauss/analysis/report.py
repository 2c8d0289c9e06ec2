"""One HTML page about runs: results, curves, tasks, classes, figures, cost, settings, and how the runs were made.

The page is one file without scripts. The template ``templates/report.html.jinja`` lays it out; every text passes
through `clipped` and is escaped, so names of classes, files and settings cannot become markup.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from adagauss import __version__
from adagauss.analysis.plotting import colour, places
from adagauss.analysis.studies import Drawn, analyse, differing, find_study, group_by_settings, summary
from adagauss.analysis.tables import Spread
from adagauss.core.config import flatten, plain
from adagauss.data.images import Label, evenly_spaced
from adagauss.errors import ConfigError
from adagauss.experiments.environment import COMMAND, source_digest
from adagauss.experiments.metrics import METRICS, mean, metrics
from adagauss.experiments.run import Groups, Run, all_runs, open_runs
from adagauss.utils.files import as_yaml, write_atomically
from adagauss.utils.progress import Reporter, clipped

LONGEST = 400
"""Columns of one text; longer ones are cut."""
LONGEST_COMMAND = 20_000
MOST_TASKS = 30
"""Tasks up to which each has its own row and column; of more, evenly spaced ones are shown."""
CONFUSED = 3
CURVE = "accuracy"
"""The study that every protocol of a report starts with."""
LIMITS = {"cards": 6, "worst": 10, "classes": 2500}
"""Cards of methods, worst classes of a method, and rows of all tables of classes together."""


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
        return mean(self.accuracies)


def class_results(runs: Sequence[Run]) -> list[ClassResult]:
    """Each class, the one with the lowest accuracy first; runs may have learned them in different orders."""
    found: dict[Label, list[tuple[Run, int]]] = {}
    for run in runs:
        for place, label in enumerate(run.labels):
            found.setdefault(label, []).append((run, place))
    results = []
    for label, members in found.items():
        counts: Counter[Label] = Counter()
        for run, place in members:
            counts.update(dict(zip(run.labels, run.confusion[place].tolist(), strict=True)))
        images = counts.total()
        shares = [float(run.confusion[place, place]) * len(members) / images for run, place in members]
        tasks = sorted({int(run.task_of_class[place]) + 1 for run, place in members})
        wrong = [(other, count / images) for other, count in counts.items() if other != label and count]
        wrong.sort(key=lambda item: (-item[1], str(item[0])))
        one = images // len(members)
        results.append(ClassResult(label, ", ".join(map(str, tasks)), one, shares, wrong[:CONFUSED]))
    return sorted(results, key=lambda one: (one.accuracy, str(one.label)))


def settings_with_origins(run: Run) -> list[tuple[str, Any, str]]:
    """Every setting of a run with its value and origin."""
    values = {key.removeprefix("method."): value for key, value in flatten(plain(run.config)).items()}
    return [(key, value, run.origins.get(key, "")) for key, value in values.items() if key != "seed"]


def environments(runs: Sequence[Run]) -> list[tuple[list[Run], dict[str, str]]]:
    """Versions and machines, each once, with the runs that they belong to."""
    found: dict[str, tuple[list[Run], dict[str, str]]] = {}
    for run in runs:
        facts = {key: value for key, value in run.environment.items() if key != COMMAND}
        found.setdefault(json.dumps(facts, sort_keys=True), ([], facts))[0].append(run)
    return list(found.values())


class Report(NamedTuple):
    """What a report shows: the runs of each protocol, the best first, and the folders that it leaves out."""

    sections: Mapping[str, Groups]
    """By title. A group holds runs of one configuration with equally many finished tasks; unfinished ones are last."""
    skipped: Mapping[Path, str]
    """Reasons by folder."""

    @property
    def runs(self) -> list[Run]:
        return [run for groups in self.sections.values() for run in all_runs(groups)]


def write_report(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    study: str = "all",
    reporter: Reporter | None = None,
) -> Report:
    """Write one HTML file about runs; it needs no network and no script.

    Each protocol has its own part of the page. A folder that cannot be read, or repeats another run, is listed with the
    reason. If no run can be shown, nothing is written.

    Args:
        runs: run folders, or folders that contain some.
        out: the file; an older one is replaced when the new one is complete.
        study: names of studies, separated by commas, or all or none (no figure but the curve). Those that need images
            are drawn if `adagauss analyse` has measured the runs.
        reporter: shows progress.
    """
    reporter = reporter or Reporter()
    names = [] if study in ("all", "none") else [find_study(name.strip()).name for name in study.split(",")]
    found, skipped = open_runs(runs, reporter=reporter)
    sections, repeated = group_runs(found)
    skipped |= repeated
    if not sections:
        raise ConfigError(f"none of the runs can be shown: {next(iter(skipped.values()))}")
    parts = []
    with reporter.progress("drawing", len(sections)) as advance:
        for title, groups in sections.items():
            parts.append({"title": title, **_part(groups, None if study == "none" else names, reporter)})
            advance(title)
    page = _template().render(
        parts=parts,
        skipped=skipped,
        version=__version__,
        metrics=metrics(),
        source=source_digest(),
        limits=LIMITS,
    )
    # A name may contain bytes that are not UTF-8; they are escaped where it is shown.
    write_atomically(Path(out), page.encode("utf-8", "backslashreplace"))
    return Report(sections, skipped)


def _part(groups: Groups, names: Sequence[str] | None, reporter: Reporter) -> dict[str, Any]:
    """A protocol with its figures: the curve, and the studies of these names, or all; None draws no study."""
    chosen = [CURVE] if names is None else [CURVE, *names] if names else []
    with TemporaryDirectory() as place:
        drawn = analyse(groups, Path(place), names=chosen, reporter=reporter)
        pictures = {one.name: inlined(one) for one in drawn if one.missing is None}
    return {
        "groups": groups,
        "runs": all_runs(groups),
        "summary": summary(groups),
        "tones": [colour(place) for place in places(groups)],
        "curve": pictures.pop(CURVE),
        "has_studies": names is not None,
        "figures": [(find_study(one.name), one.note, pictures[one.name]) for one in drawn if one.name in pictures],
        "missing": [(one.title, one.missing) for one in drawn if one.missing is not None],
    }


def inlined(drawn: Drawn) -> Markup:
    """A figure as an image of the page."""
    data = base64.b64encode(drawn.files["svg"].read_bytes()).decode()
    return Markup('<img src="data:image/svg+xml;base64,{}" alt="{}">').format(data, drawn.title)


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
    environment.filters |= {
        "name": name,
        "yaml": as_yaml,
        "classes": class_results,
        "environments": environments,
        "settings": settings_with_origins,
        "average": lambda values: Spread.of(list(values), percent=False),
        "spread": lambda runs, metric, percent=True: Spread.of([run.metrics[metric] for run in runs], percent),
        "spreads": lambda runs: [Spread.of(values) for values in zip(*(run.curve for run in runs), strict=True)],
        "matrix": lambda runs: [np.mean(rows, 0).tolist() for rows in zip(*(run.matrix for run in runs), strict=True)],
        "spaced": lambda count: evenly_spaced(count, MOST_TASKS).tolist(),
        "commands": lambda lines: Markup("\n").join(clipped(line, LONGEST_COMMAND) for line in lines),
    }
    return environment.get_template("report.html.jinja")


def name(label: object, width: int = 110) -> Markup:
    """The name of a class, a method or a file; its writing direction does not affect the text around it.

    A name that is cut is shown in full as a tooltip.
    """
    full, cut = clipped(label, LONGEST), clipped(label, width)
    if full == cut:
        return Markup("<bdi>{}</bdi>").format(cut)
    return Markup('<bdi title="{}">{}</bdi>').format(full, cut)


# Groups of runs.


def group_runs(runs: Iterable[Run]) -> tuple[dict[str, Groups], dict[Path, str]]:
    """Groups by protocol in the order of the runs, and why some are left out: they repeat another one."""
    distinct: dict[tuple[str, int, str], Run] = {}
    repeated: dict[Path, str] = {}
    for run in runs:
        key = run.digest, run.seed, json.dumps(run.data, sort_keys=True)
        before = distinct.setdefault(key, run)
        if before is not run:
            less, more = (run, before) if before.done >= run.done else (before, run)
            distinct[key] = more
            reason = f"it has the configuration and the seed of {more.path}, so it would be counted twice"
            repeated[less.path] = reason
    by_protocol: dict[str, list[Run]] = {}
    for run in distinct.values():
        key_of_protocol = json.dumps([plain(run.config)["stream"], run.config.scale, run.data], sort_keys=True)
        by_protocol.setdefault(key_of_protocol, []).append(run)
    protocols = [(max(own, key=lambda run: run.done).protocol, _facts(own[0]), own) for own in by_protocol.values()]
    sections = {}
    for title, facts, own in protocols:
        keys = differing([others for same, others, _ in protocols if same == title])
        details = ", ".join(f"{key} {facts[key]}" for key in keys)
        sections[f"{title} ({details})" if details else title] = _groups(own)
    return sections, repeated


def _facts(run: Run) -> dict[str, Any]:
    """In what protocols of the same title may differ."""
    images = run.data.get("content of the test images", "")[:8]
    return {**flatten(plain(run.config.stream)), "test images": images or "not recorded"}


def _groups(runs: Sequence[Run]) -> Groups:
    groups = {}
    for label, members in group_by_settings(runs).items():
        for done in dict.fromkeys(run.done for run in members):
            own = sorted((run for run in members if run.done == done), key=lambda run: run.seed)
            groups[label + ("" if own[0].finished else f", {done} of {own[0].planned_tasks} tasks")] = own
    best = METRICS[0].name
    ranks = {label: (not own[0].finished, -mean([run.metrics[best] for run in own])) for label, own in groups.items()}
    return {label: groups[label] for label in sorted(groups, key=ranks.__getitem__)}
