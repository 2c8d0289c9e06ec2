"""The memory of a process: what is freed is kept, so that a training step need not request it again; and its end."""

from __future__ import annotations

import ctypes
import os

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
"""Parameters of ``mallopt``, as glibc's malloc.h numbers them."""
NEVER = -1
GROWTH = 256 * 2**20
OWN_CHOICE = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")

FULL = ("can't allocate memory", "not enough memory")
"""Words in errors of torch's allocator."""


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed, and torch use huge pages; returns whether this could be done.

    A step on a CPU allocates and frees every activation. By default glibc maps each large block and unmaps it
    again, and the kernel clears its pages each time: a third of a step of EfficientNet-Lite0 at 128 pixels
    (docs/performance.md). This changes the whole process, so it is for programs, not for libraries: the command line
    calls it, and so do the processes that it starts. An allocator that the user chose or configured in the
    environment is left alone.
    """
    if any(name in os.environ for name in OWN_CHOICE) or not _on_glibc():
        return False
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    mallopt = ctypes.CDLL(None).mallopt
    options = ((MMAP_MAX, 0), (TRIM_THRESHOLD, NEVER), (TOP_PAD, GROWTH))
    return all(mallopt(parameter, value) == 1 for parameter, value in options)


def _on_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):
        return False


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that no memory was left: Python's own, or torch's for a CPU or a GPU.

    >>> memory_is_full(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    True
    """
    if isinstance(error, RuntimeError):  # torch is not imported for this: the command line starts without it
        return type(error).__name__ == "OutOfMemoryError" or any(words in str(error) for words in FULL)
    return isinstance(error, MemoryError)


TURNS = "3000"
"""Turns of the loop in which a thread waits: some tens of microseconds, where GNU's OpenMP has 300,000 by default."""
OWN_SPIN_CHOICE = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def limit_openmp_spin() -> bool:
    """Let threads of GNU's OpenMP, which torch uses on Linux, sleep soon; returns whether this was set.

    A thread that waits in a loop keeps its core from the one that it waits for, if other programs use the rest:
    teaching 150 photographs then took 71 s instead of 13 (docs/performance.md). On an idle machine sleeping costs
    nothing for large products, as in networks that stand still, but a third of the time of training a small one,
    so it is for programs that mostly do the former. It counts only before torch is imported, and a choice of the user's
    stays.
    """
    if any(name in os.environ for name in OWN_SPIN_CHOICE):
        return False
    os.environ["GOMP_SPINCOUNT"] = TURNS
    return True
