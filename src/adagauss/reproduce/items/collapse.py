"""Figures on the task-recency bias and the collapse of covariances."""

from __future__ import annotations

from adagauss.reproduce.curves import Plotted, at_least, first, last, more
from adagauss.reproduce.items.places import OTHER_DATA, OTHER_WEIGHTS, SUBSET, Places
from adagauss.reproduce.items.rows import (
    ADAGAUSS,
    COLLAPSING,
    DISTILLATIONS,
    DISTILLED_COLLAPSING,
    NO_ANTI_COLLAPSE,
)
from adagauss.reproduce.plan import Item, Row, Size, Where

PROJECTED = "projected distillation"
STRONG = "directions below 95 % of the variance, all seen tasks"
STRENGTH = Item(
    "strength",
    "Representation strength by distillation",
    "Fig. 2",
    DISTILLED_COLLAPSING,
    SUBSET,
    (
        more(
            "After the last task, projected distillation has spread the features over more directions than the others.",
            *(
                Plotted(label, {"group": label, "quantity": STRONG}, last)
                for label in (PROJECTED, *(label for label in DISTILLATIONS if label != PROJECTED))
            ),
        ),
    ),
    study="strength",
    left_out={"cpu": f"{OTHER_DATA['cpu']} {OTHER_WEIGHTS}"},
    alias="fig2",
)

WIDE = "logit distillation, 512 features"
LOGIT = Row("logit distillation", settings={**DISTILLATIONS["logit distillation"], **NO_ANTI_COLLAPSE})
BIASED = (LOGIT, Row(WIDE, settings={**LOGIT.settings, "backbone.features": 512}), ADAGAUSS)
BIASED_WHERE: Places = {
    "paper": (Where("imagenet-subset-10", only=(WIDE,)),),
    "cpu": (Where("cifar100-10", only=(LOGIT.label, ADAGAUSS.label)),),
}
BIASED_NOTE: dict[Size, str] = {"cpu": f"{OTHER_DATA['cpu']} The features are as many as the protocol says, not 512."}


def _early_and_late(group: str, quantity: str, name: str) -> tuple[Plotted, Plotted]:
    """The first and the last task."""
    columns = {"group": group, "quantity": quantity}
    return Plotted(f"first task's {name}", columns, first), Plotted(f"last task's {name}", columns, last)


LOGITS = (LOGIT.label, WIDE)
RANKS = Item(
    "ranks",
    "Rank and inverse norm of covariances by task",
    "Fig. 3",
    BIASED,
    BIASED_WHERE,
    (
        *(
            more(
                "Covariances of early tasks have lower ranks than those of late ones.",
                *reversed(_early_and_late(group, "rank, λ > 0.01", "rank")),
            )
            for group in LOGITS
        ),
        *(
            more("Inverse covariances of early tasks are larger.", *_early_and_late(group, "‖Σ⁻¹‖_F", "‖Σ⁻¹‖"))
            for group in LOGITS
        ),
    ),
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
    (
        *(
            more("Classes of early tasks seem farther away.", *_early_and_late(group, "published", "distance"))
            for group in LOGITS
        ),
        *(
            more("Classes of early tasks get smaller logits.", *reversed(_early_and_late(group, "logit", "logit")))
            for group in LOGITS
        ),
    ),
    study="mahalanobis",
    left_out=BIASED_NOTE,
)
SPECTRUM = Item(
    "spectrum",
    "Eigenvalues with and without anti-collapse",
    "figure on the eigenvalue spectrum",
    (ADAGAUSS, COLLAPSING),
    SUBSET,
    (
        more(
            "Without anti-collapse, the largest eigenvalue is a larger multiple of the smallest (paper: about 120,000, "
            "and 84 with it).",
            *(
                Plotted(label, {"group": label, "quantity": "largest / smallest"})
                for label in (COLLAPSING.label, ADAGAUSS.label)
            ),
        ),
    ),
    study="spectrum",
    left_out=OTHER_DATA,
)

FULL, PARTIAL = "projected KD + L_AC", ("no KD", "feature KD", "logit KD", "projected KD")
"""Names in the figure."""
PAPERS_RANK = "rank, λ > 0.01"
RANKS_BY_DISTILLATION = Item(
    "ranks-by-distillation",
    "Ranks of covariances by distillation",
    "figure on ranks per distillation",
    (*DISTILLED_COLLAPSING, Row("projected distillation + anti-collapse")),
    SUBSET,
    (
        at_least(
            "Projected distillation with anti-collapse keeps full rank in every task.",
            Plotted("lowest rank of a task", {"group": FULL, "quantity": PAPERS_RANK}, min),
            lambda found: found.features(),
            "features",
        ),
        more(
            "Its ranks in the first task are higher than with any other distillation.",
            *(Plotted(name, {"group": name, "quantity": PAPERS_RANK}, first) for name in (FULL, *PARTIAL)),
        ),
    ),
    study="ranks-by-distillation",
    left_out={"cpu": f"{OTHER_DATA['cpu']} {OTHER_WEIGHTS}"},
)
COLLAPSE = (STRENGTH, RANKS, MAHALANOBIS, SPECTRUM, RANKS_BY_DISTILLATION)
