"""Work of processes that tests kill; imported without torch, which would take most of their time."""

from __future__ import annotations

import os
import time
from pathlib import Path

from filelock import FileLock

DEADLINE = 120.0
"""Seconds after which a test gives up."""


def hold(folder: str, parent: int = 0) -> None:
    """Hold a lock until this process is ended; with ``parent``, as a process of distributed training does."""
    with FileLock(f"{folder}/lock"):
        (Path(folder) / "pid").write_text(str(os.getpid()), encoding="ascii")
        if parent:
            from adagauss.distributed.launch import _end_with

            _end_with(parent)
        time.sleep(2 * DEADLINE)
