"""What tells configurations apart in the paper's figures: distillation, the anti-collapse loss and its β."""

from __future__ import annotations

from collections.abc import Callable

from adagauss.analysis.measured import Measured
from adagauss.analysis.studies.base import Groups, NotDrawableError
from adagauss.methods import Method
from adagauss.parts.terms import AntiCollapse

DISTILLATIONS = {
    "projected_distillation": "projected KD",
    "feature_distillation": "feature KD",
    "norm_distillation": "feature KD (norm)",
    "logit_distillation": "logit KD",
}
NO_DISTILLATION = "no KD"
ORDER = (NO_DISTILLATION, "feature KD", "feature KD (norm)", "logit KD", "projected KD")


def distillation_of(method: Method) -> str:
    """How the network is kept near the previous one."""
    kinds = [DISTILLATIONS.get(term.kind) for term in method.representation.terms.values() if term.weight > 0]
    return next((kind for kind in kinds if kind is not None), NO_DISTILLATION)


def beta_of(method: Method) -> float | None:
    """β of the anti-collapse loss; None without it."""
    terms = method.representation.terms.values()
    return next((term.beta for term in terms if isinstance(term, AntiCollapse) and term.weight > 0), None)


def variant_of(method: Method) -> str:
    """Distillation, and whether collapse is prevented."""
    return distillation_of(method) + (" + L_AC" if beta_of(method) is not None else "")


def only(groups: Groups, keep: Callable[[Measured], bool], otherwise: str) -> Groups:
    """The groups whose runs have something; an error that says what is needed if there are none."""
    kept = {label: [run for run in runs if keep(run)] for label, runs in groups.items()}
    found = {label: runs for label, runs in kept.items() if runs}
    if not found:
        raise NotDrawableError(otherwise)
    return found


def with_covariances(groups: Groups) -> Groups:
    """The groups that remember covariances."""
    return only(groups, lambda run: "memory.spectra" in run.tables, "it needs runs that remember covariances")


def by_variant(groups: Groups, least: int) -> Groups:
    """One group per variant, by its name and in the order of the paper; at least so many.

    Configurations that differ in something else keep their own labels.
    """
    names = {label: variant_of(runs[0].config.method) for label, runs in groups.items()}
    if len(set(names.values())) < least:
        raise NotDrawableError(
            f"it compares distillations, with and without L_AC: it needs {least} or more, and these runs have "
            f"{', '.join(sorted(set(names.values())))}"
        )
    unique = [label for label in groups if list(names.values()).count(names[label]) == 1]
    order = sorted(groups, key=lambda label: _place(names[label]))
    return {names[label] if label in unique else f"{names[label]} ({label})": groups[label] for label in order}


def _place(variant: str) -> tuple[int, bool]:
    distillation, _, prevented = variant.partition(" + ")
    return ORDER.index(distillation), bool(prevented)
