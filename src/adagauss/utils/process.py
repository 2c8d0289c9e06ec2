"""Settings of the whole process, for programs and not for libraries: memory and threads."""

from __future__ import annotations

import ctypes
import os

MALLOC_VARIABLES = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")
"""Environment variables with which a user chooses or configures an allocator."""
MALLOPT = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1), "M_TOP_PAD": (-2, 256 * 2**20)}
"""Numbers (from glibc's malloc.h) and values of parameters of ``mallopt``: never unmap, never trim, grow by 256 MB."""
SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
SPIN_COUNT = "3000"
"""Iterations of the wait loop: some tens of microseconds, where GNU's OpenMP has 300,000 by default."""


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory, and torch use huge pages; returns whether this was possible.

    By default glibc maps and unmaps each large block, and the kernel clears its pages each time: a third of a training
    step of EfficientNet-Lite0 on a CPU. An allocator that the user chose in the environment is not changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries lack it
    if mallopt is None or any(name in os.environ for name in MALLOC_VARIABLES):
        return False
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    return all(mallopt(parameter, value) == 1 for parameter, value in MALLOPT.values())


def limit_openmp_spin() -> bool:
    """Let waiting threads of GNU's OpenMP, which torch uses on Linux, sleep soon; returns whether this was set.

    A spinning thread occupies a core that the thread it waits for may need if other programs are running: teaching 150
    photographs then took 71 s instead of 13 s. Sleeping slows down the training of small networks by a third, so this
    is for frozen networks. Call it before torch is imported. A value set by the user is not changed.
    """
    if any(name in os.environ for name in SPIN_VARIABLES):
        return False
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    return True


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python or of torch (CPU or GPU) means that memory is full.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
    True
    """
    if isinstance(error, RuntimeError):  # torch is not imported for this: the command line starts without it
        messages = ("can't allocate memory", "not enough memory")
        return type(error).__name__ == "OutOfMemoryError" or any(message in str(error) for message in messages)
    return isinstance(error, MemoryError)
