"""LDC (ECCV 2024), learnable drift compensation: one linear map moves all old means.

    for task t = 1 … T:
        train F_t on task t as LwF does                                   representation (see lwf_base)
        if t > 1:
            W = argmin Σ_i ‖F_{t−1}(x_i) W − F_t(x_i)‖² on task t         drift
            μ_c ← μ_c W for every old class c                             drift
        for every new class c: μ_c of the features of its images          memory
        predict the nearest μ_c among unit vectors                        classifier

W is computed in closed form, shrunk slightly toward the identity; the preset ``adam`` fits it like the authors, with 20
epochs of Adam from a random initialisation.
"""

from __future__ import annotations

from adagauss.drift.ldc import LDC
from adagauss.methods.base import Method, register_method
from adagauss.methods.lwf_base import DATASETS, lwf_with


@register_method(
    "ldc",
    title="LDC",
    family="drift compensation",
    stores="mean of each class",
    paper="Gomez-Villa et al., ECCV 2024, arXiv 2407.08536",
    presets={"adam": {"drift.kind": "ldc_trained"}},
    datasets=DATASETS,
)
def ldc() -> Method:
    """LwF, with class means moved by a linear map."""
    return lwf_with(LDC())
