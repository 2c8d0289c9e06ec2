"""Figures that compare settings: shrinkage, distillation, β."""

from __future__ import annotations

from adagauss.reproduce.claims import above
from adagauss.reproduce.curves import Plotted, more
from adagauss.reproduce.items.places import CIFAR, OTHER_DATA, OTHER_WEIGHTS, SUBSET
from adagauss.reproduce.items.rows import ADAGAUSS, COLLAPSING, DISTILLED
from adagauss.reproduce.plan import Item, Row, Where

SHRUNK = ("0.02", "0.05", "0.1", "0.2", "0.5", "1")
"""Amounts in the figure."""


def _shrunk(row: Row, amount: str) -> Plotted:
    return Plotted(f"{row.label}, γ = {amount}", {"group": row.label, "γ": amount, "quantity": "A_inc"})


SHRINK = Item(
    "shrink",
    "Shrinkage of stored covariances",
    "figure on shrinkage",
    (ADAGAUSS, COLLAPSING),
    CIFAR,
    (
        more(
            "Anti-collapse without shrinkage has a higher A_inc than any shrinkage (paper: 60.2).",
            _shrunk(ADAGAUSS, "0"),
            *(_shrunk(ADAGAUSS, amount) for amount in SHRUNK),
            *(_shrunk(COLLAPSING, amount) for amount in ("0", *SHRUNK)),
        ),
        more("With anti-collapse, much shrinkage does harm.", _shrunk(ADAGAUSS, "0"), _shrunk(ADAGAUSS, SHRUNK[-1])),
    ),
    study="shrink",
)
DISTILLATION = Item(
    "distillation",
    "Accuracy by distillation",
    "figure on distillation",
    DISTILLED,
    {
        "paper": (Where("cifar100-10"), Where("imagenet-subset-10"), Where("cub-10")),
        "cpu": (Where("cifar100-10"),),
    },
    (
        above(
            "Projected distillation is better than logit distillation (paper: by 1.4 on CIFAR-100, 0.9 on "
            "ImageNet-Subset, 4.0 on CUB-200).",
            "projected distillation",
            "logit distillation",
        ),
        above(
            "Projected distillation is better than feature distillation and none.",
            "projected distillation",
            "feature distillation",
            "no distillation",
        ),
    ),
    study="distillation",
    left_out={"cpu": f"Only CIFAR-100. {OTHER_WEIGHTS}"},
)

BETAS = (0.1, 1, 10, 100)
PLACES = ("representation.terms.anti_collapse.beta", "drift.beta")
OTHER_BETAS = tuple(f"β = {beta}" for beta in BETAS if beta != 1)
BETA = Item(
    "beta",
    "β of the anti-collapse loss",
    "appendix, figure on β",
    tuple(Row(f"β = {beta}", settings={} if beta == 1 else dict.fromkeys(PLACES, float(beta))) for beta in BETAS),
    SUBSET,
    (
        above("β = 1 gives the highest accuracy after the last task.", "β = 1", *OTHER_BETAS),
        above("β = 1 gives the highest accuracy averaged over tasks.", "β = 1", *OTHER_BETAS, quantity="a_inc"),
    ),
    study="beta",
    left_out=OTHER_DATA,
)
SWEEPS = (SHRINK, DISTILLATION, BETA)
