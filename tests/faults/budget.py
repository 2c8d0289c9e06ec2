"""How long the fuzzing tests search: briefly by default, longer with ``make torture``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")
TORTURE = int(os.environ.get("ADAGAUSS_TORTURE", "1"))
"""Factor of the number of cases."""


def some(cases: Iterable[T], most: int) -> list[T]:
    """At most ``most`` evenly spaced cases, the first and the last among them; all of them with torture."""
    found = list(cases)
    if TORTURE > 1 or len(found) <= most:
        return found
    return [found[index * (len(found) - 1) // max(1, most - 1)] for index in range(most)]


def budget(cases: int) -> settings:
    """Settings of a fuzzing test: a twentieth of the cases by default; more with torture, then different every time."""
    unhurried = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(
        max_examples=cases // 20 if TORTURE == 1 else cases * TORTURE,
        deadline=None,
        derandomize=TORTURE == 1,
        suppress_health_check=unhurried,
        database=None,
    )
