"""Statistics of features whose rows several processes share out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adagauss.core.gaussians import ClassGaussians, Label
from adagauss.distributed.processes import Processes


def add_shared(
    bank: ClassGaussians, features: Tensor, targets: Tensor, classes: Sequence[Label], processes: Processes
) -> None:
    """Add features that all processes have to their banks: each reduces its share of the rows, then they merge."""
    if processes.alone:
        bank.add(features, [classes[target] for target in targets.tolist()])
        return
    rows = processes.divide(len(features)).rows
    own = bank.empty_like()
    own.add(features[rows.to(features.device)], [classes[target] for target in targets.cpu()[rows].tolist()])
    for part in _of_all(own, classes, processes):
        bank.merge(part)


def _of_all(own: ClassGaussians, classes: Sequence[Label], processes: Processes) -> list[ClassGaussians]:
    """The banks of all processes, which know some of ``classes`` each."""
    position = {label: row for row, label in enumerate(classes)}
    places = [position[label] for label in own.labels]
    table = own.means.new_zeros(len(classes), 1 + own.size)
    table[places] = torch.cat([own.counts.double().unsqueeze(1), own.means], 1)
    packed = own.packed
    if own.covariance != "shared":  # one row for each class
        packed = own.packed.new_zeros(len(classes), own.form.width)
        packed[places] = own.packed
    pairs = zip(processes.all_gather(table), processes.all_gather(packed), strict=True)
    return [_bank_of(one, rows, classes, own) for one, rows in pairs]


def _bank_of(table: Tensor, packed: Tensor, classes: Sequence[Label], like: ClassGaussians) -> ClassGaussians:
    present = table[:, 0].nonzero().flatten()
    counts, means = torch.split(table[present], [1, like.size], 1)
    packed = packed if like.covariance == "shared" else packed[present]
    state = {"counts": counts.flatten().long(), "means": means, "packed": packed}
    return type(like).from_state(state, [classes[row] for row in present.tolist()], like.covariance)
