"""The joint bound of finished runs: `python -m benchmarks.joint RUN ...`.

scikit-learn's logistic regression, which sees all images at once, on the features that the network of each run has at
its end: for methods whose features stand still, what a linear classifier that forgets nothing reaches.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from adagauss.core.learn import Learner
from adagauss.experiments.run import RunFolder

from .real_data import read


def joint(folder: RunFolder, strength: float) -> float:
    """Accuracy in percent on the test images of all classes that the run has learned, every class weighted equally."""
    learner = Learner.load(folder.last_checkpoint())
    stream = folder.config["stream"]
    dataset = read(stream["dataset"], stream["image_size"])
    train, test = (part.of_classes(learner.classes) for part in (dataset.train, dataset.test))
    model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=300))
    model.fit(learner.features(train.images).numpy(), train.targets.numpy())
    right = torch.from_numpy(model.predict(learner.features(test.images).numpy())) == test.targets
    hits = torch.zeros(len(test.classes)).index_add_(0, test.targets, right.float())
    return 100 * float((hits / test.counts()).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--strength", type=float, default=0.01, help="C of the regression, as in beside_sklearn")
    options = parser.parse_args()
    for path in options.runs:
        started = time.process_time()
        accuracy = joint(RunFolder(path), options.strength)
        print(f"{path}: {accuracy:.1f} % ({(time.process_time() - started) / 60:.1f} processor minutes)", flush=True)


if __name__ == "__main__":
    main()
