"""Print the table of all benchmarks, or of those named: `python -m benchmarks scoring drift`."""

from __future__ import annotations

import importlib
import platform
import sys

import torch

from .measure import Ratio

NAMES = ("scoring", "drift", "step", "allocation", "memory_growth", "input_pipeline", "patches", "sums")


def main() -> None:
    chosen = sys.argv[1:] or list(NAMES)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}\n")
    print("| what | baseline | ours | ratio | goal |\n|---|---|---|---|---|")
    for name in chosen:
        lines: list[Ratio] = importlib.import_module(f"benchmarks.{name}").run()
        for line in lines:
            print(f"| {line.what} | {line.baseline} | {line.measured} | {line.ratio:.2f} | {line.goal} |", flush=True)


if __name__ == "__main__":
    main()
