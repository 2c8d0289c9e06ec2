"""The file that `teach` makes and other commands use: opened, changed and saved as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from adagauss.cli.stopping import stoppable
from adagauss.errors import CheckpointError, DataError
from adagauss.utils.progress import escape_control_chars

if TYPE_CHECKING:
    from adagauss.classifier import IncrementalClassifier

HISTORY = "history"
"""Where a file keeps when it was changed, and by which command; no names, which a user may want forgotten."""


def open_model(path: Path, *, skip_bad: bool = False, quiet: bool = False) -> IncrementalClassifier:
    """The classifier in a file, or the newest one of a run folder."""
    check_model(path)
    from adagauss.classifier import (
        IncrementalClassifier,  # torch takes seconds: what is wrong with the path is said before
    )
    from adagauss.experiments.run import RunFolder

    model = IncrementalClassifier.load(RunFolder(path).last_checkpoint() if path.is_dir() else path)
    model.skip_option = "--skip-bad"
    model.skip_bad, model.verbose = skip_bad, not quiet
    return model


def check_model(path: Path) -> None:
    """Raise where no model can be, before anything slow begins."""
    if not path.exists():
        raise CheckpointError(f"there is no model {path}: `adagauss teach {path} FOLDER` makes one")
    if path.is_dir() and not (path / "config.yaml").exists():
        raise CheckpointError(f"{path} is a folder, but not a run folder: give the file of a model first, then images")


def warn_of_one_class(path: Path, classes: Sequence[object]) -> None:
    """Say that answers of a model with one class tell nothing."""
    if len(classes) == 1:
        note = f"{path} knows one class, which is always the answer, strangers or not: teach it another one"
        typer.secho(escape_control_chars(f"adagauss: {note}"), fg="yellow", err=True)


@contextmanager
def changing(path: Path, *, out: Path | None = None) -> Iterator[None]:
    """Work that ends with `save`: a run folder is refused, and Ctrl-C says whether the file was replaced."""
    if path.is_dir():
        raise CheckpointError(
            f"{path} is a folder: a run is a record, and is not changed. Copy its newest learner to a file of its own "
            f"(cp {path}/tasks/NN/learner.safetensors MODEL) and change that"
        )
    target = out or path
    before = signature(target)

    def kept() -> str:
        if signature(target) != before:
            return f"the change was finished before, and {target} holds it"
        return f"{target} is as it was before" if before else f"{target} was not made; the same command begins again"

    with stoppable(kept):
        yield


def save(model: IncrementalClassifier, path: Path, action: str, begun: Signature, **facts: Any) -> None:
    """Replace the file, unless another program changed it since; note when, and what was done."""
    if signature(path) != begun:
        raise CheckpointError(f"another program changed {path} in the meantime, so nothing was saved: try again")
    about = model.learner_.about
    when = datetime.now(UTC).isoformat(timespec="seconds")
    about[HISTORY] = [*changes_of(about), {"when": when, "action": action, **facts}]
    try:
        model.save(path)
    except UnicodeEncodeError as error:
        raise DataError(f"a class name cannot be stored ({error.reason}): rename its folder") from None


def changes_of(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """When a model was changed, and by which command; whatever else a file may hold in that place is passed over."""
    listed = about.get(HISTORY)
    known = listed if isinstance(listed, list) else []
    return [one for one in known if isinstance(one, dict) and {"when", "action"} <= one.keys()]


Signature = tuple[int, int, int] | None


def signature(path: Path) -> Signature:
    """What tells one version of a file from another; None if there is none."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size


def size(path: Path) -> str:
    """The size of a file in megabytes."""
    return f"{path.stat().st_size / 1e6:.1f} MB"
