"""One covariance of all classes, for many classes, and the methods that use it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adagauss import GaussianBayes
from adagauss.core import gaussians, linalg
from adagauss.core.gaussians import ClassGaussians, CovarianceKind, SharedGaussians, new_bank
from adagauss.core.learn import Learner
from adagauss.core.train import Sampler
from adagauss.errors import CheckpointError, ConfigError
from adagauss.parts.classifiers import Bayes
from adagauss.parts.memory import GaussianMemory
from tests.contracts.test_export import check_export
from tests.contracts.toy import quick_method, same, scores, state, taught, toy_images, toy_tasks

SIZE = 5
few_examples = settings(max_examples=10, deadline=None)
KINDS: tuple[CovarianceKind, ...] = ("shared",)
SETTINGS = {kind: {"memory.covariance": kind, "classifier.covariance": kind} for kind in KINDS}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(rows: int = 60, seed: int = 0) -> Tensor:
    turned = torch.randn(SIZE, SIZE, generator=generator(99), dtype=torch.float64)
    return torch.randn(rows, SIZE, generator=generator(seed), dtype=torch.float64) @ turned + 1


def labels(rows: int = 60) -> list[str]:
    return ["abcd"[row % 7 % 4] for row in range(rows)]


def bank(kind: CovarianceKind, seed: int = 0) -> ClassGaussians:
    result = new_bank(SIZE, kind)
    result.add(points(seed=seed), labels())
    return result


def within(features: Tensor, names: list[str]) -> Tensor:
    full = ClassGaussians.from_features(features, names)
    weights = (full.counts.double() - 1).view(-1, 1, 1)
    return (weights * full.covariances).sum(0) / weights.sum()


def assert_same(one: ClassGaussians, other: ClassGaussians) -> None:
    assert one.labels == other.labels
    assert one.counts.tolist() == other.counts.tolist()
    torch.testing.assert_close(one.means, other.means)
    torch.testing.assert_close(one.covariances, other.covariances)


def test_the_shared_covariance_is_that_within_classes() -> None:
    found = bank("shared")
    torch.testing.assert_close(found.pooled, within(points(), labels()))
    torch.testing.assert_close(found.covariances[2], within(points(), labels()))
    assert found.packed.numel() == SIZE * (SIZE + 1) // 2


@few_examples
@given(cut=st.integers(1, 59), seed=st.integers(0, 99))
def test_a_shared_covariance_in_pieces_is_that_of_the_whole(cut: int, seed: int) -> None:
    features, names = points(seed=seed), labels()
    whole = SharedGaussians.from_features(features, names)
    one, other = (SharedGaussians.from_features(features[part], names[part]) for part in (slice(cut), slice(cut, None)))
    before = one.copy()
    merged = one.copy()
    merged.merge(other)
    assert_same(merged.select(whole.labels), whole)
    assert_same(one, before)
    one.add(features[cut:], names[cut:])
    assert_same(one.select(whole.labels), whole)


def test_joined_classes_of_a_shared_covariance_are_as_if_always_one() -> None:
    part = GaussianMemory(covariance="shared")
    joined = part.remap_classes(bank("shared"), ((1,), (2, 0), (3,)))
    names = ["c" if label in "ac" else label for label in labels()]
    assert_same(joined, SharedGaussians.from_features(points(), names).select(joined.labels))


def test_a_class_that_is_not_selected_leaves_the_shared_covariance_unchanged() -> None:
    found, before = bank("shared"), bank("shared").pooled
    found = found.select(["a", "c", "d"])
    torch.testing.assert_close(found.pooled, before)
    assert found.labels == ["a", "c", "d"]


@pytest.mark.parametrize("kind", KINDS)
def test_sums_over_classes_are_those_of_the_matrices(kind: CovarianceKind) -> None:
    found = bank(kind)
    torch.testing.assert_close(found.mean_covariance, found.covariances.mean(0))
    torch.testing.assert_close(found.second_moment, found.second_moments.sum(0))
    weights = found.freedom.view(-1, 1, 1)
    torch.testing.assert_close(found.pooled, (weights * found.covariances).sum(0) / weights.sum())


@pytest.mark.parametrize("kind", ["full", "diagonal", *KINDS])
def test_blocks_of_classes_change_nothing(kind: CovarianceKind, monkeypatch: pytest.MonkeyPatch) -> None:
    affine = linalg.Affine(points(SIZE, seed=3), points(1, seed=4)[0])
    found, used = bank(kind), kind if kind in KINDS else "full"
    rule = Bayes.of({"covariance": used, "pooled_shrinkage": 0.5 if kind == "full" else 0.0})
    once, score = found.transport_affine(affine, 0.1), rule.scorer(found, torch.float64)(points())
    monkeypatch.setattr(gaussians, "BLOCK_BYTES", 1)
    assert_same(found.transport_affine(affine, 0.1), once)
    torch.testing.assert_close(rule.scorer(found, torch.float64)(points()), score)


@pytest.mark.parametrize("kind", KINDS)
def test_drift_by_an_affine_map_is_right(kind: CovarianceKind) -> None:
    found, weight = bank(kind), points(SIZE, seed=3)
    extra = weight @ weight.T
    moved = found.transport_affine(linalg.Affine(weight, weight[0]), extra)
    expected = weight.T @ found.covariances @ weight + extra
    torch.testing.assert_close(moved.means, found.means @ weight + weight[0])
    torch.testing.assert_close(moved.covariances, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_drift_by_samples_agrees_with_the_affine_map(kind: CovarianceKind) -> None:
    found, weight = bank(kind), points(SIZE, seed=3).float()
    moved = found.transport(lambda some: some @ weight, 20_000, generator(1))
    exact = found.transport_affine(linalg.Affine(weight.double(), torch.zeros(SIZE, dtype=torch.float64)))
    torch.testing.assert_close(moved.means, exact.means, rtol=0.1, atol=0.2)
    torch.testing.assert_close(
        moved.covariances, exact.covariances, rtol=0.1, atol=0.05 * float(exact.covariances.max())
    )


def test_draws_have_the_shared_covariance() -> None:
    found = bank("shared")
    draws = Sampler(found).draw(torch.full((20_000,), 1), generator(2))
    torch.testing.assert_close(linalg.sample_covariance(draws.double()), found.pooled, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("priors", [False, True])
def test_the_shared_rule_is_linear_discriminant_analysis(priors: bool) -> None:
    features, names = points(), labels()
    rule = GaussianBayes(covariance="shared", priors=priors).fit(features.numpy(), names)
    full = ClassGaussians.from_features(features, names).select(sorted(set(names)))
    densities = [
        torch.distributions.MultivariateNormal(mean, within(features, names)).log_prob(features)  # type: ignore[no-untyped-call]
        for mean in full.means
    ]
    logits = torch.stack(densities, 1) + (full.counts.double().log() if priors else 0)
    np.testing.assert_allclose(rule.predict_proba(features.numpy()), torch.softmax(logits, 1).numpy(), atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_of_one_sample_can_be_predicted(kind: CovarianceKind) -> None:
    rule = GaussianBayes(covariance=kind).fit([*points().tolist(), [50.0] * SIZE], [*labels(), "e"])
    assert rule.predict([[50.0] * SIZE]).tolist() == ["e"]


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot hold 'shared'"):
        ClassGaussians(SIZE, "shared")
    with pytest.raises(ConfigError, match="banks differ"):
        bank("shared").merge(bank("full"))
    with pytest.raises(ConfigError, match="stored without shrinkage"):
        GaussianMemory.of({"covariance": "shared", "shrinkage": 1.0})
    for refused, need in (
        ({"memory.covariance": "shared"}, r"covariance of each class.*classifier\.covariance=shared"),
        ({"memory.covariance": "low_rank"}, r"removed in version 0\.3.*memory\.covariance=shared"),
        ({**SETTINGS["shared"], "drift.kind": "dual_projection"}, "covariance of each class"),
    ):
        with pytest.raises(ConfigError, match=need):
            quick_method("adagauss", **refused)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drift", ["affine", "adapter"])
def test_methods_learn_forget_join_and_survive_a_file(kind: CovarianceKind, drift: str, tmp_path: Path) -> None:
    residual = {"drift.residual_covariance": 1.0} if drift == "affine" else {}
    learner = taught("adagauss", 2, None, **SETTINGS[kind], **{"drift.kind": drift, **residual})
    learner.learn(toy_images().of_classes(["one"]))  # more of a known class
    learner.merge_classes("two", ["zero"])
    learner.rename("one", "uno")
    learner.learn(toy_tasks()[2])
    learner.forget(["three"])
    assert sorted(map(str, learner.classes)) == ["five", "four", "two", "uno"]
    learner.save(tmp_path / "learner")
    loaded = Learner.load(tmp_path / "learner")
    assert same(state(loaded), state(learner))
    assert torch.equal(scores(loaded), scores(learner))
    assert torch.isfinite(scores(learner)).all()
    check_export(learner)


def test_learners_of_a_shared_covariance_are_merged_as_if_one_had_learned_all() -> None:
    parts = {**SETTINGS["shared"], "memory.kind": "gaussians", "classifier.kind": "bayes"}
    learner, whole = taught("frozen", 2, None, **parts), taught("frozen", 3, None, **parts)
    other = learner.empty_like()
    other.learn(toy_tasks()[2])
    learner.merge(other)
    assert_same(learner.memory, whole.memory)
    one, other_scorer = learner.state.scorer.state_dict(), whole.state.scorer.state_dict()
    torch.testing.assert_close(one, other_scorer, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mapped_file_predicts_the_same_without_a_copy(kind: CovarianceKind, tmp_path: Path) -> None:
    learner = taught("adagauss", 2, None, **SETTINGS[kind])
    learner.save(tmp_path / "learner")
    content = (tmp_path / "learner").read_bytes()
    mapped = Learner.load(tmp_path / "learner", mapped=True)
    assert torch.equal(scores(mapped), scores(learner))
    # The bytes of the file begin behind a header: no allocation of torch's own begins at such an address.
    storage = mapped.memory.means.untyped_storage()
    assert storage.nbytes() > mapped.memory.means.nbytes or not storage.resizable()
    mapped.learn(toy_tasks()[2])  # what is learned stays in memory
    assert (tmp_path / "learner").read_bytes() == content


def test_a_mapped_file_is_compared_with_its_digest(tmp_path: Path) -> None:
    taught("adagauss", 1, None, **SETTINGS["shared"]).save(tmp_path / "learner")
    content = bytearray((tmp_path / "learner").read_bytes())
    content[-1] ^= 1
    (tmp_path / "learner").write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        Learner.load(tmp_path / "learner", mapped=True)
