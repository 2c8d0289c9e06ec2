"""`adagauss run` in several processes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adagauss.cli.options import make_reporter, read_options
from adagauss.errors import ConfigError
from adagauss.utils.process import keep_freed_memory

if TYPE_CHECKING:
    from adagauss.distributed.launch import Layout
    from adagauss.distributed.processes import Processes
    from adagauss.experiments.config import RunConfig
    from adagauss.experiments.run import RunResult

Devices = Annotated[
    int,
    typer.Option("--devices", min=1, help="Processes that share the work on each machine: GPUs, or groups of cores."),
]
Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Machines, on each of which torchrun or Slurm runs this.")]
BatchNorm = Annotated[
    str, typer.Option("--batch-norm", help="Of several processes: global, as one process, or local (faster, differs).")
]


def layout_of(devices: int, nodes: int, batch_norm: str, config: RunConfig) -> Layout:
    """The processes that were asked for, if they can be had here."""
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
    no_cache: bool
    quiet: bool
    trackers: Sequence[str] = ()


def run_together(layout: Layout, order: Order) -> RunResult | None:
    """Run in all processes; None where another process tells the result."""
    from adagauss.distributed.launch import first_here, launch
    from adagauss.experiments.run import RunFolder

    launch(_run, layout, order.config.runtime, order)
    return RunFolder(order.out).result() if first_here() else None


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
        options=read_options(order.data_root, order.config.stream, order.workers, reporter, order.no_cache),
        trackers=order.trackers,
        processes=processes,
    )
