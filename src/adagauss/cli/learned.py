"""`adagauss predict` and `adagauss info`: use a saved learner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagauss.cli.options import SkipBadImages, Workers, make_reporter
from adagauss.errors import DataError

if TYPE_CHECKING:
    from adagauss.learner import Learner

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a saved learner.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="**Example:** `adagauss predict runs/birds new-photos/ --top 3`")(predict)
    app.command(epilog="**Example:** `adagauss info runs/demo/adagauss-seed0`")(info)


def open_learner(path: Path) -> Learner:
    """The newest learner of a run folder, or the one in a file."""
    from adagauss.learner import Learner
    from adagauss.runs import RunFolder

    return Learner.load(RunFolder(path).last_checkpoint() if path.is_dir() else path)


def predict(
    run: RunArgument,
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of image files.")],
    top: Annotated[int, typer.Option("--top", min=1, help="Number of most likely classes to show.")] = 1,
    workers: Workers = 2,
    skip_bad_images: SkipBadImages = False,
) -> None:
    """Predict the classes of images, with probabilities; one tab-separated line per image.

    Probabilities are a softmax of the classifier's scores. With the published code's rule (preset reference) they are
    far below 1 even for correct predictions.
    """
    from adagauss.data.files import FileImages

    learner = open_learner(run)
    paths = _image_paths(images)
    channels, height, _ = learner.shape
    files = FileImages(
        paths,
        height,
        channels=channels,
        workers=workers,
        skip_bad_images=skip_bad_images,
        reporter=make_reporter(quiet=False),
    )
    probabilities = learner.probabilities(files)
    best = probabilities.topk(min(top, probabilities.shape[1]), dim=1)
    classes = learner.classes
    for path, values, indices in zip(files.paths, best.values.tolist(), best.indices.tolist(), strict=True):
        named = "\t".join(f"{classes[index]}\t{value:.3f}" for value, index in zip(values, indices, strict=True))
        typer.echo(f"{path}\t{named}")


def info(
    run: RunArgument,
    settings: Annotated[bool, typer.Option("--settings", help="Show its settings and the layer of each.")] = False,
) -> None:
    """Show what a learner knows, what it stores and does not store, and how well conditioned its covariances are."""
    from rich.console import Console
    from rich.table import Table

    learner = open_learner(run)
    if settings:
        from adagauss.cli.listing import show_settings
        from adagauss.runs import RunFolder

        show_settings(f"settings of {run}", learner.method, RunFolder(run).origins if run.is_dir() else {})
        return
    console = Console()
    table = Table(show_header=False, box=None)
    for name, value in facts(learner).items():
        table.add_row(f"[bold]{name}", str(value))
    console.print(table)


def facts(learner: Learner) -> dict[str, Any]:
    """What `info` shows."""
    memory, method = learner.memory, learner.method
    parameters = sum(parameter.numel() for parameter in learner.network.parameters())
    shown: dict[str, Any] = {
        "classes": f"{len(learner.classes)} in {len(learner.tasks)} tasks",
        "tasks": " | ".join(", ".join(map(str, task)) for task in learner.tasks),
        "images": "{} channels, {} x {} pixels".format(*learner.shape),
        "network": f"{method.backbone.name}, {learner.network.extractor.size} features, {parameters:,} parameters",
        "parts": ", ".join(
            f"{part.role} {part.kind}"
            for part in (method.representation, method.memory, method.drift, method.classifier)
        ),
        "kept per class": f"{learner.knowledge.bytes_per_class:,} bytes ({memory.covariance} covariance)"
        if len(memory)
        else "nothing in the memory",
        "other state": f"{learner.knowledge.part_bytes / 2**20:.2f} MiB in the parts (Fisher information, outputs, "
        "sums over all classes together)",
        "not stored": "images, features of single images, or any other data of a single example",
    }
    if len(memory) and memory.covariance != "none":
        ranks, conditions = memory.ranks(), memory.condition_numbers()
        shown["rank of covariances"] = f"{int(ranks.min())} to {int(ranks.max())} of {memory.size}"
        shown["condition numbers"] = f"{float(conditions.min()):.3g} to {float(conditions.max()):.3g}"
        shown["effective rank"] = f"{float(memory.effective_ranks().mean()):.1f} on average"
    return shown


def _image_paths(given: list[Path]) -> list[Path]:
    from adagauss.data.listing import images_below

    paths: list[Path] = []
    for path in given:
        if not path.exists():
            raise DataError(f"{path}: there is no such file or folder")
        paths.extend(images_below(path, str(path)) if path.is_dir() else [path])
    return paths
