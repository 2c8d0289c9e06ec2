"""Loss terms against hand computation, finite differences and a network that collapses without them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagauss.core.linalg import relative_rank, sample_covariance, spectrum
from adagauss.parts.terms import anti_collapse, feature_norm, logit_distillation

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
SIZE = 4


def draw(rows: int, columns: int = SIZE, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loss_and_gradient(features: Tensor, beta: float = 1.0) -> tuple[Tensor, Tensor]:
    features = features.clone().requires_grad_()
    loss = anti_collapse(features, beta)
    torch.autograd.backward(loss)
    assert features.grad is not None
    return loss.detach(), features.grad


@pytest.mark.parametrize("beta", [0.3, 1.0, 100.0])
def test_anti_collapse_equals_its_formula(beta: float) -> None:
    features = draw(20) * torch.tensor([0.1, 0.5, 1.0, 3.0])
    diagonal = np.diag(np.linalg.cholesky(np.cov(features.numpy().T)))
    assert float(anti_collapse(features, beta)) == pytest.approx(-np.minimum(diagonal, beta).mean())


def test_anti_collapse_of_two_features_by_hand() -> None:
    features = torch.tensor([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    # Covariance [[1, 1/2], [1/2, 1]], whose factor has the diagonal 1 and sqrt(3)/2.
    assert float(anti_collapse(features, 2.0)) == pytest.approx(-(1 + math.sqrt(3) / 2) / 2)


def test_directions_beyond_beta_get_no_gradient() -> None:
    loss, gradient = loss_and_gradient(10 * draw(20), beta=1.0)
    assert float(loss) == pytest.approx(-1)
    assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("beta", [0.7, 100.0])
def test_anti_collapse_gradient_equals_finite_differences(beta: float) -> None:
    features = (draw(10) * torch.tensor([0.3, 0.5, 1.0, 2.0])).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: anti_collapse(x, beta), (features,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "features",
    [
        pytest.param(draw(3), id="fewer images than features"),
        pytest.param(draw(SIZE), id="as many images as features"),
        pytest.param(draw(2), id="two images"),
        pytest.param(draw(30, 1) @ draw(1, SIZE), id="rank one"),
        pytest.param(torch.ones(30, SIZE, dtype=torch.float64), id="all alike"),
        pytest.param(torch.zeros(30, SIZE, dtype=torch.float64), id="all zero"),
        pytest.param(1e-4 * draw(30), id="tiny"),
        pytest.param(1e3 * draw(30), id="large"),
    ],
)
def test_anti_collapse_is_finite_on_hard_batches(features: Tensor, dtype: torch.dtype) -> None:
    loss, gradient = loss_and_gradient(features.to(dtype))
    assert math.isfinite(float(loss))
    assert -1 <= float(loss) <= 0
    assert bool(torch.isfinite(gradient).all())
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert gradient.dtype == dtype


def test_one_image_has_no_covariance_and_no_loss() -> None:
    loss, gradient = loss_and_gradient(draw(1))
    assert float(loss) == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_a_dependent_feature_is_pushed_away_from_the_others() -> None:
    features = draw(50, 3)
    features[:, 2] = features[:, 0] + 1e-2 * draw(50, 1, seed=1)[:, 0]
    _, gradient = loss_and_gradient(features, beta=10.0)
    stepped = features - 10 * gradient
    before, after = (float(sample_covariance(x).det()) for x in (features, stepped))
    assert after > 2 * before


def ranks_in_training(weights: tuple[float, ...]) -> list[int]:
    """Rank of a toy network's 8 features at the start and after each 150 steps with these α."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    head = nn.Linear(8, 2)
    targets = torch.arange(128) % 2
    inputs = torch.randn(128, 16)
    inputs[:, 0] += 4 * targets
    parameters = [*network.parameters(), *head.parameters()]
    optimiser = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-2)

    def rank() -> int:
        with torch.no_grad():
            return int(relative_rank(spectrum(sample_covariance(network(inputs))), 1e-2))

    found = [rank()]
    for weight in weights:
        for _ in range(150):
            features = network(inputs)
            loss = F.cross_entropy(head(features), targets) + weight * anti_collapse(features)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
        found.append(rank())
    return found


def test_features_collapse_without_the_loss_and_recover_with_it() -> None:
    assert ranks_in_training((0.0, 1.0)) == [8, 1, 8]


def test_features_keep_full_rank_with_the_loss() -> None:
    assert ranks_in_training((1.0,)) == [8, 8]


def test_feature_norm_is_the_frobenius_distance() -> None:
    one, two = draw(6), draw(6, seed=1)
    assert float(feature_norm(one, two)) == pytest.approx(np.linalg.norm((one - two).numpy()))
    assert torch.autograd.gradcheck(feature_norm, (one.requires_grad_(), two))


def test_feature_norm_has_zero_gradient_at_zero() -> None:
    features = draw(6).requires_grad_()
    loss = feature_norm(features, features.detach().clone())
    torch.autograd.backward(loss)
    assert loss.item() == 0
    assert features.grad is not None
    assert torch.equal(features.grad, torch.zeros_like(features))


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_logit_distillation_by_hand(temperature: float) -> None:
    logits, previous = draw(5, 3).numpy(), draw(5, 3, seed=1).numpy()

    def softmax(values: Array) -> Array:
        return np.asarray(scipy.special.softmax(values / temperature, axis=1))

    expected = -(softmax(previous) * np.log(softmax(logits))).sum(1).mean()
    result = logit_distillation(torch.from_numpy(logits), torch.from_numpy(previous), temperature)
    assert float(result) == pytest.approx(expected)


def test_logit_distillation_is_least_at_the_teacher() -> None:
    previous = draw(5, 3)
    student = previous.clone().requires_grad_()
    torch.autograd.backward(logit_distillation(student, previous))
    assert student.grad is not None
    torch.testing.assert_close(student.grad, torch.zeros_like(student))
