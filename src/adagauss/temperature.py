"""How scores become truthful probabilities: a temperature, found by the likelihood of images that were left out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

TEMPERATURES = tuple(2.0 ** (power / 2) for power in range(-16, 17))
"""From 1/256, for regressions on one-hot labels, whose scores a softmax makes too equal, to 256."""
RELATIVE = tuple(2.0 ** (power / 2) for power in range(-12, 5))
"""Temperatures of scores that are divided by their deviation over the classes."""
LEAST_DEVIATION = 1e-12


class Calibration(NamedTuple):
    """What scores are divided by before a softmax: a temperature, times their own deviation if ``relative``.

    The order of the classes stays what it is.
    """

    temperature: float = 1.0
    relative: bool = False

    def __call__(self, scores: Tensor) -> Tensor:
        return calibrated(scores, self.temperature, float(self.relative))


def calibrated(scores: Tensor, temperature: float | Tensor, power: float | Tensor) -> Tensor:
    """s / (T·σᵖ), σ the deviation of the scores of an image over the classes, p = 0 or 1."""
    centred = scores - scores.mean(1, keepdim=True)
    deviation = centred.square().mean(1, keepdim=True).sqrt().clamp_min(LEAST_DEVIATION)
    return scores / (temperature * deviation**power)


def surprises(scores: Tensor, targets: Tensor, relative: bool = False) -> tuple[Tensor, Tensor]:
    """(N, T) values of −log p at each temperature: p of the right class, and p of the runner-up.

    With ``relative``, scores are divided by their deviation over the classes first, and `RELATIVE` are tried.
    """
    exact = calibrated(scores.double(), 1.0, 1.0) if relative else scores.double()
    # A temperature changes no order: best class and runner-up are found once, for all of them.
    best = exact.topk(min(2, scores.shape[1])).values
    below = exact - best[:, :1]
    right = below.gather(1, targets.to(scores.device).unsqueeze(1))
    second = best[:, -1:] - best[:, :1]
    temperatures = exact.new_tensor(RELATIVE if relative else TEMPERATURES)
    normaliser = torch.stack([torch.div(below, temperature).exp_().sum(1).log() for temperature in temperatures], 1)
    return normaliser - right / temperatures, normaliser - second / temperatures


def best_temperature(right: Tensor, second: Tensor, images: float, relative: bool = False) -> tuple[float, float]:
    """The temperature at which scores are most truthful, from sums of `surprises` over images, and its surprise.

    One image whose right class is the runner-up counts beside those left out: where all of these are right, the
    likelihood alone would ask for certainty. Between the temperatures tried, log T is interpolated by a parabola.
    """
    steps = torch.tensor(RELATIVE if relative else TEMPERATURES, dtype=torch.float64).log()
    total = (right + second / max(images, 1e-9)).double().cpu()
    place = int(total.argmin())
    shift = 0.0
    if 0 < place < len(total) - 1:
        left, middle, after = (float(total[place + step]) for step in (-1, 0, 1))
        curvature = left - 2 * middle + after
        shift = (left - after) / (2 * curvature) if curvature > 0 else 0.0
    step = float(steps[1] - steps[0])
    return float((steps[place] + shift * step).exp()), float(total[place])
