"""A method whose first run to reach its second task loses its worker, or the disk of its worker."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

from adagauss import ClassGaussians, CurrentTask, Drift, Method, make_method, register_method

FAULT = "ADAGAUSS_TEST_FAULT"
"""Environment variable: a file that contains the fault, which is removed when the fault happens."""


class FaultyDrift(Drift):
    """Leaves the statistics as they are, after the fault."""

    kind = "faulty"

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        file = Path(os.environ.get(FAULT, "none"))
        try:
            fault = file.read_text(encoding="ascii")
            file.unlink()  # one of the workers is first
        except FileNotFoundError:
            return memory
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))  # writes fail from now on
        return memory


@register_method("faulty", title="Faulty", family="own", stores="mean of each class", paper="none")
def faulty() -> Method:
    """SDC with that drift."""
    return make_method("sdc").model_copy(update={"drift": FaultyDrift()})
