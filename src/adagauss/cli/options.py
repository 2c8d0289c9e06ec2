"""Options that several commands share, settings given with ``--set``, and old names of commands and options."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from adagauss.cli.output import warn
from adagauss.errors import ConfigError

if TYPE_CHECKING:
    from adagauss.data.dataset import ReadOptions
    from adagauss.data.stream import StreamConfig
    from adagauss.experiments.protocols import Protocol
    from adagauss.utils.progress import Reporter

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="File of a model.")]
ReadableModel = Annotated[Path, typer.Argument(metavar="MODEL", help="File of a model, or a run folder.")]
RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; seeds are averaged.")]
DataRoot = Annotated[Path, typer.Option("--data-root", envvar="ADAGAUSS_DATA", help="Folder that holds the datasets.")]
DatasetName = Annotated[
    str,
    typer.Option(
        "--dataset", "-d", help="Dataset by name (see `adagauss list datasets`), or a folder with one folder per class."
    ),
]
Tasks = Annotated[
    str,
    typer.Option("--tasks", "-t", help="Number of tasks; or classes of each task (4,3,3) or of the first task (50+5)."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Change one setting, e.g. classifier.pooled_shrinkage=0.5; of a run also, e.g., stream.classes=20 or "
        "runtime.precision=bf16-mixed. Repeatable.",
    ),
]
Preset = Annotated[str | None, typer.Option("--preset", "-p", help="Preset of the method, e.g. paper.")]
Epochs = Annotated[int | None, typer.Option("--epochs", "-e", min=1, help="Epochs per task.")]
Seeds = Annotated[str, typer.Option("--seeds", help="Seeds separated by commas.")]
ProtocolName = Annotated[
    str | None,
    typer.Option("--protocol", "-P", help="Protocol by name, e.g. cifar100-10; it sets dataset, tasks and settings."),
]
ProtocolScale = Annotated[
    str | None,
    typer.Option("--scale", help="paper; cpu: a small network and few epochs; few: also 2 classes per task."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars, no summary first; results only.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:1.")]
SkipBadImages = Annotated[
    bool, typer.Option("--skip-bad", help="Skip image files that cannot be decoded, instead of stopping.")
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Runs at a time; without another engine, processes of one thread each."),
]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME[=ADDRESS]",
        help="Where runs are computed: local, dask, ray or slurm, e.g. dask=tcp://host:8786, slurm=PARTITION.",
    ),
]
Loggers = Annotated[
    list[str] | None,
    typer.Option(
        "--logger",
        metavar="LOGGER",
        help="tensorboard or wandb, in addition to the log.csv of each run. Repeatable.",
    ),
]


def examples(*commands: str) -> str:
    """The epilog of a help text."""
    return "**Examples:**\n\n" + "\n\n".join(f"`{command}`" for command in commands)


# ---------------------------------------------------------------------------------------------------- old names


OLD_COMMANDS = {
    "backbones": "list backbones",
    "datasets": "list datasets",
    "gather": "teach",
    "merge": "teach",
    "methods": "list methods",
    "protocols": "list protocols",
    "replay": "rescore",
}
OLD_OPTIONS: Mapping[str, str] = {
    "--class-order-seed": "--set stream.class_order=seeded --set stream.class_order_seed={}",
    "--classes": "--set stream.classes={}",
    "--compile": "--set runtime.compile=true",
    "--dask": "--engine dask={}",
    "--first": "--set stream.first={}",
    "--join": "--merge",
    "--log": "--logger {}",
    "--precision": "--set runtime.precision={}",
    "--ray": "--engine ray={}",
    "--sizes": "--tasks {}",
    "--slurm": "--engine slurm={}",
    "--train-blocks": "--set backbone.train_blocks={}",
    "compare --image-size": "--set stream.image_size={}",
    "compare --skip-bad": "--set stream.skip_bad_images=true",
    "rescore --like": "--parts-from {}",
    "rescore -l": "--parts-from {}",
    "teach --epochs": "--set representation.first.epochs={0} --set representation.later.epochs={0}",
    "teach --like": "--features-from {}",
    "run --image-size": "--set stream.image_size={}",
    "tune --image-size": "--set stream.image_size={}",
    "tune --skip-bad": "--set stream.skip_bad_images=true",
}
"""Old options, of all commands or of one; the value replaces the braces."""


class Commands(TyperGroup):
    """Commands that can also be called by their old names, with a note."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, current_words(args))


def current_words(words: Sequence[str]) -> list[str]:
    """Replace old names of commands and options, with a note on each.

    >>> current_words(["rename", "m.safetensors", "a", "b", "--join"])
    ['rename', 'm.safetensors', 'a', 'b', '--merge']
    """
    command, *rest = words
    if command in OLD_COMMANDS:
        command, *kind = OLD_COMMANDS[command].split()
        rest = [*kind, *rest]
        if words[0] == "merge" and "--into" in rest[:-1]:  # MODEL OTHER --into OUT
            place = rest.index("--into")
            rest = [rest[place + 1], *rest[:place], *rest[place + 2 :]]
        if words[0] == "datasets":
            rest = ["--fetch" if word == "fetch" else word for word in rest]
        warn(f"`adagauss {words[0]}` is deprecated: use `adagauss {shlex.join([command, *rest])}`")
    found = [command]
    while rest:
        if rest[0] == "--":
            return [*found, *rest]
        option, sign, value = rest.pop(0).partition("=")
        if template := OLD_OPTIONS.get(f"{command} {option}", OLD_OPTIONS.get(option)):
            if "{" in template and not sign and rest:
                value = rest.pop(0)
            new = [word.format(value) for word in template.split()]
            warn(f"{option} is deprecated: use {shlex.join(new)}")
            found += new
        else:
            found.append(option + sign + value)
    return found


# ----------------------------------------------------------------------------------------------- given options


def given_options(context: typer.Context) -> set[str]:
    """Parameters that were given on the command line."""
    return {name for name in context.params if str(context.get_parameter_source(name)).endswith("COMMANDLINE")}


def option_name(context: typer.Context, parameter: str) -> str:
    """The option of a parameter, e.g. ``--skip-bad``."""
    return next(one.opts[0] for one in context.command.params if one.name == parameter)


def parse_settings(pairs: Sequence[str] | None) -> dict[str, Any]:
    """``["a.b=1", "c=none"]`` as ``{"a.b": 1, "c": "none"}``; values are read as YAML."""
    from adagauss.utils.files import YamlError, parse_yaml

    settings: dict[str, Any] = {}
    for pair in pairs or []:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise ConfigError(f"--set takes KEY=VALUE, e.g. --set classifier.pooled_shrinkage=0.5; got {pair!r}")
        try:
            read = parse_yaml(value)
        except YamlError as error:
            raise ConfigError(
                f"--set {pair[:80]}: the value cannot be read ({error}): close its brackets, or quote it if it is text"
            ) from error
        # A name that ends in a colon, such as timm:, is an incomplete name, not a mapping.
        settings[key.strip()] = value.strip() if isinstance(read, dict) and value.rstrip().endswith(":") else read
    return settings


def parse_numbers(text: str, option: str, example: str = "0,1,2") -> list[int]:
    """``"0,1,2"`` as numbers."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} takes numbers separated by commas, e.g. {example}; got {text!r}") from None


def run_settings(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Divide settings into those of ``stream``, of ``runtime`` and, under ``method``, all others."""
    found: dict[str, dict[str, Any]] = {"stream": {}, "runtime": {}, "method": {}}
    for key, value in given.items():
        section, _, name = key.partition(".")
        if section in ("stream", "runtime") and name:
            found[section][name] = value
        else:
            found["method"][key] = value
    return found


def chosen_stream(context: typer.Context, settings: Mapping[str, Any]) -> tuple[Protocol | None, StreamConfig]:
    """The protocol that was named, if any, and the tasks: its own, or those that options and settings choose."""
    from adagauss.data.stream import StreamConfig
    from adagauss.experiments.protocols import protocol

    given = context.params
    names = [name for name in ("dataset", "tasks", "class_order", "skip_bad_images") if name in given]
    if given["protocol"]:
        if both := [option_name(context, name) for name in names if name in given_options(context)]:
            raise ConfigError(f"{both[0]} and --protocol both choose the tasks: give only one of them")
        if settings:
            raise ConfigError(
                f"--set stream.{next(iter(settings))} and --protocol both choose the tasks: give only one"
            )
        chosen = protocol(given["protocol"], given["scale"])
        return chosen, chosen.stream
    options: dict[str, Any] = {name: given[name] for name in names if given[name] is not None}
    options |= {"dataset": dataset_name(given["dataset"]), **task_settings(options.pop("tasks"))}
    if "," in options.get("class_order", ""):
        options["class_order"] = [word.strip() for word in options["class_order"].split(",")]
    return None, StreamConfig.of({**options, **settings}, where="stream.")


def task_settings(text: str) -> dict[str, Any]:
    """The settings of the stream that ``--tasks`` describes.

    >>> task_settings("5"), task_settings("4,3,3"), task_settings("50+5")
    ({'tasks': 5}, {'sizes': [4, 3, 3]}, {'first': 50, 'tasks': 6})
    """
    first, plus, rest = text.partition("+")
    if plus:
        (first_number,), (rest_number,) = (parse_numbers(part, "--tasks", "5, 4,3,3 or 50+5") for part in (first, rest))
        return {"first": first_number, "tasks": rest_number + 1}
    numbers = parse_numbers(text, "--tasks", "5, 4,3,3 or 50+5")
    return {"sizes": numbers} if len(numbers) > 1 else {"tasks": numbers[0]}


def dataset_name(given: str) -> str:
    """The name of a dataset; a path of a folder stands for ``folder:PATH``, unless a dataset has this name."""
    from adagauss.data.dataset import datasets

    if given in datasets() or given.partition(":")[0] in datasets():
        return given
    path = Path(given).expanduser()
    looks_like_path = path.name != given or path.is_dir()
    return f"folder:{path}" if looks_like_path else given


def make_reporter(quiet: bool) -> Reporter:
    """Progress bars or lines on the error stream, or nothing."""
    from rich.console import Console

    from adagauss.utils.progress import Reporter, reporter_for

    return Reporter() if quiet else reporter_for(Console(stderr=True))


def read_options(root: Path, stream: StreamConfig, reporter: Reporter) -> ReadOptions:
    """Options of the dataset readers: the data root, and how the stream reads image files."""
    from adagauss.data.dataset import ReadOptions

    return ReadOptions(root=root, skip_bad_images=stream.skip_bad_images, size=stream.image_size, reporter=reporter)
