"""Training steps with and without `keep_freed_memory`, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from adagauss.utils.process import MALLOC_VARIABLES

from .measure import Ratio, milliseconds

STEP = """
import sys
from adagauss.utils.process import keep_freed_memory
backbone, side, how = sys.argv[1:]
if how == "kept":
    keep_freed_memory()
from benchmarks.measure import best_times
from benchmarks.step import make_step
print(best_times([make_step(backbone, channels_last=True, side=int(side))], rounds=5)[0])
"""
NETWORKS = (("resnet_thin", 32), ("resnet32", 32), ("efficientnet_lite0", 128))


def seconds(backbone: str, side: int, how: str) -> float:
    bare = {name: value for name, value in os.environ.items() if name not in MALLOC_VARIABLES}
    command = [sys.executable, "-c", STEP, backbone, str(side), how]
    return float(subprocess.run(command, env=bare, capture_output=True, text=True, check=True).stdout)


def run() -> list[Ratio]:
    lines = []
    for backbone, side in NETWORKS:
        plain, kept = (min(seconds(backbone, side, how) for _ in range(2)) for how in ("plain", "kept"))
        what = f"training step, {backbone}, {side} px, freed memory kept"
        lines.append(Ratio(what, milliseconds(plain), milliseconds(kept), plain / kept, ">= 1"))
    return lines
