"""Text against published code, one switch at a time: `python -m benchmarks.switches OUT [NAME ...]`.

CIFAR-100 in 10 tasks at the CPU scale, seed 0. Switches of the representation are runs of their own, scored with one
drift (the exact affine map) and three classifiers, so that representations compare; drifts and the switches of the
classifier need no runs of their own: `benchmarks.drift_grid` scores them all on one representation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from adagauss.analysis.replay import replay
from adagauss.benchmark import RunFolder, make_config, run
from adagauss.benchmark.compare import markdown
from adagauss.benchmark.protocols import protocol
from adagauss.classifiers import Bayes
from adagauss.data.dataset import Dataset
from adagauss.drift import Adapter
from adagauss.errors import NumericalError

from .drift_grid import PUBLISHED
from .real_data import read

PROTOCOL = protocol("cifar100-10-cpu")
MEANS = {"representation.terms.distillation.reduction": "mean", "drift.reduction": "mean"}
CLIPPED = {f"{stage}.clip_norm": 1.0 for stage in ("representation.first", "representation.later", "drift.recipe")}
SUMS = dict.fromkeys(MEANS, "sum")
UNCLIPPED = dict.fromkeys(CLIPPED)
AFFINE = Adapter(network="affine", views=2)
CLASSIFIERS = {
    "published": Bayes.of(PUBLISHED),
    "Bayes": Bayes(),
    "half tied": Bayes(tied=0.5),
}

SWITCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "reference": ("reference", {}),
    "reference, later rate 0.1 (text)": ("reference", {"representation.later.learning_rate": 0.1}),
    "reference, sums (text)": ("reference", SUMS),
    "reference, no first-task rotations (text)": ("reference", {"representation.expansion.kind": "none"}),
    "reference, crops and flips only (text)": ("reference", {"augmentation.policy": "none"}),
    "reference, no clipping (text)": ("reference", UNCLIPPED),
    "paper": ("paper", {}),
    "paper, means (code)": ("paper", MEANS),
    "paper, clipping (code)": ("paper", CLIPPED),
    "paper, means and clipping (code)": ("paper", {**MEANS, **CLIPPED}),
}


def measure(folder: Path, dataset: Dataset, name: str) -> None:
    """One run and its replay; what is finished already is left as it is."""
    preset, settings = SWITCHES[name]
    config = make_config(
        "adagauss",
        PROTOCOL.stream,
        dataset,
        preset=preset,
        settings={**settings, "drift.network": "affine"},
        protocol=PROTOCOL,
        diagnostics="none",
    )
    facts: dict[str, Any] = {"config": config.digest()}
    try:
        run(config, folder, resume=True, dataset=dataset)
    except NumericalError as error:
        facts["diverged"] = str(error)
    else:
        scored = replay(RunFolder(folder), dataset, {"affine": AFFINE}, CLASSIFIERS)
        facts |= {f"{row.drift}, {row.classifier}": [row.a_last, row.a_inc] for row in scored.rows}
        facts["task 1"] = next(row.accuracy[0] for row in scored.rows if row.classifier == "half tied")
    (folder / "switch.json").write_text(json.dumps(facts, indent=1))


def rows(out: Path) -> list[dict[str, str]]:
    table = []
    for name in SWITCHES:
        path = out / _folder(name) / "switch.json"
        if path.exists():
            facts = json.loads(path.read_text())
            scores = {kind: _pair(facts.get(f"affine, {kind}")) for kind in CLASSIFIERS}
            table.append(
                {
                    "AdaGauss": name,
                    "half tied, task 1": _percent(facts.get("task 1")),
                    **scores,
                    "half tied, real statistics": _pair(facts.get("oracle, half tied")),
                    "note": facts.get("diverged", ""),
                    "config": facts["config"],
                }
            )
    return table


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _pair(values: list[float] | None) -> str:
    return " / ".join(map(_percent, values or []))


def _folder(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def main() -> None:
    out, *names = sys.argv[1:]
    dataset = read("cifar100")
    for name in names or SWITCHES:
        if not (Path(out) / _folder(name) / "switch.json").exists():
            measure(Path(out) / _folder(name), dataset, name)
    print(markdown(rows(Path(out))))


if __name__ == "__main__":
    main()
