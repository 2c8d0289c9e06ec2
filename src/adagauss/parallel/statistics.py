"""Statistics of features whose rows several processes share out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adagauss.gaussians import ClassGaussians, Label
from adagauss.parallel.processes import Processes


def add_shared(
    bank: ClassGaussians, features: Tensor, targets: Tensor, classes: Sequence[Label], processes: Processes
) -> None:
    """Add features that all processes have to their banks: each reduces its share of the rows, then they merge."""
    if processes.alone:
        bank.add(features, [classes[target] for target in targets.tolist()])
        return
    rows = processes.divide(len(features)).rows
    own = ClassGaussians(bank.size, bank.covariance, bank.means.device)
    own.add(features[rows.to(features.device)], [classes[target] for target in targets.cpu()[rows].tolist()])
    for part in _of_all(own, classes, processes):
        bank.merge(part)


def _of_all(own: ClassGaussians, classes: Sequence[Label], processes: Processes) -> list[ClassGaussians]:
    """The banks of all processes, which know some of ``classes`` each."""
    size = (len(classes), 1 + own.numbers_per_class)
    table = torch.zeros(size, dtype=torch.float64, device=own.means.device)
    places = [classes.index(label) for label in own.labels]
    table[places] = torch.cat([own.counts.double().unsqueeze(1), own.means, own.packed], 1)
    return [_bank_of(one, classes, own) for one in processes.everyones(table)]


def _bank_of(table: Tensor, classes: Sequence[Label], like: ClassGaussians) -> ClassGaussians:
    present = table[:, 0].nonzero().flatten()
    counts, means, packed = torch.split(table[present], [1, like.size, table.shape[1] - 1 - like.size], 1)
    state = {"counts": counts.flatten().long(), "means": means, "packed": packed}
    return ClassGaussians.from_state(state, [classes[row] for row in present.tolist()], like.covariance)
