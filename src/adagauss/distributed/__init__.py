"""Several processes that learn together and end with what one process would have learned."""

from adagauss.distributed.processes import Division, Processes

__all__ = ["Division", "Processes"]
