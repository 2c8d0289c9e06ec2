"""Figures of runs by name. A study is one decorated function from groups of runs to a figure and its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import cleandoc
from pathlib import Path
from typing import Any

from matplotlib import rcParams

from adagauss.analysis.measure import Images, Quantity, measure
from adagauss.analysis.plotting import Drawing, save_figure, use_style
from adagauss.analysis.tables import comma_separated
from adagauss.core.config import KIND, flatten, plain
from adagauss.errors import AdagaussError, ConfigError
from adagauss.experiments.config import RunConfig
from adagauss.experiments.paper import BEYOND, items
from adagauss.experiments.protocols import PROTOCOLS
from adagauss.experiments.run import Groups, Run, all_runs
from adagauss.utils.files import write_atomically
from adagauss.utils.progress import Reporter, escape_control_chars
from adagauss.utils.registry import Registry

TERMS = "representation.terms."
NO_DISTILLATION = "no KD"
DISTILLATIONS = {
    "projected_distillation": "projected KD",
    "feature_distillation": "feature KD",
    "norm_distillation": "feature KD (norm)",
    "logit_distillation": "logit KD",
}
IMPLIED = {
    f"{TERMS}distillation": ("representation.heads", "representation.train_old_heads"),
    f"{TERMS}anti_collapse": ("drift.anti_collapse",),
    f"{TERMS}anti_collapse.weight": ("drift.anti_collapse",),
    f"{TERMS}anti_collapse.beta": ("drift.beta",),
}
"""Settings that change together with a part or a setting; labels name only the latter."""
MOST_NAMED = 3
UNSET = object()


class NotDrawableError(AdagaussError):
    """A study has no data in these runs; the message states what it needs."""


@dataclass(frozen=True)
class Study:
    """A registered study."""

    name: str
    title: str
    claim: str
    """What the paper states about the figure, or what to look for."""
    needs: Quantity | None
    draw: Callable[[Groups], Drawing]

    @property
    def needs_images(self) -> bool:
        return self.needs is not None and self.needs.needs_images

    @property
    def paper(self) -> str:
        """The figure of the paper that it repeats; empty if it has none."""
        return next((item.paper for item in items().values() if item.study == self.name and item.paper != BEYOND), "")


_STUDIES: Registry[Study] = Registry("study")


def register_study(
    needs: Quantity | None = None,
) -> Callable[[Callable[[Groups], Drawing]], Callable[[Groups], Drawing]]:
    """Register a figure and the quantity it needs, so that `adagauss analyse` and the report draw it.

    Its name is that of the function. The first line of the docstring is the title, and the rest the claim.
    """

    def register(draw: Callable[[Groups], Drawing]) -> Callable[[Groups], Drawing]:
        name, (title, _, claim) = draw.__name__.replace("_", "-"), cleandoc(draw.__doc__ or "").partition("\n\n")
        study = Study(name, title.rstrip("."), " ".join(claim.split()), needs, draw)
        _STUDIES.register(name, study, by=draw)
        return draw

    return register


def studies() -> dict[str, Study]:
    """All studies by name, those of the paper first."""
    from adagauss.analysis import figures  # noqa: F401  (it registers them)

    return dict(sorted(_STUDIES.all().items(), key=lambda item: (not item[1].paper, item[0])))


def find_study(name: str) -> Study:
    """The study of that name; an unknown name raises with the nearest known one."""
    studies()
    return _STUDIES.find(name)


@dataclass(frozen=True)
class Drawn:
    """A study that was drawn, or the reason why it was not."""

    name: str
    title: str
    files: Mapping[str, Path] = field(default_factory=dict)
    """Paths by ending: png, svg or pdf, csv, and txt for the caption."""
    note: str = ""
    missing: str | None = None


def analyse(
    groups: Groups,
    out: Path,
    *,
    names: Sequence[str] = (),
    images: Images | None = None,
    reporter: Reporter | None = None,
    command: str = "",
    style: str = "web",
) -> list[Drawn]:
    """Measure what studies need of the runs, and draw them.

    Args:
        groups: runs of one configuration with several seeds, by label. All must have the same data, tasks and scale.
        out: folder of the figures.
        names: studies by name; all if there are none.
        images: reads the data of the runs, for studies that need them and are not measured yet.
        reporter: shows progress.
        command: how to draw a figure again, for its caption; ``{study}`` in it becomes the name of the study.
        style: paper (PDF), talk (large text) or web (SVG).

    Raises:
        ConfigError: if there is no run, or the runs cannot be compared.
    """
    reporter, styled, runs = reporter or Reporter(), use_style(style), all_runs(groups)
    if not runs:
        raise ConfigError("there are no runs to analyse: give at least one run folder")
    check_comparable(groups)
    chosen = [find_study(name) for name in dict.fromkeys(names)] or list(studies().values())
    needs = {study.needs for study in chosen if study.needs is not None}
    measured: dict[str, list[Run]] = {label: [] for label in groups}
    with reporter.progress("runs", len(runs)) as advance:
        for label, members in groups.items():
            for run in members:
                measured[label].append(measure(run, images, needs, reporter))
                advance(run.path.name)
    drawn = []
    with styled, reporter.progress("figures", len(chosen)) as advance:
        for study in chosen:
            drawn.append(_drawn(study, measured, out, command))
            advance(study.name)
    return drawn


def _drawn(study: Study, groups: Groups, out: Path, command: str) -> Drawn:
    usable: dict[str, list[Run]] = {}
    reasons: dict[str, list[str]] = {}
    for label, runs in groups.items():
        known = [run for run in runs if study.needs is None or study.needs not in run.missing]
        if known:
            usable[label] = known
        elif study.needs is not None:
            reasons.setdefault(runs[0].missing[study.needs], []).append(label)
    left_out = "; ".join(f"{escape_control_chars(', '.join(labels))} ({reason})" for reason, labels in reasons.items())
    if not usable:
        return Drawn(study.name, study.title, missing=left_out)
    try:
        drawing = study.draw(usable)
    except NotDrawableError as error:
        return Drawn(study.name, study.title, missing=str(error))
    note = "; ".join(filter(None, (drawing.note, unfinished(usable), left_out and f"left out: {left_out}")))
    protocol = summary(usable)
    lines = [note and f"Note: {note}", protocol, command.replace("{study}", study.name)]
    caption = "\n".join(escape_control_chars(line)[:1000] for line in lines if line)
    files = {ending: out / f"{study.name}.{ending}" for ending in ("png", rcParams["savefig.format"], "csv", "txt")}
    for ending in list(files)[:2]:
        save_figure(drawing.figure, files[ending], study.title, caption)
    write_atomically(files["txt"], f"{study.title}\n{caption}\n".encode("utf-8", "backslashreplace"))
    rows = [
        {key: escape_control_chars(value) if isinstance(value, str) else value for key, value in row.items()}
        for row in drawing.rows
    ]
    write_atomically(files["csv"], comma_separated(rows, protocol).encode("utf-8", "backslashreplace"))
    return Drawn(study.name, study.title, files, note)


def select(groups: Groups, condition: Callable[[Run], bool], needs: str) -> Groups:
    """The groups with runs that satisfy a condition; an error that states what the study needs if there are none."""
    kept = {label: [run for run in runs if condition(run)] for label, runs in groups.items()}
    found = {label: runs for label, runs in kept.items() if runs}
    if not found:
        raise NotDrawableError(f"it needs {needs}")
    return found


def check_axis(groups: Groups, settings: Sequence[str]) -> None:
    """Refuse groups that differ in more than these settings, or parts of them."""
    found = differing([settings_of(runs[0].config) for runs in groups.values()])
    if others := [key for key in found if not key.startswith(tuple(settings))]:
        shown_keys = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        raise NotDrawableError(f"its runs may differ only in {', '.join(settings)}, but these differ in {shown_keys}")


# Labels.


def group_by_settings(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs whose configurations differ only in the seed, labelled by the settings that differ."""
    by_digest: dict[str, list[Run]] = {}
    for run in runs:
        by_digest.setdefault(run.digest, []).append(run)
    names = labels({digest: members[0].config for digest, members in by_digest.items()})
    return {names[digest]: members for digest, members in by_digest.items()}


def labels(configs: Mapping[str, RunConfig]) -> dict[str, str]:
    """A label for each configuration: the method and, among several of one method, the settings that differ."""
    found: dict[str, str] = {}
    for method in dict.fromkeys(config.method_name for config in configs.values()):
        settings = {key: settings_of(config) for key, config in configs.items() if config.method_name == method}
        keys = differing(list(settings.values()))
        for digest, values in settings.items():
            words = list(dict.fromkeys(filter(None, (_word(key, values.get(key, UNSET)) for key in keys))))
            more = [f"and {len(words) - MOST_NAMED} more"] if len(words) > MOST_NAMED else []
            label = f"{method}: {', '.join([*words[:MOST_NAMED], *more])}" if words else method
            found[digest] = label if label not in found.values() else f"{label} ({digest})"
    return found


def settings_of(config: RunConfig) -> dict[str, Any]:
    """The settings that may differ between comparable runs, by dotted key."""
    data = plain(config)
    ignored = ("seed", "method_name", "runtime", "stream", "scale", "method")
    others = {key: value for key, value in flatten(data).items() if key.split(".")[0] not in ignored}
    return {**flatten(data["method"]), **others}


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys whose values differ, exchanged parts first, without the fields of exchanged parts and implied settings."""
    keys = dict.fromkeys(key for one in settings for key in one)
    differ = [key for key in keys if len({repr(one.get(key, UNSET)) for one in settings}) > 1]
    kinds = [key for key in differ if key.endswith(f".{KIND}")]
    parts = [key.removesuffix(f".{KIND}") for key in kinds]
    implied = {key for cause in (*parts, *differ) for key in IMPLIED.get(cause, ())}
    others = [key for key in differ if key not in kinds and key not in implied]
    return kinds + [key for key in others if not any(key.startswith(f"{part}.") for part in parts)]


def _word(key: str, value: Any) -> str:
    """A setting in few words.

    >>> _word("representation.terms.anti_collapse.beta", 10.0), _word("drift.kind", "affine")
    ('β = 10', 'drift affine')
    """
    if key == f"{TERMS}distillation.{KIND}":
        return NO_DISTILLATION if value is UNSET else DISTILLATIONS.get(value, str(value))
    if key == f"{TERMS}anti_collapse.{KIND}":
        return "no L_AC" if value is UNSET else "L_AC"
    if value is UNSET:
        return ""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if key.endswith(f".{KIND}"):
        return f"{key.removesuffix(f'.{KIND}').split('.')[-1].replace('_', ' ')} {text}"
    symbols = {"anti_collapse.weight": "α", "anti_collapse.beta": "β", "distillation.weight": "λ"}
    return f"{symbols.get(key.removeprefix(TERMS)) or key.rpartition('.')[2]} = {text}"


# Where a figure comes from.


def check_comparable(groups: Groups) -> None:
    """Refuse runs with other data, tasks or scale and, in one group, other settings or equal seeds."""
    first = next(iter(groups.values()))[0]
    for label, runs in groups.items():
        for place, run in enumerate(runs):
            if run.digest != runs[0].digest:
                raise ConfigError(
                    f"{run.path} has other settings than {runs[0].path}, and both are in the group {label!r}: "
                    "give each configuration a group of its own"
                )
            if run.seed in [one.seed for one in runs[:place]]:
                raise ConfigError(
                    f"{run.path} has the settings and the seed of another run in the group {label!r}: give only one"
                )
            if run.config.scale != first.config.scale or run.config.stream != first.config.stream:
                raise ConfigError(
                    f"{run.path} ({run.protocol}) and {first.path} ({first.protocol}) "
                    "differ in their data, tasks or scale: analyse them separately"
                )


def unfinished(groups: Groups) -> str:
    """A note on runs that have not finished all tasks; empty if all have."""
    behind = [run for run in all_runs(groups) if not run.finished]
    names = ", ".join(f"{run.path.name} ({run.done} of {run.planned_tasks} tasks)" for run in behind[:3])
    more = f" and {len(behind) - 3} more" if len(behind) > 3 else ""
    return f"unfinished, drawn up to their last task: {names}{more}" if behind else ""


def summary(groups: Groups) -> str:
    """Protocol, scale, seeds and code in one line."""
    runs = all_runs(groups)
    config = runs[0].config
    is_papers = config.scale == "paper" and config.stream in [one.stream for one in PROTOCOLS.values()]
    seeds = sorted({run.seed for run in runs})
    codes = sorted({run.code for run in runs})
    facts = [
        runs[0].protocol + ", paper scale" * is_papers,
        f"{sum(runs[0].planned_sizes)} classes",
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}",
        "not every line has all seeds" * any(len(members) < len(seeds) for members in groups.values()),
        f"runs of {len(codes)} different code versions: " * (len(codes) > 1) + f"adagauss {'; '.join(codes)}",
    ]
    return escape_control_chars("; ".join(filter(None, facts)))
