"""Where the paper's figures are made, at its scale and on two cores."""

from __future__ import annotations

from adagauss.reproduce.plan import Size, Where

Places = dict[Size, tuple[Where, ...]]

SUBSET: Places = {"paper": (Where("imagenet-subset-10"),), "cpu": (Where("cifar100-10"),)}
CIFAR: Places = {"paper": (Where("cifar100-10"),), "cpu": (Where("cifar100-10"),)}
OTHER_DATA: dict[Size, str] = {"cpu": "CIFAR-100 stands in for ImageNet-Subset, whose pictures need large networks."}
OTHER_WEIGHTS = "Feature and logit distillation keep λ = 10; only projected distillation has λ = 2."
"""The λ of the CPU scale was chosen for projected distillation alone."""
