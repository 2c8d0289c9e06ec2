"""Measure what is wanted of a run, unless it is kept already."""

from __future__ import annotations

from collections.abc import Callable

from adagauss.analysis.measured import kept
from adagauss.analysis.measured.frozen import measure_frozen
from adagauss.analysis.measured.kept import Tables
from adagauss.analysis.measured.memory import measure_memory
from adagauss.analysis.measured.quantities import Measured, Quantity
from adagauss.analysis.measured.real import measure_real
from adagauss.analysis.measured.shrink import measure_shrink
from adagauss.data.dataset import Dataset
from adagauss.data.images import Label
from adagauss.data.stream import TaskStream
from adagauss.errors import CheckpointError, NumericalError, UnsupportedError
from adagauss.experiments.config import RunConfig
from adagauss.experiments.environment import check_data
from adagauss.experiments.run import ENVIRONMENT, RunFolder, stored_config
from adagauss.experiments.runner import make_stream
from adagauss.utils.checkpoint import load_tensors
from adagauss.utils.progress import Reporter

NO_IMAGES = "the run's images are not at hand: give their folder with --data-root"
WITH_IMAGES: dict[Quantity, Callable[[RunFolder, RunConfig, TaskStream, Reporter], Tables]] = {
    Quantity.REAL: measure_real,
    Quantity.FROZEN: measure_frozen,
    Quantity.SHRINK: measure_shrink,
}


def measure(
    folder: RunFolder,
    dataset: Dataset | None,
    wanted: frozenset[Quantity],
    reporter: Reporter | None = None,
) -> Measured:
    """The numbers of a run that are wanted; ``missing`` says why some could not be measured.

    Without its dataset only quantities are measured that need no images, or were kept earlier.
    """
    reporter = reporter or Reporter()
    config = stored_config(folder)
    finished = folder.finished_tasks()
    if not finished:
        raise CheckpointError(f"{folder.path} has no finished task yet: continue it with --resume")
    tables: Tables = {}
    missing: dict[Quantity, str] = {}
    for quantity in Quantity:
        if quantity not in wanted or quantity == Quantity.ANSWERS:
            continue
        found = kept.read(folder, quantity)
        if found is None:
            reason = _against(folder, quantity, dataset)
            if reason is None:
                try:
                    found = _measured(folder, config, quantity, dataset, reporter)
                except (UnsupportedError, NumericalError) as error:
                    reason = str(error)
            if reason is not None:
                missing[quantity] = reason
        tables.update(found or {})
    evaluations, facts = zip(*(folder.evaluation(index) for index in range(finished)), strict=True)
    planned = len(config.stream.sizes) if config.stream.sizes else config.stream.tasks
    labels = _labels(folder, finished)
    return Measured(
        path=folder.path,
        config=config,
        labels=labels,
        evaluations=evaluations,
        facts=facts,
        environment=folder.read_json_or_nothing(ENVIRONMENT),
        planned=planned,
        tables=tables,
        missing=missing,
    )


def kept_quantities(folder: RunFolder) -> frozenset[Quantity]:
    """What needs no measuring: it comes from the folder as it is, or was kept."""
    return frozenset(
        quantity for quantity in Quantity if not quantity.needs_images or kept.read(folder, quantity) is not None
    )


def _against(folder: RunFolder, quantity: Quantity, dataset: Dataset | None) -> str | None:
    """Why a quantity cannot be measured here."""
    finished = folder.finished_tasks()
    if not all(folder.checkpoint(index).exists() for index in range(finished)):
        return "the networks of earlier tasks were not kept: only the last checkpoint is there"
    return NO_IMAGES if quantity.needs_images and dataset is None else None


def _measured(
    folder: RunFolder, config: RunConfig, quantity: Quantity, dataset: Dataset | None, reporter: Reporter
) -> Tables:
    if quantity == Quantity.MEMORY:
        found = measure_memory(folder, config, reporter)
    else:
        assert dataset is not None, "a quantity that needs images is refused without them"
        try:
            check_data(folder, dataset, reporter)
        except CheckpointError as error:
            raise UnsupportedError(f"the images at hand are not those of the run: {error}") from None
        found = WITH_IMAGES[quantity](folder, config, make_stream(config, dataset), reporter)
    if problem := kept.write(folder, quantity, found):
        reporter.message(problem)
    return found


def _labels(folder: RunFolder, finished: int) -> tuple[Label, ...]:
    """Names of the classes in the order they were learned."""
    _, facts = load_tensors(folder.checkpoint(finished - 1), "learner")
    return tuple(dict.fromkeys(label for task in facts["knowledge"]["tasks"] for label in task))
