"""`adagauss compare`: several methods and seeds under one protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adagauss.cli import terminal
from adagauss.cli.engines import DaskAddress, Jobs, RayAddress, SlurmPartition, engine
from adagauss.cli.options import (
    DataRoot,
    DatasetName,
    Device,
    NoCache,
    ProtocolName,
    Quiet,
    Settings,
    SkipBadImages,
    Trackers,
    Workers,
    chosen_stream,
    make_reporter,
    parse_numbers,
    parse_settings,
    read_options,
)
from adagauss.cli.stopping import stoppable
from adagauss.utils.progress import escape_control_chars

EXAMPLES = """**Examples:**

`adagauss compare --methods adagauss,finetune --dataset digits`

`adagauss compare --methods all --seeds 0,1,2 --protocol cifar100-10-cpu --out runs/cifar`

`adagauss compare --methods adagauss,efc,lwf --dataset digits --jobs 2`
"""


def register(app: typer.Typer, panel: str) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel, epilog=EXAMPLES)(compare)


def compare(
    context: typer.Context,
    methods: Annotated[str, typer.Option("--methods", "-m", help="Names separated by commas, or all.")] = "all",
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds separated by commas.")] = "0,1,2",
    dataset: DatasetName = "digits",
    tasks: Annotated[int, typer.Option("--tasks", "-t", min=1, help="Number of tasks.")] = 5,
    protocol: ProtocolName = None,
    recipe: Annotated[
        str,
        typer.Option(
            "--recipe",
            help="own: each method's own epochs, rates and images; shared: the same; brisk: the same, for few epochs.",
        ),
    ] = "own",
    epochs: Annotated[int | None, typer.Option("--epochs", "-e", min=1, help="Epochs per task, for all.")] = None,
    settings: Settings = None,
    classes: Annotated[int | None, typer.Option("--classes", help="Use only the first N classes.")] = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=1, help="Side in pixels that image files are resized to.")
    ] = None,
    skip_bad_images: SkipBadImages = False,
    jobs: Jobs = None,
    ray: RayAddress = None,
    slurm: SlurmPartition = None,
    dask: DaskAddress = None,
    workers: Workers = 2,
    no_cache: NoCache = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs and tables.")] = Path("runs/compare"),
    log: Trackers = None,
    device: Device = "auto",
    data_root: DataRoot = Path("data"),
    quiet: Quiet = False,
) -> None:
    """Run every method with every seed, continuing where an earlier call stopped, and write a table.

    The table is printed and written as Markdown, LaTeX and CSV, next to the paper's numbers if the protocol is the
    same. Settings given with --set apply to the methods that have them.
    """
    from adagauss.analysis.figures import accuracy_curve
    from adagauss.analysis.plotting import save_figure
    from adagauss.cli.drawing import drawing
    from adagauss.cli.tables import MEANING, comparison_table
    from adagauss.experiments import compare as comparison
    from adagauss.experiments.grid import run_grid
    from adagauss.utils.files import write_atomically
    from adagauss.utils.runtime import RuntimeConfig

    chosen, stream = chosen_stream(context)
    given = parse_settings(settings)
    reporter = make_reporter(quiet)
    with (
        stoppable(f"finished tasks and runs are kept in {out}: the same command goes on from there"),
        engine(out, jobs, ray, slurm, dask, device) as executor,
    ):
        results, failures = run_grid(
            methods,
            parse_numbers(seeds, "--seeds"),
            stream,
            out,
            protocol=chosen,
            recipe=recipe,
            epochs=epochs,
            settings=given,
            runtime=RuntimeConfig.of({"device": device}, "runtime."),
            options=read_options(data_root, stream, workers, reporter, no_cache),
            reporter=reporter,
            executor=executor,
            most=jobs,
            trackers=log or (),
        )
    as_published = chosen is not None and recipe == "own" and epochs is None and chosen.is_papers(given)
    rows = comparison.comparison_rows(results, as_published)
    caption = comparison.caption(results, f"recipe: {recipe}")
    for ending, written in comparison.FORMATS.items():
        write_atomically(out / f"table.{ending}", written(rows, caption).encode("utf-8", "backslashreplace"))
    terminal.show(comparison_table(rows, results))
    typer.echo(MEANING)
    typer.echo(escape_control_chars(f"Tables: {out}/table.md, table.tex, table.csv"))
    with drawing(f"the comparison is complete in {out}, and the same command draws it again"):
        save_figure(accuracy_curve(results), out / "accuracy.png")
        typer.echo(escape_control_chars(f"Figure: {out}/accuracy.png"))
    for name, reason in failures.items():
        typer.secho(f"adagauss: {name} did not finish with every seed: {reason}", fg="red", err=True)
    if failures:
        raise typer.Exit(2)
