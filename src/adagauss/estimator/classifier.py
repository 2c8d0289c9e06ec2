"""The estimator: `PlainClassifier` as a citizen of scikit-learn, with its tags, parameters and clones."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator, ClassifierMixin

from adagauss.estimator.plain import PlainClassifier


class IncrementalClassifier(PlainClassifier, ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # it has no types
    """Learns image classes task by task, keeping no image of the tasks before.

    Images are the path of a file or a folder, PIL images, arrays or tensors of any common layout, or lists and
    generators of these; `adagauss.inputs` says how each is read. Images of other sizes than the first ones are brought
    to their size, as files are. Labels are text or numbers: one per image, or one for all images; a folder with a
    folder of images for each class needs none.

    Settings take effect when learning starts, with `fit` or the first `partial_fit`; ``verbose`` and ``skip_bad`` at
    any time.

    Args:
        method: name of a method, as `adagauss methods` lists them. None takes one that trains nothing: a
            linear classifier on a pretrained network and a dictionary of image patches (``analytic``) where the extra
            ``pretrained`` is installed, else ridge regression on the patches (``analytic-patches``).
        preset: one of its presets; None takes its default one.
        effort: ``quick``, ``good`` or ``best``, instead of a method. ``good`` is the method above. With a pretrained
            network, ``quick`` takes about half its time. ``best`` takes many times as long: on held-out images of
            the first task it tries larger settings and, beside the same features, a small network that is trained
            (``adagauss-still``), and keeps one of them if it recognises clearly more.
        settings: single settings by dotted name, e.g. ``{"classifier.shrinkage": 1.0}``.
        epochs: length of every training of a task; None leaves the method's own.
        backbone: name of a network; None leaves the method's own.
        image_size: side in pixels of the squares that the first images are brought to. None: images in memory that
            all have one size of at most 224 pixels keep it; others become squares of 224 pixels, or less if they are
            smaller.
        skip_bad: leave out images that cannot be decoded, with one warning, instead of raising an error. Answers are
            then of the others only; `classify` names them.
        seed: where all randomness comes from; the same seed and data give the same classifier.
        device: ``auto``, ``cpu``, ``cuda``, ...
        devices: processes that share the learning; a script must then work under ``if __name__ == "__main__":``.
        verbose: show progress on standard error, or in the notebook.

    Attributes:
        learner_: the `Learner` at work.

    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> images, labels = load_digits().images / 16, load_digits().target
    >>> classifier = IncrementalClassifier("analytic-patches", settings={"backbone.options.filters": 50})
    >>> for task in ([0, 1], [2, 3]):
    ...     chosen = np.isin(labels, task)
    ...     classifier = classifier.partial_fit(images[chosen], labels[chosen])
    >>> classifier.classes_.tolist()
    [0, 1, 2, 3]
    >>> classifier.score(images[labels < 4], labels[labels < 4]) > 0.98
    True
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags
