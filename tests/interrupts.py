"""Processes that can be interrupted, even where the tests themselves run in the background of a shell."""

from __future__ import annotations

import signal
import subprocess
from typing import Any


def interruptible(command: list[str], **settings: Any) -> subprocess.Popen[str]:
    """A process that SIGINT reaches: a shell without job control lets what it starts in the background ignore it."""
    usual = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return subprocess.Popen(command, text=True, **settings)
    finally:
        signal.signal(signal.SIGINT, usual)
