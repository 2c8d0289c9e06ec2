"""`adagauss run`: one method through one stream of tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagauss.cli.options import (
    DataRoot,
    DatasetName,
    Device,
    NoCache,
    ProtocolName,
    Quiet,
    Settings,
    SkipBadImages,
    Trackers,
    Workers,
    dataset_name,
    given_options,
    make_reporter,
    parse_numbers,
    parse_settings,
    read_options,
    refuse_beside_protocol,
)
from adagauss.cli.processes import BatchNorm, Devices, Nodes, Order, layout_of, run_together
from adagauss.cli.stopping import stoppable
from adagauss.errors import CheckpointError, ConfigError
from adagauss.utils.progress import escape_control_chars

if TYPE_CHECKING:
    from adagauss.data.dataset import Dataset, ReadOptions
    from adagauss.experiments.config import RunConfig
    from adagauss.utils.progress import Reporter

STREAM_OPTIONS = (
    "dataset",
    "tasks",
    "first",
    "sizes",
    "classes",
    "class_order",
    "class_order_seed",
    "image_size",
    "skip_bad_images",
)
NOT_CONFIGURATION = {"out", "resume", "quiet", "show_config", "data_root", "workers", "no_cache", "log"}
NOT_CONFIGURATION |= {"devices", "nodes", "batch_norm"}
"""Options that do not change what is computed, and so may accompany a bare ``--resume``."""

EXAMPLES = """**Examples:**

`adagauss run --dataset digits --tasks 5`

`adagauss run --dataset photos/birds --tasks 3 --method exact`

`adagauss run --dataset photos/birds --class-order wren,robin,owl --tasks 3`

`adagauss run --protocol cifar100-10 --seed 1 --out runs/cifar`

`adagauss run -d digits -s drift.kind=affine -s classifier.tied=0.5`

`adagauss run --out runs/cifar --resume`

`adagauss run --protocol cifar100-10 --devices 4`
"""


def register(app: typer.Typer, panel: str) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel, epilog=EXAMPLES)(run)


def run(
    context: typer.Context,
    method: Annotated[str, typer.Option("--method", "-m", help="Method by name; see `adagauss methods`.")] = "adagauss",
    dataset: DatasetName = "digits",
    tasks: Annotated[int, typer.Option("--tasks", "-t", min=1, help="Number of tasks.")] = 5,
    protocol: ProtocolName = None,
    first: Annotated[int | None, typer.Option("--first", help="Classes in the first task; the rest equally.")] = None,
    sizes: Annotated[str | None, typer.Option("--sizes", help="Classes of each task, e.g. 4,3,3.")] = None,
    classes: Annotated[int | None, typer.Option("--classes", help="Use only the first N classes.")] = None,
    class_order: Annotated[
        str | None,
        typer.Option("--class-order", help="natural, icarl, seeded, per-run, or classes by name or position: 3,1,2"),
    ] = None,
    class_order_seed: Annotated[
        int | None, typer.Option("--class-order-seed", min=0, help="Shuffle the classes with this seed.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=1, help="Side in pixels that image files are resized to.")
    ] = None,
    preset: Annotated[str | None, typer.Option("--preset", "-p", help="Preset of the method, e.g. paper.")] = None,
    train_blocks: Annotated[
        str | None, typer.Option("--train-blocks", help="Blocks of the network that learn: all, none or last:N.")
    ] = None,
    settings: Settings = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="YAML file of settings, nested or dotted.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", "-e", min=1, help="Epochs per task; an adapter gets half as many.")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of all random choices; of the class order only if it is per-run.")
    ] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Run folder; named after the run by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
    diagnostics: Annotated[
        str,
        typer.Option(
            "--diagnostics",
            help="Measure real statistics of old classes: none, last or every task; features: last, and keep "
            "features of some test images for a figure.",
        ),
    ] = "last",
    log: Trackers = None,
    device: Device = "auto",
    devices: Devices = 1,
    nodes: Nodes = 1,
    batch_norm: BatchNorm = "global",
    precision: Annotated[str, typer.Option("--precision", help="32-true, 16-mixed or bf16-mixed.")] = "32-true",
    compile_: Annotated[bool, typer.Option("--compile", help="Compile the network for training.")] = False,
    data_root: DataRoot = Path("data"),
    workers: Workers = 2,
    no_cache: NoCache = False,
    skip_bad_images: SkipBadImages = False,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Show all settings first, as config.yaml in the run folder.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a method on a stream of tasks, evaluate it after each task, and write a run folder.

    A run can be killed at any moment: with --resume it continues and ends with the same numbers.
    """
    from adagauss.analysis.figures import write_figures
    from adagauss.cli import tables
    from adagauss.cli.drawing import drawing
    from adagauss.data.dataset import short_name
    from adagauss.distributed.launch import first_here
    from adagauss.experiments.logs import RunLog
    from adagauss.experiments.run import RunFolder
    from adagauss.experiments.runner import run as run_benchmark

    first = devices * nodes == 1 or first_here()
    quiet = quiet or not first
    reporter = make_reporter(quiet)
    resolved, data, options = _resolve(context, reporter)
    layout = layout_of(devices, nodes, batch_norm, resolved)
    place = protocol or re.sub(r"[^\w.+-]+", "_", f"{short_name(resolved.stream.dataset)}-{tasks}")
    out = out or Path("runs") / place / f"{method}-{resolved.digest()}-seed{seed}"
    if show_config and first:
        write_config(resolved)
    elif not quiet:
        write_summary(resolved, out, parse_settings(settings))
    with stoppable(f"finished tasks are kept: `adagauss run --out {out} --resume` goes on with the same numbers"):
        if layout.several:
            del data  # every process reads its own
            order = Order(resolved, out, resume, data_root, workers, no_cache, quiet, log or ())
            result = run_together(layout, order)
            if result is None:
                return
        else:
            result = run_benchmark(
                resolved, out, resume=resume, reporter=reporter, options=options, dataset=data, trackers=log or ()
            )
    tables.show({resolved.method_name: [result]}, result)
    typer.echo(escape_control_chars(f"Run folder: {out}"))
    with drawing(f"the run is complete in {out}, and `adagauss run --out {out} --resume` draws them"):
        folder = RunFolder(out)
        figures = write_figures(folder)
        if log:
            with folder.lock(), RunLog(folder, log, reporter=reporter) as kept:
                kept.figures(figures)
        typer.echo(escape_control_chars(f"Figures there: {', '.join(path.name for path in figures)}"))


def _resolve(context: typer.Context, reporter: Reporter) -> tuple[RunConfig, Dataset, ReadOptions]:
    """The configuration given by the options, or that of the run folder if it is only resumed; and its dataset."""
    from adagauss.data.dataset import load_dataset
    from adagauss.data.stream import StreamConfig
    from adagauss.experiments.config import make_config
    from adagauss.experiments.protocols import protocol as protocol_by_name
    from adagauss.experiments.run import RunFolder, stored_config
    from adagauss.experiments.runner import make_stream
    from adagauss.utils.runtime import Runtime, RuntimeConfig

    given = context.params
    protocol = protocol_by_name(given["protocol"]) if given["protocol"] else None
    refuse_beside_protocol(context, STREAM_OPTIONS)
    out = given["out"]
    if given["resume"] and out is not None and not RunFolder(out).exists():
        raise CheckpointError(f"{out} holds no run to resume: it has no config.yaml")
    if given["resume"] and out is not None and RunFolder(out).exists() and not _configures(context):
        stored = stored_config(RunFolder(out))
        options = read_options(given["data_root"], stored.stream, given["workers"], reporter, given["no_cache"])
        return stored, load_dataset(stored.stream.dataset, options), options
    stream = protocol.stream if protocol else StreamConfig.of(_stream_settings(given), where="stream.")
    options = read_options(given["data_root"], stream, given["workers"], reporter, given["no_cache"])
    runtime = {"device": given["device"], "precision": given["precision"], "compile": given["compile_"]}
    data = load_dataset(stream.dataset, options)
    config = make_config(
        given["method"],
        stream,
        preset=given["preset"],
        settings={**_settings_file(given["config"]), **_named_settings(given), **parse_settings(given["settings"])},
        epochs=given["epochs"],
        seed=given["seed"],
        runtime=RuntimeConfig.of(runtime, "runtime."),
        diagnostics=_diagnostics(given["diagnostics"]),
        protocol=protocol,
    )
    if protocol is not None:
        protocol.check_weights(config.method)
    make_stream(config, data)
    Runtime(config.runtime).check()
    return config, data, options


def _named_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that have their own options."""
    return {"backbone.train_blocks": given["train_blocks"]} if given["train_blocks"] else {}


def _stream_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    names = ("dataset", "tasks", "first", "classes", "class_order_seed", "image_size", "skip_bad_images")
    sizes = parse_numbers(given["sizes"], "--sizes", "4,3,3") if given["sizes"] else None
    order = given["class_order"]
    if order and "," in order:
        order = [word.strip() for word in order.split(",")]
    if given["class_order_seed"] is not None:
        if order not in (None, "seeded"):
            raise ConfigError(f"--class-order-seed shuffles the classes, and --class-order {order} does not: give one")
        order = "seeded"
    chosen = {name: given[name] for name in names if given[name] is not None}
    return {**chosen, "dataset": dataset_name(given["dataset"]), "sizes": sizes, "class_order": order}


def write_config(config: RunConfig) -> None:
    """The resolved configuration, as it is stored."""
    import yaml
    from rich.console import Console

    from adagauss.core.config import plain

    text = yaml.safe_dump(plain(config), sort_keys=False)
    Console(stderr=True).print(f"configuration {config.digest()}\n{text}", highlight=False, markup=False, style="dim")


def write_summary(config: RunConfig, out: Path, given: Mapping[str, Any]) -> None:
    """What is about to run, in a few lines."""
    from adagauss.data.dataset import short_name

    stream, method = config.stream, config.method
    recipe = method.representation.first
    tasks = f"{len(stream.sizes)} tasks" if stream.sizes else f"{stream.tasks} tasks"
    facts = {
        "method": config.method_name + (f", preset {config.preset}" if config.preset else ""),
        "data": f"{short_name(stream.dataset)} in {tasks}, seed {config.seed}",
        "network": f"{method.backbone.name}, "
        + (f"epochs of the first task: {recipe.epochs}" if recipe else "not trained"),
        "changed": ", ".join(f"{key}={value}" for key, value in given.items()),
        "folder": f"{out}",
        "settings": "all are in its config.yaml; --show-config shows them",
    }
    for name, text in facts.items():
        if text:
            typer.secho(escape_control_chars(f"{name:9}{text}"), dim=True, err=True)


def _configures(context: typer.Context) -> bool:
    """Whether any option was given that changes what is computed."""
    return bool(given_options(context) - NOT_CONFIGURATION)


def _diagnostics(text: str) -> Any:
    if text not in ("none", "last", "every", "features"):
        raise ConfigError(f"--diagnostics is none, last, every or features; got {text!r}")
    return text


def _settings_file(path: Path | None) -> dict[str, Any]:
    from adagauss.core.config import flatten
    from adagauss.utils.files import YamlError, read_yaml

    if path is None:
        return {}
    try:
        data = read_yaml(path)
    except (OSError, YamlError) as error:
        raise ConfigError(f"--config {path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"--config {path} must hold settings, such as 'classifier: {{tied: 0.5}}'")
    return flatten(data)
