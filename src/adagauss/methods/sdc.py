"""SDC (CVPR 2020), semantic drift compensation, with the training that later papers compare it with.

    for task t = 1 … T:
        train F_t on task t as LwF does                                        representation (see lwf_base)
        if t > 1, for every old class c:
            w_ci = exp(−‖F_{t−1}(x_i) − μ_c‖² / 2σ²) over the task's images    drift
            μ_c ← μ_c + Σ_i w_ci (F_t(x_i) − F_{t−1}(x_i)) / Σ_i w_ci          drift
        for every new class c: μ_c of the features of its images               memory
        predict the nearest μ_c among unit vectors                             classifier

The paper trains its embedding with a triplet loss; later work, and this method, use LwF. Its σ is meant for features
that are unit vectors, so distances in the kernel are between unit vectors here too. ``drift.sigma=null`` takes σ from
the median distance.
"""

from __future__ import annotations

from adagauss.drift.sdc import SDC
from adagauss.methods.base import Method, register_method
from adagauss.methods.lwf_base import DATASETS, lwf_with


@register_method(
    "sdc",
    title="SDC",
    family="drift compensation",
    stores="mean of each class",
    paper="Yu et al., CVPR 2020, arXiv 2004.00440",
    datasets=DATASETS,
)
def sdc() -> Method:
    """LwF, with class means that move like the images around them."""
    return lwf_with(SDC(sigma=0.2, normalize=True))
