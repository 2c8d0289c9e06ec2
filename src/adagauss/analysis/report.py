"""One HTML page about runs: results, curves, tasks, classes, figures, cost, settings, and how the runs were made.

The page is one file without scripts. The template ``templates/report.html.jinja`` lays it out; every text passes
through `clipped` and is escaped, so names of classes, files and settings cannot become markup.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from adagauss import __version__
from adagauss.analysis.accuracy_figures import accuracy_curve, confusion_figure
from adagauss.analysis.plotting import COLOURS, svg_of
from adagauss.analysis.statistics_figures import gaussians_figure
from adagauss.analysis.studies import analyse, differing, find_study, labels, planned_protocol, settings_of, studies
from adagauss.analysis.tables import Spread
from adagauss.core.config import flatten, plain
from adagauss.core.learn import Learner
from adagauss.core.learner_state import single_image_classes, stored_items
from adagauss.data.dataset import Dataset
from adagauss.data.images import Label
from adagauss.data.stream import StreamConfig
from adagauss.errors import AdagaussError, ConfigError
from adagauss.experiments.config import RunConfig
from adagauss.experiments.environment import COMMAND, COMMIT, source_digest
from adagauss.experiments.metrics import METRICS
from adagauss.experiments.paper import Published, published
from adagauss.experiments.protocols import PROTOCOLS
from adagauss.experiments.run import Run, SkippedRun, open_runs, run_folders
from adagauss.methods import method_info
from adagauss.methods.base import USER
from adagauss.utils.files import as_yaml, write_atomically
from adagauss.utils.progress import Reporter, clipped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
SWEEPS = ("beta", "distillation", "ranks-by-distillation", "shrink", "strength")
"""Studies of runs that differ in one setting, which usual reports do not show."""
CHOSEN = (USER, "epochs", "shared recipe")
"""Origins of settings that neither the method nor its data or protocol imply."""
STAGES = {
    "representation": "training the network",
    "drift": "drift compensation",
    "memory": "statistics of new classes",
    "classifier": "fitting the classifier",
    "evidence": "calibration",
    "evaluation": "inference on test images",
}


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
        run = self.first
        if not run.finished or not follows_paper(run.config, run.folder.origins):
            return None
        title = method_info(run.method).title
        return published(title, run.method, run.config.stream.dataset, run.sizes, run.config.scale)

    def seconds(self, stage: str) -> float:
        """Wall time of a stage over all tasks, mean over seeds."""
        return statistics.fmean(run.cost.seconds.get(stage, 0.0) for run in self.runs)

    @property
    def training(self) -> Spread:
        """Seconds of all stages but inference."""
        return Spread.of([run.cost.training_seconds for run in self.runs], percent=False)

    @property
    def speed(self) -> float:
        """Images per second of inference."""
        return statistics.fmean(run.cost.images_per_second for run in self.runs)

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

    @cached_property
    def learner(self) -> Learner | None:
        """The learner of the first run after its last finished task."""
        return self.first.learner()

    @property
    def stored(self) -> dict[str, Any] | None:
        """What the learner stores; None if its file is missing or damaged."""
        if self.learner is None:
            return None
        tensors = self.learner.network.state_dict().values()
        return {
            "network": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            "items": stored_items(self.learner.state),
            "single": single_image_classes(self.learner.state),
        }

    @property
    def is_joint(self) -> bool:
        """Whether the method is an upper bound that trains on all tasks together."""
        return method_info(self.first.method).joint

    @property
    def commands(self) -> list[str]:
        """The commands that started the runs."""
        return list(dict.fromkeys(run.environment[COMMAND] for run in self.runs if COMMAND in run.environment))

    @property
    def settings(self) -> list[tuple[str, Any, str]]:
        """Every setting with its value and origin."""
        origins = self.first.folder.origins
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
    def has_equal_machines(self) -> bool:
        return len({(run.environment.get("processor"), run.environment.get("threads")) for run in self.runs}) == 1

    @property
    def stages(self) -> dict[str, str]:
        """Stages of the runs with their titles."""
        present = dict.fromkeys(stage for run in self.runs for stage in run.cost.seconds)
        known = [stage for stage in STAGES if stage in present]
        return {stage: STAGES.get(stage, stage) for stage in [*known, *present]}

    @property
    def differences(self) -> Iterator[tuple[list[Group], list[list[str]]]]:
        """Of several configurations of one method: the settings that differ."""
        for method in dict.fromkeys(group.first.method for group in self.groups):
            own = [group for group in self.groups if group.first.method == method]
            settings = [settings_of(group.first.config) for group in own]
            if keys := differing(settings):
                yield own, [[key, *(as_yaml(one[key]) if key in one else "–" for one in settings)] for key in keys]

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
        for place, section in enumerate(sections):
            dataset = data(section.runs[0].config.stream) if data and names else None
            parts.append(_part(section, f"p{place}", names, dataset, reporter))
            advance(section.title)
    page = _template().render(
        parts=parts,
        skipped=skipped,
        version=__version__,
        commits=list(dict.fromkeys(one.environment[COMMIT] for one in found if COMMIT in one.environment)),
        metrics=METRICS,
        source=source_digest(),
        limits={"cards": MOST_CARDS, "worst": WORST_CLASSES, "classes": MOST_CLASS_ROWS, "figures": MOST_FIGURES},
    )
    # A name may contain bytes that are not UTF-8; they are escaped where it is shown.
    write_atomically(Path(out), page.encode("utf-8", "backslashreplace"))
    return Report(Path(out), sections, skipped)


def _part(
    section: Section, key: str, names: Sequence[str], dataset: Dataset | None, reporter: Reporter
) -> dict[str, Any]:
    """A section with its figures; ``key`` prefixes the names of its elements."""
    with themed():
        curve = accuracy_curve({group.label: group.runs for group in section.groups}, section.title)
        drawn = inlined_figure(curve, f"{key}-curve", "accuracy on all seen classes after each task")
    groups = list(enumerate(section.groups[:MOST_FIGURES])) if names else []
    figures = [(group.label, list(_figures(group, f"{key}g{place}"))) for place, group in groups]
    found = _studies(section, key, names, dataset, reporter) if names else None
    return {"key": key, "section": section, "curve": drawn, "studies": found, "figures": figures}


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
    environment.filters["bytes"] = readable_size
    environment.filters["yaml"] = as_yaml
    environment.filters["spaced"] = spaced
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


def spaced(count: int, most: int = MOST_TASKS) -> list[int]:
    """Positions 0..count-1; if there are more than ``most``, evenly spaced ones with the first and the last.

    >>> spaced(3), spaced(10, 4)
    ([0, 1, 2], [0, 3, 6, 9])
    """
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})


def readable_size(count: int) -> str:
    """Bytes in a readable unit.

    >>> readable_size(900), readable_size(2_560), readable_size(3 * 2**20)
    ('900 B', '2.5 KiB', '3.0 MiB')
    """
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} KiB" if count < 2**20 else f"{count / 2**20:.1f} MiB"


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


def follows_paper(config: RunConfig, origins: Mapping[str, str]) -> bool:
    """Whether it is a protocol of the paper, with the method's own settings for it."""
    known = PROTOCOLS.values()
    protocol = next((one for one in known if (one.stream, one.scale) == (config.stream, config.scale)), None)
    chosen = {key: value for key, value in flatten(plain(config.method)).items() if origins.get(key) in CHOSEN}
    return protocol is not None and protocol.scale == "paper" and bool(origins) and protocol.is_papers(chosen)


def studies_by_option(names: str) -> list[str]:
    """Studies by name, separated by commas, or ``usual`` (without sweeps of one setting), ``all`` or ``none``.

    >>> studies_by_option("recency, pareto"), studies_by_option("none")
    (['recency', 'pareto'], [])
    """
    if names in ("usual", "all"):
        return [one for one in studies() if names == "all" or one not in SWEEPS]
    return [] if names == "none" else [find_study(one.strip()).name for one in names.split(",")]


# Figures in the colours of the page.

INK = "#010203"
"""Placeholder for the colour of text in figures. Black in a figure stays black."""
PIXELS_PER_POINT = 1.25
SMALLEST = 0.72
"""A figure is not made smaller than this share of its size; it scrolls then."""


@contextmanager
def themed() -> Iterator[None]:
    """Figures drawn within take the colours of the page."""
    import matplotlib
    from cycler import cycler

    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "legend.edgecolor")
    clear = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor")
    theme: dict[Any, Any] = dict.fromkeys((*inked, "xtick.color", "ytick.color", "grid.color"), INK)
    theme |= {**dict.fromkeys(clear, "none"), "axes.prop_cycle": cycler(color=COLOURS)}
    with matplotlib.rc_context(theme):
        yield


def inlined_figure(figure: Figure, key: str, label: str) -> Markup:
    """A figure drawn within `themed` as SVG; ``key`` distinguishes its parts from those of other figures."""
    with themed():
        return inlined_svg(svg_of(figure).decode(), key, label)


def inlined_svg(svg: str, key: str, label: str) -> Markup:
    """An SVG of matplotlib, which escapes its texts, as part of a page: with prefixed names, in the page's colours."""
    svg = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r' id="[A-Za-z.0-9]+_\d+"', "", svg)  # groups are numbered, and nothing refers to them
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{key}-", svg)
    for index, colour in enumerate(COLOURS):
        svg = svg.replace(colour, f"var(--s{index})")
    svg = svg.replace(INK, "currentColor")
    head, _, content = svg.partition(">")
    box = re.search(r'viewBox="0 0 ([\d.]+) [\d.]+"', head)
    width = float(box[1] if box else 600) * PIXELS_PER_POINT
    size = f"width:{width:.0f}px;min-width:{SMALLEST * width:.0f}px"
    opened = Markup('<svg {} role="img" aria-label="{}" style="{}">').format(
        Markup(box[0] if box else ""), clipped(label, 120), size
    )
    return opened + Markup(content)


def _studies(
    section: Section, key: str, names: Sequence[str], dataset: Dataset | None, reporter: Reporter
) -> dict[str, Any]:
    """The studies that these runs allow, and the reasons why others are missing."""
    groups = {group.label: [run for run in group.runs if run.has_learner] for group in section.groups}
    groups = {label: runs for label, runs in groups.items() if runs}
    found: dict[str, Any] = {"error": "", "drawn": [], "missing": []}
    if not groups:
        return {**found, "error": "The learners of these runs were not stored, so there are no studies."}
    with TemporaryDirectory() as place, themed():
        try:
            drawn = analyse(groups, Path(place), names=names, dataset=dataset, reporter=reporter)
        except AdagaussError as error:
            return {**found, "error": f"The studies could not be drawn: {error}"}
        for one in drawn:
            if one.missing is not None:
                found["missing"].append((one.title, one.missing))
                continue
            svg = one.files["svg"].read_text(encoding="utf-8")
            found["drawn"].append((find_study(one.name), one.note, inlined_svg(svg, f"{key}-{one.name}", one.title)))
    return found


def _figures(group: Group, key: str) -> Iterator[tuple[str, Markup]]:
    """The confusion matrix of a method, and memorised and real Gaussians if the run stored both; with captions."""
    run = group.first
    title = f"{run.method}, seed {run.seed}"
    with themed():
        matrix = confusion_figure(run.confusion, run.labels, run.sizes, title)
        figure = inlined_figure(matrix, f"{key}c", f"confusion matrix: {group.label}")
    yield "Rows are true classes, columns predictions, ordered by task.", figure
    has_real = (run.folder.task(run.done - 1) / "real.safetensors").exists()
    if not has_real or group.learner is None or group.learner.memory.covariance == "none":
        return
    if not len(group.learner.memory):
        return
    try:
        real = run.folder.real(run.done - 1)
    except AdagaussError:  # a damaged file costs only the figure
        return
    with themed():
        figure = inlined_figure(gaussians_figure(group.learner.memory, *real, title), f"{key}m", f"Gaussians: {title}")
    yield "Memorised and real Gaussians of classes, in the plane of their real means.", figure
