"""Cells: one configuration and one seed each, in one folder however many items use them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from adagauss.backbones.registry import backbone_info
from adagauss.data.dataset import ReadOptions, dataset_info
from adagauss.errors import AdagaussError, CheckpointError
from adagauss.reproduce.failures import Failures
from adagauss.reproduce.lengths import passes
from adagauss.reproduce.plan import Item, Row, Scale, Where
from adagauss.runs.configuration import RunConfig, make_config
from adagauss.runs.folder import METRICS_FILE, RunFolder
from adagauss.runs.grid import recipe_of
from adagauss.runs.results import RunResult
from adagauss.utils.runtime import RuntimeConfig


@dataclass(frozen=True)
class Workshop:
    """Where and how everything is made."""

    scale: Scale
    out: Path
    options: ReadOptions = field(default_factory=ReadOptions)
    seeds: tuple[int, ...] | None = None
    """Seeds of every row; None leaves their number to the items."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    weights: Path | None = None
    """Weights of ResNet-18 for the protocols that start from them."""

    @property
    def runs(self) -> Path:
        """Folder of the cells of all scales, named as `adagauss compare` names them."""
        return self.out / "cells"

    @property
    def failures(self) -> Failures:
        """What has failed so far."""
        return Failures(self.out / "failures")

    def place(self, item: Item) -> Path:
        """Folder of the tables and figures of an item."""
        return self.out / self.scale.name / item.name

    def seeds_of(self, where: Where) -> tuple[int, ...]:
        return self.seeds if self.seeds is not None else self.scale.seeds[: where.seeds]


class Problem(NamedTuple):
    """Why there is no number."""

    kind: Literal["unavailable", "missing", "failed"]
    reason: str


@dataclass(frozen=True)
class Cell:
    """A run that an item needs."""

    config: RunConfig
    configuration: str
    """Method and digest: the name without the seed."""
    runs: Path
    failures: Failures

    @property
    def name(self) -> str:
        """As `adagauss compare` names its runs."""
        return f"{self.configuration}-seed{self.config.seed}"

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.runs / self.name)

    def with_seed(self, seed: int) -> Cell:
        """The same configuration with another seed."""
        return replace(self, config=self.config.model_copy(update={"seed": seed}))

    def result(self) -> RunResult | Problem:
        """Its numbers, if it is finished."""
        file = self.folder.path / METRICS_FILE
        try:
            return _read(self.folder.path, file.stat().st_mtime_ns if file.exists() else 0)
        except CheckpointError as error:
            if reason := self.failures.reason(self.name):
                return Problem("failed", reason)
            if file.exists():
                return Problem("missing", str(error))
            done = self.folder.finished_tasks()
            begun = f"{done} of {self.config.stream.tasks} tasks are done" if done else "it has not been run"
            return Problem("missing", begun)


@lru_cache(maxsize=1024)
def _read(folder: Path, written: int) -> RunResult:
    """The numbers of a run; many items ask for them, and they are read again only if they were written again."""
    return RunFolder(folder).result()


@dataclass(frozen=True)
class Job:
    """One row of an item on one benchmark with one seed."""

    item: Item
    where: Where
    row: Row
    seed: int
    cell: Cell | Problem


def jobs(items: Iterable[Item], shop: Workshop) -> list[Job]:
    """Everything the items are made of."""
    configured: dict[str, Cell | Problem] = {}
    return [job for item in items for job in _jobs_of(item, shop, configured)]


def _jobs_of(item: Item, shop: Workshop, configured: dict[str, Cell | Problem]) -> Iterator[Job]:
    for where in item.where[shop.scale.size]:
        for row in item.rows:
            if where.only and row.label not in where.only:
                continue
            # Many items share a row, and settings take longer to resolve than to compare.
            key = f"{where.protocol} {row.method} {sorted(row.settings.items())}"
            if key not in configured:
                configured[key] = make_cell(row, where.protocol, shop)
            for seed in shop.seeds_of(where):
                cell = configured[key]
                yield Job(item, where, row, seed, cell.with_seed(seed) if isinstance(cell, Cell) else cell)


def make_cell(row: Row, protocol_name: str, shop: Workshop) -> Cell | Problem:
    """The run with seed 0 behind a row, or why it cannot be made here: data, weights or a package that are missing."""
    protocol = shop.scale.find(protocol_name)
    dataset = dataset_info(protocol.stream.dataset)
    if not dataset.present(shop.options.root):
        folder = shop.options.root / dataset.folder
        return Problem("unavailable", f"{dataset.title} is not at hand (its place is {folder})")
    settings = dict(row.settings)
    if protocol.needs_weights and "backbone.name" not in settings:
        if shop.weights is None:
            return Problem("unavailable", "needs torchvision's weights of ResNet-18: --weights resnet18-f37072fd.pth")
        settings["backbone.weights"] = str(shop.weights)
    try:
        config = make_config(
            row.method,
            protocol.stream,
            settings=settings,
            recipe=recipe_of(row.method, shop.scale.recipe),
            runtime=shop.runtime,
            protocol=protocol,
        )
        protocol.check_weights(config.method)
    except AdagaussError as error:
        return Problem("unavailable", str(error))
    backbone = backbone_info(config.method.backbone.name)
    if not backbone.available:
        return Problem("unavailable", f"backbone {backbone.name} needs the package {backbone.modules[0]}")
    return Cell(config, f"{row.method}-{config.digest()}", shop.runs, shop.failures)


def distinct(found: Sequence[Job]) -> list[Cell]:
    """The runs behind jobs, each once, in the order of work: one seed of everything before the next, short runs first.

    So most tables and figures can be looked at, with one seed, long before all is done.
    """
    cells: dict[Path, tuple[int, int, float, Cell]] = {}
    datasets: dict[str, int] = {}
    ranks: Mapping[int, int] = {seed: rank for rank, seed in enumerate(dict.fromkeys(job.seed for job in found))}
    for job in found:
        if isinstance(job.cell, Cell):
            # Runs on one dataset follow each other, so that it is read once.
            place = datasets.setdefault(job.cell.config.stream.dataset, len(datasets))
            cells.setdefault(job.cell.folder.path, (ranks[job.seed], place, passes(job.cell.config), job.cell))
    return [cell for *_, cell in sorted(cells.values(), key=lambda entry: entry[:3])]
