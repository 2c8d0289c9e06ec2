"""`adagauss predict`: name the class of photographs."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from adagauss.cli import terminal
from adagauss.cli.model import check_model, open_model, warn_of_one_class
from adagauss.cli.options import Quiet, ReadableModel, SkipBadImages
from adagauss.cli.stopping import stoppable
from adagauss.errors import ConfigError, DataError
from adagauss.utils.progress import clipped, columns, escape_control_chars

if TYPE_CHECKING:
    from adagauss.core.predictor import Prediction

EXAMPLES = """**Examples:**

`adagauss predict birds.safetensors photos/ --top 3`

`adagauss predict birds.safetensors a.jpg b.jpg --unknown`

`adagauss predict birds.safetensors photos --json --unknown 0.1`

`find ~/Pictures -name '*.jpg' | adagauss predict birds.safetensors - --csv`
"""
STDIN = "-"
AT_ONCE = 256
"""Images between two prints, so that long lists show their first answers soon."""
UNKNOWN = "unknown"
FALSE_ALARMS = 0.05


class PredictCommand(TyperCommand):
    """Takes `--unknown` with or without a rate, as in ``--unknown photos`` and ``--unknown 0.1 photos``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_rates(args))


def with_rates(words: Sequence[str]) -> list[str]:
    """The words with a rate behind each ``--unknown``.

    >>> with_rates(["--unknown", "a.jpg"]), with_rates(["--unknown", "0.1", "a.jpg"])
    (['--unknown=0.05', 'a.jpg'], ['--unknown=0.1', 'a.jpg'])
    """
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        if word != "--unknown":
            found.append(word)
            continue
        following = next(rest, None)
        if following is not None and _is_number(following):
            found.append(f"--unknown={following}")
        else:
            found.append(f"--unknown={FALSE_ALARMS}")
            found += with_rates([following]) if following is not None else []
    return found


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return not Path(word).exists()


def register(app: typer.Typer, panel: str) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel, epilog=EXAMPLES, cls=PredictCommand)(predict)


def predict(
    model: ReadableModel,
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Images, folders of images, or - for a list on standard input."),
    ],
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Number of most likely classes to show.")] = 1,
    unknown: Annotated[
        float | None,
        typer.Option(
            "--unknown",
            metavar="[RATE]",
            help="Say unknown for images of none of the classes, at this rate of false alarms (0.05 if not given).",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per image and line.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values, with a heading.")] = False,
    skip_bad_images: SkipBadImages = False,
    quiet: Quiet = False,
) -> None:
    """Name the class of each image, with its probability."""
    if as_json and as_csv:
        raise ConfigError("--json and --csv are two formats: give only one of them")
    if unknown is not None and not 0 < unknown < 1:
        raise ConfigError(f"--unknown takes a rate of false alarms between 0 and 1, e.g. 0.05; got {unknown:g}")
    with stoppable("answers printed so far are right; a prediction changes nothing"):
        check_model(model)
        files = image_paths(paths)
        classifier = open_model(model, skip_bad=skip_bad_images, quiet=quiet)
        classes = classifier.learner_.classes
        warn_of_one_class(model, classes)
        writers: dict[bool, Writer] = {as_json: json_lines(told=unknown is not None), as_csv: csv_lines}
        write = writers.get(True) or table_of(files, classes, min(top, len(classes)))
        for start in range(0, len(files), AT_ONCE):
            answers = classifier.classify(files[start : start + AT_ONCE], top=top, unknown=unknown)
            for line in write(answers, start == 0):
                typer.echo(line)


Writer = Callable[[Sequence["Prediction"], bool], Iterator[str]]
"""Lines of some answers; the first ones may begin with a heading."""


def image_paths(given: Sequence[str]) -> list[Path]:
    """All image files of the given paths, in their order."""
    from adagauss.data.inputs import images_in, resolve_path

    found: list[Path] = []
    for word in given:
        named = [Path(line) for line in _standard_input()] if word == STDIN else [Path(word)]
        for path in map(resolve_path, named):
            found += images_in(path) if path.is_dir() else [path]
    if not found:
        raise DataError("no images were given: standard input held no paths")
    return found


def _standard_input() -> list[str]:
    if sys.stdin.isatty():
        raise DataError(
            "- reads paths from standard input: pipe a list into it, as in `ls *.jpg | adagauss predict ...`"
        )
    # Names of files are bytes: not all of them are text in the terminal's encoding.
    return [os.fsdecode(line) for line in sys.stdin.buffer.read().splitlines() if line.strip()]


def json_lines(*, told: bool) -> Writer:
    """One object per image; names are exact, with everything that is not plain ASCII escaped.

    With ``told``, each says whether its image is unknown; an unknown image has no class, hence no probability of it.
    """

    def lines(answers: Sequence[Prediction], first: bool) -> Iterator[str]:
        for answer in answers:
            strange = answer.label is None
            facts = {
                "image": answer.name,
                "class": answer.label,
                "probability": None if strange else round(answer.probability, 6),
                **({"unknown": strange} if told else {}),
                "top": [{"class": label, "probability": round(share, 6)} for label, share in answer.top],
            }
            yield json.dumps(facts)

    return lines


def csv_lines(answers: Sequence[Prediction], first: bool) -> Iterator[str]:
    """A heading, and one line per image; more of ``--top`` in further columns, for unknown images all of them."""
    if first:
        more = [f"{name}_{place}" for place in range(2, len(answers[0].top) + 1) for name in ("class", "probability")]
        yield _csv_row(["image", "class", "probability", *more])
    for answer in answers:
        strange = answer.label is None
        cells: list[object] = [answer.name, UNKNOWN if strange else answer.label]
        cells.append("" if strange else f"{answer.probability:.6f}")
        for label, share in answer.top[1:] if not strange else answer.top[:-1]:
            cells += [label, f"{share:.6f}"]
        yield _csv_row(cells)


def _csv_row(cells: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([escape_control_chars(cell) for cell in cells])
    return text.getvalue()


def table_of(files: Sequence[Path], classes: Sequence[object], top: int) -> Writer:
    """Columns wide enough for all files and classes, as far as the terminal is."""
    room = terminal.width() - len("  100.0 %") - 2
    names = min(max(columns(clipped(label, 40)) for label in [*classes, UNKNOWN]), room // 2)
    images = min(max(columns(escape_control_chars(path)) for path in files), room - names)

    def lines(answers: Sequence[Prediction], first: bool) -> Iterator[str]:
        for answer in answers:
            shown = (
                [(UNKNOWN, None), *answer.top[: top if top > 1 else 0]] if answer.label is None else answer.top[:top]
            )
            for place, (label, share) in enumerate(shown):
                image = "" if place else clipped(answer.name, images, keep_end=True)
                percent = "" if share is None else f"{100 * share:5.1f} %"
                yield f"{_fill(image, images)}  {_fill(clipped(label, names), names)}  {percent}".rstrip()

    return lines


def _fill(text: str, width: int) -> str:
    return text + " " * (width - columns(text))
