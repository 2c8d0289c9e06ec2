"""A method through a stream: metrics, run folder, resume, comparison."""

from adagauss.benchmark.configuration import RunConfig, make_config
from adagauss.benchmark.folder import RunFolder
from adagauss.benchmark.results import RunResult
from adagauss.benchmark.runner import run

__all__ = ["RunConfig", "RunFolder", "RunResult", "make_config", "run"]
