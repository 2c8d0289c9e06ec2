"""Outputs of the authors' functions on fixed inputs, as numbers; each test names repository, commit, file and line.

The inputs are waves: the same numbers on every machine, of full rank and without symmetry. The numbers were printed by
the published functions, run unchanged in float64 (FeCAM: float32).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagauss.analytic.classifier import AnalyticClassifier
from adagauss.analytic.moments import MomentSums
from adagauss.analytic.ridge_lda import Ridge
from adagauss.backbones import IncrementalHead
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.train import Sampler
from adagauss.methods.acil import Analytic
from adagauss.methods.base import make_method
from adagauss.methods.dpcr import DualProjection
from adagauss.methods.efc import MeasuredMatrix, Rebalanced, feature_matrix, metric_weights
from adagauss.methods.fetril import pseudo_features
from adagauss.methods.lwf import attack, kernel_weights, linear_map
from adagauss.methods.pass_ import upper_bound_logits
from adagauss.methods.ssre import SelectiveCrossEntropy, SelectiveDistillation, fold_norms, fold_parallel
from adagauss.parts import terms
from adagauss.parts.classifiers import MemoryClassifier
from adagauss.parts.drift import Adapter
from adagauss.parts.representation import Step
from adagauss.parts.terms import ProjectedDistillation, anti_collapse, logit_distillation, radius
from adagauss.utils.runtime import Runtime


def wave(*shape: int, phase: float = 0.0) -> Tensor:
    index = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)
    return torch.sin(0.7 * index * index + phase).reshape(shape)


def same(ours: Tensor, published: list[float], tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(
        ours.detach().double().flatten(), torch.tensor(published, dtype=torch.float64), rtol=tolerance, atol=tolerance
    )


def fill(layer: nn.Linear, phases: Iterator[int]) -> None:
    """Fixed weights in place of random ones."""
    for parameter in (layer.weight, layer.bias):
        parameter.data = wave(*parameter.shape, phase=next(phases)).to(parameter)


def bank_of(means: Tensor, covariances: Tensor, count: int = 10) -> ClassGaussians:
    bank = ClassGaussians(means.shape[1], "full")
    features = torch.cat([wave(count, means.shape[1], phase=label) for label in range(len(means))])
    bank.add(features, [label for label in range(len(means)) for _ in range(count)])
    return bank.with_statistics(means, covariances)


def head_of(*blocks: Tensor) -> IncrementalHead:
    """Outputs without biases, one block of given weights for each task."""
    head = IncrementalHead(blocks[0].shape[1], bias=False).double()
    for weight in blocks:
        head.grow(len(weight))
        head.blocks[-1] = head.blocks[-1].double()
        head.blocks[-1].get_parameter("weight").data = weight
    return head


def distances(method: str, preset: str | None, bank: ClassGaussians, points: Tensor) -> Tensor:
    """Squared Mahalanobis distances: the scores of a Bayes classifier without priors and determinants."""
    classifier = make_method(method, preset).classifier
    assert isinstance(classifier, MemoryClassifier)
    scorer: Any = classifier.fit(bank, cast(Any, None))
    scores = -2 * scorer(points.float()).double()
    assert isinstance(scores, Tensor)
    return scores


# grypesc/AdaGauss 2487d070e3a6, src/approach/ada_gauss.py


@pytest.mark.parametrize(("beta", "published"), [(1.0, -0.56837775), (0.5, -0.455229004)])
def test_anti_collapse_loss(beta: float, published: float) -> None:
    """Line 881, ``loss_ac``."""
    same(anti_collapse(wave(20, 6), beta), [published])


def test_adagauss_distances() -> None:
    """Lines 760, 770 and 659: ``shrink_cov(·, 3)``, ``norm_cov``, distances of unit vectors in ``eval``."""
    roots = wave(3, 4, 4, phase=2.0)
    covariances = roots @ roots.mT + 0.1 * torch.eye(4, dtype=torch.float64)
    ours = distances("adagauss", "reference", bank_of(wave(3, 4, phase=1.0), covariances), wave(2, 4, phase=3.0))
    same(ours, [2.44523358, 1.14196633, 1.53842393, 1.36141546, 2.32596666, 1.4842508], 1e-4)


@pytest.mark.parametrize(("kind", "published"), [("projected", 2.07995592), ("feature", 0.0514947867)])
def test_distillation_of_features(kind: str, published: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines 584 and 594, ``distill_projected`` and ``distill_features``, with a hidden layer of eight."""
    parameters = itertools.count()
    monkeypatch.setattr(nn.Linear, "reset_parameters", lambda self: fill(self, parameters))
    settings = {"representation.terms.distillation.kind": f"{kind}_distillation"}
    term = make_method("adagauss", "reference", settings=settings).representation.terms["distillation"]
    now: Any = SimpleNamespace(
        previous=SimpleNamespace(extractor=SimpleNamespace(learned=lambda images: wave(6, 4, phase=0.3))),
        network=SimpleNamespace(
            extractor=SimpleNamespace(
                size=4, fixed=False, frozen=lambda x: x, trunk=SimpleNamespace(augmented=lambda maps, generator: maps)
            )
        ),
    )
    if isinstance(term, ProjectedDistillation):
        term = term.with_changes(width=2)
    step = Step(wave(6, 4), torch.arange(6), now, ClassGaussians(4), torch.Generator(), lambda maps: maps)
    live = term.start(now, step.memory)
    loss = term.loss(step) if live is None else live.double()(step)
    assert term.weight == 10.0
    assert loss is not None
    same(loss, [published])


def test_adapter_and_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines 435 to 507, ``adapt_distributions`` with a linear adapter: four steps, then samples of two classes."""
    parameters = itertools.count(3)
    monkeypatch.setattr(nn.Linear, "reset_parameters", lambda self: fill(self, parameters))
    recipe = {"drift.recipe.epochs": 4, "drift.recipe.batch_size": 10, "drift.recipe.learning_rate": 0.5}
    settings = {"drift.network": "linear", "drift.views": 1, "drift.samples": 1_000_000, **recipe}
    drift = make_method("adagauss", "reference", settings=settings).drift
    assert isinstance(drift, Adapter)
    now: Any = SimpleNamespace(runtime=Runtime(seed=0), name="task 2")
    old, new = 2 * wave(10, 4), 2 * (0.8 * wave(10, 4) + 0.2 * wave(10, 4, phase=1.0))
    adapter = drift.train_map(now, old.float(), new.float())
    weight, bias = adapter.parameters()
    published = [
        1.62695931, 0.0538989583, 0.342459926, -0.0705081879, -0.3361018, 1.10860277, 0.196423418, 0.0845067876,
        -0.30210984, 0.327803638, 0.644400018, 0.177577841, -0.37772993, 0.00550729517, -0.583238347, 1.2571849,
    ]  # fmt: skip
    same(weight, published, 1e-4)
    same(bias, [-0.610834968, 0.510348115, 0.283448339, 0.487173624], 1e-4)
    roots = wave(2, 4, 4, phase=2.0)
    covariances = roots @ roots.mT + 0.1 * torch.eye(4, dtype=torch.float64)
    moved = drift.moved(bank_of(wave(2, 4, phase=1.0), covariances), now, adapter)
    same(moved.means[0], [1.28556478, -0.363164702, 0.268448507, -0.838781402], 2e-2)
    published = [
        6.35955263, -2.80504677, -1.4823532, -2.89007721, -2.80504677, 5.13999397, 3.64312019, 0.101078653,
        -1.4823532, 3.64312019, 2.69886929, -0.201116875, -2.89007721, 0.101078653, -0.201116875, 6.04032948,
    ]  # fmt: skip
    same(moved.covariances[0], published, 3e-2)


def test_logit_distillation_up_to_the_published_smoothing() -> None:
    """Line 776, ``cross_entropy`` with τ = 2, as in FACIL (mmasana/FACIL e09d2c83320a, lwf.py:120); ε = 1e-5 there."""
    same(logit_distillation(2 * wave(5, 4), 2 * wave(5, 4, phase=1.0)), [1.32447128], 3e-5)


# dipamgoswami/FeCAM d2479b7bc9c3, models/base.py


def test_fecam_distances() -> None:
    """Lines 118 to 196: roots, two shrinkages with α₁ = α₂ = 1, correlation, distances of unit vectors."""
    method = make_method("fecam")
    features = wave(30, 4).abs().float()
    now: Any = SimpleNamespace(
        features=lambda view: features, targets=torch.arange(30) % 3, classes=(0, 1, 2), runtime=Runtime(seed=0)
    )
    bank = method.memory.add(method.memory.empty(4), now)
    published = [0.09933348, 0.0903264582, 0.0800136477, 0.112342358, 0.137646005, 0.219661459]
    same(distances("fecam", None, bank, wave(2, 4, phase=3.0).abs()), published, 1e-4)


# simomagi/elastic_feature_consolidation 3ef91722f57b, continual_learning

EFM = [
    [0.177604978, -0.129517399, 0.0870742577, -0.129134713],
    [-0.129517399, 0.485574036, -0.500713877, 0.122749625],
    [0.0870742577, -0.500713877, 0.611378741, -0.18134221],
    [-0.129134713, 0.122749625, -0.18134221, 0.188686765],
]


def test_feature_matrix_of_efc() -> None:
    """utils/empirical_feature_matrix.py:67, ``compute_efm``, with heads of 2 and 3 classes."""
    weight = torch.cat([wave(2, 4, phase=1.0), wave(3, 4, phase=2.0)])
    ours = feature_matrix(wave(6, 4), weight, torch.zeros(5, dtype=torch.float64))
    same(ours, [value for row in EFM for value in row])


def test_drift_of_efc() -> None:
    """ElasticFeatPlusPlus.py:342, ``compute_drift`` with σ = 0.2."""
    means, old, new = wave(2, 4, phase=1.0), wave(7, 4), wave(7, 4, phase=0.3)
    ours = metric_weights(means, old, torch.tensor(EFM, dtype=torch.float64), 0.2) @ (new - old)
    published = [
        0.095524596,
        0.190000511,
        0.093546711,
        -0.248006906,
        0.199289511,
        0.138617178,
        -0.237788043,
        0.192883529,
    ]
    same(ours, published)


def test_losses_of_efc_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """ElasticFeatureConsolidation.py:83, ``train_criterion`` with λ = 10, η = 0.1: three losses of one step.

    Four images, two of the previous batch and two prototypes; two old classes and three new ones.
    """
    method = make_method("efc")
    head = head_of(wave(2, 4, phase=1.0), wave(3, 4, phase=2.0))
    monkeypatch.setattr(Sampler, "draw", lambda self, labels, generator: wave(4, 4, phase=4.0)[labels])
    memory, features = bank_of(torch.zeros(2, 4), torch.eye(4).expand(2, 4, 4)), wave(6, 4, phase=5.0)
    old = SimpleNamespace(extractor=SimpleNamespace(learned=lambda images: wave(4, 4, phase=5.3)))
    trunk = SimpleNamespace(augmented=lambda maps, generator: maps)
    network = SimpleNamespace(
        head=head, extractor=SimpleNamespace(fixed=False, frozen=lambda images: images, trunk=trunk)
    )
    now: Any = SimpleNamespace(classes=(2, 3, 4), network=network, previous=old)

    def step(images: Tensor, *targets: int) -> Step:
        return Step(images, torch.tensor(targets), now, memory, torch.Generator().manual_seed(0), lambda maps: maps)

    terms, this = method.representation.terms, step(features[:4], 0, 1, 2, 0)
    current = terms["cross_entropy"].loss(this)
    assert current is not None
    same(current, [2.95549212])
    in_metric = terms["feature_matrix"].loss(this, MeasuredMatrix(matrix=torch.tensor(EFM, dtype=torch.float64)))
    assert in_metric is not None
    same(in_metric, [0.859429256])
    live = terms["pr_ace"].start(now, memory)
    assert live is not None
    live(step(torch.cat([features[4:], features[:2]]), 1, 2, 0, 0))  # two of these images are forwarded again
    joint = live(this)
    assert joint is not None
    same(joint, [3.12827017])


def test_rebalancing_of_efcpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """ElasticFeatPlusPlus.py:233, ``balance_head``: three epochs at rate 0.1 on nine fixed features."""
    part = make_method("efc++").classifier
    assert isinstance(part, Rebalanced)
    recipe = part.recipe
    assert (recipe.epochs, recipe.batch_size, recipe.learning_rate, recipe.weight_decay) == (50, 256, 1e-3, 5e-4)
    monkeypatch.setattr(Sampler, "draw", lambda self, labels, generator: wave(4, 4, phase=3.0)[[0, 2, 1, 3]])
    head, runtime = head_of(wave(2, 4, phase=1.0), wave(2, 4, phase=2.0)), Runtime(seed=0)
    now: Any = SimpleNamespace(
        classes=(2, 3),
        targets=torch.tensor([0, 1, 0, 1, 0]),
        features=lambda view: wave(5, 4),
        network=SimpleNamespace(head=head),
        runtime=runtime,
        name="task 2",
    )
    memory = bank_of(torch.zeros(2, 4), torch.eye(4).expand(2, 4, 4), count=2)
    part.with_changes(recipe=recipe.with_changes(epochs=3, learning_rate=0.1)).fit(memory, now, None)
    published = [
        0.894570149, -0.697823366, 0.811205996, -0.252816595, -0.202134282, 0.920590274, -0.729037692, 0.890863454,
        0.566524637, -0.854596309, 0.945280499, 0.507275743, 0.422671628, 0.778919775, -0.936282146, 0.376024425,
    ]  # fmt: skip
    same(head.class_parameters()[0], published)


# Impression2805/CVPR21_PASS 8b799939e8a8 and Impression2805/IL2A 0f849f135d68


def test_radius_of_pass() -> None:
    """PASS.py:170, ``protoSave``."""
    same(radius(wave(12, 4), torch.arange(12) % 2), [0.657838783])


def test_losses_of_pass_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """PASS.py:128, ``_compute_loss``: two images of three new classes in four rotations, two old classes.

    Outputs of a class and its rotations are neighbours there; here classes come first.
    """
    rotations = [4 * label + turns for task in ((0, 1), (2, 3, 4)) for turns in (1, 2, 3) for label in task]
    weight = wave(20, 512, phase=1.0)[[0, 4, 8, 12, 16, *rotations]] / 10
    network = SimpleNamespace(
        head=SimpleNamespace(seen=lambda x, auxiliary: x.double() @ weight.T, classes=5, sizes=[(2, 6), (3, 9)])
    )
    step: Any = SimpleNamespace(
        features=wave(8, 512),
        previous_features=wave(8, 512, phase=0.3),
        targets=torch.tensor([0, 1, 3, 4, 6, 7, 9, 10]),
        memory=bank_of(wave(2, 512, phase=2.0), torch.eye(512).expand(2, 512, 512)),
        generator=None,
        now=SimpleNamespace(network=network, previous=network),
    )
    monkeypatch.setattr(terms, "draw_classes", lambda step: torch.tensor([0, 1]))
    monkeypatch.setattr(torch, "randn", lambda shape, generator: wave(*shape, phase=3.0))
    parts = make_method("pass").representation.terms
    total = torch.zeros(())
    for name, state in (
        ("cross_entropy", None),
        ("prototypes", terms.Radius(torch.tensor(0.5))),
        ("distillation", None),
    ):
        loss = parts[name].loss(step, state)
        assert loss is not None
        total = total + parts[name].weight * loss
    same(total, [739.681616])


def test_semantic_augmentation_of_il2a() -> None:
    """cifar/IL2A.py:182, ``semanAug`` with ratio 2.5, two of three classes."""
    roots, classes = wave(2, 4, 4, phase=3.0), torch.tensor([0, 1])
    weight, bias = wave(3, 4, phase=1.0), wave(3, phase=2.0)
    logits = upper_bound_logits(weight, bias, wave(2, 4, phase=4.0), roots @ roots.mT, classes, 2.5)
    same(logits, [-1.69364636, 32.8886518, 20.5386359, 18.5844458, -3.20410069, 2.84932655])
    same(F.cross_entropy(logits / 0.1, classes), [281.854223])


# LAMDA-CL/PyCIL f3509b8ca3f2, models/fetril.py


def test_pseudo_features_of_fetril() -> None:
    """Lines 129 and 147: features of the most similar new class, translated; here distance and cosine agree."""
    features, targets, means = wave(6, 4), torch.arange(6) % 2, wave(3, 4, phase=1.0)
    pseudo, owners = pseudo_features(features, targets, means)
    assert owners.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    new_means = torch.stack([features[targets == label].mean(0) for label in range(2)])
    for old, nearest in enumerate((0, 1, 0)):
        torch.testing.assert_close(
            pseudo[owners == old] - means[old], features[targets == nearest] - new_means[nearest]
        )
    published = [
        1.0558397, -0.836173552, 0.49394168, -0.97034508, 0.562377286, -0.39727102,
        0.599819504, 0.274634005, 1.35677745, -0.602129101, 1.45754868, -0.378976772,
    ]  # fmt: skip
    same(pseudo[owners == 0], published)


# ZHUANGHP/Analytic-continual-learning 0afd6bf87622, analytic


def analytic_scores(part: Analytic, points: Tensor) -> Tensor:
    """Scores after two tasks of five and three images, with a fixed expansion to five features."""
    known: Any = part.start(4, torch.Generator().manual_seed(0))
    known.expansion.copy_(wave(4, 5, phase=2.0))
    images = wave(8, 4, phase=1.0)
    known = part.after(known, images[:5], torch.tensor([0, 1, 0, 1, 0]))
    known = part.after(known, images[5:], torch.tensor([2, 3, 2]))
    scores = known(points)
    assert isinstance(scores, Tensor)
    return scores


def test_recursion_of_acil() -> None:
    """AnalyticLinear.py:101, ``RecursiveLinear.fit`` with γ = 0.1, applied to points."""
    weight = [
        [0.669164173, 0.146768417, -0.36736325, 0.0973226216],
        [0.0436068326, 0.241463131, 0.110561138, 0.391751712],
        [0.46487939, -0.0827713851, 0.270629877, -0.0480914548],
        [-0.793667928, -0.191822348, 0.638887872, 0.0194071035],
        [0.655679261, 0.314849623, -0.633372511, -0.110770297],
    ]
    points = wave(2, 4, phase=3.0)
    expected = (points @ wave(4, 5, phase=2.0)).relu() @ torch.tensor(weight, dtype=torch.float64)
    same(analytic_scores(Analytic(expansion_size=5, gamma=0.1), points), expected.flatten().tolist())


def test_two_streams_of_dsal() -> None:
    """DSAL.py:57, ``fit``, with γ = 0.1 and 0.2 and 𝒞 = 0.6."""
    part = Analytic(expansion_size=5, gamma=0.1, gamma_compensation=0.2, compensation=0.6)
    published = [
        0.0596250021, 0.253372694, 0.220336386, 0.263530986, 1.20535723, 0.309751778, -0.687817211, 0.0847493978,
    ]  # fmt: skip
    same(analytic_scores(part, wave(2, 4, phase=3.0)), published)


# RanPAC/RanPAC 012927f86e8d, RanPAC.py


def test_ridge_of_ranpac_at_the_published_strength() -> None:
    """Lines 122 to 126 and 138: sums, and a solution at λ = 0.1, which ``optimise_ridge_parameter`` chooses here.

    That function takes one of 17 powers of ten by the squared error on the last fifth of the images; the method here
    compares relative strengths ν by leave-one-out.
    """
    part = make_method("ranpac").classifier
    assert isinstance(part, AnalyticClassifier)
    expansion, targets = wave(4, 5, phase=2.0), torch.arange(10) % 3
    features = (wave(10, 4) @ expansion).relu()
    sums = MomentSums(5)
    sums.add_(features, targets)
    strength = 0.1 * 10 / float(features.square().sum(0).mean())
    ridge = part.rules[0]
    assert isinstance(ridge, Ridge)
    weight, bias = replace(ridge, strength=strength).solve(sums)
    assert not bias.any()
    published = [0.494746714, 0.176401953, -0.0846586781, 0.871867374, -0.313032429, 0.582854901]
    same((wave(2, 4, phase=3.0) @ expansion).relu() @ weight.double(), published, 1e-5)


# dipamgoswami/ADC 157278e3727f, models/lwf.py


def test_displacement_of_sdc_up_to_the_published_constant() -> None:
    """Line 225, ``displacement`` with σ = 0.3; it adds 1e-5 to every weight."""
    means, old, new = wave(2, 4, phase=1.0), wave(7, 4), wave(7, 4, phase=0.3)
    published = [
        0.0664914422,
        0.190092477,
        0.02330886,
        -0.212075948,
        0.257880832,
        0.149806073,
        -0.254594686,
        0.232262564,
    ]
    same(kernel_weights(means, old, 0.3) @ (new - old), published, 5e-2)


class Standardised(nn.Module):
    """Four features of standardised images of 2 by 2 pixels."""

    mean = torch.tensor([0.5, 0.4, 0.3], dtype=torch.float64).view(3, 1, 1)
    std = torch.tensor([0.2, 0.25, 0.3], dtype=torch.float64).view(3, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        return torch.tanh(((images - self.mean) / self.std).flatten(1) @ wave(4, 12, phase=1.0).T)


def test_attack_of_adc() -> None:
    """utils/attack.py:31, ``run``: three steps toward a mean, clipped to the pixels 0 and 1."""
    images, target = (wave(5, 3, 2, 2) + 1) / 2, wave(2, 4, phase=2.0)[0]
    bent = attack(cast(Any, Standardised()), images, target, 25 / 20**0.5, 3)
    published = [
        0.824110855, 0.671719706, 0.411868395, 0.102610984, 0.0, 0.409492032, 0.546478368, 0.998309869,
        0.428020737, 0.809299835, 0.468911102, 0.496188677,
    ]  # fmt: skip
    same(bent[0], published)


# RHe502/ICML25-DPCR 6e69f60382b8, models/lwf.py


def test_dual_projection_of_dpcr() -> None:
    """Lines 257 to 282; the projector of line 301 keeps every direction, as ``preset=published`` does."""
    drift = make_method("dpcr", "published").drift
    assert isinstance(drift, DualProjection)
    points, old = wave(3, 4, phase=2.0), wave(9, 4)
    mean, moment = points.mean(0), points.T @ points
    bank = bank_of(mean[None], (moment - 3 * torch.outer(mean, mean))[None] / 2, count=3)
    moved = drift.transport(bank, linear_map(old, 0.8 * old + 0.2 * wave(9, 4, phase=1.0), 1e-9))
    same(moved.means, [0.576750183, 0.0812258076, -0.376435419, 0.610804957])
    published = [
        1.0943988, 0.374537799, -1.04824137, 1.21920719, 0.374537799, 1.1653077, -1.52703771, 0.537789662,
        -1.04824137, -1.52703771, 2.44452943, -1.35379468, 1.21920719, 0.537789662, -1.35379468, 1.39252924,
    ]  # fmt: skip
    same(moved.second_moments, published)


# zhukaii/SSRE 5475c9803b01, utils/Trainer_cvpr.py


def test_losses_of_ssre() -> None:
    """Line 208, ``_compute_loss`` with one old class and one prototype, weights 1, 10 and 1."""
    weight = wave(5, 4, phase=1.0)
    head = SimpleNamespace(seen=lambda x, auxiliary=False: x @ weight.T, classes=5, sizes=[(2, 0), (3, 0)])
    mean = wave(2, 4, phase=2.0).abs()[:1]
    step: Any = SimpleNamespace(
        features=wave(3, 4).abs() + 0.1,
        previous_features=wave(3, 4, phase=0.3).abs() + 0.1,
        targets=torch.tensor([0, 1, 2]),
        memory=bank_of(mean, torch.eye(4)[None]),
        now=SimpleNamespace(network=SimpleNamespace(head=head)),
    )
    distillation = SelectiveDistillation().loss(step)
    assert distillation is not None
    prototype = F.cross_entropy(mean @ weight.T / 0.1, torch.tensor([0]))
    loss = SelectiveCrossEntropy(over="seen", temperature=0.1).loss(step)
    same(loss + 10 * prototype + distillation, [105.861442])


def test_folding_of_ssre() -> None:
    """Lines 195 and 245: the 1×1 convolution in the centre, and batch norm as a scale and a bias."""
    convolution, adapter = nn.Conv2d(2, 2, 3).double(), nn.Conv2d(2, 2, 1).double()
    convolution.weight.data, adapter.weight.data = wave(2, 2, 3, 3), wave(2, 2, 1, 1, phase=1.0)
    fold_parallel(convolution, adapter.weight)
    published = [
        0.644217687, 0.33498815, 0.0168139005, -0.979177729, 0.016038805, 0.0672080725,
        0.254682333, 0.729576737, 0.150755275,
    ]  # fmt: skip
    same(convolution.weight[0, 0], published)

    one, norm = nn.Conv2d(1, 2, 3, bias=False).double(), nn.BatchNorm2d(2).double()
    one.weight.data, norm.weight.data, norm.bias.data = wave(2, 1, 3, 3), 1 + 0.3 * wave(2), wave(2, phase=1.0)
    norm.running_mean, norm.running_var = wave(2, phase=2.0), 1 + 0.5 * wave(2, phase=3.0)
    fold_norms(nn.Sequential(one, norm))  # type: ignore[arg-type]
    same(one.weight[:, 0, 0], [0.896600199, 0.466225079, 0.0234010131, 0.972008294, 0.154101059, 0.333847052])
    same(norm.bias, [0.396852074, 0.639326915])
