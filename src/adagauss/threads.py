"""Threads that compute together: how long one of them waits for the others before it sleeps."""

from __future__ import annotations

import os

TURNS = "3000"
"""Turns of the loop in which a thread waits: some tens of microseconds, where GNU's OpenMP has 300,000 by default."""
OWN_CHOICE = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def wait_shortly() -> bool:
    """Let threads of GNU's OpenMP, which torch uses on Linux, sleep soon; returns whether this was set.

    A thread that waits in a loop keeps its core from the one that it waits for, if other programs use the rest:
    teaching 150 photographs then took 71 s instead of 13 (docs/performance.md). On an idle machine sleeping costs
    nothing for large products, as in networks that stand still, but a third of the time of training a small one,
    so it is for programs that mostly do the former. It counts only before torch is imported, and a choice of the user's
    stays.
    """
    if any(name in os.environ for name in OWN_CHOICE):
        return False
    os.environ["GOMP_SPINCOUNT"] = TURNS
    return True
