"""Running sums: whatever the order and division, they give the regression of all images at once."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import oas
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from adagauss.errors import ConfigError, DataError
from adagauss.sums import Linear, RidgeChoice, RidgeSums, SharedCovariance, hold_out, oas_shrinkage

WIDTH, CLASSES = 7, 4


def data(number: int = 60, seed: int = 0, width: int = WIDTH, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Features about one mean per class; every class has an image."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(number) % classes
    means = torch.randn(classes, width, generator=generator)
    return means[targets] + torch.randn(number, width, generator=generator) + 0.5, targets


def one_shot(features: Tensor, targets: Tensor, strength: float, classes: int, intercept: bool = False) -> Linear:
    """Ridge regression over all rows at once, in float64."""
    X, Y = features.double(), F.one_hot(targets, classes).double()
    shift = strength * (X.T @ X).diagonal().mean() * torch.eye(X.shape[1])
    mean_x, mean_y = (X.mean(0), Y.mean(0)) if intercept else (torch.zeros(X.shape[1]).double(), torch.zeros(classes))
    centred = X - mean_x
    weight = torch.linalg.solve(centred.T @ centred + shift, centred.T @ (Y - mean_y))
    return Linear(weight, mean_y - mean_x @ weight)


def assert_same(found: Linear, expected: Linear) -> None:
    torch.testing.assert_close(found.weight.double(), expected.weight.double(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.bias.double(), expected.bias.double(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("strength", [1e-4, 0.1, 10.0])
def test_sums_solve_the_regression_of_all_images(strength: float, intercept: bool) -> None:
    features, targets = data()
    sums = RidgeSums(WIDTH).add_(features, targets, CLASSES)
    assert_same(sums.solve(strength, intercept), one_shot(features, targets, strength, CLASSES, intercept))


@given(
    order=st.permutations(range(24)),
    cuts=st.lists(st.integers(0, 24), max_size=4),
    seed=st.integers(0, 50),
)
@settings(max_examples=40, deadline=None)
def test_neither_order_nor_division_of_the_images_matters(order: list[int], cuts: list[int], seed: int) -> None:
    features, targets = data(24, seed)
    sums = RidgeSums(WIDTH)
    bounds = [0, *sorted(cuts), 24]
    for start, stop in pairwise(bounds):
        some = torch.tensor(order[start:stop], dtype=torch.long)
        sums.add_(features[some], targets[some])
    assert_same(sums.solve(0.01), one_shot(features, targets, 0.01, CLASSES))


@given(member=st.lists(st.booleans(), min_size=30, max_size=30), seed=st.integers(0, 50))
@settings(max_examples=40, deadline=None)
def test_merged_sums_equal_sums_over_everything(member: list[bool], seed: int) -> None:
    features, targets = data(30, seed)
    mask = torch.tensor(member)
    halves = [RidgeSums(WIDTH).add_(features[part], targets[part]) for part in (mask, ~mask)]
    merged = halves[0].copy().merge_(halves[1])
    together = RidgeSums(WIDTH).add_(features, targets)
    for name, value in together.state_dict().items():
        torch.testing.assert_close(merged.state_dict()[name], value, atol=1e-4, rtol=1e-5)


@given(member=st.lists(st.booleans(), min_size=30, max_size=30), seed=st.integers(0, 50))
@settings(max_examples=40, deadline=None)
def test_removed_images_leave_no_trace(member: list[bool], seed: int) -> None:
    features, targets = data(30, seed)
    mask = torch.tensor(member)
    kept = RidgeSums(WIDTH, CLASSES).add_(features[~mask], targets[~mask])
    forgot = RidgeSums(WIDTH, CLASSES).add_(features, targets).remove_(features[mask], targets[mask])
    for name, value in kept.state_dict().items():
        torch.testing.assert_close(forgot.state_dict()[name], value, atol=1e-4, rtol=1e-5)


def test_new_classes_and_more_images_of_known_ones_come_together() -> None:
    features, targets = data()
    late = targets >= 2
    late[:4] = True
    sums = RidgeSums(WIDTH).add_(features[~late], targets[~late])
    assert sums.classes == 2
    sums.add_(features[late], targets[late])
    assert_same(sums.solve(0.1), one_shot(features, targets, 0.1, CLASSES))


def test_a_copy_does_not_change_with_the_original() -> None:
    features, targets = data()
    sums = RidgeSums(WIDTH).add_(features, targets)
    before = sums.copy()
    sums.add_(features, targets)
    assert int(before.images) == 60
    assert_same(before.solve(0.1), one_shot(features, targets, 0.1, CLASSES))


def test_a_dropped_class_leaves_the_columns_of_the_others_as_they_were() -> None:
    features, targets = data()
    sums = RidgeSums(WIDTH).add_(features, targets)
    full = sums.solve(0.1, intercept=True)
    left = sums.copy().regroup_(((0,), (2,), (3,))).solve(0.1, intercept=True)
    assert_same(left, Linear(full.weight[:, [0, 2, 3]], full.bias[[0, 2, 3]]))


def test_sums_survive_a_trip_through_their_state() -> None:
    features, targets = data()
    sums = RidgeSums(WIDTH).add_(features, targets)
    loaded = RidgeSums(0)
    loaded.load_state_dict(sums.state_dict())
    assert torch.equal(loaded.solve(0.1).weight, sums.solve(0.1).weight)
    assert torch.equal(loaded.counts, sums.counts)


def test_float32_sums_take_half_the_memory_and_solve_nearly_the_same() -> None:
    features, targets = data()
    small, large = (RidgeSums(WIDTH, dtype=dtype).add_(features, targets) for dtype in (torch.float32, torch.float64))
    assert 2 * small.gram.nbytes == large.gram.nbytes
    torch.testing.assert_close(small.solve(0.1).weight, large.solve(0.1).weight, atol=1e-5, rtol=1e-4)


def test_float64_takes_over_where_a_float32_factor_does_not_exist() -> None:
    features, targets = data()
    # Two features are equal but for a part that float32 cannot hold beside them.
    features = torch.cat([1e4 + features[:, :1], 1e4 + features[:, :1] + features[:, 1:2]], 1).double()
    sums = RidgeSums(2).add_(features, targets)
    expected = one_shot(features, targets, 1e-13, CLASSES)
    torch.testing.assert_close(sums.solve(1e-13).weight.double(), expected.weight, atol=1e-4, rtol=1e-2)


def test_refining_reaches_what_float32_alone_does_not() -> None:
    features, targets = data(200, width=40)
    features = features * torch.logspace(0, -2.5, 40) + 3
    sums = RidgeSums(40).add_(features.double(), targets)
    expected = one_shot(features, targets, 1e-7, CLASSES).weight
    rough, fine = ((sums.solve(1e-7, refine=r).weight - expected).norm() / expected.norm() for r in (False, True))
    assert fine < 1e-4 < rough


@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
def test_shared_covariance_scores_as_scikit_learn(shrinkage: float) -> None:
    features, targets = data(61)
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(features.double().numpy(), targets)
    scores = SharedCovariance(WIDTH).add_(features.double(), targets).solve(shrinkage)(features)
    expected = torch.from_numpy(oracle.decision_function(features.double().numpy()))
    torch.testing.assert_close(scores.double(), expected, atol=1e-3, rtol=1e-3)


def test_oracle_shrinkage_is_scikit_learns() -> None:
    features = data()[0].double()
    centred = features - features.mean(0)
    covariance = centred.T @ centred / len(features)
    found = oas_shrinkage(float(covariance.trace()), float(covariance.square().sum()), WIDTH, len(features))
    assert found == pytest.approx(oas(features.numpy())[1])
    assert oas_shrinkage(5.0, 5.0, 5, 10) == 1.0


def test_shared_covariance_without_shrinkage_given_takes_the_oracles() -> None:
    features, targets = data()
    means = torch.stack([features[targets == c].double().mean(0) for c in range(CLASSES)])
    within = features.double() - means[targets]
    chosen = float(oas(within.numpy(), assume_centered=True)[1])
    sums = SharedCovariance(WIDTH).add_(features.double(), targets)
    assert 0 < chosen < 1
    assert_same(sums.solve(), sums.solve(chosen))


def test_equal_priors_undo_uneven_counts_in_the_bias_only() -> None:
    features, targets = data(61)
    sums = SharedCovariance(WIDTH).add_(features, targets)
    with_priors, without = sums.solve(0.1), sums.solve(0.1, priors=False)
    torch.testing.assert_close(with_priors.bias - without.bias, (sums.counts / 61).log().float())
    assert torch.equal(with_priors.weight, without.weight)


def test_held_out_images_are_a_share_of_each_class_and_never_all_of_one() -> None:
    targets = torch.tensor([0] * 20 + [1] * 10 + [2] + [3] * 2)
    mask = hold_out(targets, 0.9, torch.Generator().manual_seed(0))
    assert torch.bincount(targets[mask], minlength=4).tolist() == [18, 9, 0, 1]


def test_the_choice_falls_on_the_strength_with_most_hits_on_held_out_images() -> None:
    generator = torch.Generator().manual_seed(0)
    # As many images as features, most of them without meaning: a weak ridge fits the noise.
    targets = torch.arange(400) % 2
    features = torch.randn(400, 60, generator=generator)
    features[:, :5] += 2.0 * targets.unsqueeze(1) - 1
    sums = RidgeSums(60).add_(features[:60], targets[:60])
    choice = RidgeChoice([0.06, 60.0])
    choice.observe(sums, features[60:], targets[60:])
    weak, strong = (int((sums.solve(s)(features[60:]).argmax(1) == targets[60:]).sum()) for s in (0.001, 1.0))
    assert choice.hits.tolist() == [weak, strong]
    assert strong > weak + 20
    assert float(choice.strengths[choice.best]) == 60.0


def test_evidence_adds_up_over_tasks() -> None:
    choice = RidgeChoice([1.0, 10.0, 100.0])
    for seed in (0, 1):
        features, targets = data(60, seed)
        choice.observe(RidgeSums(WIDTH).add_(features[:40], targets[:40]), features[40:], targets[40:])
    assert int(choice.images) == 40
    assert choice.hits.max() <= 40
    choice.hits[:] = torch.tensor([5.0, 7.0, 7.0])
    choice.surprise[:] = torch.tensor([1.0, 3.0, 2.0]).unsqueeze(1)
    assert choice.best == 2


def test_a_hopeless_strength_is_tried_no_more_and_never_chosen() -> None:
    features, targets = data(400)
    choice = RidgeChoice([1.0, 1e9])
    choice.hits[:] = torch.tensor([0.0, -1000.0])
    sums = RidgeSums(WIDTH).add_(features[:300], targets[:300])
    choice.observe(sums, features[300:], targets[300:])
    assert choice.tried.tolist() == [True, False]
    before = choice.hits.clone()
    choice.observe(sums, features[300:], targets[300:])
    assert (choice.hits > before).tolist() == [True, False]
    choice.hits[1] = 1e6
    assert choice.best == 0


@pytest.mark.parametrize(
    ("features", "targets", "words"),
    [
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), "shape"),
        (torch.zeros(2, WIDTH), torch.zeros(3, dtype=torch.long), "one per image"),
        (torch.full((2, WIDTH), torch.nan), torch.zeros(2, dtype=torch.long), "NaN"),
        (torch.zeros(2, WIDTH), torch.tensor([0, -1]), "negative"),
        (torch.zeros(2, WIDTH), torch.tensor([0, 9]), "9"),
    ],
)
def test_rows_that_cannot_be_added_leave_the_sums_as_they_were(features: Tensor, targets: Tensor, words: str) -> None:
    sums = RidgeSums(WIDTH, CLASSES)
    with pytest.raises(DataError, match=words):
        sums.add_(features, targets, CLASSES)
    assert int(sums.images) == 0
    assert sums.classes == CLASSES


def test_what_was_never_added_cannot_be_removed() -> None:
    features, targets = data()
    sums = RidgeSums(WIDTH).add_(features[:8], targets[:8])
    with pytest.raises(DataError, match="fewer images"):
        sums.remove_(features[:20], targets[:20])


def test_nothing_can_be_solved_from_nothing() -> None:
    with pytest.raises(DataError, match="add images"):
        RidgeSums(WIDTH).solve(0.1)
    with pytest.raises(DataError, match="add images"):
        SharedCovariance(WIDTH).solve(0.1)
    with pytest.raises(ConfigError, match="positive"):
        RidgeSums(WIDTH).add_(*data()).solve(0)
    with pytest.raises(DataError, match="zero"):
        RidgeSums(WIDTH).add_(torch.zeros(3, WIDTH), torch.arange(3)).solve(0.1)


def test_without_anything_held_out_the_strength_is_the_middle_one() -> None:
    assert RidgeChoice((10.0, 100.0, 1000.0)).best == 1


def test_a_weight_is_the_same_as_scaled_features() -> None:
    features, targets = data()
    scale = torch.linspace(0.2, 2.0, WIDTH)
    weighed = RidgeSums(WIDTH).add_(features, targets).solve(0.1, scale=scale)
    scaled = RidgeSums(WIDTH).add_(features * scale, targets).solve(0.1)
    torch.testing.assert_close(weighed(features), scaled(features * scale), atol=1e-4, rtol=1e-4)


def test_a_group_of_noise_is_weighed_down_and_probabilities_are_truthful() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(3, (600,), generator=generator)
    useful = torch.eye(3)[targets] + 0.6 * torch.randn(600, 3, generator=generator)
    noise = 3 * torch.randn(600, 200, generator=generator)
    features = torch.cat([useful, noise], 1)
    sums = RidgeSums(203).add_(features[:300], targets[:300])
    choice = RidgeChoice((10.0, 100.0), ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0)))
    choice.observe(sums, features[300:], targets[300:], (3, 200))
    assert choice.weights[choice.best].tolist() == [1.0, 0.0]
    probabilities = torch.softmax(choice.solve(sums, (3, 200))(features[300:]), dim=1)
    confidence, guess = probabilities.max(1)
    assert abs(float(confidence.mean() - (guess == targets[300:]).float().mean())) < 0.05


def test_all_held_out_images_right_is_no_reason_to_be_certain() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(60) % 3
    features = torch.eye(3)[targets] + 0.05 * torch.randn(60, 3, generator=generator)
    choice = RidgeChoice((1.0,))
    choice.observe(RidgeSums(3).add_(features[:30], targets[:30]), features[30:], targets[30:])
    assert int(choice.hits[0]) == 30
    assert choice.temperature > 1 / 64
