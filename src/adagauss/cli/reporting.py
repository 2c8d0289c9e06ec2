"""`adagauss report`: one page about finished and unfinished runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adagauss.cli.options import DataRoot, NoCache, Quiet, Workers, make_reporter, read_options
from adagauss.cli.stopping import stoppable
from adagauss.errors import ConfigError
from adagauss.utils.progress import escape_control_chars

if TYPE_CHECKING:
    from adagauss.data.dataset import Dataset
    from adagauss.data.stream import StreamConfig

EXAMPLES = """**Examples:**

`adagauss report runs/demo --out report.html`

`adagauss report runs/cifar/adagauss-*-seed0 runs/cifar/exact-*-seed0`
"""


def register(app: typer.Typer, panel: str) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel, epilog=EXAMPLES)(report)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders that hold some.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page, an HTML file.")] = Path("report.html"),
    study: Annotated[
        str, typer.Option("--study", metavar="NAMES", help="Studies (`adagauss analyse --list`), or usual, all, none.")
    ] = "usual",
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Read the runs' images, and measure what figures of real statistics need."),
    ] = False,
    data_root: DataRoot = Path("data"),
    workers: Workers = 2,
    no_cache: NoCache = False,
    quiet: Quiet = False,
) -> None:
    """Write one page about runs: results, curves, classes, cost, settings, environment and commands.

    The page is a single file that needs no network and no script. Runs of different protocols are told apart;
    unfinished runs are shown as far as they have come. Figures that need the images of the runs are drawn with
    --measure, or if `adagauss analyse` has measured the runs before.
    """
    from adagauss.data.dataset import load_dataset
    from adagauss.report import write_report

    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder: name a file, such as {out / 'report.html'}")
    reporter = make_reporter(quiet)

    def read(stream: StreamConfig) -> Dataset:
        return load_dataset(stream.dataset, read_options(data_root, stream, workers, reporter, no_cache))

    with stoppable("the report was not written; what was measured of runs is kept"):
        written = write_report(runs, out, study=study, data=read if measure else None, reporter=reporter)
    for one in written.left_out:
        typer.secho(escape_control_chars(f"adagauss: {one.path} is left out: {one.reason}"), fg="yellow", err=True)
    count = sum(len(section.runs) for section in written.sections)
    typer.echo(escape_control_chars(f"{count} run{'s' * (count > 1)}: {out} ({out.stat().st_size / 1e6:.1f} MB)"))
