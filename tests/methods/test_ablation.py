"""The eight rows of the paper's ablation table, and both presets."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from adagauss.core.config import plain
from adagauss.data.images import LabelledImages, Subset
from adagauss.errors import ConfigError, DataError, NumericalError
from adagauss.methods import make_method
from adagauss.methods.adagauss import PAPER, REFERENCE
from adagauss.parts.drift import Adapter
from tests.contracts.toy import scores, taught, toy_images, toy_learner, toy_tasks

NO_ANTI_COLLAPSE: dict[str, Any] = {"representation.terms.anti_collapse": None, "drift.anti_collapse": 0.0}
ROWS: dict[str, dict[str, Any]] = {
    "1 nearest mean, means mapped": {"classifier": {"kind": "nearest_mean"}, "memory.kind": "means"},
    "2 nearest mean of mapped samples": {"classifier": {"kind": "nearest_mean"}},
    "3 Bayes, diagonal": {"memory.covariance": "diagonal"},
    "4 Bayes, nothing adapted, no L_AC": {
        **NO_ANTI_COLLAPSE,
        "drift.adapt_mean": False,
        "drift.adapt_covariance": False,
        "memory.shrinkage": 0.5,
    },
    "5 only covariances adapted": {"drift.adapt_mean": False},
    "6 only means adapted": {"drift.adapt_covariance": False},
    "7 no L_AC, shrink 0.5": {**NO_ANTI_COLLAPSE, "memory.shrinkage": 0.5},
    "8 AdaGauss": {},
}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_the_ablation_table_runs(row: str) -> None:
    assert torch.isfinite(scores(taught("adagauss", 2, **ROWS[row]))).all()


def test_the_text_sums_and_the_code_averages_squared_errors() -> None:
    paper, reference = (make_method("adagauss", preset) for preset in ("paper", "reference"))
    assert plain(paper.drift)["reduction"] == "sum"
    assert plain(reference.drift)["reduction"] == "mean"


@pytest.mark.parametrize(("preset", "drops"), [("paper", [[4, 9], [45, 90]]), ("reference", [[], [30, 60, 90]])])
def test_the_adapters_rate_falls_at_shares_of_its_epochs_in_the_text_and_at_fixed_epochs_in_the_code(
    preset: str, drops: list[list[int]]
) -> None:
    for epochs, expected in zip((20, 200), drops, strict=True):
        drift = make_method("adagauss", preset, epochs=epochs).drift
        assert isinstance(drift, Adapter)
        assert [drop for drop in drift.recipe.drops if drop < drift.recipe.epochs] == expected


def test_the_literal_text_diverges_with_a_message() -> None:
    """Sums over batch and dimensions, λ = 10, rate 0.1 and no clipping; the message tells what to do."""
    learner = toy_learner("adagauss", **_literal())
    tasks = toy_tasks()
    learner.learn(tasks[0])
    with pytest.raises(NumericalError, match="clip"):
        learner.learn(tasks[2])


def test_the_text_with_clipping_and_means_runs() -> None:
    rescue = {
        "representation.terms.distillation.reduction": "mean",
        "drift.reduction": "mean",
        "representation.later.clip_norm": 1.0,
    }
    assert torch.isfinite(scores(taught("adagauss", 2, **{**_literal(), **rescue}))).all()


def _literal() -> dict[str, Any]:
    """The preset ``paper`` without clipping, as settings, since the toy learner starts from the default preset."""
    undone = {
        "representation.later.learning_rate": 0.1,
        "representation.label_augmentation": {"kind": "none"},
        "classifier.shrinkage": 0.0,
        "classifier.correlation": False,
        "classifier.normalize": False,
        "classifier.log_det": True,
        "representation.first.clip_norm": None,
        "representation.later.clip_norm": None,
        "drift.recipe.clip_norm": None,
        "representation.first.head_warmup": 0.0,
        "representation.later.head_warmup": 0.0,
    }
    assert undone.keys() < REFERENCE.keys()
    unclipped = {key: None for key in PAPER if key.endswith(".clip_norm")}
    return {**undone, **PAPER, **unclipped, "representation.later.epochs": 4}


def test_the_preset_of_the_paper_learns_two_tasks_with_clipped_gradients() -> None:
    """Rate 0.1 and λ = 10 with sums over batch and dimensions, for more than a few epochs."""
    settings = {f"representation.{when}.epochs": 10 for when in ("first", "later")}
    learner = taught("adagauss", 2, "paper", **settings)
    assert plain(learner.method.representation.terms["distillation"])["reduction"] == "sum"
    assert torch.isfinite(scores(learner)).all()


def test_a_classifier_without_the_statistics_it_needs_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match=r"memory\.kind=gaussians"):
        make_method("adagauss", settings={"memory.kind": "means"})


def test_logit_distillation_without_kept_heads_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"representation\.heads=keep"):
        make_method("adagauss", settings={"representation.terms.distillation.kind": "logit_distillation"})


def test_a_class_of_one_image_is_refused_before_training() -> None:
    data = toy_images()
    rows = torch.cat([torch.arange(20), torch.nonzero(data.targets == data.targets[-1]).flatten()[:1]])
    few = LabelledImages(Subset(data.images, rows), data.targets[rows], data.classes)
    classes = [few.classes[index] for index in sorted(set(few.targets.tolist()))]
    with pytest.raises(DataError, match="single image"):
        toy_learner("adagauss").learn(few.of_classes(classes))


def test_shrinkage_is_not_repeated_where_drift_changes_no_covariance() -> None:
    settings: dict[str, Any] = {"memory.shrinkage": 0.5, "drift.adapt_covariance": False}
    learner = toy_learner("adagauss", **settings)
    tasks = toy_tasks()
    learner.learn(tasks[0])
    before = learner.memory.packed.clone()
    learner.learn(tasks[1])
    assert torch.equal(learner.memory.packed[: len(before)], before)
