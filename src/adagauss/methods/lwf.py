"""LwF and drift compensation on top of it: SDC, LDC and ADC.

LwF, learning without forgetting (ECCV 2016): the old network's outputs on the new images must not change.
    keep one head per task, the old ones fixed                                 representation (heads)
    for task t = 1 … T:
        train F_t and head t with CE over the new classes                      cross-entropy
            + λ · Σ_c −softmax(o_{t−1}/T)_c log softmax(o_t/T)_c, c old        distillation (from t = 2)
    predict the largest output of all heads                                    classifier
This is the variant with linear heads, the old ones fixed (FACIL); PyCIL trains all heads. FACIL lowers the rate when
the validation loss stops falling; here it drops at fixed epochs.

The base of SDC, LDC, ADC and DPCR, with settings for CIFAR-100; these methods differ in the drift:
    for task t = 1 … T:
        train F_t on task t with CE over the new classes + 10·L_KD(old outputs)     representation
        if t > 1: move the mean μ_c of every old class c (below)                    drift
        for every new class c: μ_c of the features of its images                    memory
        predict the nearest μ_c among unit vectors                                  classifier
The outputs are scaled cosines during training, and are not used for prediction. Old outputs keep learning, as in the
published code of LDC, ADC and DPCR.

SDC (CVPR 2020), semantic drift compensation:
    w_ci = exp(−‖F_{t−1}(x_i) − μ_c‖² / 2σ²) over the task's images
    μ_c ← μ_c + Σ_i w_ci (F_t(x_i) − F_{t−1}(x_i)) / Σ_i w_ci
The paper trains its embedding with a triplet loss; later work, and this method, use LwF. Its σ is for features that are
unit vectors, so the kernel measures distances between unit vectors here too.

LDC (ECCV 2024), learnable drift compensation:
    W = argmin Σ_i ‖F_{t−1}(x_i) W − F_t(x_i)‖² on task t
    μ_c ← μ_c W
W is computed in closed form, shrunk slightly toward the identity; the authors fit it by 20 epochs of Adam from a random
initialisation.

ADC (CVPR 2024), adversarial drift compensation:
    X = the 100 images of task t whose F_{t−1}(x) is nearest to μ_c
    3 times: X ← X − α·∇/‖∇‖ of ‖F_{t−1}(X) − μ_c‖²
    keep those of X that F_{t−1} puts nearest to μ_c
    μ_c ← μ_c + mean(F_t(X) − F_{t−1}(X))
Candidates are the plain images (authors: augmented images), and pixels are clipped to 0..1 (authors: to the smallest
and largest standardised pixel of the task).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from adagauss.backbones import BackboneConfig, Extractor
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import Affine, solve_ridge
from adagauss.core.task import CurrentTask
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation, to_float
from adagauss.methods.base import Method, register_method
from adagauss.parts.classifiers import Classifier, NearestMean
from adagauss.parts.drift import Drift
from adagauss.parts.memory import MeanMemory, Memory
from adagauss.parts.representation import Representation
from adagauss.parts.terms import CrossEntropy, LogitDistillation

CLASS_BLOCK = 64
"""Number of classes whose distances to all images are computed at once."""


def kernel_weights(means: Tensor, points: Tensor, sigma: float) -> Tensor:
    """(C, N) weights exp(−‖x_i − μ_c‖² / 2σ²), each row summing to 1.

    A softmax subtracts the smallest distance first, so that far-away means do not underflow to 0/0.
    """
    distances = torch.cdist(points, means).square().T
    return torch.softmax(-distances / distances.new_tensor(2 * sigma**2), dim=1)


class SDC(Drift):
    """μ_c ← μ_c + Σ_i w_ci (F_t(x_i) − F_{t−1}(x_i)), w_ci a Gaussian kernel around μ_c among the F_{t−1}(x_i).

    With ``normalize`` the kernel compares directions (unit vectors), for which its σ was published; the averaged drift
    is that of the unnormalised features, so that the means remain means of features. Covariances, if any, are
    unchanged.
    """

    kind = "sdc"
    sigma: PositiveFloat = 0.2
    normalize: bool = True
    views: NonNegativeInt = 0
    """Number of augmented copies of the task; 0: the plain images."""

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        old, new = now.pairs(self.views)
        old, new = old.double(), new.double()
        points, centres = (
            (F.normalize(old, dim=1), F.normalize(memory.means, dim=1)) if self.normalize else (old, memory.means)
        )
        blocks = [
            kernel_weights(block, points, self.sigma) @ (new - old) for block in torch.split(centres, CLASS_BLOCK)
        ]
        return memory.with_statistics(memory.means + torch.cat(blocks), None)


def linear_map(old: Tensor, new: Tensor, amount: float, toward: Tensor | None = None) -> Tensor:
    """argmin_W ‖XW − Y‖² + ρ‖W − W₀‖² with ρ = amount · mean(diag XᵀX) and W₀ = ``toward``, by default 0.

    In float64: W = (XᵀX + ρI)⁻¹(XᵀY + ρW₀).
    """
    X, Y = old.double(), new.double()
    penalty = amount * float(X.square().sum()) / X.shape[1]
    right = X.T @ Y if toward is None else X.T @ Y + penalty * toward.double()
    return solve_ridge(X.T @ X, right, penalty)


class LDC(Drift):
    """μ_c ← μ_c W with W linear, without bias, from F_{t−1}(x) to F_t(x) on the current images, in closed form.

    W is shrunk toward the identity. Covariances, if any, become WᵀΣW, which is exact although not in the paper.
    """

    kind = "ldc"
    ridge: NonNegativeFloat = 1e-3
    """Shrinkage toward the identity, relative to the mean square of a feature."""
    views: PositiveInt = 4
    """Augmented copies of the task for the fit: more than one helps if a task has few images."""

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        old, new = now.pairs(self.views)
        # Toward the identity: directions without data do not move.
        weight = linear_map(old, new, self.ridge, toward=torch.eye(memory.size).to(memory.means))
        return memory.transport_affine(Affine(weight, torch.zeros_like(weight[0])))


def attack(extractor: Extractor, images: Tensor, target: Tensor, step: float, iterations: int) -> Tensor:
    """Images in 0..1 changed so that their features approach ``target``.

    x̂ ← x̂ − α·ĝ/‖ĝ‖ with ĝ the gradient of ‖F(x) − μ‖² over the whole batch, in the standardised pixels x̂ = (x − m)/s
    for which α was published. In pixels that is x ← x − α·s·(s·g)/‖s·g‖, since ĝ = s·g. Pixels are clipped to 0..1.
    """
    scale = extractor.std
    for _ in range(iterations):
        leaf = images.detach().requires_grad_()
        loss = (extractor(leaf) - target).square().mean()
        gradient = torch.autograd.grad(loss, leaf)[0] * scale
        length = torch.linalg.vector_norm(gradient).clamp_min(torch.finfo(gradient.dtype).tiny)
        images = (images - step * scale * (gradient / length)).clamp(0, 1)
    return images


class ADC(Drift):
    """μ_c ← μ_c + mean of F_t(x) − F_{t−1}(x) over adversarial images x of class c.

    They start as the ``candidates`` current images nearest to μ_c under F_{t−1}. Only images whose nearest old mean is
    μ_c at the end are used; if there are none, the unchanged images are. All old means are those before the task.
    Covariances, if any, are unchanged.
    """

    kind = "adc"
    candidates: PositiveInt = 100
    iterations: NonNegativeInt = 3
    step: PositiveFloat = 25.0
    """α: length of a step of 100 images together, in standardised pixels; B images take α·√(B/100)."""

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        assert now.previous is not None, "the first task has no previous network"
        before, after = now.previous.extractor, now.network.extractor
        old = now.features(previous=True)
        means = memory.means.to(old)
        chosen = torch.cdist(means, old).topk(min(self.candidates, len(old)), largest=False).indices
        step = self.step * math.sqrt(chosen.shape[1] / 100)  # published for 100 images
        division = now.runtime.processes.divide(len(chosen))  # classes are independent of each other
        drifts = [memory.means.new_zeros(0, memory.size)]
        for index in division.rows.tolist():
            nearest = chosen[index]
            pixels = to_float(now.data.images.batch(nearest.cpu()).to(now.runtime.device))
            pixels = pixels.contiguous(memory_format=now.runtime.memory_format)
            bent = attack(before, pixels, means[index], step, self.iterations)
            with torch.no_grad():
                source = before(bent)
                taken = torch.cdist(source, means).argmin(1) == index
                drift = after(bent[taken]) - source[taken] if taken.any() else after(pixels) - before(pixels)
            drifts.append(drift.double().mean(0, keepdim=True))
        return memory.with_statistics(memory.means + division.all_gather(torch.cat(drifts)), None)


@register_method(
    "lwf",
    title="LwF",
    family="regularisation",
    stores="the previous network's outputs for new images, while a task is trained",
    paper="Li & Hoiem, ECCV 2016, arXiv 1606.09282",
    recipe="FACIL; schedule ours",
)
def lwf() -> Method:
    """Distillation of old outputs at temperature 2."""
    recipe = Recipe(epochs=200, milestones=(0.3, 0.6, 0.9), clip_norm=1.0, drop_last=False)
    return Method(
        backbone=BackboneConfig(features=None),
        representation=Representation(
            first=recipe,
            later=recipe,
            heads="keep",
            terms={
                "cross_entropy": CrossEntropy(over="current"),
                "distillation": LogitDistillation(weight=1.0, temperature=2.0),
            },
        ),
    )


# On pretrained weights the backbone learns at a tenth of the rates: 0.01 and 0.005, as published for CUB.
FINE_GRAINED: dict[str, Any] = {"representation.terms.distillation.weight": 20.0, "representation.trunk_rate": 0.1}
DATASETS: dict[str, dict[str, Any]] = {
    "tiny": {"representation.later.learning_rate": 0.001, "augmentation.crop_padding": 4},
    "cub": FINE_GRAINED,
    "cars": FINE_GRAINED,
}
"""Settings of the authors of LDC and ADC for other datasets."""


def lwf_with(drift: Drift, memory: Memory | None = None, classifier: Classifier | None = None) -> Method:
    """LwF with class statistics that follow the extractor by ``drift``; by default, nearest means."""
    first = Recipe(epochs=200, batch_size=128, milestones=(0.3, 0.6, 0.8), drop_last=False)
    return Method(
        backbone=BackboneConfig(features=None),
        augmentation=Augmentation(crop_padding=4, flip=True, brightness=63 / 255, policy="autoaugment"),
        representation=Representation(
            first=first,
            later=first.with_changes(epochs=100, learning_rate=0.05, weight_decay=2e-4, milestones=(0.45, 0.9)),
            heads="keep",
            train_old_heads=True,
            head="cosine",
            terms={
                "cross_entropy": CrossEntropy(over="current"),
                "distillation": LogitDistillation(weight=10.0, temperature=2.0),
            },
        ),
        memory=memory or MeanMemory(),
        drift=drift,
        classifier=classifier or NearestMean(normalize=True),
    )


@register_method(
    "sdc",
    title="SDC",
    family="drift compensation",
    stores="mean of each class",
    paper="Yu et al., CVPR 2020, arXiv 2004.00440",
    recipe="authors of LDC",
    datasets=DATASETS,
)
def sdc() -> Method:
    """LwF, with class means that move like the images around them."""
    return lwf_with(SDC(sigma=0.2, normalize=True))


@register_method(
    "ldc",
    title="LDC",
    family="drift compensation",
    stores="mean of each class",
    paper="Gomez-Villa et al., ECCV 2024, arXiv 2407.08536",
    recipe="authors",
    datasets=DATASETS,
)
def ldc() -> Method:
    """LwF, with class means moved by a linear map."""
    return lwf_with(LDC())


@register_method(
    "adc",
    title="ADC",
    family="drift compensation",
    stores="mean of each class",
    paper="Goswami et al., CVPR 2024, arXiv 2405.19074",
    recipe="authors",
    datasets=DATASETS,
)
def adc() -> Method:
    """LwF, with class means that follow the drift of adversarial images."""
    return lwf_with(ADC(candidates=100, iterations=3, step=25.0))
