"""The analytic classifiers equal regressions on all data at once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adagauss.core.learn import Learner
from adagauss.data.dataset import load_dataset
from adagauss.methods import acil as analytic
from adagauss.methods import dataset_layers, make_method
from adagauss.methods.acil import Analytic, AnalyticScorer

FEATURES, EXPANDED, GAMMA = 6, 20, 0.1


def assert_equal(actual: Tensor, expected: Tensor, atol: float = 1e-9) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=atol)


def some_tasks(sizes: list[int], seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Features and targets of each task; the classes of a task overlap those of others, so that all weights matter."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for classes in sizes:
        targets = torch.arange(9 * classes) % classes
        centres = torch.randn(classes, FEATURES, generator=generator)
        noise = torch.randn(len(targets), FEATURES, generator=generator)
        result.append((centres[targets] + noise, targets))
    return result


def empty_scorer(part: Analytic) -> AnalyticScorer:
    return part.start(FEATURES, torch.Generator().manual_seed(7))


def taught(part: Analytic, tasks: list[tuple[Tensor, Tensor]], sizes: list[int]) -> AnalyticScorer:
    scorer = empty_scorer(part)
    for features, targets in tasks[: len(sizes)]:
        before = scorer.main.cross.shape[1]
        scorer = part.after(scorer, features, targets + before)
    return scorer


def one_hot(targets: Tensor, before: int, classes: int, total: int) -> Tensor:
    return F.pad(F.one_hot(targets, classes).double(), (before, total - before - classes))


def joint_ridge(inputs: Tensor, targets: Tensor, gamma: float = GAMMA) -> Tensor:
    """By least squares on an extended matrix: another way than normal equations."""
    size = inputs.shape[1]
    extended = torch.cat([inputs, gamma**0.5 * torch.eye(size, dtype=torch.float64)])
    right = torch.cat([targets, torch.zeros(size, targets.shape[1], dtype=torch.float64)])
    solution: Tensor = torch.linalg.lstsq(extended, right, driver="gelsd").solution
    return solution


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_acil_equals_joint_ridge_after_every_task_in_any_order(sizes: list[int], seed: int) -> None:
    tasks = some_tasks(sizes, seed)
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed)).tolist()
    scorer = taught(
        Analytic(expansion_size=EXPANDED, gamma=GAMMA),
        [tasks[index] for index in order],
        [sizes[index] for index in order],
    )
    total = sum(sizes)
    expanded = (torch.cat([features for features, _ in tasks]).double() @ scorer.expansion).relu()
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    labels = torch.cat(
        [one_hot(targets, start, size, total) for (_, targets), start, size in zip(tasks, starts, sizes, strict=True)]
    )
    columns = [starts[index] + place for index in order for place in range(sizes[index])]
    assert_equal(scorer.main.weight, joint_ridge(expanded, labels)[:, columns])


def recursive_start(size: int, gamma: float) -> tuple[Tensor, Tensor]:
    """R = I/γ and a W without columns: the start of the recursion."""
    return torch.eye(size, dtype=torch.float64) / gamma, torch.zeros(size, 0, dtype=torch.float64)


def recursive_update(inverse: Tensor, weight: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """One step of the papers' recursion; new classes have zero columns in W before it:

    R ← R − RXᵀ(I + XRXᵀ)⁻¹XR and W ← W + RXᵀ(Y − XW).
    """
    new = targets.shape[1] - weight.shape[1]
    weight = torch.cat([weight, weight.new_zeros(len(weight), new)], 1)
    projected = inverse @ inputs.T
    inner = torch.eye(len(inputs), dtype=inputs.dtype) + inputs @ projected
    inverse = inverse - projected @ torch.linalg.solve(inner, projected.T)
    return inverse, weight + inverse @ inputs.T @ (targets - inputs @ weight)


def test_the_recursion_of_the_paper_equals_accumulate_and_solve_at_every_step() -> None:
    sizes = [3, 1, 2]
    part = Analytic(expansion_size=EXPANDED, gamma=GAMMA)
    scorer = empty_scorer(part)
    inverse, weight = recursive_start(EXPANDED, GAMMA)
    before = 0
    for (features, targets), size in zip(some_tasks(sizes), sizes, strict=True):
        scorer = part.after(scorer, features, targets + before)
        labels = one_hot(targets, before, size, before + size)
        for rows in torch.arange(len(targets)).chunk(3):  # mini-batches are exact too
            expanded = (features[rows].double() @ scorer.expansion).relu()
            inverse, weight = recursive_update(inverse, weight, expanded, labels[rows])
        before += size
        assert_equal(weight, scorer.main.weight)
        regularised = scorer.main.gram + GAMMA * torch.eye(EXPANDED, dtype=torch.float64)
        assert_equal(inverse, torch.linalg.inv(regularised))


@pytest.mark.parametrize("compensation", [0.0, 0.6])
def test_neither_blocks_nor_the_order_of_images_matter(compensation: float, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Analytic(expansion_size=EXPANDED, compensation=compensation)
    sizes = [2, 3]
    whole = taught(part, some_tasks(sizes), sizes)
    monkeypatch.setattr(analytic, "ROWS", 5)
    shuffled = []
    for features, targets in some_tasks(sizes):
        order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(1))
        shuffled.append((features[order], targets[order]))
    pieces = taught(part, shuffled, sizes)
    points = torch.randn(17, FEATURES, generator=torch.Generator().manual_seed(2))
    assert_equal(pieces(points), whole(points))


def test_dsal_equals_the_recursion_on_whole_tasks_with_cleansed_residuals() -> None:
    sizes = [2, 1, 3]
    part = Analytic(expansion_size=EXPANDED, gamma=GAMMA, gamma_compensation=0.3, compensation=0.6)
    scorer = taught(part, some_tasks(sizes), sizes)
    main = recursive_start(EXPANDED, GAMMA)
    side = recursive_start(EXPANDED, 0.3)
    before = 0
    for (features, targets), size in zip(some_tasks(sizes), sizes, strict=True):
        z = features.double() @ scorer.expansion
        labels = one_hot(targets, before, size, before + size)
        main = recursive_update(*main, z.relu(), labels)
        residual = labels - z.relu() @ main[1]
        residual[:, :before] = 0
        side = recursive_update(*side, z.tanh(), residual)
        before += size
    points = torch.randn(11, FEATURES, generator=torch.Generator().manual_seed(2))
    z = points.double() @ scorer.expansion
    expected = z.relu() @ main[1] + 0.6 * z.tanh() @ side[1]
    assert_equal(scorer(points), expected)


def test_dsal_without_compensation_is_acil_and_with_it_fits_the_last_task_better() -> None:
    sizes = [2, 2]
    tasks = some_tasks(sizes)
    plain = taught(Analytic(expansion_size=EXPANDED), tasks, sizes)
    off = taught(Analytic(expansion_size=EXPANDED, compensation=1e-300), tasks, sizes)
    on = taught(Analytic(expansion_size=EXPANDED, compensation=1.0), tasks, sizes)
    features, targets = tasks[-1]
    assert torch.equal(off(features), plain(features))
    labels = F.one_hot(targets, 2).double()
    errors = [float((scorer(features)[:, 2:] - labels).square().sum()) for scorer in (plain, on)]
    assert errors[1] < errors[0]


@pytest.mark.parametrize("compensation", [0.0, 0.6])
def test_learning_a_further_task_leaves_the_scorer_before_it_alone(
    compensation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analytic, "ROWS", 5)
    part, sizes = Analytic(expansion_size=EXPANDED, compensation=compensation), [2]
    scorer = taught(part, some_tasks(sizes), sizes)
    before = {name: tensor.clone() for name, tensor in scorer.state_dict().items()}
    features, targets = some_tasks(sizes, seed=5)[0]
    after = part.after(scorer, features, targets + 2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in scorer.state_dict().items())
    assert not torch.equal(after.main.gram, scorer.main.gram)


def test_a_learner_of_acil_equals_joint_ridge_on_the_features_of_all_its_images() -> None:
    digits = load_dataset("digits")
    settings = {"representation.first.epochs": 1, "classifier.expansion_size": 40}
    learner = Learner(
        make_method("acil", settings=settings, layers=dataset_layers("digits")), (1, 8, 8), digits.mean, digits.std
    )
    for classes in ((4, 1), (7,), (0, 2)):
        learner.learn(digits.train.of_classes(classes))
    seen = digits.train.of_classes([4, 1, 7, 0, 2])
    scorer = learner.state.scorer
    assert isinstance(scorer, AnalyticScorer)
    expanded = (learner.features(seen.images).double() @ scorer.expansion).relu()
    weight = joint_ridge(expanded, F.one_hot(seen.targets, 5).double())
    assert_equal(scorer.main.weight, weight, atol=1e-6)
