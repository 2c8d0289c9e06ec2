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
from adagauss.cli.options import (
    Device,
    HiddenQuiet,
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
    from adagauss.analysis.predictions import LabelledPrediction
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
        IncrementalClassifier,  # torch takes seconds to import: check the path first
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
    """Warn that a model with one class always predicts it."""
    if len(classes) == 1:
        note = f"{path} knows one class and always predicts it: teach it another class"
        typer.secho(escape_control_chars(f"adagauss: {note}"), fg="yellow", err=True)


@contextmanager
def changing(path: Path, *, out: Path | None = None) -> Iterator[None]:
    """Work that ends with `save`: a run folder is refused, and Ctrl-C says whether the file was replaced."""
    if path.is_dir():
        raise CheckpointError(
            f"{path} is a folder: runs are not changed. Copy its newest learner to a file "
            f"(cp {path}/tasks/NN/learner.safetensors MODEL) and change that"
        )
    target = out or path
    before = signature(target)

    def kept() -> str:
        if signature(target) != before:
            return f"the change was complete, and is saved in {target}"
        return f"{target} is unchanged" if before else f"{target} was not created; run the same command again"

    with stoppable(kept):
        yield


def save(model: IncrementalClassifier, path: Path, action: str, previous: Signature, **facts: Any) -> None:
    """Replace the file, unless another program changed it since; note when, and what was done."""
    if signature(path) != previous:
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

`adagauss teach birds.safetensors photos --effort best`

`adagauss teach birds.safetensors shards/train-*.tar --jobs 8`

`adagauss teach garden.safetensors photos/garden --features-from birds.safetensors`

`adagauss teach all.safetensors birds.safetensors garden.safetensors`
"""
SETTING = {"method", "effort", "preset", "settings", "epochs", "image_size", "resize_mode", "seed"}
CREATING = {*SETTING, "features_from", "like"}
"""Options that take effect only when a model is created."""
OPTION_NAMES = {"settings": "set", "class_name": "class", "engine_name": "engine", "skip_bad_images": "skip-bad"}
"""Options whose parameter has another name."""
MOST_LINES = 12
MOST_DAMAGED = 5
MODEL_SUFFIX = ".safetensors"


def teach(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model file; created if missing.")],
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE...",
            help="A folder with one folder of images per class; shards (.tar, .tar.gz, .tgz, .parquet, .npz, or "
            "folders of them); or model files to merge.",
        ),
    ],
    class_name: Annotated[
        str | None, typer.Option("--class", "-c", metavar="NAME", help="All images of the folder are of this class.")
    ] = None,
    nested: Annotated[
        bool, typer.Option("--nested", help="A class folder may hold only folders of images, and no images itself.")
    ] = False,
    method: Annotated[
        str | None,
        typer.Option("--method", "-m", help="Method of a new model; the default does not train the network."),
    ] = None,
    effort: Annotated[
        str, typer.Option("--effort", help="quick, good, or best, which compares several methods; replaces --method.")
    ] = "good",
    preset: Annotated[str | None, typer.Option("--preset", "-p", hidden=True, help="Preset of the method.")] = None,
    settings: Settings = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", "-e", min=1, hidden=True, help="Epochs per task, for methods that train."),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=1, help="Images are resized to this size, in pixels.")
    ] = None,
    resize_mode: Annotated[
        str,
        typer.Option("--resize-mode", help="Images of other proportions: stretch, crop (centre) or pad (grey)."),
    ] = "stretch",
    seed: Annotated[int, typer.Option("--seed", min=0, hidden=True, help="Random seed of a new model.")] = 0,
    features_from: Annotated[
        Path | None,
        typer.Option(
            "--features-from", metavar="MODEL", help="Use the features of this model, so that both can be merged."
        ),
    ] = None,
    like: Annotated[Path | None, typer.Option("--like", hidden=True, help="Old name of --features-from.")] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Worker processes for shards, with one thread each.")
    ] = None,
    engine_name: Annotated[
        str | None, typer.Option("--engine", hidden=True, help="local: one worker process per CPU core.")
    ] = None,
    device: Device = "auto",
    skip_bad_images: Annotated[
        bool, typer.Option("--skip-bad", help="Skip images that cannot be decoded, and damaged shards.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Create a model, or teach it more: new classes, more images of known classes, or both.

    The model stores no images. MODEL is replaced as a whole at the end, so that stopping the command leaves it
    unchanged. Shards are read once, with constant memory. Finished shards are stored in the folder MODEL.shards: the
    same command resumes, and learns each shard once.
    """
    if (reference := features_from or like) is not None:
        check_model(reference)
    if any(path.suffix == MODEL_SUFFIX for path in sources):
        _refuse(context, CREATING | {"class_name", "nested", "jobs"}, "--{} does not apply to merging models: omit it")
        _merge_models(model, sources, quiet)
    elif jobs or engine_name or _are_shards(sources):
        _refuse(context, {"class_name", "nested", "epochs", "effort"}, "--{} does not apply to shards: omit it")
        _teach_shards(context, model, sources, _job_count(jobs, engine_name), reference)
    else:
        _teach_folder(context, model, sources[0], reference)


def _are_shards(sources: Sequence[Path]) -> bool:
    """Whether the sources are shard files, folders of them, or several folders."""
    from adagauss.data.folders import IMAGE_SUFFIXES
    from adagauss.data.inputs import resolve_path
    from adagauss.data.shards import shard_kind

    if len(sources) > 1:
        return True
    path = resolve_path(sources[0])
    if path.is_dir():
        return any(shard_kind(file) for file in path.iterdir() if file.is_file())
    return path.suffix.lower() not in IMAGE_SUFFIXES


def _job_count(jobs: int | None, engine_name: str | None) -> int | None:
    if engine_name not in (None, "local"):
        raise ConfigError(f"--engine {engine_name}: shards are processed on this machine only. Use --jobs N")
    return jobs or (os.cpu_count() if engine_name else None)


def _teach_folder(context: typer.Context, model: Path, folder: Path, reference: Path | None) -> None:
    previous = signature(model)
    given = context.params
    with changing(model):
        files = _files_per_class(folder, given["class_name"], given["nested"])
        classifier = _open_or_create(context, model, reference)
        before = _images(classifier) if previous else Counter()
        started = perf_counter()
        classifier.partial_fit(folder, given["class_name"])
        seconds = perf_counter() - started
        taught = _images(classifier) - before
        save(classifier, model, "teach", previous, classes=len(taught), images=taught.total())
    _report_teaching(classifier, model, taught, files.total() - taught.total(), set(before), seconds)


def _open_or_create(context: typer.Context, model: Path, reference: Path | None) -> IncrementalClassifier:
    """The model in the file, an empty one with the features of another, or a new one with the given options."""
    from adagauss.classifier import IncrementalClassifier, default_method

    given = context.params
    reading = {"skip_bad": given["skip_bad_images"], "quiet": given["quiet"]}
    if model.exists():
        _refuse(
            context,
            CREATING,
            f"{model} exists, and --{{}} takes effect only when a model is created: omit it, or choose another file",
        )
        return open_model(model, **reading)
    if reference is not None:
        _refuse(context, SETTING, f"the new model takes the settings of {reference}: omit --{{}}")
        return open_model(reference, **reading).empty_like()
    classifier = IncrementalClassifier(
        # The default by its name, so that the file records it.
        given["method"] or (default_method() if given["effort"] == "good" else None),
        given["preset"],
        effort=given["effort"],
        settings=parse_settings(given["settings"]) or None,
        epochs=given["epochs"],
        image_size=given["image_size"],
        resize_mode=given["resize_mode"],
        skip_bad=given["skip_bad_images"],
        seed=given["seed"],
        device=given["device"],
        verbose=not given["quiet"],
    )
    classifier.skip_option = "--skip-bad"
    return classifier


def _refuse(context: typer.Context, names: set[str], message: str) -> None:
    """Raise with this message if one of these options was given; its name replaces the braces."""
    if found := sorted(names & given_options(context)):
        raise ConfigError(message.format(OPTION_NAMES.get(found[0], found[0]).replace("_", "-")))


def _files_per_class(folder: Path, class_name: str | None, nested: bool) -> Counter[str]:
    """Number of image files of each class; errors name the options that help."""
    from adagauss.data.folders import folders_in, image_files
    from adagauss.data.inputs import nested_folder_example, resolve_path

    if not resolve_path(folder).is_dir():
        raise DataError(f"{folder} is an image file: give the folder that holds it")
    if class_name is not None:
        return Counter({class_name: len(image_files(folder))})
    folders = folders_in(folder)
    if not folders:
        if not any(folder.iterdir()):
            raise DataError(f"{folder} is empty: put a folder of images into it for each class")
        raise DataError(
            f"{folder} holds no class folders: name the class of all its images with --class NAME, or put the images "
            "of each class into a folder with the name of the class"
        )
    members = {path: image_files(path) for path in folders}
    if not nested and (inside := nested_folder_example(members)):
        raise DataError(
            f"{folder}: {inside}. If the inner folders are the classes, teach each outer folder in turn. If each outer "
            "folder is one class, add --nested"
        )
    return Counter({path.name: len(files) for path, files in members.items()})


def _images(classifier: IncrementalClassifier) -> Counter[object]:
    """Number of learned images of each class."""
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
    note = f" ({skipped} skipped)" if skipped else ""
    typer.echo(escape_control_chars(f"Taught {what} from {number}{note} in {seconds:.1f} s:"))
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
        typer.echo("Next: teach another class; a model with one class always predicts it.")
    else:
        typer.echo(escape_control_chars(f"Next: adagauss predict {shlex.quote(str(model))} PHOTOS"))


def _teach_shards(
    context: typer.Context, model: Path, sources: Sequence[Path], jobs: int | None, reference: Path | None
) -> None:
    from adagauss.analytic.batches import teach_shards

    given = context.params
    previous = signature(model)
    # Interrupted commands of version 0.2.0 left their finished shards in MODEL.gather.
    old = model.with_name(f"{model.name}.gather")
    folder = old if old.is_dir() else model.with_name(f"{model.name}.shards")
    reporter, started = make_reporter(given["quiet"]), perf_counter()
    with stoppable(f"finished shards are stored in {folder}; the same command resumes"):
        classifier = _open_for_shards(context, model, sources, folder, reference)
        report = teach_shards(
            classifier.learner_,
            sources,
            folder,
            jobs=jobs,
            skip_bad=given["skip_bad_images"],
            device=given["device"],
            reporter=reporter,
        )
        if report.learned:
            save(classifier, model, "teach", previous, shards=report.shards, images=report.learned)
        report.clear()
    _report_shards(classifier, model, report, perf_counter() - started)


def _open_for_shards(
    context: typer.Context, model: Path, sources: Sequence[Path], folder: Path, reference: Path | None
) -> IncrementalClassifier:
    """The model in the file, one that an interrupted command has started, or a new one."""
    from adagauss.analytic.batches import FEATURES, sample_images
    from adagauss.data.shards import find_shards

    shards = find_shards(sources)
    classifier = _open_or_create(context, model, reference)
    if model.exists():
        return classifier
    if (folder / FEATURES).exists():
        started = open_model(folder / FEATURES, quiet=context.params["quiet"])
        names = ("method", "preset", "settings", "image_size", "resize_mode", "seed")
        if any(started.stored_params()[name] != classifier.stored_params()[name] for name in names):
            raise ConfigError(
                f"{folder} holds shards for a model with other settings: use the same settings, or delete the folder"
            )
        return started
    if reference is None:
        classifier = classifier.partial_fit(*sample_images(shards, classifier.resize_mode)).empty_like()
    classifier.learner_.save(folder / FEATURES, about={"estimator": classifier.stored_params()})
    return classifier


def _report_shards(classifier: IncrementalClassifier, model: Path, report: ShardsReport, seconds: float) -> None:
    images, shards = output.counted(report.images, "image"), output.counted(report.shards, "shard")
    rate = f", {report.images / seconds:,.0f} per second" if report.images else ""
    typer.echo(escape_control_chars(f"Taught {images} from {shards} in {seconds:.1f} s{rate}."))
    if report.known:
        typer.echo(f"{output.counted(report.known, 'shard')} already learned.")
    if report.skipped_images:
        typer.echo(f"{output.counted(report.skipped_images, 'image')} skipped: cannot be decoded.")
    for reason in report.damaged[:MOST_DAMAGED]:
        typer.echo(escape_control_chars(f"Skipped: {reason}"))
    if len(report.damaged) > MOST_DAMAGED:
        typer.echo(f"... and {len(report.damaged) - MOST_DAMAGED} more shards.")
    total = output.counted(len(classifier.learner_.classes), "class", "classes")
    typer.echo(escape_control_chars(f"{model} now knows {total}."))


def _merge_models(target: Path, sources: Sequence[Path], quiet: bool) -> None:
    """Merge models into one file: into an existing model, or two or more into a new one."""
    previous = signature(target)
    others = [path for path in sources if path.resolve() != target.resolve()]
    if not previous and len(others) < 2:
        raise CheckpointError(f"there is no model {target} to merge into: name two models, or copy {others[0]}")
    if not others:
        raise CheckpointError(f"{target} cannot be merged into itself: name another model")
    first, *rest = [target, *others] if previous else others
    with changing(first, out=target):
        for path in others:
            check_model(path)
        classifier = open_model(first, quiet=quiet)
        for path in rest:
            classifier.merge(open_model(path, quiet=quiet))
        save(classifier, target, "merge", previous, classes=len(classifier.learner_.classes))
    total = output.counted(len(classifier.learner_.classes), "class", "classes")
    typer.echo(escape_control_chars(f"{target} now knows {total} ({size(target)}; no image is in it)."))


def merge(
    model: ModelArgument,
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="File of another model, with the same features.")],
    into: Annotated[Path, typer.Option("--into", metavar="OUT", help="Merged model; may be MODEL.")],
    quiet: Quiet = False,
) -> None:
    """Merge two models with the same method and features. `adagauss teach OUT MODEL OTHER` does the same."""
    if into.exists() and into.resolve() != model.resolve():
        raise CheckpointError(f"{into} exists: choose another file for --into, or remove it")
    check_model(model)
    _merge_models(into, [model, other], quiet)


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
            help="Label images of other classes unknown, at this false-positive rate (default 0.05).",
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
        raise ConfigError(f"--unknown takes a false-positive rate between 0 and 1, e.g. 0.05; got {unknown:g}")
    with stoppable("answers printed so far are right; a prediction changes nothing"):
        check_model(model)
        files = image_paths(paths)
        classifier = open_model(model, skip_bad=skip_bad_images, quiet=quiet)
        classes = classifier.learner_.classes
        warn_of_one_class(model, classes)
        writers: dict[bool, Writer] = {as_json: json_lines(flag_unknown=unknown is not None), as_csv: csv_lines}
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


def json_lines(*, flag_unknown: bool) -> Writer:
    """One object per image; names are exact, with everything that is not plain ASCII escaped.

    With ``flag_unknown``, each has the field ``unknown``. An unknown image has neither class nor probability.
    """

    def lines(answers: Sequence[Prediction], first: bool) -> Iterator[str]:
        for answer in answers:
            is_unknown = answer.label is None
            facts = {
                "image": answer.name,
                "class": answer.label,
                "probability": None if is_unknown else round(answer.probability, 6),
                **({"unknown": is_unknown} if flag_unknown else {}),
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
        is_unknown = answer.label is None
        cells: list[object] = [answer.name, UNKNOWN if is_unknown else answer.label]
        cells.append("" if is_unknown else f"{answer.probability:.6f}")
        for label, share in answer.top[1:] if not is_unknown else answer.top[:-1]:
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
    yield "images", "{} channels, {} x {} pixels; others: {}".format(*learner.shape, learner.resize_mode)
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
            "run",
            "the run folder keeps real statistics of all classes for figures, in tasks/*/real.safetensors: remove "
            "them, or run with --diagnostics none, if they must not be kept",
        )


def _chosen(classifier: IncrementalClassifier, path: Path) -> str:
    """The method of a run or a model, or the effort that selects it."""
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
    from adagauss.core import linalg

    memory = learner.memory
    if not len(memory) or memory.covariance == "none":
        return
    if memory.covariance == "shared":
        memory = memory.select(memory.labels[:1])  # one stands for all
    spectra = linalg.spectrum(memory.covariances)
    ranks, conditions = linalg.relative_rank(spectra), linalg.condition_number(spectra)
    effective = float(linalg.effective_rank(spectra).mean())
    yield (
        "spread",
        f"rank of covariances {int(ranks.min())} to {int(ranks.max())} of {memory.size}, effective rank "
        f"{effective:.1f} on average, condition numbers {float(conditions.min()):.3g} to {float(conditions.max()):.3g}",
    )


def class_lines(classifier: IncrementalClassifier, everything: bool) -> list[str]:
    """One line per class: images, estimated accuracy, confused classes."""
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
    heads = ("class", "images", "estimated accuracy, %", "confused with")
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
    """Show accuracy, the least accurate classes with their confusions, and the calibration error.

    Use images that the model has not learned. Folders of unknown classes are skipped and listed.
    """
    with stoppable("an evaluation changes nothing"):
        classifier = open_model(model, skip_bad=skip_bad_images, quiet=quiet)
        warn_of_one_class(model, classifier.learner_.classes)
        files, unknown_folders = _files_of(folder, classifier)
        predictions = _labelled_predictions(classifier, files)
    if as_json:
        typer.echo(json.dumps(_numbers(predictions, unknown_folders)))
    else:
        _show(predictions, unknown_folders)
    _draw_figures(predictions, classifier, sheet, confusion)


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


def _labelled_predictions(classifier: IncrementalClassifier, files: Mapping[Path, Any]) -> list[LabelledPrediction]:
    from adagauss.analysis.predictions import LabelledPrediction

    truths = {str(file): label for file, label in files.items()}
    predictions = []
    for answer in classifier.classify(list(files), top=len(classifier.learner_.classes)):
        label, share = answer.top[0]
        truth = truths[answer.name]
        predictions.append(LabelledPrediction(answer.name, truth, label, share, dict(answer.top)[truth]))
    return predictions


def _numbers(predictions: Sequence[LabelledPrediction], unknown_folders: Sequence[str]) -> dict[str, Any]:
    from adagauss.analysis import predictions as metrics

    right = sum(one.correct for one in predictions)
    return {
        "images": len(predictions),
        "accuracy": metrics.accuracy(predictions),
        "accuracy_interval": metrics.wilson_interval(right, len(predictions)),
        "mean_probability": sum(one.probability for one in predictions) / len(predictions),
        "calibration_error": metrics.calibration_error(predictions),
        "calibration_error_by_chance": metrics.calibration_error_by_chance(predictions),
        "classes": [
            {"class": one.label, "images": one.images, "accuracy": one.accuracy, "confused_with": one.confused_with}
            for one in metrics.by_class(predictions)
        ],
        "wrong": [
            {"image": one.name, "class": one.true, "answer": one.predicted, "probability": one.probability}
            for one in metrics.worst(predictions, len(predictions))
        ],
        "never_taught": list(unknown_folders),
    }


def _show(predictions: Sequence[LabelledPrediction], unknown_folders: Sequence[str]) -> None:
    from adagauss.analysis.predictions import by_class

    numbers = _numbers(predictions, unknown_folders)
    low, high = numbers["accuracy_interval"]
    typer.echo(
        f"accuracy           {100 * numbers['accuracy']:.1f} % of {len(predictions)} images "
        f"(95 % interval {100 * low:.1f} to {100 * high:.1f})"
    )
    error, chance = numbers["calibration_error"], numbers["calibration_error_by_chance"]
    typer.echo(f"mean probability   {100 * numbers['mean_probability']:.1f} %")
    typer.echo(f"calibration error  {100 * error:.1f} % (a perfectly calibrated model would show {100 * chance:.1f} %)")
    if unknown_folders:
        typer.echo(
            output.folded("", escape_control_chars(f"skipped, unknown classes: {', '.join(unknown_folders)}"), 4)
        )
    classes = by_class(predictions)
    shown = classes[:MOST_WORST]
    rows = [
        (one.label, one.images, f"{100 * one.accuracy:.1f}", "" if one.confused_with is None else one.confused_with)
        for one in shown
    ]
    typer.echo()
    for line in output.lines(("class", "images", "accuracy, %", "most often confused with"), rows, right=(1, 2)):
        typer.echo(line)
    if len(shown) < len(classes):
        typer.echo(f"... and {len(classes) - len(shown)} more accurate classes (--json lists all)")


def _draw_figures(
    predictions: Sequence[LabelledPrediction],
    classifier: IncrementalClassifier,
    sheet: Path | None,
    confusion: Path | None,
) -> None:
    from adagauss.analysis import predictions as metrics
    from adagauss.analysis.accuracy_figures import confusion_figure
    from adagauss.analysis.plotting import save_figure

    accuracy = f"accuracy {100 * metrics.accuracy(predictions):.1f} % of {len(predictions)} images"
    with output.drawing("the numbers above are complete"):
        if confusion is not None:
            shown = {one.true for one in predictions} | {one.predicted for one in predictions}
            names = [label for label in classifier.learner_.classes if label in shown]
            counts = metrics.confusion_counts(predictions, names)
            save_figure(confusion_figure(counts, names, (), accuracy), confusion)
            typer.echo(escape_control_chars(f"Confusion matrix: {confusion}"), err=True)
        if sheet is not None:
            bad = metrics.worst(predictions, ON_SHEET)
            title = f"worst {len(bad)} of {sum(not one.correct for one in predictions)} wrong answers; {accuracy}"
            save_figure(metrics.contact_sheet(bad, title), sheet)
            typer.echo(escape_control_chars(f"Worst images: {sheet}"), err=True)


FORGET = """**Examples:**

`adagauss forget birds.safetensors Cardinal Bobolink`

`adagauss forget birds.safetensors Cardinal --images photos/cardinals`
"""
RENAME = """**Examples:**

`adagauss rename birds.safetensors Gray_Catbird Catbird`

`adagauss rename birds.safetensors Wren_female Wren --merge`
"""


def forget(
    model: ModelArgument,
    classes: Annotated[list[str], typer.Argument(metavar="CLASS...", help="Names of classes.")],
    images: Annotated[
        Path | None,
        typer.Option("--images", metavar="FOLDER", help="Images of the class, to remove them exactly."),
    ] = None,
    skip_bad_images: SkipBadImages = False,
    quiet: HiddenQuiet = False,
) -> None:
    """Forget classes: they are never predicted again, and nothing that is kept of one class alone remains.

    `docs/privacy.md` says what else may remain of a class, by method. With --images (one folder per class, or the
    images of the one class), the sums of exact methods are then as if it had never been taught.
    """
    previous = signature(model)
    with changing(model):
        classifier = open_model(model, skip_bad=skip_bad_images, quiet=quiet)
        classes = list(dict.fromkeys(classes))
        labels = [known_label(name, classifier.learner_.classes) for name in classes]
        classifier.forget(*labels, images=images)
        save(classifier, model, "forget", previous, classes=len(labels))
    left = output.counted(len(classifier.learner_.classes), "class", "classes")
    typer.echo(escape_control_chars(f"Forgot {', '.join(map(repr, classes))}; {model} now knows {left}."))


def rename(
    model: ModelArgument,
    old: Annotated[str, typer.Argument(metavar="OLD", help="A class.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")],
    merge_classes: Annotated[bool, typer.Option("--merge", help="NEW is a class of the model: merge both.")] = False,
    join: Annotated[bool, typer.Option("--join", hidden=True, help="Old name of --merge.")] = False,
    quiet: HiddenQuiet = False,
) -> None:
    """Rename a class, or merge it into another."""
    previous = signature(model)
    with changing(model):
        classifier = open_model(model, quiet=quiet)
        known = classifier.learner_.classes
        label = known_label(old, known)
        if new == str(label):
            raise DataError(f"{new!r} is its name already: nothing was changed")
        if merge_classes or join:
            classifier.merge_classes(known_label(new, known), label)
        else:
            if new in map(str, known):
                raise CheckpointError(f"{new!r} is a class already: add --merge to merge both")
            classifier.rename(label, label_like(label, new))
        save(classifier, model, "rename", previous)
    typer.echo(
        escape_control_chars(f"{old} is part of {new} now." if merge_classes or join else f"{old} is called {new} now.")
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
        raise DataError(f"the classes of this model are not text, and {name!r} is not of type {type(label).__name__}")
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
    quiet: HiddenQuiet = False,
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
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model file; created if missing.")],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on. Non-loopback addresses require --token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option("--token", envvar="ADAGAUSS_TOKEN", help="Token that every request must send.")
    ] = None,
) -> None:
    """Serve a page to teach and try a model, and the same by REST (extra: serve)."""
    if model.is_dir():
        raise CheckpointError(f"{model} is a folder: serve a model file, such as a copy of a run's learner")
    try:
        from adagauss.deploy.serve import main
    except ImportError as error:
        raise ConfigError(f"serving needs {error.name}: pip install 'adagauss[serve]'") from None
    with stoppable(f"what was taught is kept in {model}"):
        main(model, host, port, token)


def register(app: typer.Typer, panel: str) -> None:
    """Add the commands."""
    app.command(rich_help_panel=panel, epilog=TEACH)(teach)
    app.command("gather", rich_help_panel=panel, hidden=True, deprecated=True)(teach)
    app.command(rich_help_panel=panel, epilog=PREDICT, cls=PredictCommand)(predict)
    app.command(rich_help_panel=panel, epilog=INFO)(info)
    app.command(rich_help_panel=panel, epilog=EVALUATE)(evaluate)
    app.command(rich_help_panel=panel, epilog=FORGET)(forget)
    app.command(rich_help_panel=panel, epilog=RENAME)(rename)
    app.command(rich_help_panel=panel, hidden=True, deprecated=True)(merge)
    app.command(rich_help_panel=panel, epilog="**Example:** `adagauss export birds.safetensors birds.onnx`")(export)
    app.command(rich_help_panel=panel, epilog=SERVE)(serve)
