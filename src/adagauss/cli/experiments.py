"""Research commands: run, compare, tune, rescore, analyse, report, reproduce and list."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Context, Option

from adagauss.cli import options, output
from adagauss.cli.options import Experiment, given_options, parse_numbers, parse_settings, read_options, section
from adagauss.cli.output import drawing, labelled, say, stoppable, table, warn
from adagauss.errors import CheckpointError, ConfigError, unknown_name
from adagauss.utils.process import keep_freed_memory
from adagauss.utils.progress import reporter_for

if TYPE_CHECKING:
    from adagauss.data.dataset import Dataset
    from adagauss.distributed.processes import Processes
    from adagauss.experiments.config import RunConfig
    from adagauss.methods import Method
    from adagauss.utils.progress import Reporter

command = partial(options.command, options.RESEARCH)

# ----------------------------------------------------------------------------------------------------------- run

NOT_CONFIGURATION = {"out", "resume", "quiet", "data_root", "logger", "devices"}
"""Options that do not change what is computed, and so may accompany a bare ``--resume``."""


@command(
    "adagauss run --dataset digits --tasks 5",
    "adagauss run --dataset photos/birds --tasks 3 --method analytic",
    "adagauss run --dataset photos/birds --set stream.class_order=[wren,robin,owl] --tasks 3",
    "adagauss run --protocol cifar100-10 --seed 1 --out runs/cifar",
    "adagauss run -d digits -s drift.kind=affine -s classifier.pooled_shrinkage=0.5",
    "adagauss run -d digits -s stream.classes=4 -s runtime.compile=true --tasks 3,1",
    "adagauss run --out runs/cifar --resume",
    "adagauss run --protocol cifar100-10 --devices 4",
)
def run(
    context: Context,
    method: Annotated[str, Option("--method", "-m", help="Method by name; see `adagauss list methods`.")] = "adagauss",
    dataset: options.DatasetName = "digits",
    tasks: options.Tasks = "5",
    protocol: options.ProtocolName = None,
    scale: options.ProtocolScale = None,
    preset: options.Preset = None,
    settings: options.Settings = None,
    config: Annotated[Path | None, Option("--config", "-c", help="YAML file of settings, nested or dotted.")] = None,
    epochs: options.Epochs = None,
    seed: Annotated[
        int, Option(min=0, help="Seed of all random choices; of the class order only if it is per-run.")
    ] = 0,
    out: Annotated[Path | None, Option("--out", "-o", help="Run folder; named after the run by default.")] = None,
    resume: Annotated[bool, Option("--resume", help="Continue the run in the folder.")] = False,
    logger: options.LoggerName = None,
    device: options.Device = "auto",
    devices: Annotated[int, Option(min=1, help="Processes that share the work: one per GPU or group of cores.")] = 1,
    data_root: options.DataRoot = Path("data"),
    quiet: options.Quiet = False,
) -> None:
    """Train a method on a stream of tasks, evaluate it after each task, and write a run folder.

    A run can be killed at any moment: with --resume it continues and ends with the same numbers.
    """
    from adagauss.data.dataset import short_name
    from adagauss.distributed.launch import launch
    from adagauss.experiments import protocols, runner
    from adagauss.experiments.run import Run

    reporter = reporter_for(quiet)
    resolved, data = resolve_run(context, reporter)
    shown = short_name(resolved.stream.dataset)
    place = protocols.protocol(protocol, scale).name if protocol else f"{shown}-{tasks}"
    out = out or Path("runs") / re.sub(r"[^\w.+-]+", "_", place) / resolved.folder_name
    name = resolved.method_name + (f", preset {resolved.preset}" if resolved.preset else "")
    count = len(resolved.stream.sizes or ()) or resolved.stream.tasks
    reporter.message(f"{name}: {shown} in {count} tasks, seed {resolved.seed}; all settings: {out}/config.yaml")
    with stoppable(f"finished tasks are stored: `adagauss run --out {out} --resume` continues with the same numbers"):
        if devices > 1:
            del data  # every process reads its own
            launch(_run_in_process, devices, resolved.runtime, resolved, out, resume, data_root, quiet, logger)
            result = Run.open(out)
        else:
            result = runner.run(resolved, out, resume=resume, reporter=reporter, dataset=data, logger=logger)
    output.show_results({resolved.method_name: [result]})
    say(f"Run folder: {out}", f"Figures: adagauss analyse {out}")


def _run_in_process(
    processes: Processes,
    config: RunConfig,
    out: Path,
    resume: bool,
    data_root: Path,
    quiet: bool,
    logger: str | None,
) -> None:
    """Run in one of several processes; each reads its own data."""
    from adagauss.cli import show_warning
    from adagauss.experiments import runner

    keep_freed_memory()
    warnings.showwarning = show_warning
    if not processes.first:
        warnings.simplefilter("ignore")
    reporter = reporter_for(quiet or not processes.first)
    options = read_options(data_root, config.stream, reporter)
    runner.run(config, out, resume=resume, reporter=reporter, options=options, logger=logger, processes=processes)


def resolve_run(context: Context, reporter: Reporter) -> tuple[RunConfig, Dataset]:
    """The configuration given by the options, or that of the run folder if it is only resumed; and the dataset."""
    from adagauss.data.dataset import load_dataset
    from adagauss.distributed.launch import check_devices
    from adagauss.experiments.run import RunFolder
    from adagauss.experiments.runner import check_continued, make_stream
    from adagauss.utils.runtime import Runtime

    given = context.params
    folder = RunFolder(given["out"]) if given["resume"] and given["out"] is not None else None
    if folder is not None and not folder.exists():
        raise CheckpointError(f"{given['out']} holds no run to resume: it has no config.yaml")
    only_resumed = folder is not None and not given_options(context) - NOT_CONFIGURATION
    config = folder.config if folder is not None and only_resumed else Experiment.of(context).config(given)
    if folder is None:
        config.check_inputs()  # before any image is decoded
    if given["out"] is not None:
        check_continued(RunFolder(given["out"]), config, given["resume"])
    Runtime(config.runtime).check()
    check_devices(given["devices"], config.runtime)
    data = load_dataset(config.stream.dataset, read_options(given["data_root"], config.stream, reporter))
    make_stream(config, data)
    return config, data


# ------------------------------------------------------------------------------------------------ compare, tune


@command(
    "adagauss compare --methods adagauss,finetune --dataset digits",
    "adagauss compare --methods all --seeds 0,1,2 --protocol cifar100-10 --scale cpu --out runs/cifar",
    "adagauss compare --methods adagauss,efc,lwf --dataset digits --jobs 2",
    "adagauss compare -m adagauss,lwf -P cifar100-10 -s stream.class_order=3 -s runtime.precision=bf16-mixed",
    "adagauss compare -m adagauss,efc -P cifar100-10 --preset paper --first-tasks 3",
)
def compare(
    context: Context,
    methods: Annotated[str, Option("--methods", "-m", help="Names separated by commas, or all.")] = "all",
    seeds: options.Seeds = "0,1,2",
    dataset: options.DatasetName = "digits",
    tasks: options.Tasks = "5",
    protocol: options.ProtocolName = None,
    scale: options.ProtocolScale = None,
    recipe: Annotated[
        str,
        Option(
            help="own: each method's own epochs, rates and images; shared: the same; short: the same, for few epochs."
        ),
    ] = "own",
    epochs: options.Epochs = None,
    preset: options.Preset = None,
    settings: options.Settings = None,
    only_first: options.FirstTasks = None,
    jobs: options.Jobs = None,
    engine_name: options.EngineName = None,
    out: Annotated[Path, Option("--out", "-o", help="Folder for runs and tables.")] = Path("runs/compare"),
    logger: options.LoggerName = None,
    device: options.Device = "auto",
    data_root: options.DataRoot = Path("data"),
    quiet: options.Quiet = False,
) -> None:
    """Run every method with every seed, continuing where an earlier call stopped, and write a table.

    The table is printed and written as Markdown, LaTeX and CSV, next to the paper's numbers if the protocol is the
    same. Settings given with --set apply to the methods that have them.
    """
    from adagauss.analysis.studies import analyse as draw
    from adagauss.analysis.tables import comparison_caption, comparison_rows, write_tables
    from adagauss.experiments.grid import run_grid

    chosen = Experiment.of(context)
    with (
        stoppable(f"finished tasks and runs are stored in {out}: the same command resumes"),
        options.workers(context, out, chosen.data, device=chosen.runtime.device) as opened,
    ):
        results, failures = run_grid(
            methods,
            parse_numbers(seeds, "--seeds"),
            chosen.stream,
            out,
            protocol=chosen.protocol,
            recipe=recipe,
            preset=preset,
            epochs=epochs,
            settings=chosen.settings,
            runtime=chosen.runtime,
            workers=opened,
            logger=logger,
        )
    rows = comparison_rows(results)
    write_tables(out, rows, comparison_caption(results, f"recipe: {recipe}"))
    output.show_results(results)
    say(f"Tables: {out}/table.md, table.tex, table.csv")
    with drawing(f"the runs are complete in {out}, and the same command draws them again"):
        (drawn,) = draw(results, out, names=["accuracy"])
        say(f"Figure: {drawn.files['png']}")
    _report_failures({f"{name} did not finish with every seed": reason for name, reason in failures.items()})


def _report_failures(failures: Mapping[str, str]) -> None:
    """Print what failed with the reason, and end with an error code if anything did."""
    for what, reason in failures.items():
        warn(f"{what}: {reason}", "red")
    if failures:
        raise typer.Exit(2)


SHOWN = 10
STATES = {"COMPLETE": "complete", "RUNNING": "unfinished", "FAIL": "failed"}
AT_ONCE = 8
"""Trials at a time on a cluster by default: each is chosen from those that ended before it."""


@command(
    "adagauss tune adagauss --dataset digits --range representation.later.learning_rate=0.01..0.3:log",
    "adagauss tune lwf -P cifar100-10 --scale cpu -r representation.terms.distillation.weight=1..20",
    "adagauss tune fecam --dataset digits --range classifier.pooled_shrinkage=0..1.0 --trials 40 --jobs 2",
)
def tune(
    context: Context,
    method: Annotated[str, Argument(metavar="METHOD", help="Method by name; see `adagauss list methods`.")],
    ranges: Annotated[
        list[str] | None,
        Option(
            "--range",
            "-r",
            metavar="KEY=RANGE",
            help="Setting to search: LOW..HIGH, LOW..HIGH:log or A,B,C. Repeatable.",
        ),
    ] = None,
    trials: Annotated[int, Option("--trials", "-n", min=1, help="Number of settings to try, in all.")] = 20,
    first_tasks: Annotated[int, Option(min=1, help="Score on this many first tasks; later ones are not used.")] = 2,
    held_out: Annotated[float, Option(help="Share of the training images that is held out for validation.")] = 0.2,
    dataset: options.DatasetName = "digits",
    tasks: options.Tasks = "5",
    protocol: options.ProtocolName = None,
    scale: options.ProtocolScale = None,
    preset: options.Preset = None,
    epochs: options.Epochs = None,
    settings: options.Settings = None,
    seed: Annotated[int, Option(min=0, help="Seed of runs, draws and held-out images.")] = 0,
    jobs: options.Jobs = None,
    engine_name: options.EngineName = None,
    out: Annotated[Path | None, Option("--out", "-o", help="Folder of the search.")] = None,
    device: options.Device = "auto",
    data_root: options.DataRoot = Path("data"),
    quiet: options.Quiet = False,
) -> None:
    """Search for settings of a method with Optuna, scored on held-out training images of the first tasks only.

    Neither test images nor later tasks are used, so the test accuracy with the found settings is unbiased.
    The same command continues a search that was stopped.
    """
    import yaml

    from adagauss.experiments.runner import ValidationSplit
    from adagauss.experiments.tune import Range, Search
    from adagauss.experiments.tune import tune as search_settings
    from adagauss.utils.files import write_atomically

    chosen = Experiment.of(context)
    search = Search(
        chosen.config(context.params), tuple(map(Range.parse, ranges or ())), ValidationSplit(first_tasks, held_out)
    )
    out = out or Path("runs") / "tune" / method
    with (
        stoppable(f"finished trials and tasks are stored in {out}: the same command resumes"),
        options.workers(context, out, chosen.data, AT_ONCE, chosen.runtime.device) as opened,
    ):
        tuned = search_settings(search, out, trials=trials, workers=opened)
    rows = [
        (one.number, STATES[one.state.name], f"{100 * one.value:.1f}" if one.value else "", _as_options(one.params))
        for one in tuned[:SHOWN]
    ]
    say(f"{method}: held-out training images of the first {first_tasks} task(s), {len(tuned)} trials")
    say(*table(("trial", "state", "accuracy, %", "settings"), rows, right=(0, 2), wrap=True))
    best = tuned[0].params
    write_atomically(out / "best.yaml", yaml.safe_dump(dict(best)).encode("utf-8"))
    say(f"Best settings, also in {out / 'best.yaml'} (for --config):", _as_options(best, "--set "))
    if any(one.state.name == "RUNNING" for one in tuned):
        warn("some trials are unfinished: the same command continues them")
        raise typer.Exit(2)


def _as_options(settings: Mapping[str, Any], before: str = "") -> str:
    """Settings as they are written after ``--set``."""
    from adagauss.utils.files import as_yaml

    return " ".join(before + shlex.quote(f"{key}={as_yaml(value)}") for key, value in settings.items())


# ------------------------------------------------------------------------------------- rescore, analyse, report

RESCORED = ("memory", "drift", "classifier")


@command(
    "adagauss rescore runs/demo/adagauss-* --parts-from adagauss+",
    "adagauss rescore RUN --set drift.kind=affine --set classifier.pooled_shrinkage=0.5",
)
def rescore(
    runs: options.RunFolders,
    parts_from: Annotated[
        str | None, Option(metavar="METHOD", help="Use memory, drift and classifier of this method.")
    ] = None,
    settings: options.Settings = None,
    data_root: options.DataRoot = Path("data"),
    quiet: options.Quiet = False,
) -> None:
    """Score finished runs again with another drift or classifier.

    The table also shows the run's own parts, no drift, and the real statistics of old classes (oracle), the upper bound
    for any drift. Only adapters and classifiers are fitted, on the stored networks. A changed memory applies to all
    rows of the table.
    """
    from adagauss.analysis.rescore import Variant, rescored_rows
    from adagauss.analysis.rescore import rescore as rescore_run
    from adagauss.core.config import Layer, resolve
    from adagauss.data.dataset import load_dataset
    from adagauss.experiments.config import make_config
    from adagauss.experiments.run import open_runs
    from adagauss.methods.base import USER
    from adagauss.parts.drift import NoDrift

    opened, _ = open_runs(runs, strict=True)
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
    variants = {"none": Variant(NoDrift(), method.memory), "as run": Variant(config.method.drift, method.memory)}
    classifiers = {"as run": config.method.classifier}
    if method.drift != config.method.drift:
        variants["changed"] = Variant(method.drift, method.memory)
    if method.classifier != config.method.classifier:
        classifiers["changed"] = method.classifier
    reporter = reporter_for(quiet)
    data = load_dataset(config.stream.dataset, read_options(data_root, config.stream, reporter))
    with stoppable("rescoring stores nothing: the same command starts again"):
        results = [rescore_run(run, data, variants, classifiers, reporter) for run in opened]
    rows = rescored_rows(results)
    say(f"{first.protocol}: {first.method} rescored, {output.counted(len(results), 'seed')}, A_last / A_inc, %")
    say(*table(list(rows[0]), [list(row.values()) for row in rows], wrap=True))


@command(
    "adagauss analyse runs/cifar/adagauss-*",
    "adagauss analyse runs/with runs/without --study spectrum,ranks --out figures",
    "adagauss list figures",
)
def analyse(
    runs: options.RunFolders,
    study: Annotated[str, Option(metavar="NAMES", help="Figures by name, separated by commas, or all.")] = "all",
    out: Annotated[Path, Option("--out", "-o", help="Folder for the figures.")] = Path("figures"),
    style: Annotated[
        str, Option(help="paper: column width, PDF, caption in a file; talk: large text; or web.")
    ] = "web",
    data_root: options.DataRoot = Path("data"),
    quiet: options.Quiet = False,
) -> None:
    """Draw figures of runs as PNG and SVG (or PDF, for a paper), with their numbers as CSV.

    Runs with equal settings are averaged over their seeds; the others are labelled by the settings that differ. Some
    figures need real statistics of old classes: they are computed from the images of the run and stored in its folder.
    Without these images, the other figures are drawn.
    """
    from adagauss.analysis.plotting import use_style
    from adagauss.analysis.studies import analyse as draw
    from adagauss.analysis.studies import find_study, group_by_settings
    from adagauss.experiments.grid import read_dataset
    from adagauss.experiments.run import open_runs

    names = [] if study == "all" else [name.strip() for name in study.split(",")]
    use_style(style)  # a wrong name is an error before any run is read
    for name in names:
        find_study(name)
    reporter = reporter_for(quiet)
    opened, _ = open_runs(runs, strict=True, reporter=reporter)
    groups, stream = group_by_settings(opened), opened[0].config.stream
    options = read_options(data_root, stream, reporter)
    command = shlex.join(["adagauss", "analyse", *map(str, runs)]) + " --study {study}"
    with stoppable("measurements of finished runs are stored: the same command continues"):
        drawn = draw(
            groups,
            out,
            names=names,
            images=lambda: read_dataset(stream, options),
            reporter=reporter,
            command=command,
            style=style,
        )
    made = [one for one in drawn if one.missing is None]
    if made:
        rows = [(one.name, ", ".join(one.files), one.title) for one in made]
        say(*table(("drawn", "files", "what it shows"), rows), f"Figures: {out}")
    missing: dict[str, list[str]] = {}
    for one in drawn:
        if one.missing is not None:
            missing.setdefault(one.missing, []).append(one.name)
    for reason, without in missing.items():
        labelled("not drawn: ", f"{', '.join(without)}: {reason}", 4, error=True)
    if not made:
        raise typer.Exit(2)


@command(
    "adagauss report runs/demo --out report.html",
    "adagauss report runs/cifar/adagauss-*-seed0 runs/cifar/analytic-*-seed0",
)
def report(
    runs: options.RunFolders,
    out: Annotated[Path, Option("--out", "-o", help="The page, an HTML file.")] = Path("report.html"),
    study: Annotated[str, Option(metavar="NAMES", help="Figures (`adagauss list figures`), or all, or none.")] = "all",
    quiet: options.Quiet = False,
) -> None:
    """Write one HTML page about runs: results, curves, classes, cost, settings, environment and commands.

    The page is a single file that needs no network and no script. Each protocol has its own part; unfinished runs are
    shown up to their last finished task. Figures that need images are drawn if `adagauss analyse` has measured the
    runs before.
    """
    from adagauss.analysis.report import write_report

    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder: name a file, such as {out / 'report.html'}")
    with stoppable("the report was not written"):
        written = write_report(runs, out, study=study, reporter=reporter_for(quiet))
    for path, reason in written.skipped.items():
        warn(f"{path} is left out: {reason}")
    count = output.counted(len(written.runs), "run")
    say(f"{count}: {out} ({out.stat().st_size / 1e6:.1f} MB)")


# ---------------------------------------------------------------------------------------------------- reproduce


@command(
    "adagauss reproduce --list --scale cpu",
    "adagauss reproduce table3 fig8 --scale cpu --seeds 0",
    "adagauss reproduce fig4 --scale cpu --first-tasks 5 --set stream.class_order=3 --set runtime.precision=bf16-mixed",
    "adagauss reproduce all --scale cpu --out runs/reproduce --jobs 2",
    "adagauss reproduce table2 --scale paper --set backbone.weights=resnet18-f37072fd.pth",
)
def reproduce(
    context: Context,
    what: Annotated[
        list[str] | None, Argument(metavar="[WHAT]...", help="Tables and figures by name (see --list), or all.")
    ] = None,
    scale: Annotated[str, Option(help="paper: as in the paper, for a GPU; cpu: hours on two cores.")] = "cpu",
    seeds: Annotated[
        str | None, Option(help="Seeds separated by commas, for every row; default: those of --scale.")
    ] = None,
    out: Annotated[Path, Option("--out", "-o", help="Folder for runs, tables and figures.")] = Path("runs/reproduce"),
    show_list: Annotated[
        bool, Option("--list", "-l", help="List tables and figures with their finished and missing runs.")
    ] = False,
    finished: Annotated[
        bool, Option("--finished", help="Use finished runs only, also while others are running; run nothing.")
    ] = False,
    preset: options.Preset = None,
    settings: options.Settings = None,
    only_first: options.FirstTasks = None,
    page: Annotated[
        Path | None, Option(help="Also write a Markdown page on all claims, e.g. results/paper.md.")
    ] = None,
    jobs: options.Jobs = None,
    engine_name: options.EngineName = None,
    data_root: options.DataRoot = Path("data"),
    quiet: options.Quiet = False,
) -> None:
    """Reproduce tables and figures of the paper, with the paper's own numbers and a verdict on each of its claims.

    Missing runs are made, unfinished ones resumed, and each is shared by all tables and figures that need it. Rows that
    differ only in memory, drift or classifier are scored on the networks of another run. The same command may be
    started in several processes: they share the work.
    """
    from adagauss.data.dataset import ReadOptions
    from adagauss.experiments import reproduce as reproduction
    from adagauss.experiments.grid import Workers
    from adagauss.experiments.paper import SCALES, find_items
    from adagauss.utils.runtime import RuntimeConfig

    if not what and not show_list:
        raise ConfigError("name what to reproduce, e.g. `adagauss reproduce table3`; --list shows all names")
    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    items = find_items(what or ["all"])
    reporter = reporter_for(quiet)
    changed = parse_settings(settings)
    if chosen := [key for key in changed if key in {f"stream.{name}" for name in options.TASK_SETTINGS}]:
        raise ConfigError(f"--set {chosen[0]}: every table has its own tasks; --first-tasks makes them fewer")
    data = ReadOptions(root=data_root, reporter=reporter)
    config = reproduction.ReproductionConfig(
        SCALES[scale],
        out,
        Workers(options=data, reporter=reporter),
        seeds=tuple(parse_numbers(seeds, "--seeds")) if seeds else None,
        stream=section(changed, "stream"),
        runtime=RuntimeConfig.of(section(changed, "runtime"), "runtime."),
        preset=preset,
        settings=changed,
        first_tasks=only_first,
    )
    if show_list:
        for line in reproduction.list_lines(items, config):
            labelled("", line, 4)
        return
    with (
        stoppable(f"finished tasks and runs are in {out}: the same command resumes them"),
        options.workers(context, out, data, device=config.runtime.device) as opened,
    ):
        config = replace(config, workers=opened)
        made = reproduction.reproduce(items, config, run=not finished)
    for one in made:
        for found in one.results:
            rows = reproduction.table_rows([found])
            heads = [head for head in rows[0] if head not in ("benchmark", "note")]
            say(f"{one.item.title}: {found.protocol.name} ({config.scale.note})")
            say(*table(heads, [[row[head] for head in heads] for row in rows], right=range(1, len(heads)), wrap=True))
        for line in one.remarks():
            labelled("- ", line, 2)
        say(f"Files: {config.folder(one.item)}")
    if page is not None:
        with stoppable("only the page is missing: the same command writes it"):
            reproduction.write_page(made, config, page)
        say(f"Page: {page}")
    problems = [found for one in made for found in one.problems()]
    _report_failures({f"{name} failed": problem.reason for name, problem in problems if problem.kind == "failed"})


# --------------------------------------------------------------------------------------------------------- list

KINDS = ("methods", "protocols", "backbones", "datasets", "metrics", "figures")


@command(
    "adagauss list methods adagauss --preset paper",
    "adagauss list protocols",
    "adagauss list datasets --fetch cifar100",
    name="list",
)
def list_command(
    kind: Annotated[
        str, Argument(metavar="KIND", help="methods, protocols, backbones, datasets, metrics or figures.")
    ] = "methods",
    name: Annotated[str | None, Argument(help="Show one method: what it stores, and its settings.")] = None,
    preset: options.Preset = None,
    protocol: options.ProtocolName = None,
    fetch: Annotated[str | None, Option(metavar="DATASET", help="Download a dataset.")] = None,
    data_root: options.DataRoot = Path("data"),
) -> None:
    """List methods, protocols, backbones, datasets, metrics or figures; show one method with its settings."""
    if kind not in KINDS:
        raise unknown_name("kind", kind, KINDS)
    if fetch and kind != "datasets":
        raise ConfigError("--fetch is for `adagauss list datasets`")
    if kind == "methods" and name is not None:
        _show_method(name, preset, protocol)
    elif preset or protocol or name:
        raise ConfigError("settings are shown for one method only: name it, as in `adagauss list methods adagauss`")
    elif fetch:
        from adagauss.data.download import fetch as download

        with stoppable(f"{fetch} is not complete: the same command starts the download again"):
            say(f"{fetch} is at {download(fetch, data_root, reporter=reporter_for())}")
    else:
        heads, rows = _listing(kind, data_root)
        say(*table(heads, rows, wrap=True))


def _listing(kind: str, data_root: Path) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """Headings and rows."""
    from adagauss.analysis.studies import studies
    from adagauss.backbones import backbones
    from adagauss.backbones.registry import backbone_info
    from adagauss.data.dataset import datasets
    from adagauss.experiments.metrics import metrics
    from adagauss.experiments.protocols import PROTOCOLS, protocol
    from adagauss.methods import methods

    rows: list[Sequence[object]] = []
    match kind:
        case "methods":
            for info in sorted(methods().values(), key=lambda info: info.family):
                paper = info.paper.partition(", arXiv")[0].partition(";")[0]
                rows.append((info.name, info.family, paper, info.recipe))
            return ("method", "family", "paper", "recipe of"), rows
        case "protocols":
            for name, chosen in PROTOCOLS.items():
                stream = chosen.stream
                tasks = f"{stream.first}+{stream.tasks - 1}" if stream.first else str(stream.tasks)
                order = "by seed" if stream.class_order else "fixed"
                networks = [one.settings["backbone.name"] for one in (chosen, protocol(name, "cpu"))]
                scales = "paper, cpu" + ", few" * (not chosen.needs_weights) + ", fast" * bool(chosen.fast)
                rows.append((name, tasks, order, *networks, scales))
            return ("protocol", "tasks", "order", "network", "network, cpu", "--scale"), rows
        case "backbones":
            known = {**backbones(), "timm:NAME": backbone_info("timm:NAME")}
            rows += [(name, info.summary, "yes" if info.available else "no") for name, info in known.items()]
            return ("backbone.name", "network", "installed"), rows
        case "datasets":
            for one in datasets().values():
                present = "yes" if one.present(data_root) else "no (fetch)" if one.downloads else "no"
                place = f"in {one.folder}/; " if one.folder else ""
                about = f"{one.title}; {one.images}; {place}licence: {one.licence}"
                rows.append((one.name, "-" if one.takes_path else present, one.classes or "any", about))
            return ("dataset", "present", "classes", "images, folder and licence"), rows
        case "metrics":
            return ("metric", "title", "better"), [(one.name, one.title, one.better) for one in metrics()]
    rows += [(study.name, "images" if study.needs_images else "", study.title) for study in studies().values()]
    return ("figure", "needs", "shows"), rows


def _show_method(name: str, preset: str | None, protocol: str | None) -> None:
    from adagauss.experiments.config import make_config
    from adagauss.experiments.protocols import protocol as protocol_by_name
    from adagauss.methods import method_info, resolve_method

    info = method_info(name)
    presets = (f"{key} (default)" if key == info.default_preset else key for key in info.presets)
    facts = {
        info.title: " ".join((info.build.__doc__ or "").partition("\n\n")[0].split()),
        "family": info.family,
        "stored": info.stores,
        "paper": info.paper,
        "recipe of": info.recipe,
        "presets": ", ".join(presets),
    }
    for key, text in facts.items():
        if text:
            labelled(f"{key}: ", text, 4)
    if protocol:
        chosen = protocol_by_name(protocol)
        config = make_config(name, chosen.stream, preset=preset, protocol=chosen)
        method, origins = config.method, config.origins
    else:
        resolved = resolve_method(name, preset)
        method, origins = resolved.config, resolved.origins
    say("", f"settings of {name}" + (f", {protocol}" if protocol else ""))
    show_settings(method, origins)


def show_settings(method: Method, origins: Mapping[str, str]) -> None:
    """Print every setting of a method and, if known, the layer that it comes from."""
    from adagauss.core.config import flatten, plain
    from adagauss.utils.files import as_yaml

    rows = [(f"{key}={as_yaml(value)}", origins.get(key, "")) for key, value in flatten(plain(method)).items()]
    say(*table(("--set", "from"), rows, wrap=True))
