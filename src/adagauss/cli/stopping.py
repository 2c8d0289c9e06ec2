"""What a command says if the user stops it with Ctrl-C: what is kept, and how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

NOTHING_CHANGED = "nothing was changed"
EXIT_CODE = 130


class Stopped(Exception):  # noqa: N818  # not an error: the user wanted it
    """The user stopped a command; the message says what is kept and how to go on."""


@contextmanager
def stoppable(kept: str | Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C during the work inside into a `Stopped` with this sentence, which may be made when it is needed.

    Commands change files only inside: outside, `adagauss.cli.main` says that nothing was changed.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(kept if isinstance(kept, str) else kept()) from None
