"""Random reservoirs: the recurrence they stand for, their groups, and what is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.analytic.lda import Discriminant
from adagauss.analytic.moments import FeatureSums, unit_deviation
from adagauss.backbones.reservoirs import Reservoirs, ReservoirSettings, ReservoirTrunk
from adagauss.classifiers.grouped import GroupedLDA
from adagauss.core.learn import Learner
from adagauss.errors import ConfigError
from adagauss.methods import make_method
from adagauss.sums.grouped import GroupSums
from tests.contracts.toy import taught, toy_images


def one_by_one(reservoirs: Reservoirs, fed: Tensor) -> Tensor:
    """States of two reservoirs of three units, as the recurrence is written down."""
    images, _, height, width = fed.shape
    inputs, states = fed.view(images, 2, 3, height, width), torch.zeros(images, 2, 3, height, width)
    for row in range(height):
        for column in range(width):
            sent = inputs[..., row, column].clone()
            if column:
                sent += torch.einsum("brn,rnm->brm", states[..., row, column - 1], reservoirs.across)
            if row:
                sent += torch.einsum("brn,rnm->brm", states[..., row - 1, column], reservoirs.down)
            states[..., row, column] = torch.tanh(sent)
    return states.flatten(1, 2)


def test_diagonals_at_once_equal_the_recurrence_state_by_state() -> None:
    torch.manual_seed(0)
    reservoirs = Reservoirs(ReservoirSettings(reservoirs=2, units=3, patch=3, stride=1, grid=2), 1)
    images = torch.randn(2, 1, 6, 4)
    fed = F.conv2d(images, reservoirs.feed, reservoirs.shift, 1, 1)
    forwards, backwards = one_by_one(reservoirs, fed), one_by_one(reservoirs, fed.flip(2, 3)).flip(2, 3)
    wanted = F.adaptive_avg_pool2d(torch.cat([forwards, backwards], 1), 2).flatten(1)
    torch.testing.assert_close(reservoirs(images), wanted, atol=1e-5, rtol=1e-5)


def test_recurrent_matrices_have_the_radius_that_was_asked_for() -> None:
    reservoirs = Reservoirs(ReservoirSettings(reservoirs=3, radius=0.5), 1)
    for matrices in (reservoirs.across, reservoirs.down):
        largest = torch.linalg.eigvals(matrices).abs().amax(1)
        torch.testing.assert_close(largest, torch.full((3,), 0.25), atol=1e-4, rtol=1e-4)


def test_every_group_is_a_draw_of_its_own_and_nothing_is_trained() -> None:
    trunk = ReservoirTrunk(ReservoirSettings(groups=3, reservoirs=2, units=4, grid=1), 1, None)
    assert trunk.groups == (16, 16, 16)
    one, other, _ = trunk(torch.rand(5, 1, 8, 8)).split(trunk.groups, 1)
    assert not torch.allclose(one, other)
    assert not list(trunk.parameters())


def test_no_image_changes_the_features() -> None:
    one, other = taught("circle", 1), taught("circle", 2)
    images = toy_images(test=True).images
    assert torch.equal(one.features(images), other.features(images))


def test_images_with_fewer_states_than_cells_are_refused() -> None:
    method = make_method("circle", settings={"backbone.options.grid": 5})
    with pytest.raises(ConfigError, match=r"4 × 4 states.*stride=1"):
        Learner(method, (1, 8, 8), (0.5,), (0.2,))


def test_probabilities_are_the_mean_over_the_heads_of_the_groups() -> None:
    learner = taught("circle", 2)
    data = toy_images().of_classes(learner.classes)
    features = learner.features(toy_images(test=True).images)
    heads, groups = [], list(learner.network.extractor.groups)
    for some, tested in zip(
        torch.split(learner.features(data.images), groups, 1),
        torch.split(features, groups, 1),
        strict=True,
    ):
        sums = FeatureSums(some.shape[1]).add_(some, data.targets)
        heads.append(torch.softmax(Discriminant().solve(sums, unit_deviation(sums))(tested), 1))
    assert len(heads) == 2
    probabilities = learner.state.scorer(features).exp()
    torch.testing.assert_close(probabilities, (heads[0] + heads[1]) / 2, atol=1e-3, rtol=1e-2)


def test_answers_to_images_left_out_are_those_of_a_scorer_made_without_each() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(40) % 2
    features = torch.randn(40, 5, generator=generator) + targets.unsqueeze(1)
    # Not to the last digit: the scale of the features is that of everything.
    classifier = GroupedLDA(shrinkage=0.5)
    sums = GroupSums([2, 3]).add_(features, targets)
    found = classifier._left_out(sums, features[None], targets)
    whole = classifier._of(sums)(features)
    without = []
    for row in range(len(targets)):
        rest = sums.copy().remove_(features[row : row + 1], targets[row : row + 1])
        without.append(classifier._of(rest)(features[row : row + 1]))
    true = torch.cat(without)
    assert (found.scores - true).abs().mean() < 0.3 * (whole - true).abs().mean()


def test_sums_of_groups_are_those_of_each_group() -> None:
    generator = torch.Generator().manual_seed(0)
    features, targets = torch.randn(20, 5, generator=generator), torch.arange(20) % 3
    sums = GroupSums([2, 3]).add_(features, targets)
    for part, alone in zip(sums.each(), halves(features, targets), strict=True):
        assert torch.equal(part.gram, alone.gram)
    other = sums.copy().add_(features, targets)
    assert int(other.counts.sum()) == 2 * int(sums.counts.sum())
    loaded = GroupSums()
    loaded.load_state_dict(sums.state_dict())
    assert loaded.widths == [2, 3]
    torch.testing.assert_close(other.remove_(features, targets).cross, loaded.cross)


def halves(features: Tensor, targets: Tensor) -> list[FeatureSums]:
    return [FeatureSums(some.shape[1]).add_(some, targets) for some in torch.split(features, [2, 3], 1)]
