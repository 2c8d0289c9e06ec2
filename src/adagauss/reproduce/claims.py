"""What the paper claims, and whether the numbers at hand say so: by every seed, not by the mean alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

Word = Literal["holds", "does not hold", "cannot tell", "not measured"]
BySeed = Mapping[int, float]


class Findings(Protocol):
    """The numbers of an item on one benchmark."""

    def values(self, label: str, quantity: str) -> BySeed:
        """A quantity of a row by seed; empty if it was not measured."""

    def figure(self) -> Sequence[Mapping[str, str]]:
        """The numbers that were drawn, as in the CSV file beside the figure; empty without a figure."""

    def features(self) -> float | None:
        """S, the number of features of the networks; None if nothing was run."""

    def printed(self, label: str, quantity: str) -> float | None:
        """The paper's own number."""


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, and the numbers that say so."""

    word: Word
    reason: str

    @property
    def sentence(self) -> str:
        return f"{self.reason}: {self.word}" if self.reason else self.word


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper that numbers can confirm or contradict."""

    text: str
    check: Callable[[Findings], Verdict]


def judged(differences: BySeed, facts: str) -> Verdict:
    """A claim that a difference is positive: it holds if every seed says so, and at least two were asked.

    >>> judged({0: 1.0, 1: 0.5}, "A 2.0, B 1.2").word
    'holds'
    >>> judged({0: 1.0, 1: -0.5}, "A 2.0, B 1.8").sentence
    'A 2.0, B 1.8; the 2 seeds disagree: cannot tell'
    >>> judged({0: 1.0}, "A 2.0, B 1.0").sentence
    'A 2.0, B 1.0; one seed, which says so: cannot tell'
    """
    signs = {difference > 0 for difference in differences.values()}
    count = len(differences)
    if not count:
        return Verdict("not measured", facts)
    if count == 1:
        return Verdict("cannot tell", f"{facts}; one seed, which says {'so' if signs == {True} else 'the opposite'}")
    if len(signs) > 1:
        return Verdict("cannot tell", f"{facts}; the {count} seeds disagree")
    return Verdict("holds" if signs == {True} else "does not hold", f"{facts}; so in each of {count} seeds")


def above(text: str, better: str, *worse: str, quantity: str = "a_last", digits: int = 1) -> Claim:
    """One row has more of a quantity than each of the others."""
    return Claim(text, lambda found: _compared(found, better, worse, quantity, digits, max))


def below(text: str, worst: str, *better: str, quantity: str = "a_last", digits: int = 1) -> Claim:
    """One row has less of a quantity than each of the others."""
    return Claim(text, lambda found: _compared(found, worst, better, quantity, digits, min))


def _compared(
    found: Findings,
    label: str,
    labels: Sequence[str],
    quantity: str,
    digits: int,
    extreme: Callable[[Iterable[float]], float],
) -> Verdict:
    """A row against the extreme of the others, seed by seed: above their largest, or below their smallest."""
    own = found.values(label, quantity)
    others = {other: values for other in labels if (values := found.values(other, quantity))}
    seeds = set(own).intersection(*others.values()) if others else set()
    if not seeds:
        return judged({}, "")
    sign = 1 if extreme is max else -1
    gaps = {seed: sign * (own[seed] - extreme(values[seed] for values in others.values())) for seed in sorted(seeds)}
    means = {other: statistics.fmean(values[seed] for seed in seeds) for other, values in others.items()}
    nearest = next(other for other in means if means[other] == extreme(means.values()))
    missing = [other for other in labels if other not in others]
    absent = f" (without {', '.join(missing)})" if missing else ""
    facts = f"{_amount(label, own, seeds, digits)}, {_amount(nearest, others[nearest], seeds, digits)}"
    return judged(gaps, facts + absent + _printed(found, label, nearest, quantity, digits))


def falling(text: str, *labels: str, quantity: str = "a_last", digits: int = 1) -> Claim:
    """Each row has more of a quantity than the next."""

    def check(found: Findings) -> Verdict:
        rows = {label: found.values(label, quantity) for label in labels}
        seeds = set.intersection(*(set(values) for values in rows.values()))
        if not seeds:
            return judged({}, "")
        steps = {
            seed: min(rows[one][seed] - rows[two][seed] for one, two in pairwise(labels)) for seed in sorted(seeds)
        }
        facts = ", ".join(_amount(label, values, seeds, digits) for label, values in rows.items())
        # "Not in this order" in every seed does not say that the reverse holds, but the claim does not.
        return judged(steps, f"claimed order: {facts}")

    return Claim(text, check)


def _amount(label: str, values: BySeed, seeds: set[int], digits: int) -> str:
    return f"{label} {statistics.fmean(values[seed] for seed in seeds):.{digits}f}"


def _printed(found: Findings, one: str, other: str, quantity: str, digits: int) -> str:
    first, second = found.printed(one, quantity), found.printed(other, quantity)
    return f" (paper: {first:.{digits}f} and {second:.{digits}f})" if first is not None and second is not None else ""
