"""Out-of-distribution scores: margin and class distance of an image, and their p-value among held-out images.

Held-out values are stored as logarithmic histograms, from which quantiles and shares are read.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagauss.core import linalg
from adagauss.core.gaussians import ClassGaussians

PER_DECADE = 32
FIRST_EDGE = 1e-4
EDGES = FIRST_EDGE * 10 ** (torch.arange(9 * PER_DECADE + 1, dtype=torch.float64) / PER_DECADE)
"""Edges of logarithmic histogram bins; the first bin is below all of them, the last above."""
BINS = len(EDGES) + 1


def bin_of(values: Tensor) -> Tensor:
    """The bin of each value, 0 to `BINS` − 1."""
    return (values.double().unsqueeze(-1) >= EDGES.to(values.device)).sum(-1)  # ONNX has no search in sorted values


def smallest_with(histogram: Tensor, share: float, total: float) -> float:
    """The smallest bin edge below which ``share`` of ``total`` lies; infinite if there is not so much."""
    bins = int((histogram.cumsum(0) < share * total - 1e-9).sum())
    return float(EDGES[bins]) if bins < len(EDGES) else torch.inf


def quantile(histogram: Tensor, share: float) -> float:
    """The value below which a share of all values lies, spread evenly over a bin; the last bin is its edge."""
    target = share * float(histogram.sum())
    place = int((histogram.cumsum(0) < target - 1e-9).sum())
    if place >= len(EDGES):
        return float(EDGES[-1])
    inside = (target - float(histogram[:place].sum())) / max(float(histogram[place]), 1e-9)
    return float(FIRST_EDGE * 10 ** ((place - 1 + inside) / PER_DECADE))


def share_above(histogram: Tensor, values: Tensor, total: float) -> Tensor:
    """For each value, the share of ``total`` that is larger; values spread evenly over a bin."""
    places = bin_of(values)
    above = F.pad(histogram.flip(0).cumsum(0).flip(0), (0, 1))
    position = (values.double().clamp_min(FIRST_EDGE) / FIRST_EDGE).log10() * PER_DECADE - (places - 1)
    return (above[places + 1] + (1 - position.clamp(0, 1)) * histogram[places]) / total


RUNNERS_UP = 10


def margin_score(scores: Tensor) -> Tensor:
    """The best score minus the mean of the next `RUNNERS_UP`.

    A shift of all scores, such as the distance from all classes in directions that separate none, does not change it.
    """
    if scores.shape[1] < 2:
        return torch.zeros_like(scores[:, 0])
    best = scores.topk(min(1 + RUNNERS_UP, scores.shape[1])).values
    return best[:, 0] - best[:, 1:].mean(1)


class MarginScore(nn.Module):
    """Maps features and scores to the margin of the best class, 0 and above: low for images of no known class.

    Where the memory has covariances, the scores are those of a linear discriminant analysis with their mean: distances
    with a covariance for each class detect unknown images less well (docs/confidence.md).
    """

    def __init__(self, weight: Tensor | None = None, bias: Tensor | None = None, power: float | None = None) -> None:
        super().__init__()
        self.power = power
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.weight: Tensor | None
        self.bias: Tensor | None

    @classmethod
    def of(cls, memory: ClassGaussians, power: float | None = None) -> MarginScore:
        """Make it from the memory; ``power`` is that of Tukey's transform, if covariances are those of f^λ.

        Weights are Σ⁻¹(μ_c − m) and biases −½(μ_c + m)ᵀΣ⁻¹(μ_c − m), m the mean of the means and Σ the mean covariance
        with oracle approximating shrinkage: log-likelihood ratios of each class against one at m.
        """
        if memory.covariance == "none" or len(memory) < 2 or not bool((memory.counts > 1).any()):
            return cls()
        means, within = memory.means if power is None else memory.means.clamp_min(0).pow(power), memory.pooled
        size, trace, square = len(within), float(within.trace()), float(within.square().sum())
        shrinkage = linalg.oas_shrinkage(trace, square, size, int(memory.counts.sum()))
        shrunk = (1 - shrinkage) * within
        shrunk.diagonal().add_(shrinkage * linalg.mean_diagonal(within))
        centre = means.mean(0)
        weight = torch.cholesky_solve((means - centre).T, linalg.safe_cholesky(shrunk).factor)
        bias = -((means + centre).T * weight).sum(0) / 2
        return cls(weight.float().contiguous(), bias.float(), power)

    def forward(self, features: Tensor, scores: Tensor) -> Tensor:
        if self.weight is not None and self.bias is not None:
            points = features[:, : len(self.weight)]
            points = points if self.power is None else points.clamp_min(0).pow(self.power)
            scores = torch.addmm(self.bias, points.to(self.weight), self.weight)
        return margin_score(scores)


class ClassDistance(nn.Module):
    """Maps features to the cosine distance from the nearest class mean: high for images unlike those of all classes.

    Features are not centred, because what all classes have in common separates them from other kinds of images.
    """

    def __init__(self, sums: Tensor, start: int = 0) -> None:
        """Use ``sums``, (S, C), the sum of the features of each class, which begin at feature ``start``."""
        super().__init__()
        self.start = start
        self.register_buffer("means", F.normalize(sums.double(), dim=0).float())
        self.means: Tensor

    def forward(self, features: Tensor) -> Tensor:
        points = features[:, self.start : self.start + len(self.means)].to(self.means)
        return 1 - (F.normalize(points) @ self.means).amax(1)


def left_out_distances(points: Tensor, targets: Tensor, groups: Tensor, sums: Tensor) -> Tensor:
    """(N,) the `ClassDistance` of images whose ``groups`` are subtracted from the sum of their class."""
    unit = F.normalize(points.double())
    cosines = unit @ F.normalize(sums.double(), dim=0)
    numbers = torch.unique(groups, return_inverse=True)[1].to(points.device)
    own = torch.zeros(len(points), points.shape[1], dtype=torch.float64, device=points.device)
    own.index_add_(0, numbers, points.double())
    rest = F.normalize(sums.double().T[targets] - own[numbers])
    cosines[torch.arange(len(targets)), targets] = (unit * rest).sum(1)
    return 1 - cosines.amax(1)


LOWEST, HIGHEST = -1.5, 2.0
"""Bounds of what the margin of an image contributes to `PValue.atypicality`."""
DISTANCE_WEIGHT, FAR, FAR_WEIGHT = 0.4, 1.3, 6.0
"""What a distance contributes: all of it, and what is beyond `FAR`. Selected with the bounds of the margin on held-out
training images of 12 sets, with other classes and other datasets as unknown images (results/confidence.md)."""
MOST_ATYPICAL = 40.0


class PValue(nn.Module):
    """Maps margins and class distances to a p-value: at most a share α of images of known classes is below α.

    Margin and distance are brought to 0 at the median of held-out images and to 1 at their least typical twentieth, and
    added: low margins detect similar unknown classes, large distances other kinds of images. The p-value is the share
    of held-out images that are as atypical; beyond all, it falls exponentially. Without distances, margins decide.
    """

    def __init__(self, margins: Tensor, distances: Tensor, atypical: Tensor) -> None:
        """Take histograms of held-out images; ``atypical`` is that of `atypicality`."""
        super().__init__()
        self.register_buffer("margins", margins.double())
        self.register_buffer("atypical", atypical.double())
        self.margins: Tensor
        self.atypical: Tensor
        self.has_margins, self.has_distances = float(margins.sum()) > 0, float(atypical.sum()) > 0
        self.total, self.total_atypical = float(margins.sum()) + 1, float(atypical.sum()) + 1
        self.margin, self.distance = quantile(margins, 0.5), quantile(distances, 0.5)
        self.margin_spread = max(self.margin - quantile(margins, 0.05), 0.01 * self.margin)
        self.distance_spread = max(quantile(distances, 0.95) - self.distance, 0.01 * self.distance)
        last = min(int(atypical.nonzero().max()), len(EDGES) - 1) if self.has_distances else 0
        self.top = 2 * float(EDGES[last].log())

    def least(self, distances: bool) -> float:
        """The lower bound of the p-value: with ``distances``, it falls to 0; without, it is at least 1/(images + 1)."""
        return 1.0 if not self.has_margins else 0.0 if distances and self.has_distances else 1 / self.total

    def atypicality(self, margins: Tensor, distances: Tensor) -> Tensor:
        """Low for typical images of known classes; any sign."""
        low = (self.margin - margins.double()) / self.margin_spread
        far = (distances.double() - self.distance) / self.distance_spread
        beyond = FAR_WEIGHT * (far - FAR).clamp_min(0)
        return (low.clamp(LOWEST, HIGHEST) + DISTANCE_WEIGHT * far + beyond).clamp_max(MOST_ATYPICAL)

    def forward(self, margins: Tensor, distances: Tensor | None = None) -> Tensor:
        if not self.has_margins:
            return torch.ones_like(margins, dtype=torch.float64)
        if distances is None or not self.has_distances:
            return 1 - share_above(self.margins, margins, self.total)
        atypicality = self.atypicality(margins, distances)
        share = share_above(self.atypical, positive(atypicality), self.total_atypical) + 1 / self.total_atypical
        return (share * torch.exp(-(atypicality - self.top).clamp_min(0))).clamp_max(1.0)


def positive(atypicality: Tensor) -> Tensor:
    """The values that histograms count."""
    return (atypicality / 2).exp()
