"""A classifier for features of your own that is never finished: any call may bring more of a class, or a new one."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from adagauss import GaussianBayes


def main(components: int = 20) -> dict[str, float]:
    """Accuracy on held-out digits before and after the digit nine, which is not in the first batches, arrives."""
    digits = load_digits()
    features, labels = PCA(components, random_state=0).fit_transform(digits.data), digits.target
    train, test = np.arange(1200), np.arange(1200, len(labels))
    nines = train[labels[train] == 9]
    rule = GaussianBayes(shrinkage=0.1)
    for portion in np.array_split(np.setdiff1d(train, nines), 12):  # as they come, all classes mixed
        rule.partial_fit(features[portion], labels[portion])
    before = rule.score(features[test], labels[test])
    rule.partial_fit(features[nines], labels[nines])

    at_once = GaussianBayes(shrinkage=0.1).fit(features[train], labels[train])
    same = np.mean(rule.predict(features[test]) == at_once.predict(features[test]))
    return {"without nines": before, "with nines": rule.score(features[test], labels[test]), "as learned at once": same}


if __name__ == "__main__":
    print(main())
