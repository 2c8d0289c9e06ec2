"""EFC++ (2025): EFC in two phases: first the backbone is trained, then the outputs are balanced.

    for task t = 1 … T:
        t = 1: as EFC                                                             representation
        t > 1: L_CE(new classes) + Δᵀ(λE + ηI)Δ; old outputs stay as they are     representation
        t > 1: μ_c ← μ_c + EFM-weighted mean drift, for every old class c         drift
        for every new class c: μ_c, Σ_c, n_c of its augmented images              memory
        t > 1: all outputs trained on task t and n_c draws of every old class     classifier
        predict the largest of all outputs                                        classifier
        E = mean of Wᵀ(diag p − ppᵀ)W over task t, W re-balanced                  representation (finish)

The re-balanced outputs are stored in the network: the next task starts from them.
"""

from __future__ import annotations

from adagauss.classifiers.rebalanced import Rebalanced
from adagauss.methods.base import Method, register_method
from adagauss.methods.efc import DATASETS, efc


@register_method(
    "efc++",
    title="EFC++",
    family="drift compensation",
    stores="mean, covariance and count of each class, outputs of each task, one feature matrix",
    paper="Magistri et al., 2025, arXiv 2503.10439",
    datasets=DATASETS,
)
def efcpp() -> Method:
    """EFC without rehearsal during training, and with re-balancing after it."""
    method = efc()
    terms = {name: term for name, term in method.representation.terms.items() if name != "pr_ace"}
    representation = method.representation.with_changes(terms=terms, train_old_heads=False)
    return method.with_changes(representation=representation, classifier=Rebalanced())
