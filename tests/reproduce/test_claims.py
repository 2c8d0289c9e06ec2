"""A claim is judged by the numbers of every seed, and says so if they cannot tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from adagauss.reproduce.claims import above, below, falling
from adagauss.reproduce.curves import Plotted, at_least, first, last, more


@dataclass
class Numbers:
    """Findings that were made up."""

    rows: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    drawn: Sequence[Mapping[str, str]] = ()

    def values(self, label: str, quantity: str) -> Mapping[int, float]:
        return self.rows.get(label, {})

    def figure(self) -> Sequence[Mapping[str, str]]:
        return self.drawn

    def features(self) -> float | None:
        return 8.0

    def printed(self, label: str, quantity: str) -> float | None:
        return {"A": 46.1, "B": 43.6}.get(label)


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        ({0: 3.0, 1: 3.5}, {0: 2.0, 1: 2.5}, "holds"),
        ({0: 1.0, 1: 1.5}, {0: 2.0, 1: 2.5}, "does not hold"),
        ({0: 3.0, 1: 1.5}, {0: 2.0, 1: 2.5}, "cannot tell"),
        ({0: 3.0}, {0: 2.0}, "cannot tell"),
        ({0: 3.0, 1: 3.5}, {2: 2.0}, "not measured"),
        ({}, {0: 2.0}, "not measured"),
    ],
)
def test_a_comparison_is_judged_by_the_seeds_that_both_have(
    ours: dict[int, float], theirs: dict[int, float], word: str
) -> None:
    assert above("A is better.", "A", "B").check(Numbers({"A": ours, "B": theirs})).word == word


def test_being_best_means_better_than_the_best_other_in_every_seed() -> None:
    # On average A is best, but in seed 1 C is.
    rows = {"A": {0: 9.0, 1: 5.0}, "B": {0: 1.0, 1: 1.0}, "C": {0: 2.0, 1: 6.0}}
    assert above("A is best.", "A", "B", "C").check(Numbers(rows)).word == "cannot tell"


def test_being_worst_means_worse_than_the_worst_other_in_every_seed() -> None:
    rows = {"A": {0: 1.0, 1: 2.0}, "B": {0: 2.0, 1: 9.0}, "C": {0: 5.0, 1: 3.0}}
    assert below("A is worst.", "A", "B", "C").check(Numbers(rows)).word == "holds"
    assert below("B is worst.", "B", "A", "C").check(Numbers(rows)).word == "does not hold"


def test_a_verdict_quotes_the_paper_and_names_what_is_missing() -> None:
    said = above("A is best.", "A", "B", "C").check(Numbers({"A": {0: 3.0, 1: 3.0}, "B": {0: 2.0, 1: 2.0}})).sentence
    assert said == "A 3.0, B 2.0 (without C) (paper: 46.1 and 43.6); so in each of 2 seeds: holds"


def test_an_order_holds_only_if_every_step_does() -> None:
    rows = {"A": {0: 3.0, 1: 3.0}, "B": {0: 2.0, 1: 2.0}, "C": {0: 1.0, 1: 2.5}}
    assert falling("A, B, C.", "A", "B", "C").check(Numbers(rows)).word == "cannot tell"
    assert falling("A, B.", "A", "B").check(Numbers(rows)).word == "holds"


def drawn(group: str, seed: int, *values: float) -> list[dict[str, str]]:
    return [{"group": group, "seed": str(seed), "value": str(value)} for value in values]


def test_a_claim_on_a_figure_reads_what_was_drawn_seed_by_seed() -> None:
    rows = [*drawn("A", 0, 1, 5), *drawn("A", 1, 2, 6), {"group": "paper", "seed": "", "value": "9"}]
    early, late = Plotted("early", {"group": "A"}, first), Plotted("late", {"group": "A"}, last)
    found = Numbers(drawn=rows)
    assert more("It rises.", late, early).check(found).word == "holds"
    assert more("It falls.", early, late).check(found).word == "does not hold"
    assert more("Another.", early, Plotted("B", {"group": "B"})).check(found).word == "not measured"


def test_a_number_that_reaches_its_bound_satisfies_the_claim() -> None:
    rank = Plotted("rank", {"group": "A"}, min)
    full = at_least("Full rank.", rank, lambda found: found.features(), "features")
    assert full.check(Numbers(drawn=[*drawn("A", 0, 8, 8), *drawn("A", 1, 8)])).word == "holds"
    assert full.check(Numbers(drawn=[*drawn("A", 0, 8, 7.9), *drawn("A", 1, 7)])).word == "does not hold"
