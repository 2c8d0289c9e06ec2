"""Training steps with and without `keep_freed_memory`, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from adagauss.allocator import OWN_CHOICE

from .measure import Ratio, milliseconds

STEP = """
import sys
from adagauss.allocator import keep_freed_memory
if sys.argv[2] == "keep":
    keep_freed_memory()
from benchmarks.measure import best_times
from benchmarks.step import make_step
print(best_times([make_step(True, False, name=sys.argv[1])], rounds=8)[0])
"""


def seconds(network: str, how: str) -> float:
    bare = {name: value for name, value in os.environ.items() if name not in OWN_CHOICE}
    command = [sys.executable, "-c", STEP, network, how]
    return float(subprocess.run(command, env=bare, capture_output=True, text=True, check=True).stdout)


def run() -> list[Ratio]:
    lines = []
    for network in ("resnet18", "resnet32", "resnet_thin"):
        plain, kept = (min(seconds(network, how) for _ in range(2)) for how in ("plain", "keep"))
        what = f"training step, {network}, 32 px, freed memory kept"
        lines.append(Ratio(what, milliseconds(plain), milliseconds(kept), plain / kept, ">= 1"))
    return lines
