"""ADC (CVPR 2024), adversarial drift compensation: adversarial images of old classes show how the classes have moved.

    for task t = 1 … T:
        train F_t on task t as LwF does                                        representation (see lwf_base)
        if t > 1, for every old class c:
            X = the 100 images of task t whose F_{t−1}(x) is nearest to μ_c     drift
            3 times: X ← X − α·∇/‖∇‖ of ‖F_{t−1}(X) − μ_c‖²                     drift (attack)
            keep those of X that F_{t−1} puts nearest to μ_c                    drift
            μ_c ← μ_c + mean(F_t(X) − F_{t−1}(X))                               drift
        for every new class c: μ_c of the features of its images               memory
        predict the nearest μ_c among unit vectors                             classifier

Candidates are the plain images (authors: augmented images), and pixels are clipped to 0..1 (authors: to the smallest
and largest standardised pixel of the task).
"""

from __future__ import annotations

from adagauss.drift.adc import ADC
from adagauss.methods.base import Method, register_method
from adagauss.methods.lwf_base import DATASETS, lwf_with


@register_method(
    "adc",
    title="ADC",
    family="drift compensation",
    stores="mean of each class",
    paper="Goswami et al., CVPR 2024, arXiv 2405.19074",
    datasets=DATASETS,
)
def adc() -> Method:
    """LwF, with class means that follow the drift of adversarial images."""
    return lwf_with(ADC(candidates=100, iterations=3, step=25.0))
