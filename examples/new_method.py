"""A method of your own in one file: a new drift, put into an existing composition, over a stream of digits."""

from __future__ import annotations

from sklearn.datasets import load_digits

from adagauss import ClassGaussians, CurrentTask, Drift, IncrementalClassifier, Method, make_method, register_method


class MeanShift(Drift):
    """μ_c ← μ_c + step · mean_i (F_t(x_i) − F_{t−1}(x_i)): every old class moves as the current images do."""

    kind = "mean_shift"
    step: float = 1.0

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        shift = (now.features() - now.features(previous=True)).double().mean(0)
        return memory.with_statistics(memory.means + self.step * shift, None)


@register_method("mean-shift", title="Mean shift", family="own", stores="mean of each class", paper="none")
def mean_shift() -> Method:
    """SDC with another drift."""
    return make_method("sdc").model_copy(update={"drift": MeanShift()})


def main(epochs: int = 20, tasks: int = 5) -> dict[float, float]:
    """Accuracy on all digits learned, for old means that stay where they were (step 0) and that move (step 1)."""
    images, labels, accuracy = load_digits().images / 16, load_digits().target, {}
    for step in (0.0, 1.0):
        learner = IncrementalClassifier("mean-shift", backbone="convnet", epochs=epochs, settings={"drift.step": step})
        for task in range(tasks):
            learner.partial_fit(images[labels // 2 == task], labels[labels // 2 == task])
        accuracy[step] = learner.score(images[labels < 2 * tasks], labels[labels < 2 * tasks])
    return accuracy


if __name__ == "__main__":
    print(main())
