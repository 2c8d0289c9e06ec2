"""Claims on figures, checked on the numbers that were drawn: the rows of the CSV file beside each figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from adagauss.reproduce.claims import BySeed, Claim, Findings, Verdict, judged

ROUNDING = 1e-6
"""A number that reaches a bound satisfies the claim, whatever the last digit of the file."""
Summary = Callable[[Sequence[float]], float]


class Plotted(NamedTuple):
    """Numbers of a figure: rows with these values in these columns, summarised for each seed."""

    name: str
    columns: Mapping[str, str]
    summary: Summary = statistics.fmean
    value: str = "value"
    """The column of the number."""

    def of(self, found: Findings) -> BySeed:
        """One number for each seed; the rows are in the order they were drawn in, so by task."""
        numbers: dict[int, list[float]] = {}
        for row in found.figure():
            if row.get("seed") and all(row.get(key) == value for key, value in self.columns.items()):
                numbers.setdefault(int(row["seed"]), []).append(float(row[self.value]))
        return {seed: self.summary(values) for seed, values in numbers.items()}


def first(values: Sequence[float]) -> float:
    """The number of the first task."""
    return values[0]


def last(values: Sequence[float]) -> float:
    """The number of the last task."""
    return values[-1]


def more(text: str, larger: Plotted, *smaller: Plotted, relative: bool = False) -> Claim:
    """One number of a figure is larger than each of the others; ``relative`` says by how much they are less."""

    def check(found: Findings) -> Verdict:
        own = larger.of(found)
        others = {one.name: values for one in smaller if (values := one.of(found))}
        seeds = sorted(set(own).intersection(*others.values())) if others else []
        gaps = {seed: own[seed] - max(values[seed] for values in others.values()) for seed in seeds}
        if not seeds:
            return judged({}, "")
        means = {name: statistics.fmean(values[seed] for seed in seeds) for name, values in others.items()}
        best = max(means, key=lambda name: means[name])
        facts = f"{larger.name} {statistics.fmean(own[seed] for seed in seeds):.3g}, {best} {means[best]:.3g}"
        if relative:
            facts += f" ({means[best] / statistics.fmean(own[seed] for seed in seeds) - 1:+.0%})"
        return judged(gaps, facts)

    return Claim(text, check)


def at_least(text: str, measured: Plotted, bound: Callable[[Findings], float | None], name: str) -> Claim:
    """A number of a figure reaches a bound."""

    def check(found: Findings) -> Verdict:
        limit, own = bound(found), measured.of(found)
        if limit is None or not own:
            return judged({}, "")
        facts = f"{measured.name} {statistics.fmean(own.values()):.3g}, {name} {limit:.3g}"
        return judged({seed: value - limit + ROUNDING for seed, value in own.items()}, facts)

    return Claim(text, check)
