"""Draw studies of runs into a folder: PNG and SVG, and the numbers as CSV beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from adagauss.analysis.measured import Measured, Quantity, kept_quantities, measure
from adagauss.analysis.plotting import save_figure
from adagauss.analysis.studies.base import Drawing, Groups, NotDrawableError, Row, Study, find_study, studies
from adagauss.analysis.studies.provenance import check_together, sign, summary, unfinished
from adagauss.analysis.tables import comma_separated
from adagauss.data.dataset import Dataset
from adagauss.errors import ConfigError
from adagauss.experiments.run import RunFolder
from adagauss.utils.files import write_atomically
from adagauss.utils.progress import Reporter, escape_control_chars

FIGURES = ("png", "svg")
STUDY = "{study}"
UNASKED = "every adapter is trained again for it, so it is drawn only when asked for: --study {}"


@dataclass(frozen=True)
class Drawn:
    """A study that was drawn, or why it was not."""

    name: str
    title: str
    files: Mapping[str, Path] = field(default_factory=dict)
    """Paths by ending: png, svg, csv."""
    note: str = ""
    missing: str | None = None
    """Why there is no figure."""


def analyse(
    groups: Mapping[str, Sequence[RunFolder]],
    out: Path,
    *,
    names: Sequence[str] | None = None,
    dataset: Dataset | None = None,
    reporter: Reporter | None = None,
    command: str = "",
) -> list[Drawn]:
    """Measure what is needed of the runs, and draw studies of them into ``out``.

    Args:
        groups: runs of one configuration with several seeds, by a label that tells configurations apart. All must have
            the same data, tasks and scale.
        out: folder of the figures.
        names: studies by name; None draws all, but those that train something again only if they were drawn before.
        dataset: the data of the runs, for studies that need images and were not measured before.
        reporter: shows progress.
        command: how to draw a figure again, for its footer; ``{study}`` in it becomes the name of the study.
    """
    reporter = reporter or Reporter()
    if not groups or not all(groups.values()):
        raise ConfigError("there are no runs to analyse: give at least one run folder")
    chosen = chosen_studies(names, [folder for folders in groups.values() for folder in folders])
    wanted = frozenset(quantity for study in chosen for quantity in study.needs)
    # Before anything takes time: what cannot be in one figure.
    check_together(_measured(groups, None, frozenset({Quantity.ANSWERS}), Reporter()))
    measured = _measured(groups, dataset, wanted, reporter)
    drawn = [
        Drawn(study.name, study.title, missing=UNASKED.format(study.name))
        for study in studies().values()
        if study not in chosen and not names
    ]
    with reporter.progress("figures", len(chosen)) as advance:
        for study in chosen:
            drawn.append(_drawn(study, measured, out, command))
            advance(study.name)
    return drawn


def chosen_studies(names: Sequence[str] | None, folders: Sequence[RunFolder]) -> list[Study]:
    """Studies by name; without names all, but costly ones only if all runs were measured for them before."""
    if names:
        return [find_study(name) for name in dict.fromkeys(names)]
    kept = frozenset.intersection(*map(kept_quantities, folders))
    return [study for study in studies().values() if not study.costly or study.needs <= kept]


def _measured(
    groups: Mapping[str, Sequence[RunFolder]], dataset: Dataset | None, wanted: frozenset[Quantity], reporter: Reporter
) -> dict[str, list[Measured]]:
    count = sum(len(folders) for folders in groups.values())
    with reporter.progress("runs", count) as advance:
        measured: dict[str, list[Measured]] = {}
        for label, folders in groups.items():
            for folder in folders:
                measured.setdefault(label, []).append(measure(folder, dataset, wanted, reporter))
                advance(folder.path.name)
    return measured


def _drawn(study: Study, measured: Groups, out: Path, command: str) -> Drawn:
    usable = {label: [run for run in runs if run.has(study.needs)] for label, runs in measured.items()}
    usable = {label: runs for label, runs in usable.items() if runs}
    reasons = {
        label: run.missing[quantity]
        for label, runs in measured.items()
        for run in runs
        for quantity in study.needs
        if quantity in run.missing and label not in usable
    }
    if not usable:
        return Drawn(study.name, study.title, missing=_told(reasons))
    try:
        drawing = study.draw(usable)
    except NotDrawableError as error:
        return Drawn(study.name, study.title, missing=str(error))
    left_out = f"left out: {_told(reasons)}" if reasons else ""
    note = "; ".join(text for text in (drawing.note, unfinished(usable), left_out) if text)
    sign(drawing.figure, study.title, [note and f"Note: {note}", summary(usable)], command.replace(STUDY, study.name))
    return Drawn(study.name, study.title, _written(drawing, out / study.name, summary(usable)), note)


def _told(reasons: Mapping[str, str]) -> str:
    """Reasons, each with the groups that it keeps away."""
    by_reason: dict[str, list[str]] = {}
    for label, reason in reasons.items():
        by_reason.setdefault(reason, []).append(escape_control_chars(label))
    return "; ".join(f"{', '.join(labels)} ({reason})" for reason, labels in by_reason.items())


def _written(drawing: Drawing, path: Path, protocol: str) -> dict[str, Path]:
    files = {ending: path.with_name(f"{path.name}.{ending}") for ending in (*FIGURES, "csv")}
    for ending in FIGURES:
        save_figure(drawing.figure, files[ending])
    write_atomically(files["csv"], table(drawing.rows, protocol).encode("utf-8", "backslashreplace"))
    return files


def table(rows: Sequence[Row], protocol: str = "") -> str:
    """Rows as comma-separated values; a column that a row does not have is empty there."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    texts = [{key: _text(row.get(key, "")) for key in header} for row in rows]
    return comma_separated(texts, protocol) if texts else ""


def _text(value: str | float) -> str:
    return escape_control_chars(value) if isinstance(value, str) else f"{value:.10g}"
