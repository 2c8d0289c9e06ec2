"""A grid of methods and seeds; finished runs are not repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from adagauss.core.config import Config, flatten, plain
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation
from adagauss.data.dataset import ReadOptions, load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.errors import AdagaussError, ConfigError, DataError, unknown_name
from adagauss.experiments.cells import Cell
from adagauss.experiments.config import make_config
from adagauss.experiments.logs import require_trackers
from adagauss.experiments.protocols import Protocol
from adagauss.experiments.run import RunResult
from adagauss.experiments.scheduling import run_cells
from adagauss.methods import Method, make_method, method_info
from adagauss.methods import methods as all_methods
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import RuntimeConfig

SHARED_RATES: dict[str, dict[str, float]] = {
    "shared": {"first": 0.1, "later": 0.05},
    "brisk": {"first": 0.1, "later": 0.1},
}
"""Learning rates of the recipes that all methods share."""
RECIPES = ("own", *SHARED_RATES)


class Grid(NamedTuple):
    """The outcome of a grid."""

    results: dict[str, list[RunResult]]
    """Metrics of every run, by method."""
    failures: dict[str, str]
    """Why a method has no results, or not for all seeds."""


def shared_recipe(method: Method, name: str = "shared") -> dict[str, Any]:
    """The same epochs, optimizer, schedule, clipping and augmentation for every method.

    ``shared`` also makes the first task the same: rotations in that task only are switched off, while rotations in
    every task are part of a method (PASS) and stay. ``brisk`` is for short schedules: the rate of the first task in
    every task, as in the paper's text, and each method rotates the first task's images if its authors do.
    """
    recipe = _leaves("augmentation", Augmentation())
    for stage, rate in SHARED_RATES[name].items():
        if getattr(method.representation, stage) is not None:
            recipe.update(_leaves(f"representation.{stage}", Recipe(learning_rate=rate, clip_norm=1.0)))
    if name == "shared" and getattr(method.representation.label_augmentation, "when", None) == "first":
        recipe["representation.label_augmentation.kind"] = "none"
    return recipe


def recipe_of(method: str, name: str) -> dict[str, Any] | None:
    """The settings of a recipe for a method; None leaves it its own."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return None if name == "own" else shared_recipe(make_method(method), name)


def run_grid(
    methods: str,
    seeds: Sequence[int],
    stream: StreamConfig,
    out: Path,
    *,
    protocol: Protocol | None = None,
    recipe: str = "own",
    epochs: int | None = None,
    settings: Mapping[str, Any] | None = None,
    runtime: RuntimeConfig | None = None,
    options: ReadOptions | None = None,
    reporter: Reporter | None = None,
    executor: Executor | None = None,
    most: int | None = None,
    trackers: Sequence[str] = (),
) -> Grid:
    """Metrics of every method over every seed; finished runs in ``out`` are read from there.

    A run that cannot be made, fails or loses its worker is a failure of its method, and the others go on; if there is
    no result at all, it raises. Without an ``executor`` the runs are made here, one after another; ``most`` limits how
    many an executor has at a time. ``trackers`` follow the logs of the runs.
    """
    require_trackers(trackers)
    if recipe not in RECIPES:
        raise unknown_name("recipe", recipe, RECIPES)
    asked = all_methods() if methods == "all" else (name.strip() for name in methods.split(","))
    names = list(dict.fromkeys(asked))
    for name in names:
        method_info(name)
    known = {name: flatten(plain(make_method(name))).keys() for name in names}
    for key in settings or {}:
        if not any(key in keys for keys in known.values()):
            raise unknown_name("setting", key, set().union(*known.values()))
    dataset = load_dataset(stream.dataset, options)
    cells: list[Cell] = []
    failures: dict[str, AdagaussError] = {}
    for name, seed in product(names, dict.fromkeys(seeds)):
        try:
            config = make_config(
                name,
                stream,
                # Settings of a grid apply only to the methods that have them.
                settings={key: value for key, value in (settings or {}).items() if key in known[name]},
                recipe=recipe_of(name, recipe),
                epochs=epochs,
                seed=seed,
                runtime=runtime,
                protocol=protocol,
            )
            if protocol is not None:
                protocol.check_weights(config.method)
        except (ConfigError, DataError) as error:
            failures[name] = error
        else:
            folder = out / f"{name}-{config.digest()}-seed{seed}"
            cells.append(Cell(f"{name}, seed {seed}", config, folder, tuple(trackers)))
    outcomes = run_cells(
        cells, out, dataset, executor=executor, most=most, options=options, reporter=reporter, title="comparison"
    )
    failures.update({cell.config.method_name: one.failure for cell, one in outcomes if one.failure is not None})
    # Workers end in any order; tables have the order of the seeds.
    done = {cell: one.result for cell, one in outcomes if one.result is not None}
    if failures and not done:
        raise next(iter(failures.values()))
    results: dict[str, list[RunResult]] = {}
    for cell in cells:
        if cell in done:
            results.setdefault(cell.config.method_name, []).append(done[cell])
    return Grid(results, {name: str(error) for name, error in failures.items()})


def _leaves(prefix: str, config: Config) -> dict[str, Any]:
    return {f"{prefix}.{key}": value for key, value in flatten(plain(config)).items()}
