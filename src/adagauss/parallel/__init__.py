"""Several processes that learn together and end with what one process would have learned."""

from adagauss.parallel.division import Division
from adagauss.parallel.processes import Processes

__all__ = ["Division", "Processes"]
