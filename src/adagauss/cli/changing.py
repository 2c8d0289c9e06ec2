"""`adagauss forget`, `rename` and `merge`: upkeep of the classes of a model."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Annotated, Any

import typer

from adagauss.cli import terminal
from adagauss.cli.model import changing, check_model, open_model, save, signature, size
from adagauss.cli.options import ModelArgument, Quiet, SkipBadImages
from adagauss.errors import CheckpointError, DataError, unknown_name
from adagauss.utils.progress import escape_control_chars

FORGET = """**Examples:**

`adagauss forget birds.safetensors Cardinal Bobolink`

`adagauss forget birds.safetensors Cardinal --images photos/cardinals`
"""
RENAME = """**Examples:**

`adagauss rename birds.safetensors Gray_Catbird Catbird`

`adagauss rename birds.safetensors Wren_female Wren --join`
"""
MERGE = "**Example:** `adagauss merge birds.safetensors garden.safetensors --into all.safetensors`"


def register(app: typer.Typer, panel: str) -> None:
    """Add the commands."""
    app.command(rich_help_panel=panel, epilog=FORGET)(forget)
    app.command(rich_help_panel=panel, epilog=RENAME)(rename)
    app.command(rich_help_panel=panel, epilog=MERGE)(merge)


def forget(
    model: ModelArgument,
    classes: Annotated[list[str], typer.Argument(metavar="CLASS...", help="Names of classes.")],
    images: Annotated[
        Path | None,
        typer.Option("--images", metavar="FOLDER", help="Their images again: these are taken out of sums as well."),
    ] = None,
    skip_bad_images: SkipBadImages = False,
    quiet: Quiet = False,
) -> None:
    """Forget classes: they are never predicted again, and nothing that is kept of one class alone remains.

    `docs/privacy.md` says what else may remain of a class, by method. With --images (one folder per class, or the
    images of the one class), the sums of exact methods are then as if it had never been taught.
    """
    begun = signature(model)
    with changing(model):
        classifier = open_model(model, skip_bad=skip_bad_images, quiet=quiet)
        classes = list(dict.fromkeys(classes))
        labels = [known_label(name, classifier.learner_.classes) for name in classes]
        classifier.forget(*labels, images=images)
        save(classifier, model, "forget", begun, classes=len(labels))
    left = terminal.counted(len(classifier.learner_.classes), "class", "classes")
    typer.echo(escape_control_chars(f"Forgot {', '.join(map(repr, classes))}; {model} now knows {left}."))


def rename(
    model: ModelArgument,
    old: Annotated[str, typer.Argument(metavar="OLD", help="A class.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")],
    join: Annotated[bool, typer.Option("--join", help="NEW is a class too: both become one.")] = False,
    quiet: Quiet = False,
) -> None:
    """Call a class otherwise, or join it to another one."""
    begun = signature(model)
    with changing(model):
        classifier = open_model(model, quiet=quiet)
        known = classifier.learner_.classes
        label = known_label(old, known)
        if new == str(label):
            raise DataError(f"{new!r} is its name already: nothing was changed")
        if join:
            classifier.merge_classes(known_label(new, known), label)
        else:
            if new in map(str, known):
                raise CheckpointError(f"there is a class {new!r} already: --join makes one class of both")
            classifier.rename(label, label_like(label, new))
        save(classifier, model, "rename", begun)
    typer.echo(escape_control_chars(f"{old} is part of {new} now." if join else f"{old} is called {new} now."))


def merge(
    model: ModelArgument,
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="File of another model, with the same features.")],
    into: Annotated[Path, typer.Option("--into", metavar="OUT", help="File for both; MODEL itself may be given.")],
    quiet: Quiet = False,
) -> None:
    """Make one model of two that were taught in two places, with the sums of one that was taught all of it.

    Strengths and weights of features were chosen in each by its own images, so that a few answers may be others. Both
    must have the same method and the same features: a pretrained network, or one that both started from.
    """
    begun = signature(into)
    if begun and into.resolve() != model.resolve():
        raise CheckpointError(f"{into} is there already: choose another file for --into, or remove it")
    with changing(model, out=into):
        check_model(other)
        classifier = open_model(model, quiet=quiet)
        classifier.merge(open_model(other, quiet=quiet))
        save(classifier, into, "merge", begun, classes=len(classifier.learner_.classes))
    typer.echo(
        escape_control_chars(f"{into} knows the {len(classifier.learner_.classes)} classes of both ({size(into)}).")
    )


def label_like(label: Any, name: str) -> Any:
    """A label of the same kind as another one, of which this is the name."""
    if not name.strip():
        raise DataError("the new name is empty: give the class a name")
    if isinstance(label, str):
        return name
    try:
        made = type(label)(name)
    except ValueError:
        made = None
    if str(made) != name:  # True stands for any text, and 1_0 for ten
        raise DataError(f"the classes of this model are not text, and {name!r} is no {type(label).__name__}")
    return made


def known_label(name: str, classes: list[Any]) -> Any:
    """The class of this name; of numbers, the one that is written so.

    Accents may be letters of their own, as in the names of folders made on a Mac, or part of the letter below.
    """
    names = {str(label): label for label in classes}
    composed = {unicodedata.normalize("NFC", text): label for text, label in names.items()}
    for known, wanted in ((names, name), (composed, unicodedata.normalize("NFC", name))):
        if wanted in known:
            return known[wanted]
    raise unknown_name("class", name, names)
