"""Metrics against hand computation."""

from __future__ import annotations

import pytest
import torch

from adagauss.experiments import metrics
from adagauss.experiments.metrics import Evaluation, task_aware_predictions

MATRIX = [[0.9], [0.5, 0.8], [0.6, 0.4, 0.7]]


def test_forgetting_is_the_drop_from_the_best_accuracy_before_the_last_task() -> None:
    assert metrics.forgetting(MATRIX) == pytest.approx(((0.9 - 0.6) + (0.8 - 0.4)) / 2)


def test_backward_transfer_compares_with_the_accuracy_right_after_learning() -> None:
    assert metrics.backward_transfer(MATRIX) == pytest.approx(((0.6 - 0.9) + (0.4 - 0.8)) / 2)


def test_plasticity_leaves_out_the_first_task() -> None:
    assert metrics.plasticity(MATRIX) == pytest.approx((0.8 + 0.7) / 2)


def test_a_single_task_forgets_nothing() -> None:
    assert metrics.forgetting([[0.9]]) == metrics.backward_transfer([[0.9]]) == metrics.plasticity([[0.9]]) == 0


@pytest.fixture
def uneven() -> Evaluation:
    """Task 1: class 0, four images, one right. Task 2: classes 1 and 2, two images, both right."""
    return Evaluation(
        true=torch.tensor([0, 0, 0, 0, 1, 2]),
        predicted=torch.tensor([0, 1, 1, 2, 1, 2]),
        task_aware=torch.tensor([0, 0, 0, 0, 1, 2]),
        sizes=(1, 2),
    )


def test_pooled_and_task_mean_accuracy_differ_for_uneven_tasks(uneven: Evaluation) -> None:
    result = metrics.summary([uneven])
    assert result["a_last_pooled"] == pytest.approx(3 / 6)
    assert result["a_last"] == pytest.approx((0.25 + 1) / 2)


def test_incremental_accuracy_averages_over_tasks_with_the_first_included(uneven: Evaluation) -> None:
    first = Evaluation(torch.tensor([0]), torch.tensor([0]), torch.tensor([0]), (1,))
    assert metrics.summary([first, uneven])["a_inc_pooled"] == pytest.approx((1 + 0.5) / 2)


def test_prediction_share_counts_predictions_by_task(uneven: Evaluation) -> None:
    assert uneven.prediction_share() == pytest.approx([1 / 6, 5 / 6])


def test_confusion_has_true_rows_and_predicted_columns(uneven: Evaluation) -> None:
    assert uneven.confusion().tolist() == [[1, 2, 1], [0, 1, 0], [0, 0, 1]]


def test_task_aware_predictions_stay_within_the_task_of_the_image() -> None:
    scores = torch.tensor([[0.0, 5.0, 9.0], [7.0, 1.0, 2.0]])
    assert task_aware_predictions(scores, torch.tensor([0, 1]), (1, 2)).tolist() == [0, 2]
