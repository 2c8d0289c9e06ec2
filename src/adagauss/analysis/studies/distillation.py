"""Accuracy by kind of distillation."""

from __future__ import annotations

import numpy as np

from adagauss.analysis.measured import Quantity
from adagauss.analysis.studies.bars import bars
from adagauss.analysis.studies.base import Drawing, Groups, Row, register_study
from adagauss.analysis.studies.lines import panels
from adagauss.analysis.studies.variants import by_variant
from adagauss.experiments.metrics import mean
from adagauss.experiments.paper import in_figures


@register_study(
    "distillation",
    title="Accuracy by distillation",
    paper="distillation comparison",
    claim="Projected distillation beats logit distillation by 1.4 (CIFAR-100), 0.9 and 4.0 points of A_last.",
    needs=[Quantity.ANSWERS],
)
def distillation(groups: Groups) -> Drawing:
    """A_last and A_inc of none, feature, logit and projected distillation."""
    variants = by_variant(groups, least=2)
    figure, axes = panels(2, [], height=3.6)
    rows: list[Row] = []
    for one, quantity in zip(axes, ("A_last", "A_inc"), strict=True):
        values = {
            variant: [100 * (run.accuracy[-1] if quantity == "A_last" else mean(run.accuracy)) for run in runs]
            for variant, runs in variants.items()
        }
        bars(one, values, f"{quantity}, %")
        rows += [
            {"group": variant, "seed": run.seed, "quantity": quantity, "value": value}
            for variant, runs in variants.items()
            for run, value in zip(runs, values[variant], strict=True)
        ]
    gains = in_figures("Fig. distillation comparison")
    told = [f"{name} {gains[key]:+.1f}" for name, key in NAMES.items()]
    rows += [
        {"group": "paper", "quantity": f"projected - logit, {name}", "value": gains[NAMES[name]]} for name in NAMES
    ]
    lasts = {variant: float(np.mean([100 * run.accuracy[-1] for run in runs])) for variant, runs in variants.items()}
    note = f"projected over logit KD in the paper, A_last: {', '.join(told)}"
    for suffix in ("", " + L_AC"):
        pair = [lasts.get(f"{kind} KD{suffix}") for kind in ("projected", "logit")]
        if pair[0] is not None and pair[1] is not None:
            note += f"; here{suffix and ', both with L_AC'}: {pair[0] - pair[1]:+.1f}"
    return Drawing(figure, rows, note)


NAMES = {"CIFAR-100": "cifar100", "ImageNet-Subset": "imagenet_subset", "CUB200": "cub200"}
