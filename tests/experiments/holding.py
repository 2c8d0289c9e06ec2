"""Work of processes that tests kill; imported without torch, which would take most of their time."""

from __future__ import annotations

import os
import time
from pathlib import Path

from filelock import FileLock

DEADLINE = 120.0
"""Seconds after which a test gives up."""


def hold(folder: str, distributed: bool = False) -> None:
    """Hold a lock until this process is ended; with ``distributed``, as a process of distributed training does."""
    with FileLock(f"{folder}/lock"):
        written = Path(folder) / "pid.new"
        written.write_text(str(os.getpid()), encoding="ascii")
        written.replace(Path(folder) / "pid")  # whoever sees the file can read the whole number
        if distributed:
            from adagauss.distributed.launch import _end_with_parent

            _end_with_parent()
        time.sleep(2 * DEADLINE)
