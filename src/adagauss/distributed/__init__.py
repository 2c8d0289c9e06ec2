"""Distributed training with the same results as a single process."""

from adagauss.distributed.processes import Processes, Sharding

__all__ = ["Processes", "Sharding"]
