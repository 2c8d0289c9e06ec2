"""Calibration statistics of synthetic scores: temperatures, prediction sets, OOD scores and summaries."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adagauss.core.calibration import MIN_SUMMARY_IMAGES, Calibration, CalibrationStats
from adagauss.core.ood import (
    ClassDistance,
    left_out_distances,
)

CLASSES = 5


def drawn(images: int, temperature: float, seed: int = 0, relative: bool = False) -> tuple[Tensor, Tensor]:
    """Scores, and classes drawn from their softmax at a temperature."""
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(images, CLASSES, generator=generator, dtype=torch.float64)
    truth = torch.softmax(Calibration(temperature, relative)(scores), dim=1)
    return scores, torch.multinomial(truth, 1, generator=generator).squeeze(1)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_temperature_that_drew_the_classes_is_found(temperature: float) -> None:
    evidence = CalibrationStats()
    evidence.observe(*drawn(6000, temperature))
    assert not evidence.calibration.relative
    assert evidence.calibration.temperature == pytest.approx(temperature, rel=0.08)


def test_a_temperature_relative_to_the_spread_of_scores_is_found() -> None:
    evidence = CalibrationStats()
    scores, targets = drawn(6000, 0.3, relative=True)
    sizes = torch.rand(len(scores), 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64).mul(4).exp()
    evidence.observe(scores * sizes, targets)  # the scale of each image's scores means nothing
    assert evidence.calibration.relative
    assert evidence.calibration.temperature == pytest.approx(0.3, rel=0.08)


def test_probabilities_stay_below_1_if_all_images_are_right() -> None:
    evidence = CalibrationStats()
    scores = torch.eye(CLASSES).repeat(10, 1)
    evidence.observe(scores, scores.argmax(1))
    best = float(torch.softmax(evidence.calibration(scores), dim=1).amax())
    assert 0.9 < best < 0.9999


def test_calibration_keeps_the_order_of_the_classes() -> None:
    scores, _ = drawn(50, 1.0)
    for calibration in (Calibration(0.3), Calibration(0.3, relative=True)):
        assert torch.equal(calibration(scores).argsort(1), scores.argsort(1))


@pytest.mark.parametrize("coverage", [0.7, 0.9, 0.97])
def test_sets_hold_the_right_class_as_often_as_promised(coverage: float) -> None:
    evidence = CalibrationStats()
    evidence.observe(*drawn(3000, 2.0, seed=1))
    scores, targets = drawn(20000, 2.0, seed=2)
    inside = evidence.sets(evidence.calibration(scores), coverage)
    hits = float(inside.gather(1, targets.unsqueeze(1)).double().mean())
    # Bins are a few percent wide, and sets end at their upper edges: coverage is never missed by more than sampling.
    assert coverage - 0.02 < hits < coverage + 0.04
    assert int(inside.sum(1).min()) >= 1


def test_without_statistics_every_class_is_in_the_set() -> None:
    assert bool(CalibrationStats(CLASSES).sets(torch.randn(4, CLASSES), 0.9).all())


def test_the_false_positive_rate_is_the_target() -> None:
    generator = torch.Generator().manual_seed(0)
    evidence = CalibrationStats()
    scores, targets = drawn(4000, 1.0)
    evidence.observe(scores, targets, torch.randn(4000, generator=generator).exp())
    fresh = torch.randn(20000, generator=generator).exp()
    found = float((evidence.p_value(fresh) < 0.05).double().mean())
    assert found == pytest.approx(0.05, abs=0.012)
    extreme = evidence.p_value(torch.tensor([1e-9, 1e9]))
    assert float(extreme[0]) < 0.01
    assert float(extreme[1]) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2])
def test_the_false_positive_rate_is_at_most_the_target_with_distances(rate: float) -> None:
    generator = torch.Generator().manual_seed(0)
    evidence = CalibrationStats()
    scores, targets = drawn(4000, 1.0)
    evidence.observe(
        scores, targets, torch.randn(4000, generator=generator).exp(), torch.rand(4000, generator=generator)
    )
    margins, distances = torch.randn(20000, generator=generator).exp(), torch.rand(20000, generator=generator)
    found = float((evidence.p_value(margins, distances) < rate).double().mean())
    assert rate / 3 < found < rate + 0.005


def test_a_distance_beyond_all_known_images_decides() -> None:
    evidence = CalibrationStats()
    scores, targets = drawn(200, 1.0)
    generator = torch.Generator().manual_seed(0)
    evidence.observe(scores, targets, torch.rand(200, generator=generator), 0.3 * torch.rand(200, generator=generator))
    far = evidence.p_value(torch.full((3,), 10.0), torch.tensor([0.1, 0.6, 0.9]))
    assert float(far[0]) > 0.9
    assert float(far[1]) < 0.01
    assert float(far[2]) < float(far[1])


def test_without_distances_the_margin_decides() -> None:
    evidence = CalibrationStats()
    scores, targets = drawn(200, 1.0)
    evidence.observe(scores, targets, torch.rand(200))
    margins = torch.rand(50)
    assert torch.equal(evidence.p_value(margins, torch.ones(50)), evidence.p_value(margins))


def test_held_out_distances_are_those_without_the_image() -> None:
    features, targets = torch.rand(30, 6, dtype=torch.float64), torch.arange(30) % 3
    groups = torch.arange(30) % 12  # images 0, 12 and 24 are left out together
    sums = torch.stack([features[targets == target].sum(0) for target in range(3)], 1)
    found = left_out_distances(features, targets, groups, sums)
    for image in range(30):
        others = sums.clone()
        others[:, targets[image]] -= features[groups == groups[image]].sum(0)
        expected = ClassDistance(others)(features[image : image + 1])
        torch.testing.assert_close(found[image : image + 1].float(), expected, atol=1e-6, rtol=1e-4)


def test_fitted_images_count_only_without_held_out_ones() -> None:
    evidence = CalibrationStats()
    sure, targets = drawn(3000, 0.2, seed=1)
    evidence.observe(sure, targets, left_out=False)
    assert not evidence.held_out
    assert evidence.calibration.temperature == pytest.approx(0.2, rel=0.1)
    assert all(one.expected_accuracy is None for one in evidence.summary(range(CLASSES)))
    evidence.observe(*drawn(3000, 2.0, seed=2))
    assert evidence.held_out
    assert evidence.calibration.temperature == pytest.approx(2.0, rel=0.1)
    evidence.observe(sure, targets, left_out=False)
    assert evidence.calibration.temperature == pytest.approx(2.0, rel=0.1)


def test_statistics_among_few_classes_fade() -> None:
    evidence = CalibrationStats()
    generator = torch.Generator().manual_seed(0)
    few = 3 * torch.randn(2000, 2, generator=generator, dtype=torch.float64)
    evidence.observe(few, torch.multinomial(torch.softmax(few / 0.3, 1), 1, generator=generator).squeeze(1))
    many = 3 * torch.randn(2000, 12, generator=generator, dtype=torch.float64)
    truth = torch.multinomial(torch.softmax(many / 2, 1), 1, generator=generator).squeeze(1)
    evidence.observe(many[truth > 1], truth[truth > 1])
    assert evidence.calibration.temperature == pytest.approx(2.0, rel=0.12)


def test_one_new_image_does_not_make_old_statistics_new() -> None:
    evidence = CalibrationStats()
    generator = torch.Generator().manual_seed(0)
    evidence.observe(torch.randn(500, 2, generator=generator, dtype=torch.float64), torch.zeros(500, dtype=torch.long))
    before = evidence.among.clone()
    evidence.observe(torch.randn(1, 12, generator=generator, dtype=torch.float64), torch.zeros(1, dtype=torch.long))
    assert int(evidence.among[0]) == int(before[0]) == 2
    evidence.observe(torch.randn(500, 12, generator=generator, dtype=torch.float64), torch.zeros(500, dtype=torch.long))
    assert int(evidence.among[0]) == 7


def test_a_summary_counts_images_hits_and_confusions() -> None:
    evidence = CalibrationStats()
    evidence.add(torch.tensor([24, 12, 0]))
    scores = torch.tensor([[2.0, 1, 0], [1, 2, 0], [1, 2, 0], [0, 0, 1], [0, 2, 1]]).repeat(10, 1)
    evidence.observe(scores, torch.tensor([0, 0, 0, 0, 1]).repeat(10))
    cat, dog, owl = evidence.summary(["cat", "dog", "owl"])
    assert (cat.label, cat.images, cat.expected_accuracy) == ("cat", 24, 0.25)
    assert cat.confused_with == (("dog", 0.5), ("owl", 0.25))
    assert (dog.images, dog.expected_accuracy, dog.confused_with) == (12, 1.0, ())
    assert (owl.images, owl.expected_accuracy) == (0, None)


def test_a_summary_has_no_estimates_from_few_images() -> None:
    evidence = CalibrationStats()
    targets = torch.tensor([0] * MIN_SUMMARY_IMAGES + [1] * (MIN_SUMMARY_IMAGES - 1))
    evidence.observe(torch.eye(2)[1 - targets], targets)
    many, few = evidence.summary("ab")
    assert (many.expected_accuracy, many.confused_with) == (0.0, (("b", 1.0),))
    assert (few.expected_accuracy, few.confused_with) == (None, ())


def test_a_merged_class_was_measured_among_the_mean_number_of_classes() -> None:
    evidence = CalibrationStats()
    evidence.observe(torch.eye(2).repeat(10, 1), torch.arange(20) % 2)
    evidence.observe(torch.eye(5)[2:].repeat(10, 1), torch.arange(30) % 3 + 2)
    merged = evidence.remap_classes(((0,), (1, 4), (2, 3)))
    assert merged.among.tolist() == [2, 3, 5]


def test_a_forgotten_class_leaves_no_row() -> None:
    scores, targets = drawn(500, 1.0)
    margins = scores.square().sum(1)
    whole, without = CalibrationStats(), CalibrationStats()
    whole.add(torch.bincount(targets, minlength=CLASSES))
    whole.observe(scores, targets, margins)
    chosen = targets != 2
    without.add(torch.bincount(targets[chosen], minlength=CLASSES))
    without.observe(scores[chosen], targets[chosen], margins[chosen])
    rest = ((0,), (1,), (3,), (4,))
    for name, tensor in whole.remap_classes(rest).state_dict().items():
        if name != "score_gaps":  # binned at the temperature of their time
            torch.testing.assert_close(tensor, without.remap_classes(rest).state_dict()[name])
    assert whole.classes == CLASSES  # the original is not changed


def test_joined_classes_are_no_longer_confused() -> None:
    evidence = CalibrationStats()
    evidence.observe(torch.eye(3).repeat(10, 1), torch.tensor([1, 0, 2]).repeat(10))
    assert [one.expected_accuracy for one in evidence.summary("abc")] == [0.0, 0.0, 1.0]
    joined = evidence.remap_classes(((0, 1), (2,)))
    assert [one.expected_accuracy for one in joined.summary("ac")] == [1.0, 1.0]


def test_statistics_of_two_learners_add_up() -> None:
    scores, targets = drawn(400, 1.0)
    one, two = CalibrationStats(), CalibrationStats()
    one.observe(scores[:200], targets[:200])
    two.observe(scores[200:][:, [3, 4, 0, 1, 2]], (targets[200:] + 2) % CLASSES)
    both = one.merged(two, (3, 4, 0, 1, 2))
    assert torch.equal(both.images, torch.bincount(targets, minlength=CLASSES))
    hits = both.confusions[both.confusions[:, 0] == both.confusions[:, 1], 2]
    assert hits.sum() == (scores.argmax(1) == targets).sum()


def test_saved_statistics_are_the_same() -> None:
    evidence = CalibrationStats()
    evidence.observe(*drawn(300, 1.0), torch.rand(300))
    loaded = CalibrationStats()
    loaded.load_state_dict(evidence.state_dict())
    assert loaded.calibration == evidence.calibration
    assert loaded.gap(0.9) == evidence.gap(0.9)


def test_one_class_alone_gives_no_calibration() -> None:
    evidence = CalibrationStats()
    evidence.observe(torch.randn(10, 1), torch.zeros(10, dtype=torch.long))
    assert evidence.calibration == Calibration()
