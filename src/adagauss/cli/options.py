"""The list of commands, the options that several of them share, and the objects that these options select."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Argument, Context, Option

from adagauss.errors import ConfigError
from adagauss.utils.progress import reporter_for

if TYPE_CHECKING:
    from adagauss.data.dataset import ReadOptions
    from adagauss.data.stream import StreamConfig
    from adagauss.experiments.config import RunConfig
    from adagauss.experiments.grid import Workers
    from adagauss.experiments.protocols import Protocol
    from adagauss.utils.progress import Reporter
    from adagauss.utils.runtime import RuntimeConfig

Command = TypeVar("Command", bound=Callable[..., Any])
ModelArgument = Annotated[Path, Argument(metavar="MODEL", help="File of a model.")]
ReadableModel = Annotated[Path, Argument(metavar="MODEL", help="File of a model, or a run folder.")]
RunFolders = Annotated[
    list[Path], Argument(metavar="RUN...", help="Run folders or folders of them; seeds are averaged.")
]
DataRoot = Annotated[Path, Option("--data-root", envvar="ADAGAUSS_DATA", help="Folder that holds the datasets.")]
DatasetName = Annotated[
    str,
    Option(
        "--dataset", "-d", help="Dataset by name (see `adagauss list datasets`), or a folder with one folder per class."
    ),
]
Tasks = Annotated[
    str, Option("--tasks", "-t", help="Number of tasks; or classes of each task (4,3,3) or of the first task (50+5).")
]
Settings = Annotated[
    list[str] | None,
    Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Change one setting, e.g. classifier.pooled_shrinkage=0.5; of a run also, e.g., stream.classes=20 or "
        "runtime.precision=bf16-mixed. Repeatable.",
    ),
]
Preset = Annotated[str | None, Option("--preset", "-p", help="Preset of the methods that have it, e.g. paper.")]
Epochs = Annotated[int | None, Option("--epochs", "-e", min=1, help="Epochs per task.")]
Seeds = Annotated[str, Option("--seeds", help="Seeds separated by commas.")]
ProtocolName = Annotated[
    str | None,
    Option("--protocol", "-P", help="Protocol by name, e.g. cifar100-10; it sets dataset, tasks and settings."),
]
ProtocolScale = Annotated[
    str | None,
    Option("--scale", help="paper; cpu: small network, few epochs; few: also 2 classes a task; fast: an hour."),
]
FirstTasks = Annotated[
    int | None, Option("--first-tasks", min=1, help="Only this many first tasks, and their classes.")
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="No progress bars, no summary first; results only.")]
Device = Annotated[str, Option("--device", help="auto, cpu, cuda or cuda:1.")]
SkipBadImages = Annotated[
    bool, Option("--skip-bad", help="Skip image files that cannot be decoded, instead of stopping.")
]
NoBackup = Annotated[bool, Option("--no-backup", help="Keep no backup for `adagauss undo`, and delete the last one.")]
Jobs = Annotated[
    int | None,
    Option("--jobs", "-j", min=1, help="Runs at a time; without another engine, processes of one thread each."),
]
EngineName = Annotated[
    str | None,
    Option(
        "--engine",
        metavar="NAME[=ADDRESS]",
        help="Where runs are computed: local, dask, ray or slurm, e.g. dask=tcp://host:8786, slurm=PARTITION.",
    ),
]
LoggerName = Annotated[
    str | None,
    Option(
        "--logger", metavar="LOGGER", help="tensorboard: write its files into each run folder, in addition to log.csv."
    ),
]


MODELS = "Models: teach your own photographs"
RESEARCH = "Research: methods on streams of tasks"
app = typer.Typer(
    name="adagauss",
    help="Exemplar-free class-incremental learning: teach a classifier new classes without keeping old data.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def examples(*commands: str) -> str:
    """The epilog of a help text."""
    return "**Examples:**\n\n" + "\n\n".join(f"`{command}`" for command in commands)


def command(panel: str, *shown: str, name: str | None = None) -> Callable[[Command], Command]:
    """Add a function to the commands, with examples in its help text."""
    return app.command(name, rich_help_panel=panel, epilog=examples(*shown))


# ----------------------------------------------------------------------------------------------- given options


def given_options(context: Context) -> set[str]:
    """Parameters that were given on the command line."""
    return {name for name in context.params if str(context.get_parameter_source(name)).endswith("COMMANDLINE")}


def option_name(context: Context, parameter: str) -> str:
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
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0:
        raise ConfigError(f"{option} takes numbers separated by commas, e.g. {example}; got {text!r}")
    return numbers


def settings_file(path: Path | None) -> dict[str, Any]:
    """The settings in a YAML file, nested or dotted."""
    from adagauss.core.config import flatten
    from adagauss.utils.files import YamlError, read_yaml

    if path is None:
        return {}
    try:
        data = read_yaml(path)
    except (OSError, YamlError) as error:
        raise ConfigError(f"--config {path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"--config {path} must hold settings, such as 'classifier: {{pooled_shrinkage: 0.5}}'")
    return flatten(data)


TASK_SETTINGS = ("dataset", "tasks", "first", "sizes", "classes")
"""Settings of the stream that a protocol chooses; ``--set`` changes the others."""


@dataclass(frozen=True)
class Experiment:
    """Tasks, settings of methods and runtime, from the options of `run`, `compare` and `tune`."""

    protocol: Protocol | None
    stream: StreamConfig
    settings: dict[str, Any]
    """Settings of the methods; those of ``stream`` and ``runtime`` are in these objects."""
    runtime: RuntimeConfig
    data: ReadOptions
    reporter: Reporter

    @classmethod
    def of(cls, context: Context) -> Experiment:
        """Read the options of a command, and raise if two of them contradict each other."""
        from adagauss.core.config import plain
        from adagauss.data.stream import StreamConfig
        from adagauss.experiments.protocols import first_tasks, protocol
        from adagauss.utils.runtime import RuntimeConfig

        given = context.params
        settings = {**settings_file(given.get("config")), **parse_settings(given["settings"])}
        changes, runtime = section(settings, "stream"), section(settings, "runtime")
        chosen = protocol(given["protocol"], given["scale"]) if given["protocol"] else None
        if given["scale"] and chosen is None:
            raise ConfigError("--scale changes the settings of a protocol: name it with --protocol")
        if chosen is None:
            tasks = {"dataset": dataset_name(given["dataset"]), **task_settings(given["tasks"])}
            stream = StreamConfig.of({**tasks, **changes}, where="stream.")
        else:
            both = [f"--{name}" for name in ("dataset", "tasks") if name in given_options(context)]
            if both := [*both, *(f"--set stream.{name}" for name in changes if name in TASK_SETTINGS)]:
                raise ConfigError(f"{both[0]} and --protocol both choose the tasks: give only one of them")
            stream = StreamConfig.of({**plain(chosen.stream), **changes}, where="stream.")
        if given.get("only_first"):
            stream = first_tasks(stream, given["only_first"])
        reporter = reporter_for(given["quiet"])
        return cls(
            chosen,
            stream,
            settings,
            RuntimeConfig.of({"device": given["device"], **runtime}, "runtime."),
            read_options(given["data_root"], stream, reporter),
            reporter,
        )

    def config(self, given: Mapping[str, Any]) -> RunConfig:
        """The configuration of a run of the given method, preset, epochs and seed."""
        from adagauss.experiments.config import make_config

        config = make_config(
            given["method"],
            self.stream,
            preset=given["preset"],
            settings=self.settings,
            epochs=given["epochs"],
            seed=given["seed"],
            runtime=self.runtime,
            protocol=self.protocol,
        )
        if self.protocol is not None:
            self.protocol.check_weights(config.method)
        return config


@contextmanager
def workers(
    context: Context, out: Path, data: ReadOptions, most: int | None = None, device: str = "auto"
) -> Iterator[Workers]:
    """Open the engine that ``--engine`` and ``--jobs`` choose; ``most`` runs at a time without ``--jobs``."""
    from adagauss.experiments.engines import open_executor
    from adagauss.experiments.grid import Workers

    given = context.params
    gpus = int(device.startswith("cuda"))
    with open_executor(out, given["engine_name"], jobs=given["jobs"], gpus=gpus) as executor:
        yield Workers(executor, given["jobs"] or most, data, data.reporter)


def section(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """Take the settings of a section, such as ``stream``, out of all settings."""
    keys = [key for key in settings if key.startswith(f"{name}.")]
    return {key.partition(".")[2]: settings.pop(key) for key in keys}


def task_settings(text: str) -> dict[str, Any]:
    """The settings of the stream that ``--tasks`` describes.

    >>> task_settings("5"), task_settings("4,3,3"), task_settings("50+5")
    ({'tasks': 5}, {'sizes': [4, 3, 3]}, {'first': 50, 'tasks': 6})
    """
    numbers = [parse_numbers(part, "--tasks", "5, 4,3,3 or 50+5") for part in text.split("+")]
    match numbers:
        case [[tasks]]:
            return {"tasks": tasks}
        case [sizes]:
            return {"sizes": sizes}
        case [[first], [later]]:
            return {"first": first, "tasks": later + 1}
    raise ConfigError(f"--tasks takes numbers, e.g. 5, 4,3,3 or 50+5; got {text!r}")


def dataset_name(given: str) -> str:
    """The name of a dataset; a path of a folder stands for ``folder:PATH``, unless a dataset has this name."""
    from adagauss.data.dataset import is_dataset

    if is_dataset(given) or ".py:" in given:
        return given
    path = Path(given).expanduser()
    looks_like_path = path.name != given or path.is_dir()
    return f"folder:{path}" if looks_like_path else given


def read_options(root: Path, stream: StreamConfig, reporter: Reporter) -> ReadOptions:
    """Options of the dataset readers: the data root, and how the stream reads image files."""
    from adagauss.data.dataset import ReadOptions

    return ReadOptions(root=root, skip_bad_images=stream.skip_bad_images, size=stream.image_size, reporter=reporter)
