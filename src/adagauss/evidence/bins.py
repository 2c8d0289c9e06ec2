"""Histograms of positive numbers in bins of equal ratio: of a fixed size, they add up, and hold no image's number."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOWEST, DECADES, PER_DECADE = 1e-4, 9, 32
BINS = DECADES * PER_DECADE + 2
"""The first bin holds what is below `LOWEST`, the last what is above all others."""


def bin_of(values: Tensor) -> Tensor:
    """The bin of each value, 0 to `BINS` − 1."""
    steps = (values.double().clamp_min(LOWEST / 10) / LOWEST).log10() * PER_DECADE
    return (steps.clamp_max(BINS).floor().long() + 1).clamp(0, BINS - 1)


def upper_edge(place: int) -> float:
    """Where a bin ends."""
    return math.inf if place >= BINS - 1 else LOWEST * 10 ** (place / PER_DECADE)


def smallest_with(histogram: Tensor, share: float, total: float) -> float:
    """The smallest bin edge below which ``share`` of ``total`` lies; infinite if there is not so much."""
    enough = (histogram.cumsum(0) >= share * total - 1e-9).nonzero()
    return upper_edge(int(enough[0])) if len(enough) else math.inf


def largest_with(histogram: Tensor, share: float, total: float) -> float:
    """The largest bin edge below which no more than ``share`` of ``total`` lies."""
    few = int((histogram.cumsum(0) <= share * total + 1e-9).sum())
    return upper_edge(few - 1) if few else 0.0


def share_above(histogram: Tensor, values: Tensor, total: float) -> Tensor:
    """For each value, the share of ``total`` that is larger; a bin is taken to be filled evenly."""
    places = bin_of(values)
    above = histogram.flip(0).cumsum(0).flip(0)
    beyond = torch.cat([above[1:], above.new_zeros(1)])
    within = 1 - ((values.double().clamp_min(LOWEST) / LOWEST).log10() * PER_DECADE - (places - 1)).clamp(0, 1)
    return (beyond[places] + within * histogram[places]) / total
