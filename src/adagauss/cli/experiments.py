"""Research commands: run, compare, tune, rescore, analyse, report, reproduce, demo and list."""

from __future__ import annotations

import os
import re
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagauss.cli import output
from adagauss.cli.options import (
    DataRoot,
    DatasetName,
    Device,
    Loggers,
    ProtocolName,
    ProtocolScale,
    Quiet,
    Settings,
    SkipBadImages,
    Workers,
    chosen_stream,
    dataset_name,
    given_options,
    make_reporter,
    parse_numbers,
    parse_settings,
    read_options,
    refuse_with_protocol,
)
from adagauss.cli.output import stoppable
from adagauss.errors import CheckpointError, ConfigError, DataError
from adagauss.utils.process import keep_freed_memory
from adagauss.utils.progress import escape_control_chars

if TYPE_CHECKING:
    from adagauss.analysis.studies import Study
    from adagauss.data.dataset import Dataset, DatasetInfo, ReadOptions
    from adagauss.data.stream import StreamConfig
    from adagauss.distributed.launch import Layout
    from adagauss.distributed.processes import Processes
    from adagauss.experiments.config import RunConfig
    from adagauss.experiments.run import Run
    from adagauss.methods import Method
    from adagauss.utils.progress import Reporter

Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Runs at a time; without another engine, processes of one thread each."),
]
RayAddress = Annotated[
    str | None,
    typer.Option("--ray", hidden=True, metavar="ADDRESS", help="Run on a Ray cluster: host:6379, auto, or local."),
]
SlurmPartition = Annotated[
    str | None, typer.Option("--slurm", hidden=True, metavar="PARTITION", help="Run as Slurm jobs, one per run.")
]
DaskAddress = Annotated[
    str | None,
    typer.Option("--dask", hidden=True, metavar="ADDRESS", help="Run on a Dask scheduler: tcp://host:8786, or local."),
]


EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME[=ADDRESS]",
        help="Where runs are computed: local, dask, ray or slurm, e.g. dask=tcp://host:8786, slurm=PARTITION.",
    ),
]
ENGINES = ("local", "dask", "ray", "slurm")


@contextmanager
def engine(
    out: Path,
    jobs: int | None,
    ray: str | None,
    slurm: str | None,
    dask: str | None,
    device: str = "auto",
    name: str | None = None,
) -> Iterator[Executor | None]:
    """The executor that the options choose, or None."""
    from adagauss.errors import unknown_name
    from adagauss.experiments.engines import LOCAL, open_executor

    chosen: dict[str, str | None] = {"ray": ray, "slurm": slurm, "dask": dask}
    if name is not None:
        kind, _, address = name.partition("=")
        if kind not in ENGINES:
            raise unknown_name("engine", kind, ENGINES)
        if kind != LOCAL:
            chosen[kind] = address or LOCAL
        else:
            jobs = jobs or os.cpu_count() or 1
    with open_executor(out, jobs=jobs, gpus=int(device.startswith("cuda")), **chosen) as executor:
        yield executor


Devices = Annotated[
    int,
    typer.Option("--devices", min=1, help="Processes that share the work on each machine: GPUs, or groups of cores."),
]
Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Machines, on each of which torchrun or Slurm runs this.")]
BatchNorm = Annotated[
    str,
    typer.Option(
        "--batch-norm", hidden=True, help="Of several processes: global, as one process, or local (faster, differs)."
    ),
]


def layout_of(devices: int, nodes: int, batch_norm: str, config: RunConfig) -> Layout:
    """The layout of the processes; raise if this machine cannot start them."""
    from adagauss.distributed.launch import Layout

    if batch_norm not in ("global", "local"):
        raise ConfigError(f"--batch-norm is global or local; got {batch_norm!r}")
    layout = Layout(devices, nodes, "global" if batch_norm == "global" else "local")
    layout.check(config.runtime)
    return layout


@dataclass(frozen=True)
class Order:
    """A run as the command line asks for it, in every process."""

    config: RunConfig
    out: Path
    resume: bool
    data_root: Path
    workers: int
    quiet: bool
    trackers: Sequence[str] = ()


def run_together(layout: Layout, order: Order) -> Run | None:
    """Run in all processes; None where another process tells the result."""
    from adagauss.distributed.launch import first_here, launch
    from adagauss.experiments.run import Run

    launch(_run, layout, order.config.runtime, order)
    return Run.open(order.out) if first_here() else None


def _run(processes: Processes, order: Order) -> None:
    """What each process does; it reads its own data."""
    from adagauss import cli
    from adagauss.experiments.runner import run

    keep_freed_memory()
    warnings.showwarning = cli.warn
    if not processes.first:
        warnings.simplefilter("ignore")
    reporter = make_reporter(order.quiet or not processes.first)
    run(
        order.config,
        order.out,
        resume=order.resume,
        reporter=reporter,
        options=read_options(order.data_root, order.config.stream, order.workers, reporter),
        trackers=order.trackers,
        processes=processes,
    )


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
NOT_CONFIGURATION = {"out", "resume", "quiet", "show_config", "data_root", "workers", "logger"}
NOT_CONFIGURATION |= {"devices", "nodes", "batch_norm"}
"""Options that do not change what is computed, and so may accompany a bare ``--resume``."""

RUN_EXAMPLES = """**Examples:**

`adagauss run --dataset digits --tasks 5`

`adagauss run --dataset photos/birds --tasks 3 --method exact`

`adagauss run --dataset photos/birds --class-order wren,robin,owl --tasks 3`

`adagauss run --protocol cifar100-10 --seed 1 --out runs/cifar`

`adagauss run -d digits -s drift.kind=affine -s classifier.pooled_shrinkage=0.5`

`adagauss run --out runs/cifar --resume`

`adagauss run --protocol cifar100-10 --devices 4`
"""


def run(
    context: typer.Context,
    method: Annotated[
        str, typer.Option("--method", "-m", help="Method by name; see `adagauss list methods`.")
    ] = "adagauss",
    dataset: DatasetName = "digits",
    tasks: Annotated[int, typer.Option("--tasks", "-t", min=1, help="Number of tasks.")] = 5,
    protocol: ProtocolName = None,
    scale: ProtocolScale = None,
    first: Annotated[int | None, typer.Option("--first", help="Classes in the first task; the rest equally.")] = None,
    sizes: Annotated[str | None, typer.Option("--sizes", help="Classes of each task, e.g. 4,3,3.")] = None,
    classes: Annotated[int | None, typer.Option("--classes", help="Use only the first N classes.")] = None,
    class_order: Annotated[
        str | None,
        typer.Option("--class-order", help="natural, icarl, seeded, per-run, or classes by name or position: 3,1,2"),
    ] = None,
    class_order_seed: Annotated[
        int | None, typer.Option("--class-order-seed", hidden=True, min=0, help="Shuffle the classes with this seed.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=1, help="Side in pixels that image files are resized to.")
    ] = None,
    preset: Annotated[str | None, typer.Option("--preset", "-p", help="Preset of the method, e.g. paper.")] = None,
    train_blocks: Annotated[
        str | None,
        typer.Option("--train-blocks", hidden=True, help="Blocks of the network that learn: all, none or last:N."),
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
    logger: Loggers = None,
    device: Device = "auto",
    devices: Devices = 1,
    nodes: Nodes = 1,
    batch_norm: BatchNorm = "global",
    precision: Annotated[str, typer.Option("--precision", help="32-true, 16-mixed or bf16-mixed.")] = "32-true",
    compile_: Annotated[bool, typer.Option("--compile", help="Compile the network for training.")] = False,
    data_root: DataRoot = Path("data"),
    workers: Workers = 2,
    skip_bad_images: SkipBadImages = False,
    show_config: Annotated[
        bool,
        typer.Option("--show-config", hidden=True, help="Show all settings first, as config.yaml in the run folder."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a method on a stream of tasks, evaluate it after each task, and write a run folder.

    A run can be killed at any moment: with --resume it continues and ends with the same numbers.
    """
    from adagauss.analysis.accuracy_figures import write_figures
    from adagauss.data.dataset import short_name
    from adagauss.distributed.launch import first_here
    from adagauss.experiments.protocols import protocol as protocol_by_name
    from adagauss.experiments.run import RunFolder
    from adagauss.experiments.runner import run as run_benchmark

    first = devices * nodes == 1 or first_here()
    quiet = quiet or not first
    reporter = make_reporter(quiet)
    resolved, data, options = _resolve(context, reporter)
    layout = layout_of(devices, nodes, batch_norm, resolved)
    place = (protocol and protocol_by_name(protocol, scale).name) or re.sub(
        r"[^\w.+-]+", "_", f"{short_name(resolved.stream.dataset)}-{tasks}"
    )
    out = out or Path("runs") / place / f"{method}-{resolved.digest()}-seed{seed}"
    if show_config and first:
        write_config(resolved)
    elif not quiet:
        write_summary(resolved, out, parse_settings(settings))
    with stoppable(f"finished tasks are kept: `adagauss run --out {out} --resume` goes on with the same numbers"):
        if layout.several:
            del data  # every process reads its own
            order = Order(resolved, out, resume, data_root, workers, quiet, logger or ())
            result = run_together(layout, order)
            if result is None:
                return
        else:
            result = run_benchmark(
                resolved, out, resume=resume, reporter=reporter, options=options, dataset=data, trackers=logger or ()
            )
    output.show_results({resolved.method_name: [result]}, result)
    typer.echo(escape_control_chars(f"Run folder: {out}"))
    with output.drawing(f"the run is complete in {out}, and `adagauss run --out {out} --resume` draws them"):
        figures = write_figures(RunFolder(out))
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
    protocol = protocol_by_name(given["protocol"], given["scale"]) if given["protocol"] else None
    refuse_with_protocol(context, STREAM_OPTIONS)
    out = given["out"]
    if given["resume"] and out is not None and not RunFolder(out).exists():
        raise CheckpointError(f"{out} holds no run to resume: it has no config.yaml")
    if given["resume"] and out is not None and RunFolder(out).exists() and not _configures(context):
        stored = stored_config(RunFolder(out))
        options = read_options(given["data_root"], stored.stream, given["workers"], reporter)
        return stored, load_dataset(stored.stream.dataset, options), options
    stream = protocol.stream if protocol else StreamConfig.of(_stream_settings(given), where="stream.")
    options = read_options(given["data_root"], stream, given["workers"], reporter)
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
        raise ConfigError(f"--config {path} must hold settings, such as 'classifier: {{pooled_shrinkage: 0.5}}'")
    return flatten(data)


COMPARE_EXAMPLES = """**Examples:**

`adagauss compare --methods adagauss,finetune --dataset digits`

`adagauss compare --methods all --seeds 0,1,2 --protocol cifar100-10 --scale cpu --out runs/cifar`

`adagauss compare --methods adagauss,efc,lwf --dataset digits --jobs 2`
"""


def compare(
    context: typer.Context,
    methods: Annotated[str, typer.Option("--methods", "-m", help="Names separated by commas, or all.")] = "all",
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds separated by commas.")] = "0,1,2",
    dataset: DatasetName = "digits",
    tasks: Annotated[int, typer.Option("--tasks", "-t", min=1, help="Number of tasks.")] = 5,
    protocol: ProtocolName = None,
    scale: ProtocolScale = None,
    recipe: Annotated[
        str,
        typer.Option(
            "--recipe",
            help="own: each method's own epochs, rates and images; shared: the same; short: the same, for few epochs.",
        ),
    ] = "own",
    epochs: Annotated[int | None, typer.Option("--epochs", "-e", min=1, help="Epochs per task, for all.")] = None,
    settings: Settings = None,
    classes: Annotated[int | None, typer.Option("--classes", help="Use only the first N classes.")] = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=1, help="Side in pixels that image files are resized to.")
    ] = None,
    skip_bad_images: SkipBadImages = False,
    jobs: Jobs = None,
    ray: RayAddress = None,
    slurm: SlurmPartition = None,
    dask: DaskAddress = None,
    engine_name: EngineName = None,
    workers: Workers = 2,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs and tables.")] = Path("runs/compare"),
    logger: Loggers = None,
    device: Device = "auto",
    data_root: DataRoot = Path("data"),
    quiet: Quiet = False,
) -> None:
    """Run every method with every seed, continuing where an earlier call stopped, and write a table.

    The table is printed and written as Markdown, LaTeX and CSV, next to the paper's numbers if the protocol is the
    same. Settings given with --set apply to the methods that have them.
    """
    from adagauss.analysis.accuracy_figures import accuracy_curve
    from adagauss.analysis.plotting import save_figure
    from adagauss.analysis.tables import FORMATS
    from adagauss.cli.output import MEANING, comparison_table
    from adagauss.experiments import compare as comparison
    from adagauss.experiments.grid import run_grid
    from adagauss.utils.files import write_atomically
    from adagauss.utils.runtime import RuntimeConfig

    chosen, stream = chosen_stream(context)
    given = parse_settings(settings)
    reporter = make_reporter(quiet)
    with (
        stoppable(f"finished tasks and runs are kept in {out}: the same command goes on from there"),
        engine(out, jobs, ray, slurm, dask, device, engine_name) as executor,
    ):
        results, failures = run_grid(
            methods,
            parse_numbers(seeds, "--seeds"),
            stream,
            out,
            protocol=chosen,
            recipe=recipe,
            epochs=epochs,
            settings=given,
            runtime=RuntimeConfig.of({"device": device}, "runtime."),
            options=read_options(data_root, stream, workers, reporter),
            reporter=reporter,
            executor=executor,
            most=jobs,
            trackers=logger or (),
        )
    as_published = chosen is not None and recipe == "own" and epochs is None and chosen.is_papers(given)
    rows = comparison.comparison_rows(results, as_published)
    caption = comparison.caption(results, f"recipe: {recipe}")
    for ending, written in FORMATS.items():
        write_atomically(out / f"table.{ending}", written(rows, caption).encode("utf-8", "backslashreplace"))
    output.show(comparison_table(rows, results))
    typer.echo(MEANING)
    typer.echo(escape_control_chars(f"Tables: {out}/table.md, table.tex, table.csv"))
    with output.drawing(f"the comparison is complete in {out}, and the same command draws it again"):
        save_figure(accuracy_curve(results), out / "accuracy.png")
        typer.echo(escape_control_chars(f"Figure: {out}/accuracy.png"))
    for name, reason in failures.items():
        typer.secho(f"adagauss: {name} did not finish with every seed: {reason}", fg="red", err=True)
    if failures:
        raise typer.Exit(2)


SHOWN = 10
AT_ONCE = 8
"""Trials at a time on a cluster by default: each is chosen from those that ended before it."""
TUNE_EXAMPLES = """**Examples:**

`adagauss tune adagauss --dataset digits --range representation.later.learning_rate=0.01..0.3:log`

`adagauss tune lwf -P cifar100-10 --scale cpu -r representation.terms.distillation.weight=1..20`

`adagauss tune fecam --dataset digits --range classifier.pooled_shrinkage=0..1.0 --trials 40 --jobs 2`
"""


def tune(
    context: typer.Context,
    method: Annotated[str, typer.Argument(metavar="METHOD", help="Method by name; see `adagauss list methods`.")],
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            "-r",
            metavar="KEY=RANGE",
            help="Setting to search: LOW..HIGH, LOW..HIGH:log or A,B,C. Repeatable.",
        ),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", "-n", min=1, help="Number of settings to try, in all.")] = 20,
    first_tasks: Annotated[
        int,
        typer.Option("--first-tasks", min=1, help="Score on this many first tasks; later ones are not used."),
    ] = 2,
    held_out: Annotated[
        float,
        typer.Option(
            "--held-out", help="Share of their training images used for validation; test images are not used."
        ),
    ] = 0.2,
    prune: Annotated[
        bool, typer.Option("--prune/--no-prune", hidden=True, help="Stop trials below the median early.")
    ] = True,
    dataset: DatasetName = "digits",
    tasks: Annotated[int, typer.Option("--tasks", "-t", min=1, help="Number of tasks of the whole stream.")] = 5,
    protocol: ProtocolName = None,
    scale: ProtocolScale = None,
    preset: Annotated[str | None, typer.Option("--preset", "-p", help="Preset of the method, e.g. paper.")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", "-e", min=1, help="Epochs per task.")] = None,
    settings: Settings = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of runs, draws and held-out images.")] = 0,
    classes: Annotated[int | None, typer.Option("--classes", help="Use only the first N classes.")] = None,
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=1, help="Side in pixels that image files are resized to.")
    ] = None,
    skip_bad_images: SkipBadImages = False,
    jobs: Jobs = None,
    ray: RayAddress = None,
    slurm: SlurmPartition = None,
    dask: DaskAddress = None,
    engine_name: EngineName = None,
    workers: Workers = 2,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the search.")] = None,
    device: Device = "auto",
    data_root: DataRoot = Path("data"),
    quiet: Quiet = False,
) -> None:
    """Search for settings of a method with Optuna, scored on held-out training images of the first tasks only.

    Neither test images nor later tasks are used, so the test accuracy with the found settings is unbiased.
    The same command continues a search that was stopped.
    """
    import yaml

    from adagauss.data.dataset import load_dataset
    from adagauss.experiments.runner import ValidationSplit
    from adagauss.experiments.tune import UNFINISHED, Range, Search
    from adagauss.experiments.tune import tune as search_settings
    from adagauss.utils.files import write_atomically
    from adagauss.utils.runtime import RuntimeConfig

    chosen, stream = chosen_stream(context)
    reporter = make_reporter(quiet)
    search = Search(
        method,
        tuple(Range.parse(text) for text in ranges or ()),
        ValidationSplit(stream, first_tasks, held_out, seed),
        preset=preset,
        settings=parse_settings(settings),
        epochs=epochs,
        protocol=chosen,
        runtime=RuntimeConfig.of({"device": device}, "runtime."),
    )
    search.check()
    out = out or Path("runs") / "tune" / method
    options = read_options(data_root, stream, workers, reporter)
    with (
        stoppable(f"finished trials and tasks are kept in {out}: the same command goes on from there"),
        engine(out, jobs, ray, slurm, dask, device, engine_name) as executor,
    ):
        tuned = search_settings(
            search,
            load_dataset(stream.dataset, options),
            out,
            trials=trials,
            prune=prune,
            options=options,
            reporter=reporter,
            executor=executor,
            most=jobs or AT_ONCE,
        )
    rows = [
        [
            one.number,
            one.state,
            f"{100 * one.accuracy:.1f}" if one.accuracy is not None else "",
            _as_options(one.settings),
        ]
        for one in tuned.trials[:SHOWN]
    ]
    title = f"{method}: held-out training images of the first {first_tasks} task(s), {len(tuned.trials)} trials"
    output.show(output.table(title, ("trial", "state", "accuracy, %", "settings"), rows, numbers=("accuracy, %",)))
    for reason in sorted({one.reason for one in tuned.trials if one.reason}):
        typer.secho(escape_control_chars(f"some failed: {reason}"), fg="yellow", err=True)
    best = tuned.best.settings
    write_atomically(out / "best.yaml", yaml.safe_dump(dict(best)).encode("utf-8"))
    typer.echo(escape_control_chars(f"Best settings, also in {out / 'best.yaml'} (for --config):"))
    typer.echo(escape_control_chars(_as_options(best, "--set ")))
    if any(one.state == UNFINISHED for one in tuned.trials):
        typer.secho("Some trials are unfinished: the same command goes on with them.", fg="yellow", err=True)
        raise typer.Exit(2)


def _as_options(settings: Mapping[str, Any], before: str = "") -> str:
    """Settings as they are written after ``--set``."""
    import json

    texts = [value if isinstance(value, str) else json.dumps(value) for value in settings.values()]
    pairs = (shlex.quote(f"{key}={text}") for key, text in zip(settings, texts, strict=True))
    return " ".join(f"{before}{pair}" for pair in pairs)


DEMO_METHODS = ("adagauss", "finetune")


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the run folders.")] = Path("runs/demo"),
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds, separated by commas.")] = "0,1,2",
    quiet: Quiet = False,
) -> None:
    """Learn scikit-learn's digits, two classes at a time, with AdaGauss and with plain fine-tuning (two minutes)."""
    from adagauss.analysis.accuracy_figures import accuracy_curve, write_figures
    from adagauss.analysis.plotting import save_figure
    from adagauss.data.dataset import load_dataset
    from adagauss.data.stream import StreamConfig
    from adagauss.experiments.config import make_config
    from adagauss.experiments.run import RunFolder
    from adagauss.experiments.runner import run

    dataset = load_dataset("digits")
    stream = StreamConfig(dataset="digits", tasks=5)
    reporter = make_reporter(quiet)
    reporter.message("Ten digits in five tasks of two; no image of an earlier task is ever seen again.")
    results: dict[str, list[Run]] = {}
    folders: list[Path] = []
    with stoppable(f"finished tasks and runs are kept in {out}: the same command goes on from there"):
        for method, seed in product(DEMO_METHODS, parse_numbers(seeds, "--seeds")):
            config = make_config(method, stream, seed=seed, diagnostics="features")
            folders.append(out / f"{method}-{config.digest()}-seed{seed}")
            result = run(config, folders[-1], resume=True, reporter=reporter, dataset=dataset)
            results.setdefault(method, []).append(result)
    output.show_results(results, results[DEMO_METHODS[0]][0])
    with output.drawing(f"the runs are complete in {out}, and the same command draws them again"):
        save_figure(accuracy_curve(results), out / "accuracy.png")
        drawn = {folder: write_figures(RunFolder(folder)) for folder in folders}
        names = ", ".join(path.name for path in drawn[folders[0]])
        typer.echo(escape_control_chars(f"Figures: {out / 'accuracy.png'}; {names}, in {folders[0] / 'figures'}"))
    typer.echo(escape_control_chars(f"Inspect the learner: adagauss info {folders[0]}"))


RESCORED = ("memory", "drift", "classifier")
RESCORE_EXAMPLES = """
**Examples:** `adagauss rescore runs/demo/adagauss-* --parts-from adagauss+` ·
`adagauss rescore RUN --set drift.kind=affine --set classifier.pooled_shrinkage=0.5`
"""


def rescore(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several seeds are averaged.")],
    parts_from: Annotated[
        str | None,
        typer.Option(
            "--parts-from", "--like", "-l", metavar="METHOD", help="Use memory, drift and classifier of this method."
        ),
    ] = None,
    settings: Settings = None,
    data_root: DataRoot = Path("data"),
    workers: Workers = 2,
    quiet: Quiet = False,
) -> None:
    """Score finished runs again with another drift or classifier.

    The table also shows the run's own parts, no drift, and the real statistics of old classes (oracle), the upper bound
    for any drift. Only adapters and classifiers are fitted, on the stored networks. A changed memory applies to all
    rows of the table.
    """
    from adagauss.analysis.rescore import rescore as rescore_run
    from adagauss.analysis.rescore import rescored_rows
    from adagauss.core.config import Layer, resolve
    from adagauss.data.dataset import load_dataset
    from adagauss.experiments.config import make_config
    from adagauss.experiments.run import Run
    from adagauss.methods.base import USER
    from adagauss.parts.drift import NoDrift

    opened = [Run.open(path) for path in runs]
    first, config = opened[0], opened[0].config
    if others := [run for run in opened if run.digest != first.digest]:
        raise ConfigError(f"{others[0].path} and {first.path} have different settings: rescore them separately")
    given = parse_settings(settings)
    if wrong := [key for key in given if key.partition(".")[0] not in RESCORED]:
        raise ConfigError(f"--set {wrong[0]}: only memory, drift and classifier can change; use `adagauss run`")
    method = config.method
    if parts_from:
        other = make_config(parts_from, config.stream).method
        method = method.with_changes(**{role: getattr(other, role) for role in RESCORED})
    method = resolve(method, [Layer(USER, given)], "run").config
    drifts = {"none": NoDrift(), "as run": config.method.drift}
    classifiers = {"as run": config.method.classifier}
    if method.drift != config.method.drift:
        drifts["changed"] = method.drift
    if method.classifier != config.method.classifier:
        classifiers["changed"] = method.classifier
    reporter = make_reporter(quiet)
    data = load_dataset(config.stream.dataset, read_options(data_root, config.stream, workers, reporter))
    with stoppable("rescoring stores nothing: the same command starts again"):
        results = [rescore_run(run, data, drifts, classifiers, reporter, method.memory) for run in opened]
    seeds = f", {len(results)} seeds" if len(results) > 1 else ""
    title = f"{first.protocol.title}: {first.method} rescored{seeds}, A_last / A_inc, %"
    rows = rescored_rows(results)
    output.show(output.table(title, list(rows[0]), [list(row.values()) for row in rows]))


ANALYSE_EXAMPLES = """**Examples:**

`adagauss analyse runs/cifar/adagauss-*`

`adagauss analyse runs/with runs/without --study spectrum,ranks --out figures`

`adagauss analyse --list`
"""


def analyse(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN...", help="Run folders; seeds of one configuration are averaged."),
    ] = None,
    study: Annotated[
        str,
        typer.Option("--study", metavar="NAMES", help="Figures by name, separated by commas, or all (without shrink)."),
    ] = "all",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the figures.")] = Path("figures"),
    listed: Annotated[bool, typer.Option("--list", help="List all figures.")] = False,
    data_root: DataRoot = Path("data"),
    workers: Workers = 2,
    quiet: Quiet = False,
) -> None:
    """Draw figures of runs as PNG and SVG, with their numbers as CSV.

    Runs with equal settings are averaged over their seeds; the others are labelled by the settings that differ. Some
    figures need real statistics of old classes: they are computed from the images of the run and stored in its folder.
    Without these images, the other figures are drawn.
    """
    from adagauss.analysis.studies import analyse as draw
    from adagauss.analysis.studies import chosen_studies, find_study, group_by_settings, studies
    from adagauss.experiments.run import Run

    if listed:
        for line in output.lines(
            ("figure", "needs", "shows"),
            [(one.name, "images" if one.needs_images else "", one.title) for one in studies().values()],
        ):
            typer.echo(line)
        return
    if not runs:
        raise ConfigError("give run folders, e.g. adagauss analyse runs/*; --list shows all figures")
    names = [] if study == "all" else [name.strip() for name in study.split(",")]
    for name in names:
        find_study(name)
    reporter = make_reporter(quiet)
    groups = group_by_settings([Run.open(path) for path in runs])
    opened = [run for group in groups.values() for run in group]
    with stoppable("measurements of finished runs are stored: the same command continues"):
        data, reason = _images(chosen_studies(names, opened), opened, data_root, workers, reporter)
        command = shlex.join(["adagauss", "analyse", *map(str, runs)]) + " --study {study}"
        drawn = draw(groups, out, names=names or None, dataset=data, reporter=reporter, command=command)
    made = [one for one in drawn if one.missing is None]
    if made:
        rows = [(one.name, "png, svg, csv", one.title) for one in made]
        for line in output.lines(("drawn", "files", "what it shows"), rows):
            typer.echo(line)
        typer.echo(escape_control_chars(f"Figures: {out}"))
    notes = [("not drawn: ", f"{one.name}: {one.missing}") for one in drawn if one.missing is not None]
    for start, text in [*notes, *([("no images: ", reason)] if reason else [])]:
        typer.echo(output.folded(start, escape_control_chars(text), 4), err=True)
    if not made:
        raise typer.Exit(2)


def _images(
    chosen: Sequence[Study], runs: Sequence[Run], root: Path, workers: int, reporter: Reporter
) -> tuple[Dataset | None, str]:
    """The data of the runs if some study must measure them, or the reason why they cannot be read."""
    from adagauss.analysis.measure import stored_quantities
    from adagauss.data.dataset import load_dataset

    needed = {quantity for study in chosen for quantity in study.needs}
    if all(needed <= stored_quantities(run) for run in runs):
        return None, ""
    stream = runs[0].config.stream
    try:
        return load_dataset(stream.dataset, read_options(root, stream, workers, reporter)), ""
    except DataError as error:
        return None, str(error)


def _list_datasets(data_root: Path) -> None:
    """Size, licence, folder of each dataset, and whether it is present."""
    from adagauss.data.dataset import datasets as all_datasets

    width = output.width()
    typer.secho(f"datasets below {data_root}", italic=True)
    infos = list(all_datasets().values())
    names = max(len(info.name) for info in infos)
    typer.secho(row("name", "classes", "there", "images", names, width), bold=True)
    for info in infos:
        typer.echo(row(info.name, str(info.classes or "any"), there(info, data_root), info.images, names, width))
        typer.secho(details(info, width), dim=True)


def there(info: DatasetInfo, root: Path) -> str:
    """Whether a dataset is present, and if not, whether it can be fetched."""
    if info.takes_path:
        return "-"
    if info.present(root):
        return "yes"
    return "no (fetch)" if info.fetchable else "no"


def row(name: str, classes: str, there: str, images: str, names: int, width: int) -> str:
    """The main facts in columns; ``names`` is the width of the first column, and the last column is wrapped."""
    return _folded(f"{name:{names}}  {classes:>7}  {there:10}  ", images, width)


def details(info: DatasetInfo, width: int) -> str:
    """More facts about a dataset, indented below its row."""
    place = f"in {info.folder}/; " if info.folder else ""
    return _folded("    ", f"{info.title}; {place}licence: {info.licence}", width)


def _folded(start: str, text: str, width: int) -> str:
    import textwrap

    return textwrap.fill(
        text,
        max(width, output.NARROWEST),
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _fetch(name: str, data_root: Path) -> None:
    """Download a dataset, check it and unpack it below the data root."""
    from adagauss.data.download import fetch as download

    with stoppable(f"{name} is not complete: the same command starts the download again"):
        place = download(name, data_root, reporter=make_reporter(quiet=False))
    typer.echo(escape_control_chars(f"{name} is at {place}"))


FAMILIES = {
    "analytic": "nothing is trained; running sums give the same answer in any order",
    "drift compensation": "the network learns on, the memory of old classes follows",
    "frozen extractor": "the network is trained on the first task only",
    "prototype replay": "old classes are rehearsed from their means",
    "regularisation": "what mattered for old classes changes less",
    "reference": "lower bounds",
    "upper bound": "sees all images, old ones too",
}
"""What the methods of a family have in common; families of other packages come last."""


def method_lines() -> list[str]:
    """One line per method, below the heading of its family."""
    from adagauss.methods import methods as all_methods

    infos = list(all_methods().values())
    families = list(dict.fromkeys([*FAMILIES, *(info.family for info in infos)]))
    infos.sort(key=lambda info: families.index(info.family))
    # All families share their columns; each heading goes before the first of its lines.
    rows = [
        (f"  {info.name}", info.title, info.paper.partition(", arXiv")[0].partition(";")[0], f"recipe: {info.recipe}")
        for info in infos
    ]
    found: list[str] = []
    for number, line in enumerate(output.lines(("", "", "", ""), rows)[1:]):
        family = infos[number].family
        if number == 0 or infos[number - 1].family != family:
            found += [f"{family}: {FAMILIES[family]}" if family in FAMILIES else family]
        found.append(line)
    return [*found, "", "adagauss list methods NAME shows what a method stores, and its settings"]


def _show_method(name: str, preset: str | None, protocol: str | None, dataset: str | None) -> None:
    from adagauss.data.stream import StreamConfig
    from adagauss.experiments.config import make_config
    from adagauss.experiments.protocols import protocol as protocol_by_name
    from adagauss.methods import method_info, resolve_method

    if protocol and dataset:
        raise ConfigError("--dataset and --protocol both choose the tasks: give only one of them")
    info = method_info(name)
    does = (info.build.__doc__ or "").partition("\n\n")[0]
    facts = {
        info.title: " ".join(does.split()),
        "family": info.family,
        "kept": info.stores,
        "paper": info.paper,
        "recipe of": info.recipe,
        "presets": ", ".join(f"{key} (default)" if key == info.default_preset else key for key in info.presets),
    }
    for key, text in facts.items():
        if text:
            typer.echo(output.folded(f"{key}: ", text, 4))
    typer.echo()
    if not protocol and not dataset:
        resolved = resolve_method(name, preset)
        show_settings(f"settings of {name}", resolved.config, resolved.origins)
        return
    chosen = protocol_by_name(protocol) if protocol else None
    stream = chosen.stream if chosen else StreamConfig.of({"dataset": dataset_name(dataset or "")})
    config = make_config(name, stream, preset=preset, protocol=chosen)
    show_settings(f"settings of {name}, {protocol or dataset}", config.method, config.origins)


def show_settings(title: str, method: Method, origins: Mapping[str, str]) -> None:
    """Print every setting of a method and, if known, the layer that it comes from."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from adagauss.core.config import flatten, plain
    from adagauss.utils.files import as_yaml

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("--set", overflow="fold")
    table.add_column("from", style="dim")
    for key, value in flatten(plain(method)).items():
        table.add_row(Text(f"{key}={as_yaml(value)}"), origins.get(key, ""))
    Console().print(table)


def _list_protocols() -> None:
    from adagauss.experiments.protocols import PROTOCOLS, protocol

    rows = []
    for name, chosen in PROTOCOLS.items():
        stream, small = chosen.stream, protocol(name, "cpu")
        tasks = f"{stream.first} + {stream.tasks - 1}" if stream.first else str(stream.tasks)
        order = "by seed" if stream.class_order else "fixed"
        networks = [one.settings["backbone.name"] for one in (chosen, small)]
        scales = "paper, cpu" if chosen.needs_weights else "paper, cpu, few"
        rows.append((name, tasks, order, *networks, scales))
    heads = ("name", "tasks", "order", "network", "network, cpu", "--scale")
    output.show(output.table("protocols (50 + 5: 50 classes first, then 5 tasks)", heads, rows))


def _list_metrics() -> None:
    from adagauss.experiments.metrics import METRICS

    rows = [(metric.name, metric.title, metric.better) for metric in METRICS]
    output.show(output.table("metrics", ("name", "title", "better"), rows))


def _list_backbones() -> None:
    from adagauss.backbones import backbones as all_backbones
    from adagauss.backbones.registry import backbone_info

    known = {**all_backbones(), "timm:NAME": backbone_info("timm:NAME")}
    rows = [(name, info.summary, "yes" if info.available else "no") for name, info in known.items()]
    heads = ("name", "what it is", "installed")
    output.show(output.table("backbones (--set backbone.name=...)", heads, rows))


REPORT_EXAMPLES = """**Examples:**

`adagauss report runs/demo --out report.html`

`adagauss report runs/cifar/adagauss-*-seed0 runs/cifar/analytic-*-seed0`
"""
REPRODUCE_EXAMPLES = """**Examples:**

`adagauss reproduce --list --scale cpu`

`adagauss reproduce ablation fig3 --scale cpu --seeds 0`

`adagauss reproduce all --scale cpu --out runs/reproduce --jobs 2`
"""


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders that contain some.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page, an HTML file.")] = Path("report.html"),
    study: Annotated[
        str, typer.Option("--study", metavar="NAMES", help="Figures (`adagauss analyse --list`), or usual, all, none.")
    ] = "usual",
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Read the runs' images, and measure what figures of real statistics need."),
    ] = False,
    data_root: DataRoot = Path("data"),
    workers: Workers = 2,
    quiet: Quiet = False,
) -> None:
    """Write one HTML page about runs: results, curves, classes, cost, settings, environment and commands.

    The page is a single file that needs no network and no script. Each protocol has its own part; unfinished runs are
    shown up to their last finished task. Figures that need the images of the runs are drawn with --measure, or if
    `adagauss analyse` has measured the runs before.
    """
    from adagauss.analysis.report import write_report
    from adagauss.data.dataset import load_dataset

    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder: name a file, such as {out / 'report.html'}")
    reporter = make_reporter(quiet)

    def read(stream: StreamConfig) -> Dataset:
        return load_dataset(stream.dataset, read_options(data_root, stream, workers, reporter))

    with stoppable("the report was not written; measurements of runs are stored with them"):
        written = write_report(runs, out, study=study, data=read if measure else None, reporter=reporter)
    for one in written.skipped:
        typer.secho(escape_control_chars(f"adagauss: {one.path} is left out: {one.reason}"), fg="yellow", err=True)
    count = output.counted(sum(len(section.runs) for section in written.sections), "run")
    typer.echo(escape_control_chars(f"{count}: {out} ({out.stat().st_size / 1e6:.1f} MB)"))


def reproduce(
    what: Annotated[
        list[str] | None, typer.Argument(metavar="[WHAT]...", help="Tables and figures by name (see --list), or all.")
    ] = None,
    scale: Annotated[
        str, typer.Option("--scale", help="paper: as in the paper, for a GPU; cpu: hours on two cores.")
    ] = "cpu",
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Seeds separated by commas, for every row; default: those of --scale.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs, tables and figures.")] = Path(
        "runs/reproduce"
    ),
    show_list: Annotated[
        bool, typer.Option("--list", "-l", help="List tables and figures with their finished and missing runs.")
    ] = False,
    finished: Annotated[
        bool, typer.Option("--finished", help="Use finished runs only, also while others are running; run nothing.")
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", help="Weights of ResNet-18, for the fine-grained tables at the paper's scale."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", help="Also write a Markdown page on all claims, e.g. results/paper.md.")
    ] = None,
    jobs: Jobs = None,
    ray: RayAddress = None,
    slurm: SlurmPartition = None,
    dask: DaskAddress = None,
    engine_name: EngineName = None,
    device: Device = "auto",
    data_root: DataRoot = Path("data"),
    workers: Workers = 2,
    quiet: Quiet = False,
) -> None:
    """Reproduce tables and figures of the paper, with the paper's own numbers and a verdict on each of its claims.

    Missing runs are made, unfinished ones resumed, and each is shared by all tables and figures that need it. Rows that
    differ only in memory, drift or classifier are scored on the networks of another run. The same command may be
    started in several processes: they share the work.
    """
    from adagauss.data.dataset import ReadOptions
    from adagauss.errors import unknown_name
    from adagauss.experiments import reproduce as reproduction
    from adagauss.experiments.paper import SCALES, find_items
    from adagauss.utils.runtime import RuntimeConfig

    if not what and not show_list:
        raise ConfigError("name what to reproduce, e.g. `adagauss reproduce ablation`; --list shows all names")
    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    items = find_items(what or ["all"])
    reporter = make_reporter(quiet)
    config = reproduction.ReproductionConfig(
        SCALES[scale],
        out,
        ReadOptions(root=data_root, workers=workers, reporter=reporter),
        tuple(parse_numbers(seeds, "--seeds")) if seeds else None,
        RuntimeConfig.of({"device": device}, "runtime."),
        weights.absolute() if weights else None,
    )
    if show_list:
        for line in reproduction.list_lines(items, config):
            typer.echo(output.folded("", escape_control_chars(line), 4))
        return
    with (
        stoppable(f"finished tasks and runs are in {out}: the same command resumes them"),
        engine(out, jobs, ray, slurm, dask, device, name=engine_name) as executor,
    ):
        made = reproduction.reproduce(items, config, reporter, executor, jobs, run=not finished)
    for one in made:
        for found in one.results:
            rows = reproduction.table_rows([found])
            heads = [head for head in rows[0] if head not in ("benchmark", "note")]
            title = f"{one.item.title}: {found.protocol} ({config.scale.note})"
            output.show(output.table(title, heads, [[row[head] for head in heads] for row in rows], numbers=heads[1:]))
        for line in one.remarks():
            typer.echo(output.folded("- ", escape_control_chars(line), 2))
        typer.echo(escape_control_chars(f"Files: {config.folder(one.item)}"))
    if page is not None:
        with stoppable("only the page is missing: the same command writes it"):
            reproduction.write_page(items, config, page)
        typer.echo(escape_control_chars(f"Page: {page}"))
    failures = {name: problem for one in made for name, problem in one.failures()}
    for name, problem in failures.items():
        typer.secho(escape_control_chars(f"adagauss: {name} failed: {problem.reason}"), fg="red", err=True)
    if failures:
        raise typer.Exit(2)


KINDS = ("methods", "protocols", "backbones", "datasets", "metrics")
LIST_EXAMPLES = """**Examples:** `adagauss list methods adagauss --preset paper` · `adagauss list protocols` ·
`adagauss list datasets --fetch cifar100`"""


def list_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=", ".join(KINDS))] = "methods",
    name: Annotated[str | None, typer.Argument(help="Show one method: what it stores, and its settings.")] = None,
    preset: Annotated[str | None, typer.Option("--preset", "-p", help="Settings of a method with this preset.")] = None,
    protocol: ProtocolName = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", "-d", help="Settings of a method on this dataset.")
    ] = None,
    fetch: Annotated[str | None, typer.Option("--fetch", metavar="DATASET", help="Download a dataset.")] = None,
    data_root: DataRoot = Path("data"),
) -> None:
    """List methods, protocols, backbones, datasets or metrics; show one method with its settings."""
    from adagauss.errors import unknown_name

    if kind not in KINDS:
        raise unknown_name("kind", kind, KINDS)
    if fetch and kind != "datasets":
        raise ConfigError("--fetch is for `adagauss list datasets`")
    if kind == "methods" and name is not None:
        _show_method(name, preset, protocol, dataset)
    elif preset or protocol or dataset or name:
        raise ConfigError("settings are shown for one method only: name it, as in `adagauss list methods adagauss`")
    elif kind == "methods":
        for line in method_lines():
            typer.echo(line)
    elif fetch:
        _fetch(fetch, data_root)
    else:
        listings: dict[str, Callable[[], None]] = {
            "protocols": _list_protocols,
            "backbones": _list_backbones,
            "metrics": _list_metrics,
            "datasets": partial(_list_datasets, data_root),
        }
        listings[kind]()


def _renamed(old: str, new: str) -> None:
    typer.secho(f"adagauss: `adagauss {old}` is deprecated: use `adagauss {new}`", fg="yellow", err=True)


def methods(
    name: Annotated[str | None, typer.Argument()] = None,
    preset: Annotated[str | None, typer.Option("--preset", "-p")] = None,
    protocol: ProtocolName = None,
    dataset: Annotated[str | None, typer.Option("--dataset", "-d")] = None,
) -> None:
    """Deprecated: `adagauss list methods`."""
    _renamed("methods", "list methods")
    list_command("methods", name, preset, protocol, dataset)


def protocols() -> None:
    """Deprecated: `adagauss list protocols`."""
    _renamed("protocols", "list protocols")
    _list_protocols()


def backbones() -> None:
    """Deprecated: `adagauss list backbones`."""
    _renamed("backbones", "list backbones")
    _list_backbones()


def datasets(
    action: Annotated[str | None, typer.Argument()] = None,
    name: Annotated[str | None, typer.Argument()] = None,
    data_root: DataRoot = Path("data"),
) -> None:
    """Deprecated: `adagauss list datasets`."""
    if action not in (None, "fetch") or (action == "fetch") != (name is not None):
        raise ConfigError("use `adagauss list datasets`, with --fetch NAME")
    _renamed("datasets", f"list datasets --fetch {name}" if name else "list datasets")
    list_command("datasets", fetch=name, data_root=data_root)


def register(app: typer.Typer, panel: str) -> None:
    """Add the commands."""
    commands: dict[str, tuple[Callable[..., None], str]] = {
        "demo": (demo, "**Example:** `adagauss demo --seeds 0`"),
        "run": (run, RUN_EXAMPLES),
        "compare": (compare, COMPARE_EXAMPLES),
        "tune": (tune, TUNE_EXAMPLES),
        "rescore": (rescore, RESCORE_EXAMPLES),
        "analyse": (analyse, ANALYSE_EXAMPLES),
        "list": (list_command, LIST_EXAMPLES),
        "report": (report, REPORT_EXAMPLES),
        "reproduce": (reproduce, REPRODUCE_EXAMPLES),
    }
    for name, (command, examples) in commands.items():
        app.command(name, rich_help_panel=panel, epilog=examples)(command)
    app.command("replay", hidden=True, deprecated=True)(rescore)
    for old in (methods, protocols, backbones, datasets):
        app.command(hidden=True)(old)
