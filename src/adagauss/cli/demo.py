"""`adagauss demo`: AdaGauss compared with plain fine-tuning, on real images that need no download."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from adagauss.cli.options import Quiet, make_reporter, parse_numbers
from adagauss.cli.stopping import stoppable
from adagauss.utils.progress import escape_control_chars

DEMO_METHODS = ("adagauss", "finetune")


def register(app: typer.Typer, panel: str) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel, epilog="**Example:** `adagauss demo --seeds 0`")(demo)


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the run folders.")] = Path("runs/demo"),
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds, separated by commas.")] = "0,1,2",
    quiet: Quiet = False,
) -> None:
    """Learn scikit-learn's digits, two classes at a time, with AdaGauss and with plain fine-tuning (two minutes)."""
    from adagauss.analysis.figures import accuracy_curve, write_figures
    from adagauss.analysis.plotting import save_figure
    from adagauss.cli import tables
    from adagauss.cli.drawing import drawing
    from adagauss.data.dataset import load_dataset
    from adagauss.data.stream import StreamConfig
    from adagauss.experiments.config import make_config
    from adagauss.experiments.run import RunFolder, RunResult
    from adagauss.experiments.runner import run

    dataset = load_dataset("digits")
    stream = StreamConfig(dataset="digits", tasks=5)
    reporter = make_reporter(quiet)
    reporter.message("Ten digits in five tasks of two; no image of an earlier task is ever seen again.")
    results: dict[str, list[RunResult]] = {}
    folders: list[Path] = []
    with stoppable(f"finished tasks and runs are kept in {out}: the same command goes on from there"):
        for method, seed in product(DEMO_METHODS, parse_numbers(seeds, "--seeds")):
            config = make_config(method, stream, seed=seed, diagnostics="features")
            folders.append(out / f"{method}-{config.digest()}-seed{seed}")
            result = run(config, folders[-1], resume=True, reporter=reporter, dataset=dataset)
            results.setdefault(method, []).append(result)
    tables.show(results, results[DEMO_METHODS[0]][0])
    with drawing(f"the runs are complete in {out}, and the same command draws them again"):
        save_figure(accuracy_curve(results), out / "accuracy.png")
        drawn = {folder: write_figures(RunFolder(folder)) for folder in folders}
        names = ", ".join(path.name for path in drawn[folders[0]])
        typer.echo(escape_control_chars(f"Figures: {out / 'accuracy.png'}; {names}, in {folders[0] / 'figures'}"))
    typer.echo(escape_control_chars(f"Inspect the learner: adagauss info {folders[0]}"))
