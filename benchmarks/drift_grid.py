"""Every drift with every classifier on finished runs: `python -m benchmarks.drift_grid OUT RUN [RUN ...]`.

OUT gets a JSON file a run and a table over all the runs named; a run whose file is there already is not scored again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn

from adagauss.analysis.replay import Replay, replay, table
from adagauss.core.task import CurrentTask
from adagauss.core.train import Recipe
from adagauss.experiments.run import RunFolder, stored_config
from adagauss.methods.adagauss import REFERENCE
from adagauss.parts.classifiers import Bayes, Classifier, NearestMean, SampledLinear
from adagauss.parts.drift import Adapter, AffineMap, Drift, NoDrift

from .real_data import read

CLASSIFIER = "classifier."
PUBLISHED = {key.removeprefix(CLASSIFIER): value for key, value in REFERENCE.items() if key.startswith(CLASSIFIER)}
"""The classifier of the published code; each switch of it is turned back alone."""
RECIPE = Recipe(epochs=40, batch_size=128, learning_rate=0.01, clip_norm=1.0)
VIEWS = 2


class SharedAdapter(Adapter):
    """An adapter that is trained once a task for all variants that differ only in what they do with it."""

    kind = "shared_adapter"
    _trained: ClassVar[dict[tuple[int, float], tuple[CurrentTask, nn.Module]]] = {}

    def train_map(self, now: CurrentTask, old: Tensor, new: Tensor) -> nn.Module:
        key = (now.index, self.anti_collapse)
        if key not in self._trained or self._trained[key][0] is not now:
            self._trained[key] = (now, super().train_map(now, old, new))
        return self._trained[key][1]


def adapter(**settings: object) -> Adapter:
    return SharedAdapter.of({"recipe": RECIPE, "views": VIEWS, **settings})


DRIFTS: dict[str, Drift] = {
    "none": NoDrift(),
    "means only, MLP": adapter(adapt_covariance=False),
    "covariances only, MLP": adapter(adapt_mean=False),
    "MLP, sampled (paper)": adapter(),
    "MLP without anti-collapse": adapter(anti_collapse=0.0),
    "MLP + residual": adapter(residual_covariance=1.0),
    "means only, affine": AffineMap(views=VIEWS, adapt_covariance=False),
    "affine": AffineMap(views=VIEWS),
    "affine + half residual": AffineMap(views=VIEWS, residual_covariance=0.5),
    "affine + residual": AffineMap(views=VIEWS, residual_covariance=1.0),
}
CLASSIFIERS: dict[str, Classifier] = {
    "nearest mean": NearestMean(),
    "published code (shrink 3, correlation, L2)": Bayes.of(PUBLISHED),
    "published, no shrinkage": Bayes.of({**PUBLISHED, "shrinkage": 0.0}),
    "published, no correlation": Bayes.of({**PUBLISHED, "correlation": False}),
    "published, no L2": Bayes.of({**PUBLISHED, "normalize": False}),
    "published, log-determinant": Bayes.of({**PUBLISHED, "log_det": True}),
    "Mahalanobis": Bayes(log_det=False),
    "Bayes (paper)": Bayes(),
    "Bayes, diagonal": Bayes(covariance="diagonal"),
    "tied (LDA)": Bayes(pooled_shrinkage=1.0),
    "half tied (RDA 0.5)": Bayes(pooled_shrinkage=0.5),
    "RDA 0.7": Bayes(pooled_shrinkage=0.7),
    "linear on samples": SampledLinear(),
}


def scored(run: Path, kept: Path) -> Replay:
    """All combinations on one run, from the file if it is there."""
    if not kept.exists():
        stream = stored_config(RunFolder(run)).stream
        dataset = read(stream.dataset, stream.image_size)
        replay(RunFolder(run), dataset, DRIFTS, CLASSIFIERS).write(kept)
    return Replay.read(kept, "delete it to score the run again")


def main() -> None:
    out, *runs = map(Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    shown = table([scored(run, out / f"{run.name}.json") for run in runs])
    (out / "table.md").write_text(shown, encoding="utf-8")
    print(shown)


if __name__ == "__main__":
    main()
