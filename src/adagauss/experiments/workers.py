"""Processes of this machine as an executor in which the death of one is no matter of the others."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from adagauss.errors import ConfigError
from adagauss.utils.process import keep_freed_memory


class WorkerProcesses(Executor):
    """Processes of this machine, each in a pool of its own: if one dies, the others do not notice."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ConfigError(f"--jobs is the number of processes, at least 1; got {count}")
        self._threads = ThreadPoolExecutor(count, "cells", initializer=_shield)
        self._local = threading.local()
        self._pools: list[_Pool] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin a call elsewhere; the future gets what it returns or raises."""
        return self._threads.submit(self._call, fn, args, kwargs)

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        pool: _Pool | None = getattr(self._local, "pool", None)
        if pool is None or pool.ended:
            pool = self._local.pool = _Pool()
            self._pools.append(pool)
        return pool.call(fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait=wait and not cancel_futures, cancel_futures=cancel_futures)
        for pool in self._pools:
            pool.end()
        self._threads.shutdown(wait=wait)


class _Pool:
    """A pool of one process, which ends when this end of a pipe is closed, even by the death of this process."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._theirs, self._ours = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(1, context, initializer=_attend, initargs=(self._theirs,))
        self.ended = False

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            future = self._pool.submit(fn, *args, **kwargs)
            self._theirs.close()  # the process has been started with its own
            return future.result()
        except BrokenProcessPool:
            self.end()
            raise

    def end(self) -> None:
        self.ended = True
        self._ours.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _shield() -> None:
    """Ctrl-C is for the process that waits; processes inherit this from the thread that starts them."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _attend(parent: Connection) -> None:
    """End this process together with the one that started it: a lock that it holds is free then."""

    def wait() -> None:
        with suppress(EOFError, OSError):
            parent.recv()
        os._exit(1)

    keep_freed_memory()  # as the command line does: this process is ours alone
    threading.Thread(target=wait, name="parent", daemon=True).start()
