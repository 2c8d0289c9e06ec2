"""Several processes that learn together and end with what one process would have learned."""

from adagauss.distributed.processes import Processes, Sharding

__all__ = ["Processes", "Sharding"]
