"""`adagauss gather`: teach a model very many images, shard by shard."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagauss.cli import terminal
from adagauss.cli.experiments import EngineName
from adagauss.cli.model import open_model, save, signature
from adagauss.cli.options import Device, Quiet, Settings, given_options, make_reporter, parse_settings
from adagauss.errors import ConfigError
from adagauss.utils.progress import escape_control_chars

if TYPE_CHECKING:
    from adagauss.analytic.batches import ShardsReport
    from adagauss.classifier import IncrementalClassifier

EXAMPLES = """**Examples:**

`adagauss gather birds.safetensors shards/train-*.tar --jobs 8`

`adagauss gather birds.safetensors data/train-*.parquet --method analytic-pretrained --skip-bad`

"""
MAKING = {"method", "settings", "image_size", "seed"}
LISTED = 5


def register(app: typer.Typer, panel: str) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel, epilog=EXAMPLES)(gather)


def gather(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="File of the model; made if there is none.")],
    shards: Annotated[
        list[Path],
        typer.Argument(
            metavar="SHARD...", help="Tar, Parquet and npz files, folders of them, and folders of class folders."
        ),
    ],
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="Method of a new model: one of the family analytic.")
    ] = None,
    settings: Settings = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=1, help="Side in pixels that images are brought to.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of all random choices of a new model.")] = 0,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Worker processes, with one thread each."),
    ] = None,
    engine_name: EngineName = None,
    device: Device = "auto",
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out images that cannot be decoded, and damaged shards.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Teach a model the images of shards: read once, one shard after another, with memory that does not grow.

    The result is that of `teach` with all images at once. Finished shards are kept in the folder MODEL.gather until
    MODEL is replaced in the end: the same command goes on after an interruption, and takes in each shard once.
    """
    from adagauss.analytic.batches import teach_shards
    from adagauss.cli.stopping import stoppable

    folder, begun = model.with_name(f"{model.name}.gather"), signature(model)
    reporter, started = make_reporter(quiet), perf_counter()
    with stoppable(f"finished shards are in {folder}, and the same command goes on from there"):
        classifier = _opened(context, model, folder, bool(begun))
        found = teach_shards(
            classifier.learner_, shards, folder, jobs=jobs, skip_bad=skip_bad, device=device, reporter=reporter
        )
        if found.store.total.images:
            save(classifier, model, "gather", begun, shards=found.shards, images=found.store.total.images)
        found.clear()
    _report(classifier, model, found, perf_counter() - started)


def _opened(context: typer.Context, model: Path, folder: Path, begun: bool) -> IncrementalClassifier:
    """The model in the file, one that an earlier command has begun, or a new one."""
    from adagauss.analytic.batches import FEATURES, sample_images
    from adagauss.classifier import IncrementalClassifier, default_method
    from adagauss.data.shards import find_shards

    given = context.params
    if begun:
        if found := sorted(MAKING & given_options(context)):
            option = {"settings": "set"}.get(found[0], found[0]).replace("_", "-")
            raise ConfigError(
                f"{model} is there already, and --{option} takes effect only when a model is made: leave it out, or "
                "choose another file"
            )
        return open_model(model, quiet=given["quiet"])
    shards = find_shards(given["shards"])
    wanted: dict[str, Any] = {
        "method": given["method"] or default_method(),
        "settings": parse_settings(given["settings"]) or None,
        "image_size": given["image_size"],
        "seed": given["seed"],
    }
    fresh = IncrementalClassifier(**wanted, device=given["device"], verbose=not given["quiet"])
    if (folder / FEATURES).exists():
        opened = open_model(folder / FEATURES, quiet=given["quiet"])
        if any(opened.stored_params()[name] != fresh.stored_params()[name] for name in wanted):
            raise ConfigError(
                f"{folder} holds shards for a model with other settings: give those, or delete the folder"
            )
        return opened
    classifier = fresh.partial_fit(*sample_images(shards)).empty_like()
    classifier.learner_.save(folder / FEATURES, about={"estimator": classifier.stored_params()})
    return classifier


def _report(classifier: IncrementalClassifier, model: Path, found: ShardsReport, seconds: float) -> None:
    images, shards = terminal.counted(found.images, "image"), terminal.counted(found.shards, "shard")
    rate = f", {found.images / seconds:,.0f} per second" if found.images else ""
    typer.echo(escape_control_chars(f"Gathered {images} from {shards} in {seconds:.1f} s{rate}."))
    if found.known:
        typer.echo(f"{terminal.counted(found.known, 'shard')} had been gathered before.")
    if found.skipped_images:
        typer.echo(f"{terminal.counted(found.skipped_images, 'image')} could not be used.")
    for sentence in found.damaged[:LISTED]:
        typer.echo(escape_control_chars(f"Left out: {sentence}"))
    if len(found.damaged) > LISTED:
        typer.echo(f"... and {len(found.damaged) - LISTED} more shards.")
    total = terminal.counted(len(classifier.learner_.classes), "class", "classes")
    typer.echo(escape_control_chars(f"{model} now knows {total}."))
