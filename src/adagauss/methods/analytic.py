"""Methods without training: fixed features, and a linear classifier in closed form from running sums.

``analytic-patches``: ridge regression on a dictionary of image patches
    once: a dictionary of whitened patches of photographs that belong to no task          backbone (patches)
    every task, with x the pooled responses of the dictionary, averaged over the image and its mirror image:
        A ← A + xxᵀ,  C ← [C, Σx of each new class]                                       classifier (sums)
        λ by leave-one-out on the new images                                              classifier (selection)
        W = (A + λ·mean(diag A)·I)⁻¹C, with A and C centred                               classifier
    predict argmax_c (xW)_c

``analytic``: patches and a pretrained network, both fixed
    every task, with x the patches and √f/‖√f‖ of the network's features f, each scaled to the same weight:
        A ← A + xxᵀ,  C ← [C, Σx of each new class]                                       classifier (sums)
        rule, λ and the weight d of each kind by leave-one-out on the new images          classifier (selection)
        ridge: W = argmin Σ‖xW − y‖² + ρ Σ_i (W_i / d_i)², or LDA of x·d                  classifier
    predict argmax_c (xW)_c

``analytic-pretrained``: a fixed pretrained network
    every task, with f its features:
        Σffᵀ, Σf and the number of images of each class                                   classifier (sums)
        ridge regressions and LDAs; the best by leave-one-out on the new images           classifier (selection)
    predict argmax_c fW_c + b_c

``ranpac``: RanPAC (NeurIPS 2023), ridge regression on random features of a pretrained network
    every task, with φ = ReLU(f·B), f of a frozen pretrained network, B Gaussian and fixed:
        G ← G + φφᵀ,  c_y ← c_y + φ                                                       classifier (sums)
        λ by leave-one-out on the new images                                              classifier (selection)
    predict argmax_y φᵀ(G + λI)⁻¹c_y

With the same regularisation, W does not depend on the order of the classes or on their grouping into tasks. One
covariance serves all classes: S²/2 + C·S numbers are stored instead of C·S². The preset ``large`` of
``analytic-patches`` has 16,000 features of patches of three sizes and 1 GB of sums; the default has 4,000 and 64 MB.
Neither kind of features is best everywhere: patches win on traffic signs and digits, pretrained ones on photographs of
things. Weights are penalties, so ``analytic`` selects them again in each task from the same sums. Its mirror images
(``backbone.mirror``) would double the time. RanPAC's adaptation of the network in the first session (PETL) is left out:
this is the paper's frozen variant. Its λ is relative to the mean diagonal of G, selected by leave-one-out over all
tasks; the paper uses a fifth of the last task's images.
"""

from __future__ import annotations

from adagauss.analytic.classifier import AnalyticClassifier
from adagauss.backbones import BackboneConfig
from adagauss.backbones.frozen import FrozenOptions
from adagauss.backbones.patches import PatchSettings
from adagauss.backbones.registry import backbone_info
from adagauss.methods.base import Method, register_method
from adagauss.parts.representation import Representation

UNTRAINED = tuple(
    f"backbone.{name}"
    for name in ("name", "features", "weights", "input_size", "train_blocks", "bottleneck_init", "batch_norm", "stem")
)
"""Settings of a trained network: those of protocols do not apply to methods that train none."""


@register_method(
    "analytic-patches",
    title="Analytic, patches",
    family="analytic",
    stores="a dictionary of patches, the autocorrelation of all features, and one vector for each class",
    paper="this library; after Coates, Lee and Ng, 2011",
    presets={
        "large": {
            "backbone.options.filters": 2000,
            "backbone.options.scales": 3,
            "classifier.strengths": (30.0, 100.0, 300.0),
            "classifier.loo_images": 500,
        },
    },
    fixed=UNTRAINED,
)
def analytic_patches() -> Method:
    """A patch dictionary and a ridge regression from running sums."""
    return Method(
        backbone=BackboneConfig(name="patches", features=None, mirror=True, options=PatchSettings(filters=500)),
        representation=Representation(first=None, later=None),
        classifier=AnalyticClassifier(),
    )


WEIGHTS = ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.3, 1.0))
"""Weights of patches and of the pretrained network to select from."""
STRENGTHS, SHRINKAGES = (100.0, 1000.0), (0.3, 0.85)
"""Few, since each is tried with every weight: these were among the best on held-out images of four datasets."""


@register_method(
    "analytic",
    title="Analytic, patches and pretrained network",
    family="analytic",
    stores="a dictionary of patches, the autocorrelation of all features, and one vector for each class",
    paper="this library",
    fixed=UNTRAINED,
)
def analytic() -> Method:
    """Both kinds of features, or patches alone where no pretrained network is installed."""
    installed = backbone_info("efficientnet_lite0").available
    options = FrozenOptions(enlarge=True, root=True) if installed else FrozenOptions(pretrained=None)
    return Method(
        backbone=BackboneConfig(name="frozen", features=None, options=options),
        representation=Representation(first=None, later=None),
        classifier=AnalyticClassifier(strengths=STRENGTHS, shrinkages=SHRINKAGES, group_weights=WEIGHTS),
    )


@register_method(
    "analytic-pretrained",
    title="Analytic, pretrained network",
    family="analytic",
    stores="the autocorrelation of all features, and one vector for each class",
    paper="this library; streaming discriminant analysis and ridge regression",
    fixed=UNTRAINED,
)
def analytic_pretrained() -> Method:
    """A frozen pretrained network and the best linear classifier that sums can give."""
    return Method(
        backbone=BackboneConfig(name="efficientnet_lite0", features=None),
        representation=Representation(first=None, later=None),
        classifier=AnalyticClassifier(shrinkages=(None, 0.3, 0.85)),
    )


@register_method(
    "ranpac",
    title="RanPAC, without adapters",
    family="analytic",
    stores="autocorrelation of all random features, and one vector of that size for each class",
    paper="McDonnell et al., NeurIPS 2023, arXiv 2307.02251",
    recipe="authors; ridge strength ours",
    fixed=UNTRAINED,
)
def ranpac() -> Method:
    """Random projections of a frozen pretrained network."""
    return Method(
        backbone=BackboneConfig(name="efficientnet_lite0", features=None),
        representation=Representation(first=None, later=None),
        classifier=AnalyticClassifier(random_features=10_000, intercept=False),
    )
