"""The figures of the paper."""

from __future__ import annotations

from adagauss.reproduce.claims import above
from adagauss.reproduce.items.rows import (
    ADAGAUSS,
    COLLAPSING,
    DISTILLATIONS,
    DISTILLED,
    DISTILLED_COLLAPSING,
    NO_ANTI_COLLAPSE,
)
from adagauss.reproduce.plan import Item, Row, Size, Where

SUBSET: dict[Size, tuple[Where, ...]] = {"paper": (Where("imagenet-subset-10"),), "cpu": (Where("cifar100-10"),)}
CIFAR: dict[Size, tuple[Where, ...]] = {"paper": (Where("cifar100-10"),), "cpu": (Where("cifar100-10"),)}
OTHER_DATA: dict[Size, str] = {"cpu": "CIFAR-100 stands in for ImageNet-Subset, whose pictures need large networks."}

FROZEN, KEPT, ADAPTED = "frozen after task 1", "trained, not adapted", "trained and adapted"
MOTIVATION = Item(
    "motivation",
    "Why Gaussians must follow the network",
    "Fig. 1",
    (
        Row(FROZEN, settings={"representation.later": None}),
        Row(KEPT, replay={"drift.kind": "none"}),
        Row(ADAPTED),
    ),
    SUBSET,
    (
        above("Adapted Gaussians are better than Gaussians that are not adapted.", ADAPTED, KEPT),
        above("A network that keeps learning, with adapted Gaussians, is better than a frozen one.", ADAPTED, FROZEN),
    ),
    study="motivation",
    left_out=OTHER_DATA,
    alias="fig1",
)

STRENGTH = Item(
    "strength",
    "Representation strength by distillation",
    "Fig. 2",
    DISTILLED_COLLAPSING,
    SUBSET,
    study="strength",
    left_out=OTHER_DATA,
    alias="fig2",
)

WIDE = "logit distillation, 512 features"
LOGIT = Row("logit distillation", settings={**DISTILLATIONS["logit distillation"], **NO_ANTI_COLLAPSE})
BIASED = (LOGIT, Row(WIDE, settings={**LOGIT.settings, "backbone.features": 512}), ADAGAUSS)
BIASED_WHERE: dict[Size, tuple[Where, ...]] = {
    "paper": (Where("imagenet-subset-10", only=(WIDE,)),),
    "cpu": (Where("cifar100-10", only=(LOGIT.label, ADAGAUSS.label)),),
}
BIASED_NOTE: dict[Size, str] = {
    "cpu": f"{OTHER_DATA['cpu']} The thin network has no 512 features: as many as the protocol gives it."
}
RANKS = Item(
    "ranks",
    "Rank and inverse norm of covariances by task",
    "Fig. 3",
    BIASED,
    BIASED_WHERE,
    study="ranks",
    left_out=BIASED_NOTE,
    alias="fig3",
)
MAHALANOBIS = Item(
    "mahalanobis",
    "Mahalanobis distance and logit by task",
    "figure on the task-recency bias",
    BIASED,
    BIASED_WHERE,
    study="mahalanobis",
    left_out=BIASED_NOTE,
)
DISTANCES = Item(
    "distances",
    "Distance of memorised to real statistics",
    "figure on adaptation, and its appendix for CUB-200",
    (ADAGAUSS,),
    {"paper": (Where("imagenet-subset-10"), Where("cub-10")), "cpu": (Where("cifar100-10"), Where("cub-10", 1))},
    study="distances",
    left_out=OTHER_DATA,
)
SPECTRUM = Item(
    "spectrum",
    "Eigenvalues with and without anti-collapse",
    "figure on the eigenvalue spectrum",
    (ADAGAUSS, COLLAPSING),
    SUBSET,
    study="spectrum",
    left_out=OTHER_DATA,
)
RANKS_BY_DISTILLATION = Item(
    "ranks-by-distillation",
    "Ranks of covariances by distillation",
    "figure on ranks per distillation",
    (*DISTILLED_COLLAPSING, Row("projected distillation + anti-collapse")),
    SUBSET,
    study="ranks-by-distillation",
    left_out=OTHER_DATA,
)

SHRINKAGES = (0, 0.1, 0.5, 1, 3)
WITH, WITHOUT = "with anti-collapse, shrinkage", "without anti-collapse, shrinkage"
SHRINK = Item(
    "shrink",
    "Shrinkage of stored covariances",
    "figure on shrinkage",
    tuple(
        Row(f"{name} {amount}", settings=settings, replay={"memory.shrinkage": amount})
        for name, settings in ((WITH, {}), (WITHOUT, NO_ANTI_COLLAPSE))
        for amount in SHRINKAGES
    ),
    CIFAR,
    (
        above(
            "Anti-collapse without shrinkage is better than any shrinkage, with or without anti-collapse.",
            f"{WITH} 0",
            *(f"{WITH} {amount}" for amount in SHRINKAGES[1:]),
            *(f"{WITHOUT} {amount}" for amount in SHRINKAGES),
            quantity="a_inc",
        ),
    ),
    sweep="γ of Σ + γ·mean(diag Σ)·I",
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
    left_out={"cpu": "Only CIFAR-100."},
)

BETAS = (0.1, 1, 10, 100)
BETA = Item(
    "beta",
    "β of the anti-collapse loss",
    "appendix, figure on β",
    tuple(
        Row(
            f"β = {beta}",
            settings={}
            if beta == 1
            else {f"{place}.beta": float(beta) for place in ("representation.terms.anti_collapse", "drift")},
        )
        for beta in BETAS
    ),
    SUBSET,
    (
        above("β = 1 gives the highest accuracy after the last task.", "β = 1", "β = 0.1", "β = 10", "β = 100"),
        above(
            "β = 1 gives the highest accuracy averaged over tasks.",
            "β = 1",
            "β = 0.1",
            "β = 10",
            "β = 100",
            quantity="a_inc",
        ),
    ),
    study="beta",
    left_out=OTHER_DATA,
)
SHIFT = Item(
    "shift",
    "Predicted shift of every class in every task",
    "appendix, figure on shifts",
    (ADAGAUSS,),
    CIFAR,
    study="shift",
)

FIGURES = (
    MOTIVATION,
    STRENGTH,
    RANKS,
    MAHALANOBIS,
    DISTANCES,
    SPECTRUM,
    RANKS_BY_DISTILLATION,
    SHRINK,
    DISTILLATION,
    BETA,
    SHIFT,
)
