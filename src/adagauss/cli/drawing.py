"""Figures are drawn after the results are safe: whatever goes wrong then is told apart from the work itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from adagauss.cli.output import Stopped, stoppable
from adagauss.utils.progress import escape_control_chars


@contextmanager
def drawing(kept: str) -> Iterator[None]:
    """Report an error while figures are drawn, with what is kept; the command then still succeeds."""
    try:
        with stoppable(f"only figures are missing: {kept}"):
            yield
    except Stopped:
        raise
    except Exception as error:  # a full disk, a font, a damaged file: none of them is a failure of the run
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        typer.secho(escape_control_chars(f"adagauss: no figures ({reason}); {kept}"), fg="yellow", err=True)
