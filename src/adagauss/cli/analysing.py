"""`adagauss analyse`: figures of the paper, and others, from finished runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adagauss.cli import output
from adagauss.cli.options import DataRoot, Quiet, Workers, make_reporter, read_options
from adagauss.cli.output import stoppable
from adagauss.errors import ConfigError, DataError
from adagauss.utils.progress import escape_control_chars

if TYPE_CHECKING:
    from adagauss.analysis.studies import Drawn, Study
    from adagauss.data.dataset import Dataset, ReadOptions
    from adagauss.experiments.run import RunFolder
    from adagauss.utils.progress import Reporter

EXAMPLES = """**Examples:**

`adagauss analyse runs/cifar/adagauss-*`

`adagauss analyse runs/with runs/without --study spectrum,ranks --out figures`

`adagauss analyse --list`
"""


def register(app: typer.Typer, panel: str) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel, epilog=EXAMPLES)(analyse)


def analyse(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN...", help="Run folders; seeds of one configuration are averaged."),
    ] = None,
    study: Annotated[
        str,
        typer.Option(
            "--study",
            metavar="NAMES",
            help="Studies by name, separated by commas, or all (without shrink, which trains adapters again).",
        ),
    ] = "all",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the figures.")] = Path("figures"),
    listed: Annotated[bool, typer.Option("--list", help="Show all studies, and what they need.")] = False,
    data_root: DataRoot = Path("data"),
    workers: Workers = 2,
    quiet: Quiet = False,
) -> None:
    """Draw figures of runs: PNG and SVG, and their numbers as CSV.

    Runs of equal settings are averaged over their seeds; the others are told apart by what differs. Real statistics of
    old classes are computed from the run's data, for analysis only, and kept in the run folder as statistics. Studies
    that need no images are drawn without the data as well.
    """
    from adagauss.analysis.grouping import grouped
    from adagauss.analysis.studies import analyse as draw
    from adagauss.analysis.studies import find_study, studies
    from adagauss.analysis.studies.draw import chosen_studies
    from adagauss.experiments.run import RunFolder

    if listed:
        _list(list(studies().values()))
        return
    if not runs:
        raise ConfigError("give run folders, e.g. adagauss analyse runs/*; --list shows what is drawn of them")
    names = [] if study == "all" else [name.strip() for name in study.split(",")]
    for name in names:
        find_study(name)
    reporter = make_reporter(quiet)
    groups = grouped([RunFolder(path) for path in runs])
    with stoppable("what was measured of finished runs is kept: the same command goes on from there"):
        folders = [folder for group in groups.values() for folder in group]
        data, reason = _data(chosen_studies(names, folders), folders, data_root, workers, reporter)
        command = shlex.join(["adagauss", "analyse", *map(str, runs)]) + " --study {study}"
        drawn = draw(groups, out, names=names or None, dataset=data, reporter=reporter, command=command)
    _show(drawn, out, reason)


def _data(
    chosen: list[Study], folders: list[RunFolder], root: Path, workers: int, reporter: Reporter
) -> tuple[Dataset | None, str]:
    """The runs' data if something must be measured from it, or why it cannot be read."""
    from adagauss.analysis.measured import kept_quantities
    from adagauss.data.dataset import load_dataset
    from adagauss.experiments.run import stored_config

    wanted = {quantity for study in chosen for quantity in study.needs}
    if all(wanted <= kept_quantities(folder) for folder in folders):
        return None, ""
    stream = stored_config(folders[0]).stream
    options: ReadOptions = read_options(root, stream, workers, reporter)
    try:
        return load_dataset(stream.dataset, options), ""
    except DataError as error:
        return None, str(error)


def _show(drawn: list[Drawn], out: Path, reason: str) -> None:
    made = [one for one in drawn if one.missing is None]
    rows = [(one.name, "png, svg, csv", one.title) for one in made]
    if rows:
        for line in output.lines(("drawn", "files", "what it shows"), rows):
            typer.echo(line)
        typer.echo(escape_control_chars(f"Figures: {out}"))
    for one in drawn:
        if one.missing is not None:
            typer.echo(output.folded("not drawn: ", escape_control_chars(f"{one.name}: {one.missing}"), 4), err=True)
    if reason:
        typer.echo(output.folded("no images: ", escape_control_chars(reason), 4), err=True)
    if not made:
        raise typer.Exit(2)


def _list(known: list[Study]) -> None:
    rows = [(one.name, "images" if one.needs_images else "", one.title) for one in known]
    lines = output.lines(("study", "needs", "shows"), rows)
    of_paper = sum(bool(one.paper) for one in known)
    for line in (
        lines[0],
        "figures of the paper:",
        *lines[1 : of_paper + 1],
        "beyond the paper:",
        *lines[of_paper + 1 :],
    ):
        typer.echo(line)
