"""Run a method on a stream: metrics, run folders, resuming, comparisons."""

from adagauss.runs.configuration import RunConfig, make_config, stored_config
from adagauss.runs.folder import RunFolder
from adagauss.runs.results import RunResult
from adagauss.runs.runner import run

__all__ = ["RunConfig", "RunFolder", "RunResult", "make_config", "run", "stored_config"]
