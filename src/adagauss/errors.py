"""Errors that the user can fix: each message says what is wrong and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LISTED = 30
"""Largest number of known names that an error lists in full."""


class AdagaussError(Exception):
    """Base of every error raised on purpose; the command line shows its message without a traceback."""


class ConfigError(AdagaussError):
    """A setting that does not exist, or a value it cannot take."""


class DataError(AdagaussError):
    """Images or labels that cannot be used."""


class CheckpointError(AdagaussError):
    """A saved learner or run folder that cannot be read or written."""


class UnsupportedError(AdagaussError):
    """Something that a method cannot do, with the reason and what can be done instead."""


class NumericalError(AdagaussError):
    """Numbers that became unusable: a NaN loss, a covariance that is not finite."""


class WorkerError(AdagaussError):
    """A process or a machine that did not finish its work, or that cannot be reached."""


class ProcessError(AdagaussError):
    """One of several processes that learn together has ended, and with it all of them."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """The error for a name that does not exist, with the nearest one that does.

    >>> str(unknown_name("method", "adagaus", ["adagauss", "finetune"]))
    "unknown method 'adagaus'; did you mean 'adagauss'? Known: adagauss, finetune."
    """
    choices = sorted(known)
    nearest = difflib.get_close_matches(str(name).lower(), choices, n=5, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    # A long list of names hides the answer: of many names, only similar ones are listed.
    listed = nearest if nearest and len(choices) > LISTED else choices
    label = "Near" if listed is nearest else "Known"
    return ConfigError(f"unknown {kind} {str(name)!r}; {hint}{label}: {', '.join(listed)}.")
