"""`adagauss report` and `adagauss reproduce`: one page about runs, and the tables and figures of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adagauss.cli import output
from adagauss.cli.experiments import DaskAddress, EngineName, Jobs, RayAddress, SlurmPartition, engine
from adagauss.cli.options import DataRoot, Device, NoCache, Quiet, Workers, make_reporter, parse_numbers, read_options
from adagauss.cli.output import stoppable
from adagauss.errors import ConfigError
from adagauss.utils.progress import escape_control_chars

if TYPE_CHECKING:
    from adagauss.data.dataset import Dataset
    from adagauss.data.stream import StreamConfig
    from adagauss.experiments.paper import Item
    from adagauss.experiments.reproduce import Reproduced, ReproductionConfig

REPORT_EXAMPLES = """**Examples:**

`adagauss report runs/demo --out report.html`

`adagauss report runs/cifar/adagauss-*-seed0 runs/cifar/exact-*-seed0`
"""
REPRODUCE_EXAMPLES = """**Examples:**

`adagauss reproduce --list --scale cpu`

`adagauss reproduce ablation fig3 --scale cpu --seeds 0`

`adagauss reproduce all --scale cpu --out runs/reproduce --jobs 2`
"""


def register(app: typer.Typer, panel: str) -> None:
    """Add the commands."""
    app.command(rich_help_panel=panel, epilog=REPORT_EXAMPLES)(report)
    app.command(rich_help_panel=panel, epilog=REPRODUCE_EXAMPLES)(reproduce)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders that contain some.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page, an HTML file.")] = Path("report.html"),
    study: Annotated[
        str, typer.Option("--study", metavar="NAMES", help="Figures (`adagauss analyse --list`), or usual, all, none.")
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
    """Write one HTML page about runs: results, curves, classes, cost, settings, environment and commands.

    The page is a single file that needs no network and no script. Each protocol has its own part; unfinished runs are
    shown up to their last finished task. Figures that need the images of the runs are drawn with --measure, or if
    `adagauss analyse` has measured the runs before.
    """
    from adagauss.analysis.report import write_report
    from adagauss.data.dataset import load_dataset

    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder: name a file, such as {out / 'report.html'}")
    reporter = make_reporter(quiet)

    def read(stream: StreamConfig) -> Dataset:
        return load_dataset(stream.dataset, read_options(data_root, stream, workers, reporter, no_cache))

    with stoppable("the report was not written; measurements of runs are stored with them"):
        written = write_report(runs, out, study=study, data=read if measure else None, reporter=reporter)
    for one in written.skipped:
        typer.secho(escape_control_chars(f"adagauss: {one.path} is left out: {one.reason}"), fg="yellow", err=True)
    count = output.counted(sum(len(section.runs) for section in written.sections), "run")
    typer.echo(escape_control_chars(f"{count}: {out} ({out.stat().st_size / 1e6:.1f} MB)"))


def reproduce(
    what: Annotated[
        list[str] | None, typer.Argument(metavar="[WHAT]...", help="Tables and figures by name (see --list), or all.")
    ] = None,
    scale: Annotated[
        str, typer.Option("--scale", help="paper: as in the paper, for a GPU; cpu: hours on two cores.")
    ] = "cpu",
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Seeds separated by commas, for every row; default: as in --list.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs, tables and figures.")] = Path(
        "runs/reproduce"
    ),
    show_list: Annotated[
        bool, typer.Option("--list", "-l", help="List tables and figures with their runs and the time left.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List every missing run; run nothing. --page is still written.")
    ] = False,
    finished: Annotated[
        bool,
        typer.Option("--finished", help="Use finished runs only, also while others are running; run nothing."),
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", help="Weights of ResNet-18, for the fine-grained tables at the paper's scale."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", help="Also write a Markdown page on all claims, e.g. docs/paper.md.")
    ] = None,
    jobs: Jobs = None,
    ray: RayAddress = None,
    slurm: SlurmPartition = None,
    dask: DaskAddress = None,
    engine_name: EngineName = None,
    device: Device = "auto",
    data_root: DataRoot = Path("data"),
    workers: Workers = 2,
    no_cache: NoCache = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce tables and figures of the paper, with the paper's own numbers and a verdict on each of its claims.

    Missing runs are made, unfinished ones resumed, and each is shared by all tables and figures that need it. Rows that
    differ only in memory, drift or classifier are scored on the networks of another run. The same command may be
    started in several processes: they share the work.
    """
    from adagauss.data.dataset import ReadOptions
    from adagauss.errors import unknown_name
    from adagauss.experiments.paper import SCALES, find_items
    from adagauss.experiments.reproduce import ReproductionConfig, write_page
    from adagauss.experiments.reproduce import reproduce as reproduce_items
    from adagauss.utils.runtime import RuntimeConfig

    if not what and not show_list:
        raise ConfigError("name what to reproduce, e.g. `adagauss reproduce ablation`; --list shows all names")
    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    items = find_items(what or ["all"])
    reporter = make_reporter(quiet)
    config = ReproductionConfig(
        SCALES[scale],
        out,
        ReadOptions(root=data_root, workers=workers, reporter=reporter, keep_decoded=not no_cache),
        tuple(parse_numbers(seeds, "--seeds")) if seeds else None,
        RuntimeConfig.of({"device": device}, "runtime."),
        weights.absolute() if weights else None,
    )
    made: list[Reproduced] = []
    if show_list or dry_run:
        _list_items(items, config)
    if dry_run:
        _list_missing(items, config)
    if not show_list and not dry_run:
        with (
            stoppable(f"finished tasks and runs are in {out}: the same command resumes them"),
            engine(out, jobs, ray, slurm, dask, device, name=engine_name) as executor,
        ):
            made = reproduce_items(items, config, reporter, executor, jobs, run=not finished)
        for one in made:
            _show(one, config)
    if page is not None and not show_list:
        with stoppable("only the page is missing: the same command writes it"):
            write_page(items, config, page)
        typer.echo(escape_control_chars(f"Page: {page}"))
    failures = {name: problem for one in made for name, problem in one.failures()}
    for name, problem in failures.items():
        typer.secho(escape_control_chars(f"adagauss: {name} failed: {problem.reason}"), fg="red", err=True)
    if failures:
        raise typer.Exit(2)


def _list_items(items: Sequence[Item], config: ReproductionConfig) -> None:
    from adagauss.experiments.reproduce import overview

    found = overview(items, config)
    workloads = [(item.name, item.title, found.items[item.name]) for item in items]
    rows = [
        (name, title, f"{load.finished}/{load.runs}", str(load.rescored or ""), _time(load.minutes))
        for name, title, load in [*workloads, ("together", "shared runs once", found.together)]
    ]
    for line in output.lines(("name", "item", "runs", "rescored", "time left"), rows, right=(2, 3, 4)):
        typer.echo(line)
    typer.echo(
        output.folded(
            "",
            "runs: finished/all; rescored: rows scored on the networks of these runs; time left: estimate for one "
            f"process ({config.scale.note}).",
        )
    )
    for item in items:
        if deviation := item.deviations.get(config.scale.size):
            typer.echo(output.folded(f"{item.name}: ", deviation, 4))
    for reason, concerned in found.unavailable.items():
        typer.echo(output.folded("cannot be run here: ", escape_control_chars(f"{reason}: {', '.join(concerned)}"), 4))


def _list_missing(items: Sequence[Item], config: ReproductionConfig) -> None:
    from adagauss.experiments.reproduce import Problem, distinct_runs, finished_run, plan

    planned = plan(items, config)
    users: dict[str, list[str]] = {}
    for one in planned:
        if not isinstance(one.run, Problem):
            users.setdefault(one.run.name, []).append(f"{one.item.name}: {one.row.label}")
    for spec in distinct_runs(planned):
        state = finished_run(spec, config)
        if isinstance(state, Problem):
            uses = "; ".join(dict.fromkeys(users[spec.name]))
            typer.echo(
                output.folded(f"{spec.name}  ", escape_control_chars(f"{state.kind}: {state.reason} ({uses})"), 4)
            )


def _show(made: Reproduced, config: ReproductionConfig) -> None:
    """Print the table, the verdicts, and the folder of the files."""
    from adagauss.experiments.reproduce import check_claim, table_rows

    for one in made.results:
        rows = table_rows([one])
        heads = [head for head in rows[0] if head not in ("benchmark", "note")]
        title = f"{made.item.title}: {one.protocol} ({config.scale.note})"
        output.show(output.table(title, heads, [[row[head] for head in heads] for row in rows], numbers=heads[1:]))
        for label, problem in one.problems().items():
            typer.echo(output.folded("- ", escape_control_chars(f"{label}: {problem.kind} ({problem.reason})"), 2))
    for claim in made.item.claims:
        for one in made.results:
            verdict = check_claim(claim, one)
            if verdict.word != "not measured":
                typer.echo(output.folded("- ", escape_control_chars(f"{claim.text} {one.protocol}: {verdict}."), 2))
    for note in made.notes:
        typer.echo(output.folded("- ", escape_control_chars(note), 2))
    typer.echo(escape_control_chars(f"Files: {config.folder(made.item)}"))


def _time(minutes: float) -> str:
    """A rough time.

    >>> _time(42.2), _time(200), _time(0)
    ('42 min', '3.3 h', '')
    """
    if minutes < 0.5:
        return ""
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
