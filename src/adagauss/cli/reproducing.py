"""`adagauss reproduce`: the tables and figures of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adagauss.cli import terminal
from adagauss.cli.engines import DaskAddress, Jobs, RayAddress, SlurmPartition, engine
from adagauss.cli.options import DataRoot, Device, NoCache, Quiet, Workers, make_reporter, parse_numbers
from adagauss.cli.stopping import stoppable
from adagauss.errors import ConfigError
from adagauss.utils.progress import escape_control_chars

if TYPE_CHECKING:
    from adagauss.reproduce import Item, Workshop
    from adagauss.reproduce.producing import Produced
    from adagauss.utils.progress import Reporter

EXAMPLES = """**Examples:**

`adagauss reproduce --list --scale cpu`

`adagauss reproduce ablation fig3 --scale cpu --seeds 0`

`adagauss reproduce all --scale cpu --out runs/reproduce --jobs 2`
"""


def register(app: typer.Typer, panel: str) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel, epilog=EXAMPLES)(reproduce)


def reproduce(
    what: Annotated[
        list[str] | None, typer.Argument(metavar="[WHAT]...", help="Tables and figures by name (see --list), or all.")
    ] = None,
    scale: Annotated[
        str, typer.Option("--scale", help="paper: as in the paper, for a GPU; cpu: hours on two cores.")
    ] = "cpu",
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Seeds separated by commas, for every row; by default as --list says.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs, tables and figures.")] = Path(
        "runs/reproduce"
    ),
    show_list: Annotated[
        bool, typer.Option("--list", "-l", help="Say what each needs, how much is there, and how long it takes.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Name every run that is missing; run nothing. --page is still written.")
    ] = False,
    finished: Annotated[
        bool,
        typer.Option("--finished", help="Draw what finished runs give, also while others are at work; run nothing."),
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
    device: Device = "auto",
    data_root: DataRoot = Path("data"),
    workers: Workers = 2,
    no_cache: NoCache = False,
    quiet: Quiet = False,
) -> None:
    """Make tables and figures of the paper, beside the paper's own numbers, and say whether its claims hold.

    Runs that are missing are made, unfinished ones continued, and each serves every table and figure that needs it.
    Rows that differ only in memory, drift or classifier are scored on the networks of another run. The same command
    may be started in several processes: they share the work.
    """
    from adagauss.data.dataset import ReadOptions
    from adagauss.errors import unknown_name
    from adagauss.reproduce import SCALES, Workshop, find_items
    from adagauss.utils.runtime import RuntimeConfig

    if not what and not show_list:
        raise ConfigError("say what to reproduce, e.g. `adagauss reproduce ablation`; --list names everything")
    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    items = find_items(what or ["all"])
    reporter = make_reporter(quiet)
    options = ReadOptions(root=data_root, workers=workers, reporter=reporter, keep_decoded=not no_cache)
    shop = Workshop(
        SCALES[scale],
        out,
        options,
        tuple(parse_numbers(seeds, "--seeds")) if seeds else None,
        RuntimeConfig.of({"device": device}, "runtime."),
        weights.absolute() if weights else None,
    )
    if show_list or dry_run:
        _list_items(items, shop)
    if dry_run:
        _list_cells(items, shop)
    made = [] if show_list or dry_run else _made(items, shop, reporter, (jobs, ray, slurm, dask), not finished)
    if page is not None and not show_list:
        _write_page(items, shop, page)
    failures = {name: problem for one in made for name, problem in one.failed.items()}
    for name, problem in failures.items():
        typer.secho(escape_control_chars(f"adagauss: {name} failed: {problem.reason}"), fg="red", err=True)
    if failures:
        raise typer.Exit(2)


def _made(
    items: Sequence[Item],
    shop: Workshop,
    reporter: Reporter,
    workers: tuple[int | None, str | None, str | None, str | None],
    run: bool,
) -> list[Produced]:
    from adagauss.reproduce.producing import produce

    with (
        stoppable(f"finished tasks and runs are kept in {shop.out}: the same command goes on from there"),
        engine(shop.out, *workers, shop.runtime.device) as executor,
    ):
        made = produce(items, shop, reporter, executor, workers[0], run=run)
    for one in made:
        _show(one, shop)
    return made


def _write_page(items: Sequence[Item], shop: Workshop, page: Path) -> None:
    from adagauss.reproduce.page import write_page

    with stoppable("only the page is missing: the same command writes it"):
        write_page(items, shop, page)
    typer.echo(escape_control_chars(f"Page: {page}"))


def _list_items(items: Sequence[Item], shop: Workshop) -> None:
    from adagauss.reproduce.overview import overview

    seen = overview(items, shop)
    rows = [
        (item.name, item.title, f"{needs.finished}/{needs.runs}", str(needs.rescored or ""), _time(needs.minutes))
        for item in items
        for needs in [seen.items[item.name]]
    ]
    total = seen.together
    whole = ("together", "shared runs once", f"{total.finished}/{total.runs}", str(total.rescored or ""))
    heads = ("name", "what", "runs", "scored", "left")
    for line in terminal.lines(heads, [*rows, (*whole, _time(total.minutes))], right=(2, 3, 4)):
        typer.echo(line)
    typer.echo(
        terminal.folded(
            "",
            "runs: finished/all; scored: rows scored on the networks of these runs; left: about, in one process "
            f"({shop.scale.note}).",
        )
    )
    for item in items:
        if reason := item.left_out.get(shop.scale.size):
            typer.echo(terminal.folded(f"{item.name}: ", reason, 4))
    for reason, concerned in seen.unavailable.items():
        typer.echo(
            terminal.folded("cannot be run here: ", escape_control_chars(f"{reason}: {', '.join(concerned)}"), 4)
        )


def _list_cells(items: Sequence[Item], shop: Workshop) -> None:
    from adagauss.reproduce.cells import Problem, distinct, jobs

    wanted = jobs(items, shop)
    users: dict[str, list[str]] = {}
    for job in wanted:
        if not isinstance(job.cell, Problem):
            users.setdefault(job.cell.name, []).append(f"{job.item.name}: {job.row.label}")
    for cell in distinct(wanted):
        state = cell.result()
        if isinstance(state, Problem):
            uses = "; ".join(dict.fromkeys(users[cell.name]))
            typer.echo(
                terminal.folded(f"{cell.name}  ", escape_control_chars(f"{state.kind}: {state.reason} ({uses})"), 4)
            )


def _show(made: Produced, shop: Workshop) -> None:
    """The table, the verdicts, and where the files are."""
    from adagauss.reproduce.tables import table_rows

    for one in made.found:
        rows = [_without(row, "benchmark", "note") for row in table_rows([one])]
        title = f"{made.item.title}: {one.benchmark} ({shop.scale.note})"
        terminal.show(
            terminal.table(title, list(rows[0]), [[*row.values()] for row in rows], numbers=list(rows[0])[1:])
        )
        for label, problem in one.problems().items():
            typer.echo(terminal.folded("- ", escape_control_chars(f"{label}: {problem.kind} ({problem.reason})"), 2))
    for claim in made.item.claims:
        for one in made.found:
            verdict = claim.check(one)
            if verdict.word != "not measured":
                typer.echo(
                    terminal.folded("- ", escape_control_chars(f"{claim.text} {one.benchmark}: {verdict.sentence}."), 2)
                )
    for remark in made.remarks:
        typer.echo(terminal.folded("- ", escape_control_chars(remark), 2))
    typer.echo(escape_control_chars(f"Files: {shop.place(made.item)}"))


def _without(row: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in row.items() if name not in names}


def _time(minutes: float) -> str:
    """A rough time.

    >>> _time(42.2), _time(200), _time(0)
    ('42 min', '3.3 h', '')
    """
    if minutes < 0.5:
        return ""
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
