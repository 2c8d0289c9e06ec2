"""Rows that several items share: what is equal is trained once."""

from __future__ import annotations

from typing import Any

from adagauss.reproduce.plan import Row

NO_ANTI_COLLAPSE: dict[str, Any] = {"representation.terms.anti_collapse.weight": 0.0, "drift.anti_collapse": 0.0}
TRAINED_HEADS: dict[str, Any] = {"representation.heads": "keep", "representation.train_old_heads": True}
"""Outputs of old tasks are kept and trained further, as in the published logit distillation."""
DISTILLATIONS: dict[str, dict[str, Any]] = {
    "no distillation": {"representation.terms.distillation": None},
    "feature distillation": {"representation.terms.distillation.kind": "feature_distillation"},
    "logit distillation": {"representation.terms.distillation.kind": "logit_distillation", **TRAINED_HEADS},
    "projected distillation": {},
}

ADAGAUSS = Row("AdaGauss", paper={"method": "AdaGauss"})
COLLAPSING = Row("without anti-collapse", settings=NO_ANTI_COLLAPSE)
DISTILLED = tuple(Row(label, settings=settings) for label, settings in DISTILLATIONS.items())
"""AdaGauss with another distillation."""
DISTILLED_COLLAPSING = tuple(
    Row(label, settings={**settings, **NO_ANTI_COLLAPSE}) for label, settings in DISTILLATIONS.items()
)
"""Distillation alone, without anti-collapse: what the paper looks at before it proposes that loss."""
