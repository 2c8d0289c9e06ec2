"""`adagauss teach`: make a model from photographs, or teach it more."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from adagauss.cli import terminal
from adagauss.cli.model import changing, check_model, open_model, save, signature, size
from adagauss.cli.options import Device, Quiet, Settings, SkipBadImages, given_options, parse_settings
from adagauss.errors import ConfigError, DataError
from adagauss.utils.progress import clipped, escape_control_chars

if TYPE_CHECKING:
    from adagauss.classifier import IncrementalClassifier

EXAMPLES = """**Examples:**

`adagauss teach birds.safetensors photos/first-species`

`adagauss teach birds.safetensors photos/wrens --class Wren`

`adagauss teach birds.safetensors photos/new-species --skip-bad`

`adagauss teach birds.safetensors photos --effort best`

`adagauss teach elsewhere.safetensors photos/garden --like birds.safetensors`

`adagauss teach leaves.safetensors leaves --method adagauss+ --set backbone.name=resnet_thin`
"""
SETTING = {"method", "effort", "preset", "settings", "epochs", "image_size", "seed"}
MAKING = {*SETTING, "like"}
"""Options that take effect when a model is made."""
MOST_LINES = 12


def register(app: typer.Typer, panel: str) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel, epilog=EXAMPLES)(teach)


def teach(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="File of the model; made if there is none.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="One folder of images per class.")],
    class_name: Annotated[
        str | None, typer.Option("--class", "-c", metavar="NAME", help="All images of FOLDER show this class.")
    ] = None,
    nested: Annotated[
        bool, typer.Option("--nested", help="A class folder may hold several folders of images, and none itself.")
    ] = False,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="Method of a new model; the default trains nothing.")
    ] = None,
    effort: Annotated[
        str, typer.Option("--effort", help="quick, good, or best, which tries several methods; instead of --method.")
    ] = "good",
    preset: Annotated[str | None, typer.Option("--preset", "-p", help="Preset of the method.")] = None,
    settings: Settings = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", "-e", min=1, help="Epochs per task, of a method that trains.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=1, help="Side in pixels that images are brought to.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of all random choices of a new model.")] = 0,
    like: Annotated[
        Path | None,
        typer.Option("--like", metavar="MODEL", help="Begin with the features of this model: to be merged later."),
    ] = None,
    device: Device = "auto",
    skip_bad_images: SkipBadImages = False,
    quiet: Quiet = False,
) -> None:
    """Make a model, or teach it more: new classes, more images of known ones, or both.

    No image is kept. MODEL is replaced as a whole at the end: if the command is stopped, it is as it was before.
    """
    begun = signature(model)
    if like is not None:
        check_model(like)
    with changing(model):
        counted = _counted(folder, class_name, nested)
        classifier = _opened(context, model, bool(begun))
        before = _images(classifier) if begun else Counter()
        started = perf_counter()
        classifier.partial_fit(folder, class_name)
        seconds = perf_counter() - started
        taught = _images(classifier) - before
        save(classifier, model, "teach", begun, classes=len(taught), images=taught.total())
    _report(classifier, model, taught, counted.total() - taught.total(), set(before), seconds)


def _opened(context: typer.Context, model: Path, begun: bool) -> IncrementalClassifier:
    """The model in the file, one with the features of another, or a new one with the options that were given."""
    from adagauss.classifier import IncrementalClassifier, default_method

    given = context.params
    reading = {"skip_bad": given["skip_bad_images"], "quiet": given["quiet"]}
    if begun:
        reason = f"{model} is there already, and --{{}} takes effect only when a model is made"
        _refuse(context, MAKING, f"{reason}: leave it out, or choose another file")
        return open_model(model, **reading)
    if given["like"] is not None:
        _refuse(context, SETTING, f"a model like {given['like']} has its settings: leave --{{}} out")
        return open_model(given["like"], **reading).empty_like()
    classifier = IncrementalClassifier(
        # The default by its name, so that the file tells it.
        given["method"] or (default_method() if given["effort"] == "good" else None),
        given["preset"],
        effort=given["effort"],
        settings=parse_settings(given["settings"]) or None,
        epochs=given["epochs"],
        image_size=given["image_size"],
        skip_bad=given["skip_bad_images"],
        seed=given["seed"],
        device=given["device"],
        verbose=not given["quiet"],
    )
    classifier.skip_option = "--skip-bad"
    return classifier


def _refuse(context: typer.Context, names: set[str], sentence: str) -> None:
    """Raise with this sentence if one of these options was given; its name takes the place of the braces."""
    if found := sorted(names & given_options(context)):
        raise ConfigError(sentence.format({"settings": "set"}.get(found[0], found[0]).replace("_", "-")))


def _counted(folder: Path, class_name: str | None, nested: bool) -> Counter[str]:
    """Images of each class; errors say what the command line can do about them."""
    from adagauss.data.folders import folders_in, image_files
    from adagauss.data.inputs import nested_folder_example, resolve_path

    if not resolve_path(folder).is_dir():
        raise DataError(f"{folder} is a file: give the folder that holds it, or several in one folder")
    if class_name is not None:
        return Counter({class_name: len(image_files(folder))})
    folders = folders_in(folder)
    if not folders:
        if not any(folder.iterdir()):
            raise DataError(f"{folder} is empty: put a folder of images into it for each class")
        raise DataError(
            f"{folder} holds no class folders: name the class of all its images with --class NAME, or put those of "
            "each class into a folder named after it"
        )
    members = {path: image_files(path) for path in folders}
    if not nested and (inside := nested_folder_example(members)):
        raise DataError(
            f"{folder}: {inside}. If those are the classes, teach the folder that holds them, one after another if "
            "there are several; if it is one class, whatever the folders in it: --nested"
        )
    return Counter({path.name: len(files) for path, files in members.items()})


def _images(classifier: IncrementalClassifier) -> Counter[object]:
    """How many images of each class a model has learned."""
    return Counter({one.label: one.images for one in classifier.summary()})


def _report(
    classifier: IncrementalClassifier,
    model: Path,
    taught: Counter[object],
    skipped: int,
    known: set[object],
    seconds: float,
) -> None:
    what, number = terminal.counted(len(taught), "class", "classes"), terminal.counted(taught.total(), "image")
    left_out = f" ({skipped} skipped)" if skipped else ""
    typer.echo(escape_control_chars(f"Taught {what} from {number}{left_out} in {seconds:.1f} s:"))
    rows = [
        (f"  {clipped(name, 50)}", count, "more images" if name in known else "new") for name, count in taught.items()
    ]
    shown = rows if len(rows) <= MOST_LINES else rows[: MOST_LINES - 1]
    for line in terminal.lines(("  class", "images", ""), shown, right=(1,)):
        typer.echo(line)
    if len(shown) < len(rows):
        typer.echo(f"  ... and {len(rows) - len(shown)} more")
    total = terminal.counted(len(classifier.learner_.classes), "class", "classes")
    typer.echo(escape_control_chars(f"{model} now knows {total} ({size(model)}; no image is in it)."))
    if len(classifier.learner_.classes) == 1:
        typer.echo("Next: teach another class; one alone is always the answer.")
    else:
        typer.echo(escape_control_chars(f"Next: adagauss predict {shlex.quote(str(model))} PHOTOS"))
