"""ADC's drift: current images are changed until the old network sees an old class; the class drifts like them."""

from __future__ import annotations

import math

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from adagauss.backbones import Extractor
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.task import CurrentTask
from adagauss.data.augment import to_float
from adagauss.drift.base import Drift

PUBLISHED_BATCH = 100
"""Number of images per step of the published length."""


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
        step = self.step * math.sqrt(chosen.shape[1] / PUBLISHED_BATCH)
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
        return memory.with_statistics(memory.means + division.gathered(torch.cat(drifts)), None)
