"""`adagauss replay`: other drifts and classifiers on finished runs, without training a network again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adagauss.cli import output
from adagauss.cli.options import (
    DataRoot,
    Quiet,
    Settings,
    Workers,
    make_reporter,
    parse_settings,
    read_options,
)
from adagauss.cli.output import stoppable
from adagauss.errors import ConfigError

if TYPE_CHECKING:
    from adagauss.experiments.config import RunConfig
    from adagauss.methods import Method

AS_RUN, CHANGED, NONE = "as run", "changed", "none"
EXAMPLES = """
**Examples:** `adagauss replay runs/demo/adagauss-* --like adagauss+` ·
`adagauss replay RUN --set drift.kind=affine --set classifier.pooled_shrinkage=0.5`
"""


def register(app: typer.Typer, panel: str) -> None:
    """Add the command."""
    app.command(rich_help_panel=panel, epilog=EXAMPLES)(replay)


def replay(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several seeds are averaged.")],
    like: Annotated[
        str | None,
        typer.Option("--like", "-l", metavar="METHOD", help="Use memory, drift and classifier of this method."),
    ] = None,
    settings: Settings = None,
    data_root: DataRoot = Path("data"),
    workers: Workers = 2,
    quiet: Quiet = False,
) -> None:
    """Score a finished run again with another drift or classifier, next to no drift and the real statistics.

    The networks are those of the run: only adapters and classifiers are fitted again, which takes a small part of its
    time. The real statistics of old classes (oracle) are the upper bound for any drift; no learner has access to them.
    The memory can be changed as well, and then applies to all lines of the table.
    """
    from adagauss.analysis.replay import replay as replay_run
    from adagauss.data.dataset import load_dataset
    from adagauss.experiments.run import Run, RunFolder
    from adagauss.parts.drift import NoDrift

    reporter = make_reporter(quiet)
    config = _common_config(runs)
    metrics = [Run.open(path) for path in runs]
    data = load_dataset(config.stream.dataset, read_options(data_root, config.stream, workers, reporter))
    changed = _changed(_like(like, config) if like else config.method, parse_settings(settings))
    drifts = {NONE: NoDrift(), AS_RUN: config.method.drift}
    classifiers = {AS_RUN: config.method.classifier}
    if changed.drift != config.method.drift:
        drifts[CHANGED] = changed.drift
    if changed.classifier != config.method.classifier:
        classifiers[CHANGED] = changed.classifier
    with stoppable("a replay changes nothing, and nothing of it is kept: the same command begins again"):
        results = [replay_run(RunFolder(path), data, drifts, classifiers, reporter, changed.memory) for path in runs]
    output.show(output.replay_table(results, metrics[0]))


def _common_config(runs: list[Path]) -> RunConfig:
    from adagauss.experiments.run import RunFolder, stored_config

    configs = [stored_config(RunFolder(path)) for path in runs]
    others = [path for path, config in zip(runs, configs, strict=True) if config.digest() != configs[0].digest()]
    if others:
        raise ConfigError(f"{others[0]} has other settings than {runs[0]}: replay them separately")
    return configs[0]


def _like(name: str, config: RunConfig) -> Method:
    """The run's method with memory, drift and classifier of another method, as set on this dataset."""
    from adagauss.experiments.config import make_config

    other = make_config(name, config.stream).method
    parts = {"memory": other.memory, "drift": other.drift, "classifier": other.classifier}
    return config.method.with_changes(**parts)


def _changed(method: Method, settings: dict[str, Any]) -> Method:
    from adagauss.core.config import Layer, resolve
    from adagauss.methods.base import USER

    for key in settings:
        if key.partition(".")[0] not in ("memory", "drift", "classifier"):
            raise ConfigError(
                f"--set {key}: a replay changes only memory, drift and classifier; use `adagauss run` for the rest"
            )
    return resolve(method, [Layer(USER, settings)], "run").config
