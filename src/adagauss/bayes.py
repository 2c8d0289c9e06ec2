"""GaussianBayes: the Bayes rule over class Gaussians, a scikit-learn classifier with open-ended ``partial_fit``."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from adagauss.core import linalg
from adagauss.core.gaussians import ClassGaussians, CovarianceKind
from adagauss.core.state import Scorer
from adagauss.data.images import check_labels_exact, check_one_kind
from adagauss.parts.classifiers import Bayes

WELL_CONDITIONED = 1e12
"""Up to here predictions are those of exact arithmetic, and less and less so beyond (tests/core/test_bayes.py)."""
Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


@dataclass(eq=False, repr=False)
class GaussianBayes(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn carries no types
    """argmax_c log N(x; μ_c, Σ_c) + log p(c) over feature vectors, in float64.

    Any call of `partial_fit` may contain new classes; more samples of a known class update its mean and covariance
    exactly as if all samples had been given at once. No sample is kept. With the default settings this is quadratic
    discriminant analysis with unbiased covariances.

    A class of one sample has no covariance of its own: it uses the mean covariance of the classes that have one, or the
    identity if no class has one. A singular covariance gets the smallest diagonal that makes it invertible; with fewer
    samples than features, ``shrinkage`` or ``pooled_shrinkage`` work better.

    All settings except ``covariance`` may be changed after fitting, since they only affect how the statistics are used.

    Args:
        covariance: stored per class besides its mean: ``full``, ``diagonal`` or ``none`` (nearest mean), which suits
            thousands of classes. ``full`` with ``pooled_shrinkage=1`` is a linear discriminant analysis.
        log_det: include −½ log |Σ_c|, as a density does; without it, only distances count.
        priors: weight classes by their number of samples; off, all classes have equal weight.
        shrinkage: γ of Σ + γ·mean(diag Σ)·I.
        pooled_shrinkage: τ in 0..1, the fraction of the mean covariance of all classes in each.
        correlation: replace each covariance by its correlation matrix.
        normalize: scale samples and means to unit length before they are compared.

    Attributes:
        classes_: known classes, sorted; the columns of probabilities.
        gaussians_: the `ClassGaussians` estimated so far.

    >>> rule = GaussianBayes().partial_fit([[0.0], [1.0], [5.0], [6.0]], ["low", "low", "mid", "mid"])
    >>> rule.partial_fit([[10.0], [11.0]], ["high", "high"]).predict([[0.2], [5.3], [10.9]]).tolist()
    ['low', 'mid', 'high']
    """

    covariance: CovarianceKind = "full"
    log_det: bool = True
    priors: bool = True
    shrinkage: float = 0.0
    pooled_shrinkage: float = 0.0
    correlation: bool = False
    normalize: bool = False

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Learn from (N, S) features and one label per row, discarding everything learned before."""
        return self._learn(X, y, None, reset=True)

    def partial_fit(self, X: npt.ArrayLike, y: npt.ArrayLike, classes: npt.ArrayLike | None = None) -> Self:
        """Learn from more samples, of known classes or new ones.

        ``classes`` is optional. Classes listed there have probability 0 until they get samples.
        """
        return self._learn(X, y, classes, reset=not hasattr(self, "classes_"))

    def decision_function(self, X: npt.ArrayLike) -> Floats:
        """(N, C) log-likelihoods plus log-priors up to a constant; for two classes (N,), the second minus the first."""
        scores = self._scores(X).numpy()
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: npt.ArrayLike) -> Array:
        """The most likely class of each row."""
        winners = self._scores(X).argmax(1).numpy()
        labels: Array = self.classes_[winners]
        return labels

    def predict_log_proba(self, X: npt.ArrayLike) -> Floats:
        """(N, C) log-probabilities, columns as in ``classes_``."""
        return np.asarray(torch.log_softmax(self._scores(X), dim=1).numpy())

    def predict_proba(self, X: npt.ArrayLike) -> Floats:
        """(N, C) probabilities, columns as in ``classes_``."""
        return np.asarray(torch.softmax(self._scores(X), dim=1).numpy())

    def _learn(self, X: npt.ArrayLike, y: npt.ArrayLike, classes: npt.ArrayLike | None, reset: bool) -> Self:
        rule = self._rule()
        if isinstance(y, list | tuple):
            check_labels_exact(y)  # before NumPy makes one kind of them
            check_one_kind(y)
        checked = validate_data(self, X, y, reset=reset, dtype=np.float64)
        samples: Array = checked[0]
        labels: Array = np.asarray(checked[1])
        with warnings.catch_warnings():
            # Few samples for each of many classes are valid here.
            warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
            check_classification_targets(labels)
        known = [] if reset else [self.classes_]
        announced = [] if classes is None else [np.asarray(classes)]
        columns = _union([*known, labels, *announced])
        bank = ClassGaussians(samples.shape[1], rule.covariance) if reset else self.gaussians_
        bank.add(_tensor(samples), labels.tolist())
        self.gaussians_: ClassGaussians = bank
        self.classes_: Array = columns
        self._scorers: dict[Bayes, Scorer] = {}
        """The scorer of the settings used last: factored when first needed."""
        return self

    def _scores(self, X: npt.ArrayLike) -> Tensor:
        """(N, C) scores, −∞ for classes without samples."""
        check_is_fitted(self, "gaussians_")
        points = _tensor(validate_data(self, X, reset=False, dtype=np.float64))
        rule, known, classes = self._rule(), set(self.gaussians_.labels), self.classes_.tolist()
        if rule not in self._scorers:
            bank = _with_borrowed_covariances(self.gaussians_.select([label for label in classes if label in known]))
            _warn_if_ill_conditioned(bank.labels, rule.matrices(bank))
            self._scorers.clear()
            # Float32 is enough for images; this class promises float64.
            self._scorers[rule] = rule.scorer(bank, torch.float64)
        scores = points.new_full((len(points), len(classes)), -torch.inf)
        scores[:, [label in known for label in classes]] = linalg.by_rows(self._scorers[rule], points)
        return scores

    def _rule(self) -> Bayes:
        return Bayes.of(self.get_params(deep=False))


def _with_borrowed_covariances(bank: ClassGaussians) -> ClassGaussians:
    single = bank.counts < 2
    if bank.covariance == "none" or not bool(single.any()):
        return bank
    number = int((~single).sum())
    borrowed = bank.mixed((~single).double() / number) if number else torch.eye(bank.size, dtype=torch.float64)
    completed = bank.copy()
    completed.packed[single] = bank.pack(borrowed)
    return completed


def _warn_if_ill_conditioned(labels: list[Any], matrices: Tensor) -> None:
    """Warn where rounding decides: for features of unit variance, since their units do not matter to a factor."""
    conditions = linalg.condition_number(linalg.spectrum(linalg.correlation(matrices)))
    bad = (conditions > WELL_CONDITIONED).nonzero().flatten().tolist()
    if bad:
        worst = max(bad, key=lambda index: float(conditions[index]))
        warnings.warn(
            f"the covariance of class {labels[worst]!r} has the condition number {float(conditions[worst]):.1e} "
            f"({len(bad)} of {len(matrices)} are above {WELL_CONDITIONED:.0e}), where rounding decides about "
            "predictions: give more samples, remove features that depend on others, or use shrinkage",
            stacklevel=4,
        )


def _tensor(X: Array) -> Tensor:
    # Torch shares memory only with writable arrays without negative strides; other arrays are copied.
    return torch.from_numpy(np.require(X, np.float64, ["C", "W"]))


def _union(parts: list[Array]) -> Array:
    labels = [label for part in parts for label in part.tolist()]
    check_one_kind(labels)  # NumPy would turn 1 into "1"
    check_labels_exact(labels)
    return np.unique(np.concatenate(parts))
