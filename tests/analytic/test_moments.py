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

from adagauss.analytic.moments import (
    OLD_BLOCK,
    Linear,
    MomentSums,
    add_products,
    packed_size_strips,
    strips,
    unit_deviation,
)
from adagauss.analytic.ridge_lda import LDA, Ridge
from adagauss.analytic.selection import ModelSelection, Rule, Standardizer
from adagauss.core.linalg import oas_shrinkage
from adagauss.core.near_duplicates import rows_by_size
from adagauss.errors import ConfigError, DataError, NumericalError

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
    mean_x, mean_y = (X.mean(0), Y.mean(0)) if intercept else (torch.zeros(X.shape[1]).double(), torch.zeros(classes))
    centred = X - mean_x
    shift = strength * (centred.T @ centred).diagonal().mean() * torch.eye(X.shape[1])
    weight = torch.linalg.solve(centred.T @ centred + shift, centred.T @ (Y - mean_y))
    return Linear(weight, mean_y - mean_x @ weight)


def relative(strength: float, sums: MomentSums, intercept: bool = False) -> Ridge:
    """The ridge whose penalty is ``strength`` times the mean diagonal."""
    return Ridge(strength * int(sums.images), intercept)


def assert_same(found: Linear, expected: Linear) -> None:
    torch.testing.assert_close(found.weight.double(), expected.weight.double(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.bias.double(), expected.bias.double(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("strength", [1e-4, 0.1, 10.0])
def test_sums_solve_the_regression_of_all_images(strength: float, intercept: bool) -> None:
    features, targets = data()
    sums = MomentSums(WIDTH).add_(features, targets, CLASSES)
    assert_same(
        relative(strength, sums, intercept).solve(sums), one_shot(features, targets, strength, CLASSES, intercept)
    )


@given(
    order=st.permutations(range(24)),
    cuts=st.lists(st.integers(0, 24), max_size=4),
    seed=st.integers(0, 50),
)
@settings(max_examples=40, deadline=None)
def test_neither_order_nor_division_of_the_images_matters(order: list[int], cuts: list[int], seed: int) -> None:
    features, targets = data(24, seed)
    sums = MomentSums(WIDTH)
    bounds = [0, *sorted(cuts), 24]
    for start, stop in pairwise(bounds):
        some = torch.tensor(order[start:stop], dtype=torch.long)
        sums.add_(features[some], targets[some])
    assert_same(relative(0.01, sums).solve(sums), one_shot(features, targets, 0.01, CLASSES))


@given(member=st.lists(st.booleans(), min_size=30, max_size=30), seed=st.integers(0, 50))
@settings(max_examples=40, deadline=None)
def test_merged_sums_equal_sums_over_everything(member: list[bool], seed: int) -> None:
    features, targets = data(30, seed)
    mask = torch.tensor(member)
    halves = [MomentSums(WIDTH).add_(features[part], targets[part]) for part in (mask, ~mask)]
    merged = halves[0].copy().merge_(halves[1])
    together = MomentSums(WIDTH).add_(features, targets)
    for name, value in together.state_dict().items():
        torch.testing.assert_close(merged.state_dict()[name], value, atol=1e-4, rtol=1e-5)


@given(member=st.lists(st.booleans(), min_size=30, max_size=30), seed=st.integers(0, 50))
@settings(max_examples=40, deadline=None)
def test_removed_images_leave_no_trace(member: list[bool], seed: int) -> None:
    features, targets = data(30, seed)
    mask = torch.tensor(member)
    kept = MomentSums(WIDTH, CLASSES).add_(features[~mask], targets[~mask])
    forgot = MomentSums(WIDTH, CLASSES).add_(features, targets).remove_(features[mask], targets[mask])
    for name, value in kept.state_dict().items():
        torch.testing.assert_close(forgot.state_dict()[name], value, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("numbers", [(60, 20), (15, 135), (2000, 30)])
def test_features_that_only_removed_images_had_leave_nothing_but_rounding(numbers: tuple[int, int]) -> None:
    """Where all squares of two features are gone, rounding of their products does not mean that the file is damaged."""
    generator = torch.Generator().manual_seed(0)
    own, others = (torch.rand(number, 40, generator=generator) for number in numbers)
    own, others = F.pad(own, (0, 40)), F.pad(others, (40, 0))
    sums = MomentSums(80).add_(torch.cat([own, others]), torch.tensor([0, 1]).repeat_interleave(torch.tensor(numbers)))
    squares = sums.mean_square() * sum(numbers)
    for part in torch.split(own, 7):  # in other batches, their features differ by rounding as well
        sums.remove_(part * (1 + 1e-7), torch.zeros(len(part), dtype=torch.long))
    sums.clear_(squares, sum(numbers)).regroup_(((1,),)).check()


@pytest.mark.parametrize("strength", [1e-4, 1e-2])
def test_features_that_only_removed_images_had_do_not_count(strength: float) -> None:
    generator = torch.Generator().manual_seed(0)
    features, targets = torch.rand(100, 30, generator=generator), torch.arange(100) % 3
    features[targets > 0, 20:] = 0  # what only class 0 has
    sums = MomentSums(30).add_(features, targets)
    squares, own = sums.copy().mean_square() * 100, targets == 0
    noise = 1 + 4e-6 * torch.randn(features[own].shape, generator=generator)
    sums.remove_(features[own] * noise, targets[own]).clear_(squares, 100).regroup_(((1,), (2,)))
    never = MomentSums(30).add_(features[~own], targets[~own] - 1)
    found, expected = (relative(strength, one).solve(one, unit_deviation(one)) for one in (sums, never))
    torch.testing.assert_close(found(features[~own]), expected(features[~own]), atol=1e-3, rtol=0)
    assert not sums.cross[20:].any()


def test_features_that_the_others_hardly_have_stay_theirs_when_a_class_is_removed() -> None:
    generator = torch.Generator().manual_seed(0)
    features, targets = torch.rand(90, 12, generator=generator), torch.arange(90) % 3
    features[targets > 0, 6:] *= 3e-3  # a hundred thousandth of the squares of class 0
    own = targets == 0
    sums = MomentSums(12).add_(features, targets)
    squares = sums.mean_square() * 90
    sums.remove_(features[own].flip(0), targets[own]).clear_(squares, 90).regroup_(((1,), (2,)))
    never = MomentSums(12).add_(features[~own], targets[~own] - 1)
    found, expected = (relative(0.1, one, True).solve(one, unit_deviation(one)) for one in (sums, never))
    torch.testing.assert_close(found(features[~own]), expected(features[~own]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("images", [100, 1000])
def test_images_that_look_much_alike_are_summed_as_exactly_as_others(images: int) -> None:
    """Features a thousand deviations away from zero, in one go and in pieces."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(images) % 4
    features = 1000 + torch.randn(images, 20, generator=generator)
    features[torch.arange(images), targets] += 2
    at_once = MomentSums(20).add_(features, targets)
    pieces = MomentSums(20)
    for some in torch.split(torch.randperm(images, generator=generator), 37):
        pieces.add_(features[some], targets[some], 4)
    exact = MomentSums(20).add_(features.double(), targets)
    one, two, three = (relative(0.01, sums, True).solve(sums)(features - 1000) for sums in (at_once, pieces, exact))
    torch.testing.assert_close(one, three, atol=1e-5, rtol=0)
    torch.testing.assert_close(two, three, atol=1e-5, rtol=0)


def test_squares_that_overflow_are_refused_and_the_sums_stay() -> None:
    sums = MomentSums(3).add_(torch.eye(3), torch.arange(3))
    with pytest.raises(DataError, match="too large"):
        sums.add_(torch.full((300, 3), 1e200, dtype=torch.float64), torch.zeros(300, dtype=torch.long))
    assert sums.images == 3
    assert sums.total.tolist() == [1, 1, 1]


def test_dropping_many_classes_at_once_is_dropping_one_after_the_other() -> None:
    features, targets = data()
    one, other = (MomentSums(WIDTH).add_(features, targets) for _ in range(2))
    one.regroup_(((3,), (1,)))
    for groups in (((0,), (1,), (3,)), ((1,), (2,)), ((1,), (0,))):
        other.regroup_(groups)
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[name], atol=1e-9, rtol=1e-9)


def test_repeated_images_leave_regressions_to_choose_from() -> None:
    features, targets = torch.eye(4)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
    weighing, choice = Standardizer(MomentSums(4).add_(features, targets)), ModelSelection([LDA(0.3), Ridge(10.0)])
    choice.observe(weighing, features, targets)
    assert choice.tried.tolist() == [False, True]
    assert choice.solve(weighing)(features).argmax(1).tolist() == targets.tolist()


def test_of_two_learners_that_gave_up_all_that_the_other_tries_the_one_that_scored_more_decides() -> None:
    few, many = (ModelSelection([Ridge(10.0), Ridge(100.0)]) for _ in range(2))
    for choice, tried, images in ((few, 0, 20), (many, 1, 180)):
        choice.tried[1 - tried] = False
        choice.images += images
        choice.hits[tried] += images
    for merged in (few.merged(many, (0,)), many.merged(few, (0,))):
        assert (merged.best, int(merged.images)) == (1, 180)


def test_new_classes_and_more_images_of_known_ones_come_together() -> None:
    features, targets = data()
    late = targets >= 2
    late[:4] = True
    sums = MomentSums(WIDTH).add_(features[~late], targets[~late])
    assert sums.classes == 2
    sums.add_(features[late], targets[late])
    assert_same(relative(0.1, sums).solve(sums), one_shot(features, targets, 0.1, CLASSES))


def test_sums_in_the_strips_of_old_files_are_read() -> None:
    features, targets = torch.randn(40, 1300, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    sums = MomentSums(1300).add_(features, targets)
    saved = dict(sums.state_dict())
    saved["gram"] = torch.zeros(packed_size_strips(1300, OLD_BLOCK), dtype=torch.float64)
    add_products(strips(saved["gram"], 1300, OLD_BLOCK), features.double())
    loaded = MomentSums(0)
    loaded.load_state_dict(saved)
    loaded.check()
    assert len(loaded.gram) < len(saved["gram"])
    torch.testing.assert_close(loaded.gram, sums.gram)


def test_a_copy_does_not_change_with_the_original() -> None:
    features, targets = data()
    sums = MomentSums(WIDTH).add_(features, targets)
    before = sums.copy()
    sums.add_(features, targets)
    assert int(before.images) == 60
    assert_same(relative(0.1, before).solve(before), one_shot(features, targets, 0.1, CLASSES))


def test_a_dropped_class_leaves_only_the_scatter_about_its_mean() -> None:
    features, targets = data()
    sums = (
        MomentSums(WIDTH)
        .add_(features.double(), targets)
        .regroup_(tuple((column,) for column in range(CLASSES) if column != 1))
    )
    own = features[targets == 1].double()
    rest = MomentSums(WIDTH).add_(features[targets != 1].double(), targets[targets != 1])
    scatter = MomentSums(WIDTH).add_(own - own.mean(0), torch.zeros(len(own), dtype=torch.long))
    torch.testing.assert_close(sums.gram, rest.gram + scatter.gram)
    torch.testing.assert_close(sums.total, rest.total)
    torch.testing.assert_close(sums.cross, rest.cross[:, [0, 2, 3]])
    assert (sums.counts.tolist(), int(sums.images)) == ([15, 15, 15], 60)


def test_discriminants_of_the_other_classes_stay_when_one_is_dropped() -> None:
    features, targets = data()
    sums = MomentSums(WIDTH).add_(features.double(), targets)
    full, left = (
        LDA(0.2).solve(some)(features)
        for some in (sums, sums.copy().regroup_(tuple((column,) for column in range(CLASSES) if column != 1)))
    )
    torch.testing.assert_close(differences(left), differences(full[:, [0, 2, 3]]), atol=1e-4, rtol=1e-4)


def test_sums_survive_a_trip_through_their_state() -> None:
    features, targets = data()
    sums = MomentSums(WIDTH).add_(features, targets)
    loaded = MomentSums(0)
    loaded.load_state_dict(sums.state_dict())
    assert torch.equal(relative(0.1, loaded).solve(loaded).weight, relative(0.1, sums).solve(sums).weight)
    assert torch.equal(loaded.counts, sums.counts)


def test_float64_takes_over_where_a_float32_factor_does_not_exist() -> None:
    features, targets = data()
    # Two features are equal but for a part that float32 cannot represent.
    features = torch.cat([1e4 + features[:, :1], 1e4 + features[:, :1] + features[:, 1:2]], 1).double()
    sums = MomentSums(2).add_(features, targets)
    expected = one_shot(features, targets, 1e-13, CLASSES)
    torch.testing.assert_close(relative(1e-13, sums).solve(sums).weight.double(), expected.weight, atol=1e-4, rtol=1e-2)


def test_refining_reaches_what_float32_alone_does_not() -> None:
    features, targets = data(200, width=40)
    features = features * torch.logspace(0, -2.5, 40) + 3
    sums = MomentSums(40).add_(features.double(), targets)
    expected = one_shot(features, targets, 1e-7, CLASSES).weight
    rough = torch.linalg.solve(
        whole(sums).float() + 1e-7 * whole(sums).diagonal().mean().float() * torch.eye(40), sums.cross.float()
    )
    fine = relative(1e-7, sums).solve(sums).weight
    rough_error, fine_error = ((found - expected).norm() / expected.norm() for found in (rough, fine))
    assert fine_error < 1e-4 < rough_error


def differences(scores: Tensor) -> Tensor:
    """Scores of each image less their mean, which decides nothing."""
    return scores.double() - scores.double().mean(1, keepdim=True)


@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
def test_shared_covariance_scores_as_scikit_learn(shrinkage: float) -> None:
    features, targets = data(60)
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(features.double().numpy(), targets)
    scores = LDA(shrinkage).solve(MomentSums(WIDTH).add_(features.double(), targets))(features)
    expected = torch.from_numpy(oracle.decision_function(features.double().numpy()))
    torch.testing.assert_close(differences(scores), differences(expected), atol=1e-3, rtol=1e-3)


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
    sums = MomentSums(WIDTH).add_(features.double(), targets)
    assert 0 < chosen < 1
    assert_same(LDA().solve(sums), LDA(chosen).solve(sums))


def without(sums: MomentSums, features: Tensor, targets: Tensor, images: Tensor) -> MomentSums:
    """The sums as if they had never seen some images."""
    return sums.copy().remove_(features[images], targets[images])


GROUPED = rows_by_size(torch.tensor([row if row % 3 else row % 12 for row in range(30)]))
"""Images 0, 12 and 24 are of one group, as are 3, 15 and 27, 6 and 18, 9 and 21; all others are alone."""


@pytest.mark.parametrize("groups", [[torch.arange(30).unsqueeze(1)], GROUPED])
@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_images_left_out_of_a_ridge_score_as_if_never_seen(
    weighed: bool, intercept: bool, groups: list[Tensor]
) -> None:
    shown, targets = data(30)[0].double(), torch.arange(30) % CLASSES
    sums = MomentSums(WIDTH).add_(shown, targets)
    scale = torch.linspace(0.3, 2.0, WIDTH) if weighed else None
    found = relative(0.05, sums, intercept).left_out(sums, shown, targets, scale, groups)
    squares = torch.ones(WIDTH) if scale is None else scale.square()
    for images in (rows[0] for rows in groups):
        rest = without(sums, shown, targets, images)
        # λ is relative to the mean diagonal; the penalty itself stays as it is when images leave.
        ratio = float((moving(sums, intercept) * squares).sum() / (moving(rest, intercept) * squares).sum())
        expected = relative(0.05 * ratio, rest, intercept).solve(rest, scale)(shown[images])
        torch.testing.assert_close(found[images], expected.double(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("groups", [[torch.arange(30).unsqueeze(1)], GROUPED])
def test_images_left_out_of_discriminant_analysis_score_as_if_never_seen(groups: list[Tensor]) -> None:
    shown, targets = data(30)[0].double(), torch.arange(30) % CLASSES
    sums = MomentSums(WIDTH).add_(shown, targets)
    found = LDA(0.2).left_out(sums, shown, targets, groups=groups)
    everything = scatter_within(sums)
    for images in (rows[0] for rows in groups):
        rest = without(sums, shown, targets, images)
        # Number of images, shrinkage and what it shrinks to are those of everything.
        spread = 0.8 * scatter_within(rest) / 30
        spread += 0.2 * everything.diagonal().mean() / 30 * torch.eye(WIDTH)
        means = rest.cross / rest.counts
        weight = torch.linalg.solve(spread, means)
        scores = shown[images] @ weight - (means * weight).sum(0) / 2
        torch.testing.assert_close(differences(found[images]), differences(scores), atol=1e-3, rtol=1e-3)


def moving(sums: MomentSums, intercept: bool) -> Tensor:
    """The diagonal that λ is relative to."""
    number = int(sums.images)
    return whole(sums).diagonal() - (number * (sums.total / number).square() if intercept else 0)


def whole(sums: MomentSums) -> Tensor:
    """The matrix A."""
    full = torch.zeros(sums.width, sums.width, dtype=torch.float64)
    start = 0
    for strip in sums.strips():
        full[start : start + len(strip), start:] = strip
        start += len(strip)
    return full.triu() + full.triu(1).mT


def scatter_within(sums: MomentSums) -> Tensor:
    """Σ over classes of the scatter about their means."""
    return whole(sums) - (sums.cross / sums.counts) @ sums.cross.mT


def test_the_choice_falls_on_the_strength_with_most_hits_on_images_left_out() -> None:
    generator = torch.Generator().manual_seed(0)
    # As many images as features, most of them without meaning: a weak ridge fits the noise.
    targets = torch.arange(60) % 2
    features = torch.randn(60, 60, generator=generator)
    features[:, :5] += 2.0 * targets.unsqueeze(1) - 1
    sums = MomentSums(60).add_(features, targets)
    choice = ModelSelection([Ridge(0.06), Ridge(60.0)])
    choice.observe(Standardizer(sums), features, targets)
    assert float(choice.hits[1]) > float(choice.hits[0]) + 5
    assert choice.rules[choice.rule[choice.best]] == Ridge(60.0)


def test_the_best_candidates_scores_come_back_at_its_temperature() -> None:
    features, targets = data(41)
    targets[-1] = CLASSES  # alone in its class: it is not scored
    sums = MomentSums(WIDTH).add_(features, targets)
    choice = ModelSelection([Ridge(5.0)])
    scores, scored = choice.observe(Standardizer(sums), features, targets)
    assert scored.tolist() == [True] * 40 + [False]
    unseen = Ridge(5.0).left_out(sums, features[:-1], targets[:-1], unit_deviation(sums))
    torch.testing.assert_close(scores, unseen / choice.temperature)


def test_what_is_learned_does_not_depend_on_the_units_of_the_features() -> None:
    features, targets = data(60)
    units = torch.logspace(-1.5, 1.5, WIDTH, dtype=torch.float64)
    found = []
    for unit in (torch.ones_like(units), units):
        shown = features.double() * unit
        sums = MomentSums(WIDTH).add_(shown, targets)
        choice = ModelSelection([Ridge(5.0), Ridge(50.0), LDA(0.3)])
        choice.observe(Standardizer(sums), shown, targets)
        found.append(choice.solve(Standardizer(sums))(shown.float()))
    # Only the little that is added to all variances knows the units.
    assert (found[0].argmax(1) == found[1].argmax(1)).float().mean() > 0.9


def test_a_part_of_the_sums_is_the_sums_of_a_part() -> None:
    features, targets = data()
    features = features.double()  # products of float32 are rounded differently in matrices of other sizes
    sums = MomentSums(WIDTH).add_(features, targets)
    for start, stop in ((0, 4), (2, 7), (3, 5), (0, WIDTH)):
        part = MomentSums(stop - start).add_(features[:, start:stop], targets)
        for name, value in part.state_dict().items():
            torch.testing.assert_close(sums.part(start, stop).state_dict()[name], value)


def test_evidence_adds_up_over_tasks() -> None:
    choice = ModelSelection([Ridge(1.0), Ridge(10.0), Ridge(100.0)])
    for seed in (0, 1):
        features, targets = data(20, seed)
        choice.observe(Standardizer(MomentSums(WIDTH).add_(features, targets)), features, targets)
    assert int(choice.images) == 40
    assert choice.hits.max() <= 40
    choice.surprise[:] = torch.tensor([3.0, 1.0, 2.0]).unsqueeze(1)
    assert choice.best == 1


def test_likelihood_decides_after_few_images_and_hits_after_many() -> None:
    choice = ModelSelection([Ridge(1.0), Ridge(10.0)])
    for images, best in ((100, 1), (3000, 0)):  # right one time in fifty more often, and 1 % higher NLL
        choice.images.fill_(images)
        choice.hits[:] = images * torch.tensor([0.72, 0.70])
        choice.surprise[:] = images * torch.tensor([1.01, 1.00]).unsqueeze(1)
        assert choice.best == best


def test_a_hopeless_strength_is_tried_no_more_and_never_chosen() -> None:
    features, targets = data(100)
    choice = ModelSelection([Ridge(1.0), Ridge(1e9)])
    choice.hits[:] = torch.tensor([0.0, -1000.0])
    sums = MomentSums(WIDTH).add_(features, targets)
    choice.observe(Standardizer(sums), features, targets)
    assert choice.tried.tolist() == [True, False]
    before = choice.hits.clone()
    choice.observe(Standardizer(sums), features, targets)
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
    sums = MomentSums(WIDTH, CLASSES)
    with pytest.raises(DataError, match=words):
        sums.add_(features, targets, CLASSES)
    assert int(sums.images) == 0
    assert sums.classes == CLASSES


def test_what_was_never_added_cannot_be_removed() -> None:
    features, targets = data()
    sums = MomentSums(WIDTH).add_(features[:8], targets[:8])
    with pytest.raises(DataError, match="fewer images"):
        sums.remove_(features[:20], targets[:20])


def test_nothing_can_be_solved_from_nothing() -> None:
    with pytest.raises(DataError, match="add images"):
        Ridge(0.1).solve(MomentSums(WIDTH))
    with pytest.raises(DataError, match="add images"):
        LDA(0.1).solve(MomentSums(WIDTH))
    with pytest.raises(ConfigError, match="positive"):
        Ridge(0).solve(MomentSums(WIDTH).add_(*data()))
    with pytest.raises(DataError, match="zero"):
        Ridge(0.1).solve(MomentSums(WIDTH).add_(torch.zeros(3, WIDTH), torch.arange(3)))


def test_without_held_out_scores_the_ridge_is_the_middle_one() -> None:
    choice = ModelSelection([Ridge(10.0), Ridge(100.0), Ridge(1000.0)])
    features, targets = torch.eye(3), torch.arange(3)
    scores, scored = choice.observe(Standardizer(MomentSums(3).add_(features, targets)), features, targets)
    assert (scores.shape, int(scored.sum()), choice.best) == ((0, 3), 0, 1)


@pytest.mark.parametrize("rule", [Ridge(6.0), Ridge(6.0, intercept=True), LDA(), LDA(0.2)])
def test_a_weight_is_the_same_as_scaled_features(rule: Rule) -> None:
    features, targets = data()
    scale = torch.linspace(0.2, 2.0, WIDTH)
    weighed = rule.solve(MomentSums(WIDTH).add_(features, targets), scale)
    scaled = rule.solve(MomentSums(WIDTH).add_(features * scale, targets))
    torch.testing.assert_close(weighed(features), scaled(features * scale), atol=1e-4, rtol=1e-4)


def test_a_group_of_noise_gets_a_small_weight_and_probabilities_are_calibrated() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(3, (600,), generator=generator)
    useful = torch.eye(3)[targets] + 0.6 * torch.randn(600, 3, generator=generator)
    noise = 3 * torch.randn(600, 200, generator=generator)
    features = torch.cat([useful, noise], 1)
    sums = MomentSums(203).add_(features[:300], targets[:300])
    choice = ModelSelection([Ridge(10.0), Ridge(100.0)], ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0)))
    choice.observe(Standardizer(sums, (3, 200)), features[:300], targets[:300])
    assert choice.weights[choice.best].tolist() == [1.0, 0.0]
    probabilities = torch.softmax(choice.solve(Standardizer(sums, (3, 200)))(features[300:]), dim=1)
    confidence, guess = probabilities.max(1)
    assert abs(float(confidence.mean() - (guess == targets[300:]).float().mean())) < 0.05


def test_discriminant_analysis_wins_where_classes_are_spread_in_unlike_ways() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(300) % 3
    # Three means on a line, which a regression on one-hot labels masks: the middle one is never the largest.
    features = targets.float().unsqueeze(1) * 4 + torch.randn(300, 1, generator=generator)
    sums = MomentSums(1).add_(features, targets)
    choice = ModelSelection([Ridge(1.0, intercept=True), LDA()])
    choice.observe(Standardizer(sums), features, targets)
    assert choice.rules[choice.rule[choice.best]] == LDA()
    assert (choice.solve(Standardizer(sums))(features).argmax(1) == targets).float().mean() > 0.9


def test_perfect_accuracy_does_not_give_certain_predictions() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(30) % 3
    features = torch.eye(3)[targets] + 0.05 * torch.randn(30, 3, generator=generator)
    choice = ModelSelection([Ridge(1.0)])
    choice.observe(Standardizer(MomentSums(3).add_(features, targets)), features, targets)
    assert int(choice.hits[0]) == 30
    assert choice.temperature > 1 / 64


def test_a_rule_that_cannot_be_solved_is_tried_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    features, targets = data()
    sums = MomentSums(WIDTH).add_(features, targets)

    def hopeless(*_: object) -> Tensor:
        raise NumericalError("no inverse")

    monkeypatch.setattr(LDA, "left_out", hopeless)
    choice = ModelSelection([LDA(), Ridge(10.0)])
    choice.observe(Standardizer(sums), features, targets)
    assert (choice.tried.tolist(), choice.rules[choice.rule[choice.best]]) == ([False, True], Ridge(10.0))
    with pytest.raises(NumericalError, match="much alike"):
        ModelSelection([LDA()]).observe(Standardizer(sums), features, targets)


def test_features_that_never_move_do_not_spoil_the_others() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(12) % 3
    features = torch.cat(
        [torch.eye(3)[targets] + 0.1 * torch.randn(12, 3, generator=generator), torch.full((12, 50), 1e3)], 1
    )
    sums = MomentSums(53).add_(features, targets)
    for rule in (LDA(), LDA(0.3), LDA(0.85), Ridge(1.0)):
        choice = ModelSelection([rule]) if isinstance(rule, LDA) else ModelSelection([Ridge(10.0, intercept=True)])
        choice.observe(Standardizer(sums), features, targets)
        assert (choice.solve(Standardizer(sums))(features).argmax(1) == targets).all(), rule


@pytest.mark.parametrize("rule", [Ridge(100.0, True), LDA(0.3)])
def test_features_that_never_move_do_no_harm(rule: Rule) -> None:
    features, targets = data(400, width=100)
    still = torch.cat([features, torch.full((400, 30), -1.5)], 1)
    solution = ModelSelection([rule]).solve(Standardizer(MomentSums(130).add_(still[:200], targets[:200])))
    assert (solution(still[200:]).argmax(1) == targets[200:]).float().mean() > 0.95


def test_where_forgetting_leaves_no_covariance_a_regression_answers() -> None:
    features, targets = data(24)
    kept = torch.cat([features, features[:2] + 1])
    labels = torch.cat([targets, torch.tensor([CLASSES, CLASSES + 1])])
    sums = MomentSums(WIDTH).add_(kept, labels)
    choice = ModelSelection([Ridge(10.0, True), LDA(0.3)])
    choice.hits[1], choice.images = 20, torch.tensor(20)
    sums.remove_(features, targets)
    sums.regroup_(((CLASSES,), (CLASSES + 1,)))
    solution = choice.solve(Standardizer(sums))
    assert solution.weight.abs().max() < 100
