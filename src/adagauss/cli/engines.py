"""Options of commands that make many runs: who makes them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Runs at a time; without another engine, processes of one thread each."),
]
RayAddress = Annotated[
    str | None, typer.Option("--ray", metavar="ADDRESS", help="Run on a Ray cluster: host:6379, auto, or local.")
]
SlurmPartition = Annotated[
    str | None, typer.Option("--slurm", metavar="PARTITION", help="Run as Slurm jobs, one per run.")
]
DaskAddress = Annotated[
    str | None, typer.Option("--dask", metavar="ADDRESS", help="Run on a Dask scheduler: tcp://host:8786, or local.")
]


@contextmanager
def engine(
    out: Path, jobs: int | None, ray: str | None, slurm: str | None, dask: str | None, device: str = "auto"
) -> Iterator[Executor | None]:
    """The executor that the options ask for, or None."""
    from adagauss.experiments.executors import open_executor

    gpus = int(device.startswith("cuda"))
    with open_executor(out, jobs=jobs, ray=ray, slurm=slurm, dask=dask, gpus=gpus) as executor:
        yield executor
