"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagauss.errors import ConfigError

if TYPE_CHECKING:
    from adagauss.data.dataset import ReadOptions
    from adagauss.data.stream import StreamConfig
    from adagauss.experiments.protocols import Protocol
    from adagauss.utils.progress import Reporter

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="File of a model.")]
ReadableModel = Annotated[Path, typer.Argument(metavar="MODEL", help="File of a model, or a run folder.")]
DataRoot = Annotated[
    Path, typer.Option("--data-root", envvar="ADAGAUSS_DATA", help="Folder that holds the datasets.", show_default=True)
]
DatasetName = Annotated[
    str,
    typer.Option(
        "--dataset", "-d", help="Dataset by name (see `adagauss list datasets`), or a folder with one folder per class."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="Change one setting, e.g. classifier.pooled_shrinkage=0.5. Repeatable."
    ),
]
ProtocolName = Annotated[
    str | None,
    typer.Option("--protocol", "-P", help="Protocol by name, e.g. cifar100-10; it sets dataset, tasks and settings."),
]
ProtocolScale = Annotated[
    str | None,
    typer.Option("--scale", help="paper; cpu: a small network and few epochs; few: also 2 classes per task."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars, no summary first; results only.")]
HiddenQuiet = Annotated[bool, typer.Option("--quiet", "-q", hidden=True, help="No progress bars.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:1.")]
Workers = Annotated[int, typer.Option("--workers", min=1, hidden=True, help="Threads that decode image files.")]
SkipBadImages = Annotated[
    bool, typer.Option("--skip-bad", help="Skip image files that cannot be decoded, instead of stopping.")
]

Loggers = Annotated[
    list[str] | None,
    typer.Option(
        "--logger",
        "--log",
        metavar="LOGGER",
        help="tensorboard, mlflow or wandb, in addition to the log.csv of each run. Repeatable.",
    ),
]


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


def dataset_name(given: str) -> str:
    """The name of a dataset; a path of a folder stands for ``folder:PATH``, unless a dataset is called so."""
    from adagauss.data.dataset import datasets

    if given in datasets() or given.partition(":")[0] in datasets():
        return given
    path = Path(given).expanduser()
    looks_like_path = path.name != given or path.is_dir()
    return f"folder:{path}" if looks_like_path else given


def parse_numbers(text: str, option: str, example: str = "0,1,2") -> list[int]:
    """``"0,1,2"`` as numbers."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} takes numbers separated by commas, e.g. {example}; got {text!r}") from None


def make_reporter(quiet: bool) -> Reporter:
    """Progress bars or lines on the error stream, or nothing."""
    from rich.console import Console

    from adagauss.utils.progress import Reporter, reporter_for

    return Reporter() if quiet else reporter_for(Console(stderr=True))


def read_options(root: Path, stream: StreamConfig, workers: int, reporter: Reporter) -> ReadOptions:
    """Options of the dataset readers: the data root, and how the stream reads image files."""
    from adagauss.data.dataset import ReadOptions

    return ReadOptions(
        root=root,
        workers=workers,
        skip_bad_images=stream.skip_bad_images,
        size=stream.image_size,
        reporter=reporter,
    )


def refuse_with_protocol(context: typer.Context, names: Sequence[str]) -> None:
    """Refuse options that choose the tasks together with a protocol, which would silently override them."""
    if context.params.get("protocol") and (given := set(names) & given_options(context)):
        option = "--" + sorted(given)[0].replace("_", "-")
        raise ConfigError(f"{option} and --protocol both choose the tasks: give only one of them")


def chosen_stream(context: typer.Context) -> tuple[Protocol | None, StreamConfig]:
    """The protocol that was named, if any, and the tasks: its own, or those that the options choose."""
    from adagauss.data.stream import StreamConfig
    from adagauss.experiments.protocols import protocol

    names = ("dataset", "tasks", "classes", "image_size", "skip_bad_images")
    refuse_with_protocol(context, names)
    given = context.params
    if given["protocol"]:
        chosen = protocol(given["protocol"], given.get("scale"))
        return chosen, chosen.stream
    return None, StreamConfig.of({**{name: given[name] for name in names}, "dataset": dataset_name(given["dataset"])})


def given_options(context: typer.Context) -> set[str]:
    """Options that were given on the command line."""
    return {name for name in context.params if str(context.get_parameter_source(name)).endswith("COMMANDLINE")}
