"""`adagauss demo`: AdaGauss compared with plain fine-tuning, on real images that need no download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adagauss.cli.options import Quiet, make_reporter, parse_numbers

DEMO_METHODS = ("adagauss", "finetune")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="**Example:** `adagauss demo --seeds 0`")(demo)


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the run folders.")] = Path("runs/demo"),
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds, separated by commas.")] = "0,1,2",
    quiet: Quiet = False,
) -> None:
    """Learn scikit-learn's digits, two classes at a time, with AdaGauss and with plain fine-tuning (two minutes)."""
    from adagauss.analysis.figures import accuracy_curve, save_figure, write_figures
    from adagauss.cli import tables
    from adagauss.data.dataset import load_dataset
    from adagauss.data.stream import StreamConfig
    from adagauss.runs import RunFolder, RunResult, make_config, run

    dataset = load_dataset("digits")
    stream = StreamConfig(dataset="digits", tasks=5)
    reporter = make_reporter(quiet)
    reporter.message("Ten digits in five tasks of two; no image of an earlier task is ever seen again.")
    results: dict[str, list[RunResult]] = {}
    for method in DEMO_METHODS:
        results[method] = []
        for seed in parse_numbers(seeds, "--seeds"):
            config = make_config(method, stream, seed=seed, diagnostics="features")
            folder = out / f"{method}-{config.digest()}-seed{seed}"
            results[method].append(run(config, folder, resume=True, reporter=reporter, dataset=dataset))
            figures = write_figures(RunFolder(folder))
            if method == DEMO_METHODS[0] and len(results[method]) == 1:
                shown, drawn = results[method][0], figures
    tables.show(results, shown)
    curve = out / "accuracy.png"
    save_figure(accuracy_curve(results), curve)
    typer.echo(f"Figures: {curve}, " + ", ".join(str(path) for path in drawn[1:]))
    typer.echo(f"Inspect the learner: adagauss info {drawn[0].parent.parent}")
