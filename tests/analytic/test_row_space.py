"""Few images in the space that they span: the same scores as from all their features, and less work."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adagauss.analytic import moments as span
from adagauss.analytic.moments import MomentSums, row_space
from adagauss.analytic.ridge_lda import LDA, Ridge
from adagauss.analytic.selection import ModelSelection, Rule, Standardized, Standardizer

GROUPS = (50, 70)
WIDTH = sum(GROUPS)
CLASSES = 4
RULES: list[Rule] = [Ridge(10.0), Ridge(10.0, intercept=True), LDA(0.3), LDA()]


def data(images: int = 24, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(images) % CLASSES
    means = spread * torch.randn(CLASSES, WIDTH, generator=generator)
    features = 3 + means[targets] + torch.randn(images, WIDTH, generator=generator, dtype=torch.float64)
    return features, targets


def without_a_space(monkeypatch: pytest.MonkeyPatch, sums: MomentSums, weights: tuple[float, ...]) -> Standardized:
    with monkeypatch.context() as changed:
        changed.setattr(span, "MOST_IMAGES", 0)
        weighed = Standardizer(sums, GROUPS).at(weights)
    assert weighed.basis is None
    return weighed


def left_out(weighed: Standardized, rule: Rule, features: Tensor, targets: Tensor) -> Tensor:
    return rule.left_out(weighed.sums, weighed.inputs(features), targets, weighed.scale)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.3, 1.0), (1.0, 0.0), (0.0, 1.0)])
def test_scores_are_those_of_all_features(
    monkeypatch: pytest.MonkeyPatch, rule: Rule, weights: tuple[float, ...]
) -> None:
    features, targets = data(20)
    sums = MomentSums(WIDTH).add_(features, targets)
    short, whole = Standardizer(sums, GROUPS).at(weights), without_a_space(monkeypatch, sums, weights)
    assert short.basis is not None
    assert short.sums.width <= 20
    strange = torch.randn(30, WIDTH, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(short.solve(rule)(strange), whole.solve(rule)(strange), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_answers_to_images_left_out_are_those_of_all_features(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    features, targets = data(24)
    mirrored = features + 0.3 * torch.randn(24, WIDTH, generator=torch.Generator().manual_seed(2))
    sums = MomentSums(WIDTH).add_(features, targets).add_(mirrored, targets)
    shown = features.float()
    short, whole = Standardizer(sums, GROUPS).at((0.5, 1.0)), without_a_space(monkeypatch, sums, (0.5, 1.0))
    assert short.basis is not None
    expected = left_out(whole, rule, shown, targets)
    torch.testing.assert_close(left_out(short, rule, shown, targets), expected, atol=1e-3, rtol=1e-3)


def test_the_rows_that_span_reproduce_the_matrix() -> None:
    features, targets = data(24)
    features[5:10] = features[:5]  # the same images again add no directions
    sums = MomentSums(WIDTH).add_(features, targets)
    scale = torch.linspace(0.5, 2, WIDTH, dtype=torch.float64)
    rows = row_space(sums, scale)
    assert rows is not None
    assert len(rows) == 19
    expected = (features * scale).mT @ (features * scale)
    torch.testing.assert_close(rows.mT @ rows, expected, atol=1e-8, rtol=1e-8)


def test_groups_that_span_less_than_all_features_do_without_a_space() -> None:
    features, targets = data(24)
    features[1::2, : GROUPS[0]] = features[::2, : GROUPS[0]]
    weighing = Standardizer(MomentSums(WIDTH).add_(features, targets), GROUPS)
    within = [weighing.at(weights).basis is not None for weights in ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0))]
    assert within == [True, False, True]


def test_more_images_than_a_share_of_the_features_have_no_space() -> None:
    for images, expected in ((48, True), (49, False)):
        features, targets = data(images)
        weighed = Standardizer(MomentSums(WIDTH).add_(features, targets), GROUPS).at((1.0, 1.0))
        assert (weighed.basis is not None) == expected


def test_the_choice_is_the_same_with_and_without_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    features, targets = data(40, spread=0.2)
    found = []
    for most in (0, 1024):
        monkeypatch.setattr(span, "MOST_IMAGES", most)
        choice = ModelSelection([Ridge(10.0, True), Ridge(100.0, True), LDA(0.3)], ((1.0, 1.0), (0.2, 1.0)))
        choice.observe(Standardizer(MomentSums(WIDTH).add_(features, targets), GROUPS), features, targets)
        found.append(choice)
    assert 0 < float(found[0].hits.min()) < float(found[0].hits.max()) < 40
    assert torch.equal(found[0].hits, found[1].hits)
    torch.testing.assert_close(found[0].surprise, found[1].surprise, rtol=1e-3, atol=1e-3)
    assert found[0].best == found[1].best


@pytest.mark.parametrize("offset", [0.0, 30.0, 300.0])
@pytest.mark.parametrize("rule", RULES[1:])
def test_float32_features_far_from_zero_are_answered_well_or_without_a_space(rule: Rule, offset: float) -> None:
    features, targets = data(40)
    shown = (features + offset).float()
    weighed = Standardizer(MomentSums(WIDTH).add_(shown, targets), GROUPS).at((1.0, 1.0))
    assert (weighed.basis is not None) == (offset < 300)
    scores = left_out(weighed, rule, shown, targets)
    assert (scores.argmax(1) == targets).float().mean() > 0.9
