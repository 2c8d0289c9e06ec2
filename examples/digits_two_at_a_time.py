"""Teach the ten digits two at a time, keeping no old image, and draw the accuracy on all digits seen so far."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from adagauss import IncrementalClassifier

SMALL_IMAGES = {"backbone.features": 16, "augmentation.flip": False, "augmentation.policy": "none"}
FEW_IMAGES = {"representation.first.batch_size": 32, "representation.later.batch_size": 32}
ADAPTER = {"drift.recipe.batch_size": 32, "drift.recipe.learning_rate": 0.1, "memory.flips": False}


def main(figure: str = "digits.png", epochs: int = 20) -> dict[str, list[float]]:
    """Accuracies of each method after each of the five tasks."""
    digits = load_digits()
    train, test, seen, held_out = train_test_split(digits.images / 16, digits.target, random_state=0)
    accuracies: dict[str, list[float]] = {"adagauss": [], "finetune": []}
    for method, course in accuracies.items():
        settings = {**SMALL_IMAGES, **FEW_IMAGES}
        if method == "adagauss":
            settings |= {**ADAPTER, "drift.recipe.epochs": 5 * epochs}
        classifier = IncrementalClassifier(method, backbone="convnet", epochs=epochs, settings=settings)
        for first in range(0, 10, 2):
            now, known = np.isin(seen, (first, first + 1)), held_out < first + 2
            classifier.partial_fit(train[now], seen[now])
            course.append(classifier.score(test[known], held_out[known]))
        plt.plot(range(2, 11, 2), course, marker="o", label=method)
    plt.gca().set(xlabel="digits learned", ylabel="accuracy on all of them")
    plt.legend()
    plt.savefig(figure)
    return accuracies


if __name__ == "__main__":
    print(main())
