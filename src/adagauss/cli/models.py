"""The commands for models: teach, predict, info, evaluate, forget, rename, undo, export and serve.

Every command that changes a model does so within `change_model`, which locks its file.
"""

from __future__ import annotations

import json
import shlex
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Context, Option

from adagauss.cli import options, output
from adagauss.cli.options import given_options, option_name, parse_settings
from adagauss.cli.output import counted, first_lines, say, stoppable, table, warn
from adagauss.errors import CheckpointError, ConfigError, DataError, unknown_name
from adagauss.utils.checkpoint import backed_up, backup_of, stored_facts
from adagauss.utils.files import file_version, lock_model, move_atomically, resolve_path
from adagauss.utils.progress import clipped, reporter_for

if TYPE_CHECKING:
    from adagauss.analysis.predictions import LabelledPrediction
    from adagauss.classifier import IncrementalClassifier

command = partial(options.command, options.MODELS)
MODEL_SUFFIX = ".safetensors"
HISTORY = "history"
"""Key of the list of changes in a model file: times and commands, without names, which a user may want forgotten."""


# ------------------------------------------------------------------------------------------- open, change, save


def open_model(
    path: Path, *, skip_bad: bool = False, device: str = "auto", quiet: bool = False
) -> IncrementalClassifier:
    """Load the classifier in a file, or the newest one of a run folder."""
    check_model(path)
    from adagauss.classifier import IncrementalClassifier  # torch takes seconds to import: check the path first

    if path.is_dir():
        from adagauss.experiments.run import RunFolder

        path = RunFolder(path).last_checkpoint()
    model = IncrementalClassifier.load(path, device)
    model.skip_bad, model.verbose = skip_bad, not quiet
    return model


def check_model(path: Path) -> dict[str, Any]:
    """Raise if the path is not a model, before the slow imports; return the facts in a file, not validated."""
    if not path.exists():
        name = path if path.suffix == MODEL_SUFFIX else f"NAME{MODEL_SUFFIX}"
        raise CheckpointError(f"there is no model {path}: `adagauss teach {name} FOLDER` makes one")
    if path.is_dir() and not (path / "config.yaml").exists():
        raise CheckpointError(f"{path} is a folder, but not a run folder: give the file of a model first, then images")
    return {} if path.is_dir() else stored_facts(path, "learner")


def check_no_folder(path: Path) -> None:
    """Raise if the path is a folder, such as a run: commands change and serve only files."""
    if path.is_dir():
        raise CheckpointError(
            f"{path} is a folder: runs are not changed. Copy its newest learner to a file "
            f"(cp {path}/tasks/NN/learner{MODEL_SUFFIX} MODEL) and use that"
        )


@dataclass
class Change:
    """A change of a model file, which is locked."""

    path: Path
    action: str
    found: tuple[int, ...] | None
    """Version of the file when it was locked, or last saved; None if there was none."""
    update_backup: Callable[[], None]
    saved: bool = False

    def save(self, model: IncrementalClassifier, **facts: Any) -> None:
        """Replace the file, and add the change to the history of the model."""
        if file_version(self.path) != self.found:
            raise CheckpointError(f"another program changed {self.path} in the meantime: nothing was saved, try again")
        about = model.learner_.about
        when = datetime.now(UTC).isoformat(timespec="seconds")
        about[HISTORY] = [*changes_of(about), {"when": when, "action": self.action, **facts}]
        try:
            model.save(self.path)
        except UnicodeEncodeError as error:
            raise DataError(f"a class name cannot be stored ({error.reason}): rename its folder") from None
        self.finish()

    def finish(self) -> None:
        """Note that the file was replaced."""
        self.found, self.saved = file_version(self.path), True
        self.update_backup()

    def outcome(self) -> str:
        """Describe whether the file was replaced, for the message after Ctrl-C."""
        if self.saved or file_version(self.path) != self.found:  # stopped while or after it was saved
            return f"what was complete is saved in {self.path}"
        return f"{self.path} is unchanged" if self.found else f"{self.path} was not created; run the same command again"


@contextmanager
def change_model(path: Path, action: str, backup: bool = True) -> Iterator[Change]:
    """Lock a model file from before it is read until it is replaced: every command changes models in this context.

    The version before the change becomes the backup, for `undo`; without ``backup``, there is none afterwards.
    """
    check_no_folder(path)
    waiting = lock_model(path, waiting=lambda holder: warn(f"waiting for {holder}, which is changing {path}"))
    with waiting, backed_up(path, backup) as update_backup:
        change = Change(path, action, file_version(path), update_backup)
        with stoppable(change.outcome):
            yield change


def changes_of(about: Any) -> list[dict[str, Any]]:
    """List when a model was changed, and by which command; other content is skipped."""
    listed = about.get(HISTORY) if isinstance(about, dict) else None
    known = listed if isinstance(listed, list) else []
    return [one for one in known if isinstance(one, dict) and {"when", "action"} <= one.keys()]


def known_classes(classifier: IncrementalClassifier) -> str:
    """The number of classes, as text."""
    return counted(len(classifier.learner_.classes), "class", "classes")


def report_saved(path: Path, classifier: IncrementalClassifier) -> None:
    """Print the number of classes and the size of a changed model."""
    say(f"{path} now knows {known_classes(classifier)} ({path.stat().st_size / 1e6:.1f} MB; no image is in it).")
    warn_of_one_class(path, classifier)
    if single := single_image_note(classifier):
        warn(f"{single}: add images of it, or see docs/privacy.md")


def warn_of_one_class(path: Path, classifier: IncrementalClassifier) -> None:
    """Warn that a model with one class always predicts it."""
    if len(classifier.learner_.classes) == 1:
        warn(f"{path} knows one class and always predicts it: teach it another class")


# -------------------------------------------------------------------------------------------------------- teach

SETTING = {"method", "effort", "settings", "image_size", "resize_mode"}
CREATING = {*SETTING, "features_from"}
"""Options that take effect only when a model is created."""
MOST_LINES = 12
MOST_DAMAGED = 5


@command(
    "adagauss teach birds.safetensors photos/first-species",
    "adagauss teach birds.safetensors photos/wrens --class Wren",
    "adagauss teach birds.safetensors photos --effort quick",
    "adagauss teach birds.safetensors shards/train-*.tar --jobs 8",
    "adagauss teach garden.safetensors photos/garden --features-from birds.safetensors",
    "adagauss teach all.safetensors birds.safetensors garden.safetensors",
)
def teach(
    context: Context,
    model: Annotated[Path, Argument(metavar="MODEL", help="Model file; created if missing.")],
    sources: Annotated[
        list[Path],
        Argument(
            metavar="SOURCE...",
            help="A folder with one folder of images per class; shards (.tar, .tar.gz, .tgz, .parquet, .npz, or "
            "folders of them); or model files to merge.",
        ),
    ],
    class_name: Annotated[
        str | None, Option("--class", "-c", metavar="NAME", help="All images of the folder are of this class.")
    ] = None,
    nested: Annotated[bool, Option("--nested", help="Allow class folders that hold folders of images only.")] = False,
    groups: Annotated[
        str | None,
        Option(
            metavar="REGEX",
            help="Images of a class with the same match in their paths show one object, e.g. '^[^/]+/' for a "
            "folder per object.",
        ),
    ] = None,
    method: Annotated[
        str | None, Option("--method", "-m", help="Method of a new model; the default does not train the network.")
    ] = None,
    effort: Annotated[str, Option(help="quick takes about half the time of good; replaces --method.")] = "good",
    settings: options.Settings = None,
    image_size: Annotated[int | None, Option(min=1, help="Images are resized to this size, in pixels.")] = None,
    resize_mode: Annotated[str, Option(help="Images of other proportions: auto, crop, stretch or pad.")] = "auto",
    features_from: Annotated[
        Path | None, Option(metavar="MODEL", help="Use the features of this model, so that both can be merged.")
    ] = None,
    jobs: Annotated[
        int | None, Option("--jobs", "-j", min=1, help="Shards read at once, with one thread each.")
    ] = None,
    device: options.Device = "auto",
    skip_bad_images: Annotated[
        bool, Option("--skip-bad", help="Skip images that cannot be decoded, and damaged shards.")
    ] = False,
    again: Annotated[
        bool, Option("--again", help="Teach folders that were taught before: each of their images counts again.")
    ] = False,
    no_backup: options.NoBackup = False,
    quiet: options.Quiet = False,
) -> None:
    """Create a model, or teach it more: new classes, more images of known classes, or both.

    The model stores no images. MODEL is replaced as a whole at the end, so that stopping the command leaves it
    unchanged. Shards are read once, with constant memory. A stopped command has taught the finished shards: the same
    command teaches the others, each once. `adagauss undo` restores the version of MODEL from before the command.
    """
    if class_name is not None and not class_name.strip():
        raise DataError("--class takes a name that is not empty")
    if features_from is not None:
        check_model(features_from)
    if model.is_file():
        check_model(model)
    if any(path.suffix == MODEL_SUFFIX for path in sources):
        _refuse(
            context,
            CREATING | {"class_name", "nested", "groups", "jobs", "again"},
            "{} does not apply to merging models: omit it",
        )
        _merge_models(context, model, sources)
        return
    sources = [*map(resolve_path, sources)]
    if jobs or _are_shards(sources):
        _refuse(context, {"class_name", "nested", "groups", "effort", "again"}, "{} does not apply to shards: omit it")
        _teach_shards(context, model, sources)
    else:
        _teach_folder(context, model, sources[0])


def _are_shards(sources: Sequence[Path]) -> bool:
    """Whether the sources are shard files, folders of them, or several folders."""
    from adagauss.data.folders import IMAGE_SUFFIXES
    from adagauss.data.shards import shard_kind

    if len(sources) > 1:
        return True
    path = sources[0]
    if path.is_dir():
        return any(shard_kind(file) for file in path.iterdir() if file.is_file())
    return path.suffix.lower() not in IMAGE_SUFFIXES


def _teach_folder(context: Context, model: Path, folder: Path) -> None:
    from adagauss.core.learner_state import SOURCES, noted_sources

    class_name = context.params["class_name"]
    with change_model(model, "teach", not context.params["no_backup"]) as change:
        if class_name is None and not context.params["nested"]:
            _check_depth(folder)
        sources = _class_sources(folder, class_name)
        classifier = _open_or_create(context, model)
        if change.found and not context.params["again"]:
            _check_new(change, noted_sources(classifier.learner_.about), sources)
        before = _images(classifier) if change.found else Counter()
        started = perf_counter()
        classifier.partial_fit(folder, class_name, groups=context.params["groups"])
        seconds = perf_counter() - started
        taught = _images(classifier) - before
        noted = noted_sources(about := classifier.learner_.about)
        added = {label: {**noted.get(label, {}), place: stamp} for label, (place, stamp) in sources.items()}
        about[SOURCES] = {**noted, **added}
        change.save(classifier, classes=len(taught), images=taught.total())
    what, images = counted(len(taught), "class", "classes"), counted(taught.total(), "image")
    say(f"Taught {what} from {images} in {seconds:.1f} s:")
    rows = [
        (f"  {clipped(name, 50)}", count, "more images" if name in before else "new") for name, count in taught.items()
    ]
    head, *lines = table(("  class", "images", ""), rows, right=(1,))
    say(head, *first_lines(lines, MOST_LINES))
    report_saved(model, classifier)
    say(f"Next: adagauss predict {shlex.quote(str(model))} PHOTOS")


def _open_or_create(context: Context, model: Path) -> IncrementalClassifier:
    """The model in the file, an empty one with the features of another, or a new one with the given options."""
    from adagauss.classifier import IncrementalClassifier, default_method

    given = context.params
    reading = {"skip_bad": given["skip_bad_images"], "device": given["device"], "quiet": given["quiet"]}
    if model.exists():
        _refuse(
            context,
            CREATING,
            f"{model} exists, and {{}} takes effect only when a model is created: omit it, or choose another file",
        )
        return open_model(model, **reading)
    if (reference := given["features_from"]) is not None:
        _refuse(context, SETTING, f"the new model takes the settings of {reference}: omit {{}}")
        return open_model(reference, **reading).empty_like()
    return IncrementalClassifier(
        # The default by its name, so that the file records it.
        given["method"] or (default_method() if given["effort"] == "good" else None),
        effort=given["effort"],
        settings=parse_settings(given["settings"]) or None,
        image_size=given["image_size"],
        resize_mode=given["resize_mode"],
        skip_bad=given["skip_bad_images"],
        device=given["device"],
        verbose=not given["quiet"],
    )


def _refuse(context: Context, names: set[str], message: str) -> None:
    """Raise with this message if one of these options was given; the option replaces the braces."""
    if found := sorted(names & given_options(context)):
        raise ConfigError(message.format(option_name(context, found[0])))


def _check_depth(folder: Path) -> None:
    """Refuse class folders that hold only folders of images: these may be the classes."""
    from adagauss.data.folders import folders_in, image_files
    from adagauss.data.inputs import nested_folder_example

    folders = folders_in(folder) if folder.is_dir() else []
    if inside := nested_folder_example({path: image_files(path) for path in folders}):
        raise DataError(
            f"{folder}: {inside}. If the inner folders are the classes, teach each outer folder in turn. If each outer "
            "folder is one class, add --nested"
        )


def _class_sources(folder: Path, class_name: str | None) -> dict[str, tuple[str, str]]:
    """The hashed path and the stamp of the folder, or the image, of each class."""
    from adagauss.data.folders import folders_in
    from adagauss.data.images import normal_label
    from adagauss.data.shards import Shard

    path = folder.absolute()
    if class_name is not None or not path.is_dir():
        shards = {str(class_name): Shard(path, "folder" if path.is_dir() else "image")}
    else:
        shards = {one.name: Shard(one, "folder") for one in folders_in(path)}
    return {str(normal_label(label)): (shard.place, shard.stamp()) for label, shard in shards.items()}


def _check_new(change: Change, noted: Mapping[str, Mapping[str, str]], sources: Mapping[str, tuple[str, str]]) -> None:
    """Ask the user before images are taught twice; warn of folders that have changed since they were taught."""
    places = {place for one in noted.values() for place in one}
    stamps = {stamp for one in noted.values() for stamp in one.values()}
    same = [label for label, (_, stamp) in sources.items() if stamp in stamps]
    if changed := [label for label, (place, _) in sources.items() if place in places and label not in same]:
        named = ", ".join(first_lines(changed, MOST_DAMAGED))
        warn(f"taught before, and changed since: {named}. Images that were taught then count twice")
    if same:
        named = ", ".join(first_lines(same, MOST_DAMAGED))
        fact = f"{change.path} was taught these images before, and each would count twice: {named}"
        if (answer := output.confirmed(f"{fact}. Teach them again?")) is None:
            raise DataError(f"{fact}. Leave them out, or add --again")
        if not answer:
            raise output.Stopped(change.outcome())


def _images(classifier: IncrementalClassifier) -> Counter[object]:
    """Number of learned images of each class."""
    return Counter({one.label: one.images for one in classifier.summary()})


def _teach_shards(context: Context, model: Path, sources: Sequence[Path]) -> None:
    from adagauss.analytic.batches import sample_images, teach_shards
    from adagauss.data.shards import find_shards

    given = context.params
    started = perf_counter()
    with change_model(model, "teach", not given["no_backup"]) as change:
        shards = find_shards(sources)  # a wrong path is an error before a model is made
        classifier = _open_or_create(context, model)
        if not model.exists() and given["features_from"] is None:
            classifier = classifier.partial_fit(*sample_images(shards)).empty_like()
        report = teach_shards(
            classifier.learner_,
            sources,
            lambda done: change.save(classifier, shards=done.shards, images=done.images),
            jobs=given["jobs"],
            skip_bad=given["skip_bad_images"],
            reporter=reporter_for(given["quiet"]),
        )
    taught = f"Taught {counted(report.images, 'image')} from {counted(report.shards, 'shard')}"
    say(f"{taught} in {perf_counter() - started:.1f} s; {counted(report.known, 'shard')} already learned.")
    if report.known and any(one["action"] == "forget" for one in changes_of(classifier.learner_.about)):
        say("Classes that were forgotten stay forgotten: to learn them again, teach their images from a folder.")
    if report.skipped_images:
        say(f"{counted(report.skipped_images, 'image')} skipped: cannot be decoded.")
    say(*first_lines([f"Skipped: {reason}" for reason in report.damaged], MOST_DAMAGED, "more shards"))
    report_saved(model, classifier)


def _merge_models(context: Context, target: Path, sources: Sequence[Path]) -> None:
    """Merge models into one file: into an existing model, or two or more into a new one."""
    others = [path for path in sources if path.resolve() != target.resolve()]
    if not target.exists() and len(others) < 2:
        raise CheckpointError(f"there is no model {target} to merge into: name two models, or copy {others[0]}")
    if not others:
        raise CheckpointError(f"{target} cannot be merged into itself: name another model")
    for path in others:
        check_model(path)
    quiet = context.params["quiet"]
    with change_model(target, "merge", not context.params["no_backup"]) as change:
        first, *rest = [target, *others] if change.found else others
        classifier = open_model(first, quiet=quiet)
        for path in rest:
            classifier.merge(open_model(path, quiet=quiet))
        change.save(classifier, classes=len(classifier.learner_.classes))
    report_saved(target, classifier)


# ------------------------------------------------------------------------------------------------------ predict

AT_ONCE = 256
"""Images between two prints, so that long lists show their first predictions soon."""


@command(
    "adagauss predict birds.safetensors photos/ --top 3",
    "adagauss predict birds.safetensors a.jpg b.jpg --unknown 0.05",
    "adagauss predict birds.safetensors photos --csv",
)
def predict(
    model: options.ReadableModel,
    paths: Annotated[list[Path], Argument(metavar="PATH...", help="Images, or folders of images.")],
    top: Annotated[int, Option("--top", "-k", min=1, help="Number of most likely classes to show.")] = 1,
    unknown: Annotated[
        float | None,
        Option(metavar="RATE", help="Label images of other classes unknown, at this false-positive rate, e.g. 0.05."),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="One JSON object per image and line.")] = False,
    as_csv: Annotated[
        bool,
        Option("--csv", help="Comma-separated values, with a heading; ' precedes names that start with =, +, - or @."),
    ] = False,
    skip_bad_images: options.SkipBadImages = False,
    quiet: options.Quiet = False,
) -> None:
    """Predict the class of each image, with its probability."""
    if as_json and as_csv:
        raise ConfigError("--json and --csv are two formats: give only one of them")
    if unknown is not None and not 0 < unknown < 1:
        raise ConfigError(f"--unknown takes a false-positive rate between 0 and 1, e.g. 0.05; got {unknown:g}")
    check_model(model)
    found = [*map(resolve_path, paths)]
    from adagauss.data.folders import images_in

    files = [file for path in found for file in (images_in(path) if path.is_dir() else [path])]
    classifier = open_model(model, skip_bad=skip_bad_images, quiet=quiet)
    warn_of_one_class(model, classifier)
    with stoppable("predictions printed so far are complete"):
        for start in range(0, len(files), AT_ONCE):
            predictions = classifier.classify(files[start : start + AT_ONCE], top=top, unknown=unknown)
            if as_json:
                lines: Iterable[str] = output.json_lines(predictions, flag_unknown=unknown is not None)
            elif as_csv:
                lines = output.csv_lines(predictions, heading=start == 0)
            else:
                lines = output.prediction_lines(predictions)
            for line in lines:
                typer.echo(line)


# --------------------------------------------------------------------------------------------- info and evaluate

MOST_CHANGES = 5


@command(
    "adagauss info birds.safetensors",
    "adagauss info runs/demo/adagauss-seed0 --settings",
)
def info(
    model: options.ReadableModel,
    settings: Annotated[bool, Option("--settings", help="Show its settings and the layer of each.")] = False,
) -> None:
    """Show the classes of a model, its method, what it stores in bytes, and its changes."""
    classifier = open_model(model, quiet=True)
    if settings:
        from adagauss.cli.experiments import show_settings
        from adagauss.experiments.run import RunFolder

        show_settings(classifier.learner_.method, RunFolder(model).origins if model.is_dir() else {})
        return
    for name, text in model_facts(classifier, model):
        output.labelled(f"{name:9}", text, 9)
    say(*class_lines(classifier))


def model_facts(classifier: IncrementalClassifier, path: Path) -> Iterator[tuple[str, str]]:
    """The facts shown above the classes: method, images, last changes, and stored bytes."""
    from adagauss.core.config import old_names
    from adagauss.experiments.run import RunFolder

    learner = classifier.learner_
    method = learner.method
    yield "model", clipped(path, output.width() - 9, keep_end=True)
    yield "knows", f"{known_classes(classifier)}, taught in {counted(len(learner.tasks), 'task')}"
    parts = ", ".join(f"{part.role} {part.kind}" for part in (method.memory, method.drift, method.classifier))
    name = RunFolder(path).settings.get("method_name") if path.is_dir() else classifier.method
    name = old_names()["methods"].get(name, name)
    yield "method", f"{name or f'effort {classifier.effort}'}: {parts}"
    yield "images", "{} channels, {} x {} pixels; resize mode {}".format(*learner.shape, learner.resize_mode)
    trained = "trained" if method.trains else "not trained"
    yield "network", f"{method.backbone.name}, {trained}, {learner.network.extractor.size} features"
    for change in changes_of(learner.about)[-MOST_CHANGES:]:
        counts = [f"{key} {change[key]}" for key in ("classes", "images") if key in change]
        yield "changed", f"{change['when']}  {change['action']}" + (f"; {', '.join(counts)}" if counts else "")
    sizes: Counter[str] = Counter()
    for name, tensor in learner.state.state_dict().items():
        sizes[name.removeprefix("parts.").split(".")[0]] += tensor.numel() * tensor.element_size()
    meanings = {
        "network": "weights of the network",
        "memory": f"mean of each class, covariance: {learner.memory.covariance}, number of images; "
        f"{learner.state.bytes_per_class:,} bytes per class",
        "classifier": "sums and weights of the scores",
        "evidence": "counts and histograms of held-out predictions, per class",
    }
    for group, count in sizes.most_common():
        if count:
            yield "keeps", f"{count:,} bytes: {meanings.get(group, f'state of the part {group}')}"
    single = single_image_note(classifier)
    yield "not kept", f"images, names of files, and features of single images{'; but ' if single else ''}{single}"


def single_image_note(classifier: IncrementalClassifier) -> str:
    """Say that the features of classes of one image are stored; empty without such classes."""
    from adagauss.core.learner_state import single_image_classes

    if not (alone := single_image_classes(classifier.learner_.state)):
        return ""
    names = ", ".join(map(str, alone[:3])) + (" and others" if len(alone) > 3 else "")
    return f"of a class of one image, that image's feature is stored ({names})"


def class_lines(classifier: IncrementalClassifier) -> list[str]:
    """One line per class: images, estimated accuracy, confused classes."""
    from adagauss.core.calibration import MIN_SUMMARY_IMAGES

    summaries = classifier.summary()
    older = [one for one in summaries if one.expected_accuracy is not None and one.among < len(summaries)]
    rows = [
        (
            one.label,
            one.images,
            "" if one.expected_accuracy is None else f"{100 * one.expected_accuracy:.0f}{'*' if one in older else ''}",
            ", ".join(f"{label} {100 * share:.0f} %" for label, share in one.confused_with[:2]),
        )
        for one in summaries
    ]
    lines = ["", *table(("class", "images", "estimated accuracy, %", "confused with"), rows, right=(1, 2))]
    if older:
        lines.append("* measured when fewer classes were known; adagauss evaluate measures it today")
    if any(one.expected_accuracy is None for one in summaries):
        lines.append(f"no estimate: fewer than {MIN_SUMMARY_IMAGES} held-out images; adagauss evaluate measures it")
    return lines


MOST_WORST = 15
ON_SHEET = 24


@command(
    "adagauss evaluate birds.safetensors photos/test",
    "adagauss evaluate birds.safetensors photos/test --figures figures",
)
def evaluate(
    model: options.ReadableModel,
    folder: Annotated[Path, Argument(metavar="FOLDER", help="One folder of images per class.")],
    figures: Annotated[
        Path | None, Option(metavar="FOLDER", help="Draw the worst images and the confusion matrix there.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="All numbers as one JSON object.")] = False,
    skip_bad_images: options.SkipBadImages = False,
    quiet: options.Quiet = False,
) -> None:
    """Show accuracy, the least accurate classes with their confusions, and the calibration error.

    Use images that the model has not learned. Folders of unknown classes are skipped and listed.
    """
    check_model(model)
    folder = resolve_path(folder)
    from adagauss.analysis.predictions import LabelledPrediction, summarise

    classifier = open_model(model, skip_bad=skip_bad_images, quiet=quiet)
    warn_of_one_class(model, classifier)
    files, unknown_folders = _labelled_files(folder, classifier)
    predictions = []
    for one in classifier.classify(list(files), top=len(classifier.learner_.classes)):
        true = files[Path(one.name)]
        predictions.append(LabelledPrediction(one.name, true, *one.top[0], dict(one.top)[true]))
    numbers = {**summarise(predictions), "never_taught": unknown_folders}
    if as_json:
        typer.echo(json.dumps(numbers))
    else:
        _show_evaluation(numbers)
    if figures is not None:
        _draw_evaluation(predictions, figures)


def _labelled_files(folder: Path, classifier: IncrementalClassifier) -> tuple[dict[Path, Any], list[str]]:
    """The class of each image file, and the folders of unknown classes."""
    from adagauss.data.folders import folders_in, images_in
    from adagauss.data.images import normal_label

    known = {str(label): label for label in classifier.learner_.classes}
    folders = {path: normal_label(path.name) for path in folders_in(folder)} if folder.is_dir() else {}
    if not folders:
        raise DataError(f"{folder} holds no class folders: put the images of each class into a folder named after it")
    files = {file: known[name] for path, name in folders.items() if name in known for file in images_in(path)}
    if not files:
        raise DataError(
            f"no folder in {folder} is named after a class of the model (first: {next(iter(folders)).name}; the model "
            f"knows {', '.join(list(known)[:5])}...)"
        )
    return files, [path.name for path, name in folders.items() if name not in known]


def _show_evaluation(numbers: Mapping[str, Any]) -> None:
    percent = {key: 100 * value for key, value in numbers.items() if isinstance(value, float)}
    low, high = (100 * end for end in numbers["accuracy_interval"])
    interval = f"of {numbers['images']} images (95 % interval {low:.1f} to {high:.1f})"
    chance = f"(a perfectly calibrated model would show {percent['calibration_error_by_chance']:.1f} %)"
    say(
        f"accuracy           {percent['accuracy']:.1f} % {interval}",
        f"mean probability   {percent['mean_probability']:.1f} %",
        f"calibration error  {percent['calibration_error']:.1f} % {chance}",
    )
    if numbers["never_taught"]:
        output.labelled("", f"skipped, unknown classes: {', '.join(numbers['never_taught'])}", 4)
    rows = [
        (one["class"], one["images"], f"{100 * one['accuracy']:.1f}", one["confused_with"])
        for one in numbers["classes"]
    ]
    lines = table(("class", "images", "accuracy, %", "most often confused with"), rows, right=(1, 2))
    say("", *first_lines(lines, MOST_WORST, "more accurate classes (--json lists all)"))


def _draw_evaluation(predictions: Sequence[LabelledPrediction], folder: Path) -> None:
    from adagauss.analysis import predictions as metrics
    from adagauss.analysis.figures import confusion_figure, contact_sheet
    from adagauss.analysis.plotting import save_figure

    title = f"accuracy {100 * metrics.accuracy(predictions):.1f} % of {len(predictions)} images"
    pairs = Counter((str(one.true), str(one.predicted)) for one in predictions)
    names = sorted({name for pair in pairs for name in pair})
    counts = [[pairs[true, predicted] for predicted in names] for true in names]
    with output.drawing("the numbers above are complete"):
        save_figure(confusion_figure(counts, names, title), folder / "confusion.png")
        save_figure(contact_sheet(metrics.worst(predictions, ON_SHEET), title), folder / "worst.png")
        say(f"Figures: {folder}/confusion.png, worst.png", error=True)


# ------------------------------------------------------------------------------------------- forget and rename


@command(
    "adagauss forget birds.safetensors Cardinal Bobolink",
    "adagauss forget birds.safetensors Cardinal --images photos/cardinals",
)
def forget(
    model: options.ModelArgument,
    classes: Annotated[list[str], Argument(metavar="CLASS...", help="Names of classes.")],
    images: Annotated[
        Path | None, Option(metavar="FOLDER", help="Images of the class, to remove them exactly.")
    ] = None,
    skip_bad_images: options.SkipBadImages = False,
    yes: Annotated[bool, Option("--yes", help="Do not ask for confirmation.")] = False,
    no_backup: options.NoBackup = False,
) -> None:
    """Forget classes: they are never predicted again, and everything stored for one of them alone is removed.

    `docs/privacy.md` lists what else may remain of a class, by method. With --images (one folder per class, or the
    images of the one class), analytic methods subtract the images from their sums exactly. The version for
    `adagauss undo` still contains the classes: --no-backup deletes it.
    """
    known = _stored_classes(model)
    classes = list(dict.fromkeys(classes))
    labels = [known_label(name, known) for name in classes]
    images = images and resolve_path(images)
    named = ", ".join(map(repr, classes))
    if not yes and output.confirmed(f"Forget {named} in {model}?") is False:
        raise output.Stopped(output.NOTHING_CHANGED)
    with change_model(model, "forget", not no_backup) as change:
        classifier = open_model(model, skip_bad=skip_bad_images, quiet=images is None)
        classifier.forget(*labels, images=images)
        change.save(classifier, classes=len(labels))
    say(f"Forgot {named}; {model} now knows {known_classes(classifier)}.")
    if backup := backup_of(model):
        say(f"{backup.name} contains the version before, for `adagauss undo`: delete it to forget for good.")


def _stored_classes(model: Path) -> list[Any]:
    """The classes of a model file, read before the slow imports."""
    check_no_folder(model)
    try:
        return [label for task in check_model(model)["knowledge"]["tasks"] for label in task]
    except (LookupError, TypeError):
        raise CheckpointError(f"{model} is damaged: its classes cannot be read") from None


@command(
    "adagauss rename birds.safetensors Gray_Catbird Catbird",
    "adagauss rename birds.safetensors Wren_female Wren --merge",
)
def rename(
    model: options.ModelArgument,
    old: Annotated[str, Argument(metavar="OLD", help="A class.")],
    new: Annotated[str, Argument(metavar="NEW", help="Its new name.")],
    merge_classes: Annotated[bool, Option("--merge", help="NEW is a class of the model: merge both.")] = False,
) -> None:
    """Rename a class, or merge it into another."""
    known = _stored_classes(model)
    label = known_label(old, known)
    with change_model(model, "rename") as change:
        classifier = open_model(model, quiet=True)
        if new == str(label):
            raise DataError(f"{new!r} is its name already: nothing was changed")
        if merge_classes:
            classifier.merge_classes(known_label(new, known), label)
        else:
            if not isinstance(label, str) or not new.strip():
                raise DataError("names are text that is not empty; numbers are renamed in Python")
            classifier.rename(label, new)
        change.save(classifier)
    say(f"{old} is part of {new} now." if merge_classes else f"{old} is called {new} now.")


@command("adagauss undo birds.safetensors")
def undo(model: options.ModelArgument) -> None:
    """Restore the version of a model from before the last change; a second undo restores the newer version.

    Commands that change a model keep the version before in the hidden file `.MODEL.before-DIGEST`, unless they get
    --no-backup. A change by `adagauss serve` is undone on its page.
    """
    check_model(model)
    with change_model(model, "undo") as change:
        backup = backup_of(model)
        if backup is None:
            raise CheckpointError(
                f"there is no version of {model} from before its last change: that was the first one, was made with "
                "--no-backup, or by another program"
            )
        facts = check_model(backup)
        move_atomically(backup, model)
        change.finish()
    last = (changes_of(facts.get("about")) or [{"action": "another program", "when": "an unknown date"}])[-1]
    say(f"Restored {model} as saved by {last['action']} on {last['when']}. The same command reverts this.")


def known_label(name: str, classes: list[Any]) -> Any:
    """Find the class of a name, in the exact spelling or with accents composed differently (Unicode NFC)."""
    names = {str(label): label for label in classes}
    for given in (name, unicodedata.normalize("NFC", name)):  # `normal_label` without torch
        if given in names:
            return names[given]
    raise unknown_name("class", name, names)


# --------------------------------------------------------------------------------------------- export and serve


@command(
    "adagauss export birds.safetensors birds.onnx",
)
def export(
    model: options.ReadableModel,
    out: Annotated[Path, Argument(metavar="OUT.onnx", help="File to write.")],
) -> None:
    """Write a model as one ONNX file with the image preparation inside; it needs only onnxruntime to run."""
    if out.suffix != ".onnx":
        raise ConfigError(f"{out} should end in .onnx, by which other programs recognise it")
    classifier = open_model(model, quiet=True)
    classifier.export(out)
    say(f"Wrote {out} ({out.stat().st_size / 1e6:.1f} MB): {known_classes(classifier)}, named in its metadata.")


@command(
    "adagauss serve birds.safetensors",
    'adagauss serve birds.safetensors --host 0.0.0.0 --token "$(openssl rand -hex 16)"',
)
def serve(
    model: Annotated[Path, Argument(metavar="MODEL", help="Model file; created if missing.")],
    host: Annotated[str, Option(help="Address to listen on. Non-loopback addresses require --token.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    token: Annotated[str | None, Option(envvar="ADAGAUSS_TOKEN", help="Token that every request must send.")] = None,
) -> None:
    """Serve a page to teach and try a model, and the same by REST (extra: serve)."""
    check_no_folder(model)
    from adagauss.deploy.serve import main

    with stoppable(f"the model is saved in {model}"):
        main(model, host, port, token)
