"""The commands for models: teach, predict, info, evaluate, forget, rename, export and serve."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from adagauss.cli import output
from adagauss.cli.experiments import EngineName
from adagauss.cli.options import (
    Device,
    ModelArgument,
    Quiet,
    ReadableModel,
    Settings,
    SkipBadImages,
    given_options,
    make_reporter,
    parse_settings,
)
from adagauss.cli.output import stoppable
from adagauss.errors import CheckpointError, ConfigError, DataError, unknown_name
from adagauss.utils.progress import clipped, columns, escape_control_chars

if TYPE_CHECKING:
    from adagauss.analysis.judging import Judged
    from adagauss.analytic.batches import ShardsReport
    from adagauss.classifier import IncrementalClassifier
    from adagauss.core.learn import Learner
    from adagauss.core.predictor import Prediction

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


TEACH = """**Examples:**

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
        classifier = _open_or_create(context, model, bool(begun))
        before = _images(classifier) if begun else Counter()
        started = perf_counter()
        classifier.partial_fit(folder, class_name)
        seconds = perf_counter() - started
        taught = _images(classifier) - before
        save(classifier, model, "teach", begun, classes=len(taught), images=taught.total())
    _report_teaching(classifier, model, taught, counted.total() - taught.total(), set(before), seconds)


def _open_or_create(context: typer.Context, model: Path, begun: bool) -> IncrementalClassifier:
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


def _report_teaching(
    classifier: IncrementalClassifier,
    model: Path,
    taught: Counter[object],
    skipped: int,
    known: set[object],
    seconds: float,
) -> None:
    what, number = output.counted(len(taught), "class", "classes"), output.counted(taught.total(), "image")
    left_out = f" ({skipped} skipped)" if skipped else ""
    typer.echo(escape_control_chars(f"Taught {what} from {number}{left_out} in {seconds:.1f} s:"))
    rows = [
        (f"  {clipped(name, 50)}", count, "more images" if name in known else "new") for name, count in taught.items()
    ]
    shown = rows if len(rows) <= MOST_LINES else rows[: MOST_LINES - 1]
    for line in output.lines(("  class", "images", ""), shown, right=(1,)):
        typer.echo(line)
    if len(shown) < len(rows):
        typer.echo(f"  ... and {len(rows) - len(shown)} more")
    total = output.counted(len(classifier.learner_.classes), "class", "classes")
    typer.echo(escape_control_chars(f"{model} now knows {total} ({size(model)}; no image is in it)."))
    if len(classifier.learner_.classes) == 1:
        typer.echo("Next: teach another class; one alone is always the answer.")
    else:
        typer.echo(escape_control_chars(f"Next: adagauss predict {shlex.quote(str(model))} PHOTOS"))


GATHER = """**Examples:**

`adagauss gather birds.safetensors shards/train-*.tar --jobs 8`

`adagauss gather birds.safetensors data/train-*.parquet --method analytic-pretrained --skip-bad`

"""
MAKING_FROM_SHARDS = {"method", "settings", "image_size", "seed"}
MOST_DAMAGED = 5


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
    from adagauss.cli.output import stoppable

    folder, begun = model.with_name(f"{model.name}.gather"), signature(model)
    reporter, started = make_reporter(quiet), perf_counter()
    with stoppable(f"finished shards are in {folder}, and the same command goes on from there"):
        classifier = _open_for_shards(context, model, folder, bool(begun))
        found = teach_shards(
            classifier.learner_, shards, folder, jobs=jobs, skip_bad=skip_bad, device=device, reporter=reporter
        )
        if found.store.total.images:
            save(classifier, model, "gather", begun, shards=found.shards, images=found.store.total.images)
        found.clear()
    _report_shards(classifier, model, found, perf_counter() - started)


def _open_for_shards(context: typer.Context, model: Path, folder: Path, begun: bool) -> IncrementalClassifier:
    """The model in the file, one that an earlier command has begun, or a new one."""
    from adagauss.analytic.batches import FEATURES, sample_images
    from adagauss.classifier import IncrementalClassifier, default_method
    from adagauss.data.shards import find_shards

    given = context.params
    if begun:
        if found := sorted(MAKING_FROM_SHARDS & given_options(context)):
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


def _report_shards(classifier: IncrementalClassifier, model: Path, found: ShardsReport, seconds: float) -> None:
    images, shards = output.counted(found.images, "image"), output.counted(found.shards, "shard")
    rate = f", {found.images / seconds:,.0f} per second" if found.images else ""
    typer.echo(escape_control_chars(f"Gathered {images} from {shards} in {seconds:.1f} s{rate}."))
    if found.known:
        typer.echo(f"{output.counted(found.known, 'shard')} had been gathered before.")
    if found.skipped_images:
        typer.echo(f"{output.counted(found.skipped_images, 'image')} could not be used.")
    for sentence in found.damaged[:MOST_DAMAGED]:
        typer.echo(escape_control_chars(f"Left out: {sentence}"))
    if len(found.damaged) > MOST_DAMAGED:
        typer.echo(f"... and {len(found.damaged) - MOST_DAMAGED} more shards.")
    total = output.counted(len(classifier.learner_.classes), "class", "classes")
    typer.echo(escape_control_chars(f"{model} now knows {total}."))


PREDICT = """**Examples:**

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
    room = output.width() - len("  100.0 %") - 2
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


INFO = """**Examples:**

`adagauss info birds.safetensors`

`adagauss info runs/demo/adagauss-seed0 --settings`
"""
MOST_CLASSES = 20
MOST_CHANGES = 5


def info(
    model: ReadableModel,
    settings: Annotated[bool, typer.Option("--settings", help="Show its settings and the layer of each.")] = False,
    all_classes: Annotated[bool, typer.Option("--all", help="List every class, however many there are.")] = False,
) -> None:
    """Show what a model knows of each class, what it keeps to the byte, and when it was changed."""
    classifier = open_model(model, quiet=True)
    if settings:
        from adagauss.cli.experiments import show_settings
        from adagauss.experiments.run import RunFolder

        origins = RunFolder(model).origins if model.is_dir() else {}
        show_settings(f"settings of {escape_control_chars(model)}", classifier.learner_.method, origins)
        return
    for name, text in facts(classifier, model):
        typer.echo(output.folded(f"{name:9}", escape_control_chars(text), 9))
    for line in class_lines(classifier, everything=all_classes):
        typer.echo(line)


def facts(classifier: IncrementalClassifier, path: Path) -> Iterator[tuple[str, str]]:
    """What is shown above the classes."""
    learner = classifier.learner_
    method = learner.method
    yield "model", clipped(path, output.width() - 9, keep_end=True)
    known, tasks = len(learner.classes), len(learner.tasks)
    yield "knows", f"{output.counted(known, 'class', 'classes')}, taught in {output.counted(tasks, 'task')}"
    parts = ", ".join(f"{part.role} {part.kind}" for part in (method.memory, method.drift, method.classifier))
    yield "method", f"{_chosen(classifier, path)}: {parts}"
    yield "images", "{} channels, {} x {} pixels".format(*learner.shape)
    trained = "trained" if method.trains else "not trained"
    yield "network", f"{method.backbone.name}, {trained}, {learner.network.extractor.size} features"
    history = changes_of(learner.about)
    if len(history) > MOST_CHANGES:
        yield "changed", f"{output.counted(len(history) - MOST_CHANGES, 'time')} before those that follow"
    for change in history[-MOST_CHANGES:]:
        counts = [f"{key} {change[key]}" for key in ("classes", "images") if key in change]
        yield "changed", f"{change['when']}  {change['action']}" + (f"; {', '.join(counts)}" if counts else "")
    yield from stored_items(learner)
    yield from _covariances(learner)
    if path.is_dir() and any(path.glob("tasks/*/real.safetensors")):
        yield (
            "beside it",
            "the run folder keeps real statistics of all classes for figures, in tasks/*/real.safetensors: remove "
            "them, or run with --diagnostics none, if they must not be kept",
        )


def _chosen(classifier: IncrementalClassifier, path: Path) -> str:
    """What was asked for: the method, in a run or a model, or an effort that chooses one."""
    if path.is_dir():
        from adagauss.experiments.run import RunFolder

        return str(RunFolder(path).config.get("method_name"))
    return classifier.method or f"effort {classifier.effort}"


def stored_items(learner: Learner) -> Iterator[tuple[str, str]]:
    """What is stored, to the byte, and what is not."""
    sizes: dict[str, int] = {}
    for name, tensor in learner.state.state_dict().items():
        group = name.split(".")[0] if not name.startswith("parts.") else name.split(".")[1]
        sizes[group] = sizes.get(group, 0) + tensor.numel() * tensor.element_size()
    memory = learner.memory
    meanings = {
        "network": "weights of the network",
        "memory": f"mean of each class, covariance: {memory.covariance}, number of images; "
        f"{learner.state.bytes_per_class:,} bytes per class",
        "classifier": "sums and weights that scores are made of",
        "evidence": "counts and histograms, per class, of answers for images while they were left out",
    }
    for group, count in sorted(sizes.items(), key=lambda item: -item[1]):
        if count:
            yield "keeps", f"{count:,} bytes: {meanings.get(group, f'state of the part {group}')}"
    yield "not kept", "images, names of files, and features of single images" + _single(learner)


def _single(learner: Learner) -> str:
    from adagauss.core.learner_state import single_image_classes

    if not (alone := single_image_classes(learner.state)):
        return ""
    names = ", ".join(map(str, alone[:3])) + (" and others" if len(alone) > 3 else "")
    return f"; but what is kept of a class of one image is that image's feature ({names})"


def _covariances(learner: Learner) -> Iterator[tuple[str, str]]:
    memory = learner.memory
    if not len(memory) or memory.covariance == "none":
        return
    if memory.covariance == "shared":
        memory = memory.select(memory.labels[:1])  # one stands for all
    ranks, conditions = memory.ranks(), memory.condition_numbers()
    effective = float(memory.effective_ranks().mean())
    yield (
        "spread",
        f"rank of covariances {int(ranks.min())} to {int(ranks.max())} of {memory.size}, effective rank "
        f"{effective:.1f} on average, condition numbers {float(conditions.min()):.3g} to {float(conditions.max()):.3g}",
    )


def class_lines(classifier: IncrementalClassifier, everything: bool) -> list[str]:
    """One line per class: images, expected accuracy, what it is confused with."""
    summaries = classifier.summary()
    shown = summaries if everything or len(summaries) <= MOST_CLASSES else summaries[: MOST_CLASSES - 1]
    rows = [
        (
            one.label,
            one.images,
            ""
            if one.expected_accuracy is None
            else f"{100 * one.expected_accuracy:.0f}" + ("*" if one.among < len(summaries) else ""),
            ", ".join(f"{label} {100 * share:.0f} %" for label, share in one.confused_with[:2]),
        )
        for one in shown
    ]
    heads = ("class", "images", "expected, %", "confused with")
    lines = ["", *output.lines(heads, rows, right=(1, 2))]
    if len(shown) < len(summaries):
        lines.append(f"... and {len(summaries) - len(shown)} more (--all)")
    if any(one.expected_accuracy is not None and one.among < len(summaries) for one in shown):
        lines.append("* measured when fewer classes were known; adagauss evaluate measures it today")
    return lines


EVALUATE = """**Examples:**

`adagauss evaluate birds.safetensors photos/test`

`adagauss evaluate birds.safetensors photos/test --sheet worst.png --confusion confusion.png`
"""
MOST_WORST = 15
ON_SHEET = 24


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
    _draw_figures(judged, classifier, sheet, confusion)


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
        typer.echo(output.folded("", escape_control_chars(f"left out, never taught: {', '.join(strange)}"), 4))
    classes = by_class(judged)
    shown = classes[:MOST_WORST]
    rows = [
        (one.label, one.images, f"{100 * one.accuracy:.1f}", "" if one.taken_for is None else one.taken_for)
        for one in shown
    ]
    typer.echo()
    for line in output.lines(("class", "images", "accuracy, %", "most often taken for"), rows, right=(1, 2)):
        typer.echo(line)
    if len(shown) < len(classes):
        typer.echo(f"... and {len(classes) - len(shown)} that do better (--json has all)")


def _draw_figures(
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


FORGET = """**Examples:**

`adagauss forget birds.safetensors Cardinal Bobolink`

`adagauss forget birds.safetensors Cardinal --images photos/cardinals`
"""
RENAME = """**Examples:**

`adagauss rename birds.safetensors Gray_Catbird Catbird`

`adagauss rename birds.safetensors Wren_female Wren --join`
"""
MERGE = "**Example:** `adagauss merge birds.safetensors garden.safetensors --into all.safetensors`"


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
    left = output.counted(len(classifier.learner_.classes), "class", "classes")
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


SERVE = """**Examples:**

`adagauss serve birds.safetensors`

`adagauss serve birds.safetensors --host 0.0.0.0 --token "$(openssl rand -hex 16)"`
"""


def export(
    model: ReadableModel,
    out: Annotated[Path, typer.Argument(metavar="OUT.onnx", help="File to write.")],
    quiet: Quiet = False,
) -> None:
    """Write a model as one ONNX file, with the preparation of images inside: it needs only onnxruntime to run."""
    if out.suffix != ".onnx":
        raise ConfigError(f"{out} should end in .onnx, which other programs go by")
    with stoppable(f"{out} was not written"):
        classifier = open_model(model, quiet=quiet)
        classifier.export(out)
    typer.echo(
        escape_control_chars(
            f"Wrote {out} ({size(out)}): {len(classifier.learner_.classes)} classes, named in its metadata."
        )
    )


def serve(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="File of a model; begun if there is none.")],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; others than this machine's need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option("--token", envvar="ADAGAUSS_TOKEN", help="What every request must carry.")
    ] = None,
) -> None:
    """Serve a page to teach and try a model, and the same by REST (extra: serve)."""
    if model.is_dir():
        raise CheckpointError(f"{model} is a folder: serve a file of its own, such as a copy of a run's learner")
    try:
        from adagauss.deploy.serve import main
    except ImportError as error:
        raise ConfigError(f"serving needs {error.name}: pip install 'adagauss[serve]'") from None
    with stoppable(f"what was taught is kept in {model}"):
        main(model, host, port, token)


def register(app: typer.Typer, panel: str) -> None:
    """Add the commands."""
    app.command(rich_help_panel=panel, epilog=TEACH)(teach)
    app.command(rich_help_panel=panel, epilog=GATHER)(gather)
    app.command(rich_help_panel=panel, epilog=PREDICT, cls=PredictCommand)(predict)
    app.command(rich_help_panel=panel, epilog=INFO)(info)
    app.command(rich_help_panel=panel, epilog=EVALUATE)(evaluate)
    app.command(rich_help_panel=panel, epilog=FORGET)(forget)
    app.command(rich_help_panel=panel, epilog=RENAME)(rename)
    app.command(rich_help_panel=panel, epilog=MERGE)(merge)
    app.command(rich_help_panel=panel, epilog="**Example:** `adagauss export birds.safetensors birds.onnx`")(export)
    app.command(rich_help_panel=panel, epilog=SERVE)(serve)
