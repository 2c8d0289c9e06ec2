"""DS-AL (AAAI 2024): ACIL with a second stream that learns what the first one cannot fit.

    task 1: train F with L_CE, then freeze it                                   representation
    every task, with Z = F(x)·B, B random and fixed:
        main: W_m = ridge regression of all labels seen, on ReLU(Z)             classifier
        residual Y − ReLU(Z)·W_m of this task, columns of old classes set to 0  classifier
        compensation: W_c = ridge regression of all residuals, on tanh(Z)       classifier
    predict argmax of ReLU(Z)·W_m + 𝒞·tanh(Z)·W_c

𝒞 = 0.6 is for CIFAR-100; for ImageNet-1k it is 1.5, with an expansion of 16384.
"""

from __future__ import annotations

from adagauss.backbones import BackboneConfig
from adagauss.classifiers.dual_stream import DualStream
from adagauss.drift import NoDrift
from adagauss.methods.acil import base_training
from adagauss.methods.base import Method, register_method
from adagauss.parts.memory import NoMemory


@register_method(
    "dsal",
    title="DS-AL",
    family="frozen extractor",
    stores="two autocorrelations of all expanded features, and two vectors of that size per class",
    paper="Zhuang et al., AAAI 2024, arXiv 2403.17503",
)
def dsal() -> Method:
    """The method of the paper."""
    return Method(
        backbone=BackboneConfig(features=None),
        representation=base_training(),
        memory=NoMemory(),
        drift=NoDrift(),
        classifier=DualStream(expansion_size=8192, gamma=0.1, gamma_compensation=0.1, compensation=0.6),
    )
