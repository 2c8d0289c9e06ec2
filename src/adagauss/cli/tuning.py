"""`adagauss tune`: search for settings that suit the first tasks."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

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
    Workers,
    chosen_stream,
    make_reporter,
    parse_settings,
    read_options,
)
from adagauss.cli.stopping import stoppable
from adagauss.utils.progress import escape_control_chars

SHOWN = 10
AT_ONCE = 8
"""Trials that a cluster has at a time if nobody says: each learns from those that have ended before it."""
EXAMPLES = """**Examples:**

`adagauss tune adagauss --dataset digits --range representation.later.learning_rate=0.01..0.3:log`

`adagauss tune lwf -P cifar100-10-cpu -r representation.terms.distillation.weight=1..20 -r augmentation.flip=true,false`

`adagauss tune fecam --dataset digits --range classifier.tied=0..1.0 --trials 40 --jobs 2`
"""


def register(app: typer.Typer, panel: str) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel, epilog=EXAMPLES)(tune)


def tune(
    context: typer.Context,
    method: Annotated[str, typer.Argument(metavar="METHOD", help="Method by name; see `adagauss methods`.")],
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            "-r",
            metavar="KEY=RANGE",
            help="Setting to search: LOW..HIGH, LOW..HIGH:log or A,B,C. Repeatable.",
        ),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", "-n", min=1, help="Number of settings to try, in all.")] = 20,
    first_tasks: Annotated[
        int,
        typer.Option("--first-tasks", min=1, help="Judge by this many tasks from the first; later ones are not seen."),
    ] = 2,
    held_out: Annotated[
        float, typer.Option("--held-out", help="Share of their training images that judge; no test image is used.")
    ] = 0.2,
    prune: Annotated[bool, typer.Option("--prune/--no-prune", help="Stop trials below the median early.")] = True,
    dataset: DatasetName = "digits",
    tasks: Annotated[int, typer.Option("--tasks", "-t", min=1, help="Number of tasks of the whole stream.")] = 5,
    protocol: ProtocolName = None,
    preset: Annotated[str | None, typer.Option("--preset", "-p", help="Preset of the method, e.g. paper.")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", "-e", min=1, help="Epochs per task.")] = None,
    settings: Settings = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of runs, draws and held-out images.")] = 0,
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
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the search.")] = None,
    device: Device = "auto",
    data_root: DataRoot = Path("data"),
    quiet: Quiet = False,
) -> None:
    """Search for settings of a method with Optuna, judged by held-out training images of the first tasks only.

    Neither test images nor later tasks are seen, so that the numbers of a run with the found settings stay honest. The
    same command continues a search that was stopped.
    """
    import yaml

    from adagauss.data.dataset import load_dataset
    from adagauss.experiments.runner import ValidationSplit
    from adagauss.experiments.tune import UNFINISHED, Range, Search
    from adagauss.experiments.tune import tune as search_settings
    from adagauss.utils.files import write_atomically
    from adagauss.utils.runtime import RuntimeConfig

    chosen, stream = chosen_stream(context)
    reporter = make_reporter(quiet)
    search = Search(
        method,
        tuple(Range.parse(text) for text in ranges or ()),
        ValidationSplit(stream, first_tasks, held_out, seed),
        preset=preset,
        settings=parse_settings(settings),
        epochs=epochs,
        protocol=chosen,
        runtime=RuntimeConfig.of({"device": device}, "runtime."),
    )
    search.check()
    out = out or Path("runs") / "tune" / method
    options = read_options(data_root, stream, workers, reporter, no_cache)
    with (
        stoppable(f"finished trials and tasks are kept in {out}: the same command goes on from there"),
        engine(out, jobs, ray, slurm, dask, device) as executor,
    ):
        tuned = search_settings(
            search,
            load_dataset(stream.dataset, options),
            out,
            trials=trials,
            prune=prune,
            options=options,
            reporter=reporter,
            executor=executor,
            most=jobs or AT_ONCE,
        )
    rows = [
        [one.number, one.state, f"{100 * one.accuracy:.1f}" if one.accuracy is not None else "", _words(one.settings)]
        for one in tuned.trials[:SHOWN]
    ]
    title = f"{method}: held-out training images of the first {first_tasks} task(s), {len(tuned.trials)} trials"
    terminal.show(terminal.table(title, ("trial", "state", "accuracy, %", "settings"), rows, numbers=("accuracy, %",)))
    for reason in sorted({one.reason for one in tuned.trials if one.reason}):
        typer.secho(escape_control_chars(f"some failed: {reason}"), fg="yellow", err=True)
    best = tuned.best.settings
    write_atomically(out / "best.yaml", yaml.safe_dump(dict(best)).encode("utf-8"))
    typer.echo(escape_control_chars(f"Best settings, also in {out / 'best.yaml'} (for --config):"))
    typer.echo(escape_control_chars(_words(best, "--set ")))
    if any(one.state == UNFINISHED for one in tuned.trials):
        typer.secho("Some trials are unfinished: the same command goes on with them.", fg="yellow", err=True)
        raise typer.Exit(2)


def _words(settings: Mapping[str, Any], before: str = "") -> str:
    """Settings as they are written after ``--set``."""
    import json

    texts = [value if isinstance(value, str) else json.dumps(value) for value in settings.values()]
    pairs = (shlex.quote(f"{key}={text}") for key, text in zip(settings, texts, strict=True))
    return " ".join(f"{before}{pair}" for pair in pairs)
