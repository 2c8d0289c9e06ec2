"""What a worker does: one shard into one file of sums, with the extractor in its own process. Failures are values."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from adagauss.core.learn import Learner
from adagauss.errors import AdagaussError, DataError
from adagauss.experiments.session import PATIENCE, AbandonedError, SessionReporter
from adagauss.shards.example import ShardError
from adagauss.shards.finding import Shard
from adagauss.shards.stock import write_part
from adagauss.shards.summing import sum_shard
from adagauss.utils.process import is_out_of_memory
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime, RuntimeConfig


@dataclass(frozen=True)
class Orders:
    """What workers have to know beside their shards."""

    features: Path
    """File of a learner with these features."""
    folder: Path
    """Where sums are written; all machines must see it."""
    device: str = "auto"
    skip_bad: bool = False
    workers: int = 1
    threads: int | None = None
    """None leaves torch as it is."""
    session: Path | None = None
    """Work ends when this session does."""


@dataclass(frozen=True)
class Done:
    """What became of a shard."""

    path: Path | None = None
    images: int = 0
    skipped: int = 0
    """Images that were passed over, and an example."""
    example: str = ""
    failure: str = ""
    damaged: bool = False
    """Whether the shard is to blame for the failure, and may be left out."""
    abandoned: bool = False
    """Whether it only stopped because nobody seemed to wait for it."""


def work(
    shard: Shard, number: int, orders: Orders, reporter: Reporter | None = None, expected: str | None = None
) -> Done:
    """Sum one shard; this is what executors are given. ``expected`` is its stamp where somebody waits for the sums."""
    try:
        if orders.threads is not None:
            torch.set_num_threads(orders.threads)
        if reporter is None and orders.session is not None:
            reporter = SessionReporter(orders.session, number, PATIENCE)
        stamp = _stamp(shard, expected)
        learner = _learner(orders.features, orders.features.stat().st_mtime_ns, orders.device)
        found = sum_shard(learner, shard, skip_bad=orders.skip_bad, workers=orders.workers, reporter=reporter)
        if shard.stamp() != stamp:
            raise ShardError(f"{shard.name} changed while it was read: begin again when it is complete")
        path = write_part(orders.folder, found.part, shard, stamp, found.digest)
    except ShardError as error:
        return Done(failure=str(error), damaged=True)
    except AbandonedError as error:
        return Done(failure=str(error), abandoned=True)
    except AdagaussError as error:
        return Done(failure=str(error))
    except OSError as error:
        return Done(failure=f"{error.filename or shard.name}: {error.strerror or error}", damaged=True)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return Done(failure=f"{shard.name}: the memory is full: give fewer --jobs")
    example = next((f"{name}: {reason}" for name, reason in found.bad.items()), "")
    return Done(path, found.part.images, len(found.bad), example)


def _stamp(shard: Shard, expected: str | None) -> str:
    """The stamp of a shard as this machine sees it, which must be that of the process that waits."""
    try:
        stamp = shard.stamp()
        reason = "finds other files there (size or time of change differs)"
    except OSError as error:
        if expected is None:
            raise
        stamp, reason = "", f"cannot read it ({error.strerror or error})"
    if expected is not None and stamp != expected:
        raise DataError(
            f"{shard.name}: {socket.gethostname()} {reason}: give all machines the same files, in a folder that they "
            "share"
        )
    return stamp


@lru_cache(maxsize=1)
def _learner(features: Path, changed: int, device: str) -> Learner:
    """Loaded once per process, not once per shard."""
    return Learner.load(features, Runtime(RuntimeConfig(device=device)))
