"""Groups of images that are held out together: near-duplicates, such as frames of a video, or those of the user."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

UPPER = 0.9
"""Quantile of distances that shows how they spread."""
SKETCH = 128
"""Random directions in which near-duplicates are compared."""
CHUNK = 4096
"""Largest number of images of a class that are compared with each other."""
EXPECTED = 0.01
"""The spread of a class explains a neighbour as close as a near-duplicate for this share of its images."""
COPY, CLOSE = 0.02, 0.4
"""Squared distances relative to the median of their class: images closer than the first are always near-duplicates,
images farther apart than the second never."""


def sketched(features: Tensor) -> Tensor:
    """(N, `SKETCH`) random projections of features at length 1, which keep distances."""
    points = F.normalize(features.float())
    generator = torch.Generator().manual_seed(0)
    return (points @ torch.randn(points.shape[1], SKETCH, generator=generator).to(points)).half()


def near_duplicates(points: Tensor, targets: Tensor) -> Tensor:
    """(N,) group numbers: images of a class that are linked by near-duplicates have the same.

    Squared distances between independent images of a class are about χ²-distributed. The upper half of all distances,
    where near-duplicates are rare, gives the degrees of freedom, and those give the distance of near-duplicates.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import pdist

    groups, found = torch.arange(len(targets)), []
    for target in torch.unique(targets):
        for rows in torch.split((targets == target).nonzero().flatten(), CHUNK):
            distances = pdist(points[rows.to(points.device)].double().cpu().numpy(), "sqeuclidean")
            if len(distances) and (usual := float(np.median(distances))) > 0:
                found.append((rows, distances / usual))
    spread = float(np.quantile(np.concatenate([one for _, one in found]), UPPER)) if found else 1.0
    for rows, distances in found:
        limit = closest(spread, EXPECTED / len(rows))
        numbers = torch.from_numpy(fcluster(linkage(distances, "single"), limit, "distance")).long()
        first = torch.full((len(rows) + 1,), len(targets)).scatter_reduce_(0, numbers, rows, "amin")
        groups[rows] = first[numbers]
    return groups


def closest(spread: float, share: float) -> float:
    """The distance below which a ``share`` of χ²-distributed distances of median 1 lies, by its `UPPER` quantile.

    Wilson and Hilferty: the cube root of χ² of D degrees of freedom over D is normal, with variance a = 2/(9D) and mean
    1 − a.
    """
    upper, lower, excess = NormalDist().inv_cdf(UPPER), NormalDist().inv_cdf(share), max(math.cbrt(spread) - 1, 1e-3)
    root = (math.sqrt(upper**2 + 4 * excess**2) - upper) / (2 * excess)
    return min(max(math.pow(1 + lower * root / (1 - root**2), 3), COPY), CLOSE)


def whole_groups(order: Tensor, groups: Tensor, number: int, most: int) -> Tensor:
    """The first images of an order, ``number`` or more in whole groups; groups that exceed ``most`` are skipped."""
    if len(torch.unique(groups)) == len(groups):
        return order[:number]
    chosen: list[int] = []
    members: dict[int, list[int]] = {}
    for row in order.tolist():
        members.setdefault(int(groups[row]), []).append(row)
    for rows in members.values():  # in the order of their first images
        if len(chosen) < number and len(chosen) + len(rows) <= most:
            chosen += rows
    return torch.tensor(chosen, dtype=torch.long)


def group_sizes(groups: Tensor) -> Tensor:
    """(N,) the size of the group of each image."""
    numbers: Tensor = torch.unique(groups, return_inverse=True)[1]
    return torch.bincount(numbers)[numbers]


def rows_by_size(groups: Tensor) -> list[Tensor]:
    """For each size k of a group, the (G, k) rows of all groups of this size."""
    order = torch.argsort(groups, stable=True)
    sizes = group_sizes(groups)[order]
    return [order[sizes == size].view(-1, size) for size in torch.unique(sizes).tolist()]
