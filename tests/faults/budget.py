"""How long the fuzzing tests search: briefly by default, longer with ``make torture``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

TORTURE = int(os.environ.get("ADAGAUSS_TORTURE", "1"))
"""Factor of the number of cases."""


def budget(cases: int) -> settings:
    """Settings of a fuzzing test: a quarter of the cases by default; more with torture, then different every time."""
    unhurried = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(
        max_examples=cases // 4 if TORTURE == 1 else cases * TORTURE,
        deadline=None,
        derandomize=TORTURE == 1,
        suppress_health_check=unhurried,
        database=None,
    )
