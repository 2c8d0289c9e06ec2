"""`adagauss evaluate`: how well a model does on photographs it was not taught."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagauss.cli import terminal
from adagauss.cli.model import open_model, warn_of_one_class
from adagauss.cli.options import Quiet, ReadableModel, SkipBadImages
from adagauss.cli.stopping import stoppable
from adagauss.errors import DataError
from adagauss.utils.progress import escape_control_chars

if TYPE_CHECKING:
    from adagauss.analysis.judging import Judged
    from adagauss.classifier import IncrementalClassifier

EXAMPLES = """**Examples:**

`adagauss evaluate birds.safetensors photos/test`

`adagauss evaluate birds.safetensors photos/test --sheet worst.png --confusion confusion.png`
"""
MOST_ROWS = 15
ON_SHEET = 24


def register(app: typer.Typer, panel: str) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel, epilog=EXAMPLES)(evaluate)


def evaluate(
    model: ReadableModel,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="One folder of images per class.")],
    sheet: Annotated[
        Path | None, typer.Option("--sheet", metavar="PNG", help="Draw the worst images as a contact sheet.")
    ] = None,
    confusion: Annotated[
        Path | None, typer.Option("--confusion", metavar="PNG", help="Draw the confusion matrix.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All numbers as one JSON object.")] = False,
    skip_bad_images: SkipBadImages = False,
    quiet: Quiet = False,
) -> None:
    """Show accuracy, classes that do worst and what they are taken for, and how far probabilities can be trusted.

    The images should be ones that the model was not taught. Folders of other classes are left out, and said.
    """
    with stoppable("an evaluation changes nothing"):
        classifier = open_model(model, skip_bad=skip_bad_images, quiet=quiet)
        warn_of_one_class(model, classifier.learner_.classes)
        files, strange = _files_of(folder, classifier)
        judged = _judged(classifier, files)
    if as_json:
        typer.echo(json.dumps(_numbers(judged, strange)))
    else:
        _show(judged, strange)
    _draw(judged, classifier, sheet, confusion)


def _files_of(folder: Path, classifier: IncrementalClassifier) -> tuple[dict[Path, Any], list[str]]:
    """The class of each image file, and the folders of classes that were never taught."""
    from adagauss.data.folders import folders_in
    from adagauss.data.inputs import images_in, resolve_path

    known = {str(label): label for label in classifier.learner_.classes}
    folders = folders_in(resolve_path(folder)) if resolve_path(folder).is_dir() else []
    if not folders:
        raise DataError(f"{folder} holds no class folders: put the images of each class into a folder named after it")
    files = {file: known[path.name] for path in folders if path.name in known for file in images_in(path)}
    if not files:
        raise DataError(
            f"no folder in {folder} is named after a class of the model (first: {folders[0].name}; the model knows "
            f"{', '.join(list(known)[:5])}...)"
        )
    return files, [path.name for path in folders if path.name not in known]


def _judged(classifier: IncrementalClassifier, files: Mapping[Path, Any]) -> list[Judged]:
    from adagauss.analysis.judging import Judged

    truths = {str(file): label for file, label in files.items()}
    judged = []
    for answer in classifier.classify(list(files), top=len(classifier.learner_.classes)):
        label, share = answer.top[0]
        truth = truths[answer.name]
        judged.append(Judged(answer.name, truth, label, share, dict(answer.top)[truth]))
    return judged


def _numbers(judged: Sequence[Judged], strange: Sequence[str]) -> dict[str, Any]:
    from adagauss.analysis import judging

    right = sum(one.right for one in judged)
    return {
        "images": len(judged),
        "accuracy": judging.accuracy(judged),
        "accuracy_interval": judging.interval(right, len(judged)),
        "mean_probability": sum(one.probability for one in judged) / len(judged),
        "calibration_error": judging.calibration_error(judged),
        "calibration_error_by_chance": judging.calibration_error_by_chance(judged),
        "classes": [
            {"class": one.label, "images": one.images, "accuracy": one.accuracy, "taken_for": one.taken_for}
            for one in judging.by_class(judged)
        ],
        "wrong": [
            {"image": one.name, "class": one.truth, "answer": one.answer, "probability": one.probability}
            for one in judging.worst(judged, len(judged))
        ],
        "never_taught": list(strange),
    }


def _show(judged: Sequence[Judged], strange: Sequence[str]) -> None:
    from adagauss.analysis.judging import by_class

    numbers = _numbers(judged, strange)
    low, high = numbers["accuracy_interval"]
    typer.echo(
        f"accuracy           {100 * numbers['accuracy']:.1f} % of {len(judged)} images "
        f"(95 % interval {100 * low:.1f} to {100 * high:.1f})"
    )
    error, chance = numbers["calibration_error"], numbers["calibration_error_by_chance"]
    typer.echo(f"mean probability   {100 * numbers['mean_probability']:.1f} %")
    typer.echo(
        f"calibration error  {100 * error:.1f} % (chance alone shows about {100 * chance:.1f} % on so few images)"
    )
    if strange:
        typer.echo(terminal.folded("", escape_control_chars(f"left out, never taught: {', '.join(strange)}"), 4))
    classes = by_class(judged)
    shown = classes[:MOST_ROWS]
    rows = [
        (one.label, one.images, f"{100 * one.accuracy:.1f}", "" if one.taken_for is None else one.taken_for)
        for one in shown
    ]
    typer.echo()
    for line in terminal.lines(("class", "images", "accuracy, %", "most often taken for"), rows, right=(1, 2)):
        typer.echo(line)
    if len(shown) < len(classes):
        typer.echo(f"... and {len(classes) - len(shown)} that do better (--json has all)")


def _draw(
    judged: Sequence[Judged], classifier: IncrementalClassifier, sheet: Path | None, confusion: Path | None
) -> None:
    from adagauss.analysis import judging
    from adagauss.analysis.confusion import confusion_figure
    from adagauss.analysis.plotting import save_figure
    from adagauss.analysis.sheet import contact_sheet
    from adagauss.cli.drawing import drawing

    accuracy = f"accuracy {100 * judging.accuracy(judged):.1f} % of {len(judged)} images"
    with drawing("the numbers above are complete"):
        if confusion is not None:
            shown = {one.truth for one in judged} | {one.answer for one in judged}
            names = [label for label in classifier.learner_.classes if label in shown]
            counts = judging.confusion(judged, names)
            save_figure(confusion_figure(counts, names, (), accuracy), confusion)
            typer.echo(escape_control_chars(f"Confusion matrix: {confusion}"), err=True)
        if sheet is not None:
            bad = judging.worst(judged, ON_SHEET)
            title = f"worst {len(bad)} of {sum(not one.right for one in judged)} wrong answers; {accuracy}"
            save_figure(contact_sheet(bad, title), sheet)
            typer.echo(escape_control_chars(f"Worst images: {sheet}"), err=True)
