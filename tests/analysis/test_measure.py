"""Measured quantities of a run equal its own numbers, and other ways to compute them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from adagauss.analysis.measure import (
    AMOUNTS,
    BANKS,
    EFC_UPDATE,
    OWN,
    REAL_BOTH,
    TRACKED,
    UNMOVED,
    Quantity,
    distances,
    linear_discriminants,
    measure,
    quantity_file,
)
from adagauss.analysis.rescore import real_statistics
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learn import Learner
from adagauss.data.dataset import Dataset, load_dataset
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.data.stream import StreamConfig
from adagauss.experiments.config import make_config
from adagauss.experiments.run import Run, RunFolder
from adagauss.experiments.runner import make_stream, run
from adagauss.utils.runtime import Runtime

EVERYTHING = frozenset(Quantity)


@pytest.fixture(scope="module")
def measured(opened: Run, digits: Dataset) -> Run:
    found = measure(opened, lambda: digits, EVERYTHING)
    assert not found.missing
    return found


def test_the_memory_of_the_run_gives_the_accuracy_of_the_run(opened: Run, measured: Run) -> None:
    own = measured.table("real.accuracy")[:, BANKS.index(OWN)]
    assert own.tolist() == pytest.approx(opened.curve)
    assert measured.curve == pytest.approx(opened.curve)


def test_classes_of_the_newest_task_have_no_distance(measured: Run) -> None:
    table = measured.table("real.distances")
    for task in range(measured.done):
        newest = slice(2 * task, 2 * task + 2)
        assert table[task, newest].max() == pytest.approx(0, abs=1e-4), "but for rounding"


def real_gaussians(opened: Run) -> ClassGaussians:
    """Gaussians of all training images under the last network."""
    learner, train = Learner.load(opened.checkpoint(2)), load_dataset("digits").train
    train = train.of_classes(learner.classes)
    bank = ClassGaussians.from_features(learner.features(train.images), train.labels)
    return bank.select(learner.classes)


def test_distances_are_those_to_the_real_statistics(opened: Run, measured: Run) -> None:
    real = real_gaussians(opened)
    memory = Learner.load(opened.checkpoint(2)).memory
    expected = distances(memory, real).numpy()
    np.testing.assert_allclose(
        measured.table("real.distances")[2, :, TRACKED.index(OWN)], expected, rtol=1e-4, atol=1e-4
    )


def test_a_memory_that_is_not_adapted_is_the_one_that_was_stored(opened: Run, measured: Run) -> None:
    real = real_gaussians(opened)
    stored = Learner.load(opened.checkpoint(0)).memory
    expected = distances(stored, real.select(stored.labels)).numpy()
    found = measured.table("real.distances")[2, :2, TRACKED.index(UNMOVED)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_efcs_update_is_that_of_the_method(tmp_path: Path, digits: Dataset) -> None:
    # Without augmentation the method sees the plain images too, so both must agree.
    settings = {"augmentation.crop_padding": 0, "augmentation.resized_crop": False, "representation.later.epochs": 1}
    stream = StreamConfig(dataset="digits", sizes=(2, 2, 2), classes=6)
    run(make_config("efc", stream, settings={**settings, "representation.first.epochs": 1}), tmp_path, dataset=digits)
    table = measure(Run.open(tmp_path), lambda: digits, frozenset({Quantity.REAL})).table("real.distances")
    own, efc, unmoved = (table[1:, :, TRACKED.index(name), 0] for name in (OWN, EFC_UPDATE, UNMOVED))
    np.testing.assert_allclose(efc, own, rtol=1e-3, atol=1e-4)
    assert np.nanmax(np.abs(unmoved - own)) > 1e-2, "the update must do something for this to be a test"


def test_linear_discriminants_are_bayes_rule_for_one_covariance() -> None:
    generator = np.random.default_rng(0)
    features, targets = generator.normal(size=(90, 3)), np.repeat(np.arange(3), 30)
    features[:, 0] += 2 * targets
    lda = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True).fit(features, targets)
    weight, bias = linear_discriminants(torch.from_numpy(lda.means_), torch.from_numpy(lda.covariance_))
    scores = torch.from_numpy(features) @ weight.T + bias
    np.testing.assert_allclose(torch.softmax(scores, 1).numpy(), lda.predict_proba(features), atol=1e-6)


def test_mirror_images_count_where_the_memory_counts_them(opened: Run, digits: Dataset) -> None:
    config = opened.config
    memory = config.method.memory
    extractor = Learner.load(opened.checkpoint(1)).network.extractor
    stream = make_stream(config, digits)
    plain, mirrored = (
        real_statistics(extractor, stream, 1, one, Runtime())[0] for one in (memory, memory.with_changes(flips=True))
    )
    assert (mirrored.counts / plain.counts).tolist() == [2, 2, 2, 2]
    assert not torch.allclose(mirrored.means, plain.means)


def test_spectra_add_up_to_the_traces(opened: Run, measured: Run) -> None:
    memory = Learner.load(opened.checkpoint(2)).memory
    traces = memory.covariances.diagonal(dim1=1, dim2=2).sum(1).numpy()
    np.testing.assert_allclose(measured.table("memory.spectra")[2].sum(1), traces, rtol=1e-9)
    assert np.isnan(measured.table("memory.spectra")[0, 2:]).all(), "these classes came later"


def test_the_spectrum_of_all_features_is_that_of_their_covariance(opened: Run, measured: Run, digits: Dataset) -> None:
    learner = Learner.load(opened.checkpoint(2))
    features = learner.features(digits.train.of_classes(measured.labels).images).double().numpy()
    expected = np.linalg.eigvalsh(np.cov(features.T))[::-1]
    np.testing.assert_allclose(measured.table("real.all_spectra")[2], expected, rtol=1e-4, atol=1e-6)


def test_shifts_are_those_of_the_means(opened: Run, measured: Run) -> None:
    before, after = (Learner.load(opened.checkpoint(index)).memory for index in (1, 2))
    expected = torch.linalg.vector_norm(after.means[:4] - before.means, dim=1)
    shift = measured.table("memory.shift")[2, :, 0]
    assert shift[:4].tolist() == pytest.approx(expected.tolist())
    assert np.isnan(shift[4:]).all()


@pytest.mark.parametrize("which", ["affine", "adapter"])
def test_no_shrinkage_gives_the_runs_own_accuracy(which: str, opened: Run, other: Run, digits: Dataset) -> None:
    chosen = opened if which == "affine" else other
    found = measure(chosen, lambda: digits, frozenset({Quantity.SHRINK}))
    assert AMOUNTS[0] == 0
    assert found.table("shrink.accuracy")[0].tolist() == pytest.approx(found.curve)
    assert found.table("shrink.accuracy").std(0).max() > 0


def test_after_one_task_the_network_is_the_frozen_one(unfinished: RunFolder, digits: Dataset) -> None:
    found = measure(Run.open(unfinished.path), lambda: digits, frozenset({Quantity.REAL}))
    assert (found.done, found.planned_tasks) == (1, 3)
    assert float(found.table("real.frozen_accuracy")[0]) == pytest.approx(found.curve[0])
    assert found.table("real.accuracy")[0, BANKS.index(REAL_BOTH)] == pytest.approx(found.curve[0])


def test_stored_measurements_need_no_images(opened: Run, measured: Run) -> None:
    again = measure(opened, None, EVERYTHING)
    assert not again.missing
    assert all(
        torch.equal(tensor.nan_to_num(), again.tables[name].nan_to_num()) for name, tensor in measured.tables.items()
    )


def test_without_images_the_memory_is_measured_and_the_reason_given(copied: RunFolder) -> None:
    found = measure(Run.open(copied.path), None, EVERYTHING)
    assert set(found.missing) == {quantity for quantity in Quantity if quantity.needs_images}
    assert "--data-root" in found.missing[Quantity.REAL]
    assert "memory.spectra" in found.tables


def test_a_damaged_measurement_is_measured_again(copied: RunFolder) -> None:
    wanted = frozenset({Quantity.MEMORY})
    before = measure(Run.open(copied.path), None, wanted).table("memory.shift")
    path = quantity_file(Run.open(copied.path), Quantity.MEMORY)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    np.testing.assert_array_equal(measure(Run.open(copied.path), None, wanted).table("memory.shift"), before)


def test_a_measurement_of_other_networks_is_not_used(copied: RunFolder, other: Run) -> None:
    wanted = frozenset({Quantity.MEMORY})
    before = measure(Run.open(copied.path), None, wanted).table("memory.shift")[2, 0, 0]
    copied.checkpoint(2).write_bytes(other.checkpoint(2).read_bytes())
    assert measure(Run.open(copied.path), None, wanted).table("memory.shift")[2, 0, 0] != before


def test_other_images_than_those_of_the_run_are_refused(copied: RunFolder, digits: Dataset) -> None:
    images = digits.train.images
    assert isinstance(images, ArrayImages)
    brighter = LabelledImages(ArrayImages(images.pixels.clamp_min(9)), digits.train.targets, digits.classes)
    other = Dataset(digits.name, brighter, digits.test, digits.mean, digits.std)
    found = measure(Run.open(copied.path), lambda: other, {Quantity.REAL})
    assert "was started on other data" in found.missing[Quantity.REAL]


def test_a_method_without_memory_has_real_statistics_only(tmp_path: Path, digits: Dataset) -> None:
    stream = StreamConfig(dataset="digits", sizes=(2, 2), classes=4)
    run(make_config("finetune", stream, epochs=1), tmp_path, dataset=digits)
    found = measure(Run.open(tmp_path), lambda: digits, EVERYTHING)
    assert "stores no statistics" in found.missing[Quantity.MEMORY]
    assert np.isfinite(found.table("real.all_spectra")).all()
    assert "real.distances" not in found.tables
