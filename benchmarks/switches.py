"""Text against published code, one switch at a time: `python -m benchmarks.switches OUT SEED [NAME ...]`.

CIFAR-100 in 10 tasks at the CPU scale; all switches or those named, and a table over every seed in OUT. Switches of the
representation are runs of their own, scored with one drift (the exact affine map) and three classifiers, so that
representations compare; drifts and the switches of the classifier need no runs of their own: `benchmarks.drift_grid`
scores them all on one representation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from adagauss.analysis.replay import replay
from adagauss.data.dataset import Dataset
from adagauss.errors import NumericalError
from adagauss.experiments.compare import Spread, markdown
from adagauss.experiments.config import make_config
from adagauss.experiments.protocols import protocol
from adagauss.experiments.run import RunFolder
from adagauss.experiments.runner import run
from adagauss.parts.classifiers import Bayes
from adagauss.parts.drift import AffineMap

from .drift_grid import PUBLISHED
from .real_data import read

PROTOCOL = protocol("cifar100-10-cpu")
MEANS = {"representation.terms.distillation.reduction": "mean"}
CLIPPED = {f"{stage}.clip_norm": 1.0 for stage in ("representation.first", "representation.later")}
SUMS = dict.fromkeys(MEANS, "sum")
UNCLIPPED = dict.fromkeys(CLIPPED)
AFFINE = AffineMap(views=2)
FACTS = "switch.json"
CLASSIFIERS = {
    "published": Bayes.of(PUBLISHED),
    "Bayes": Bayes(),
    "half tied": Bayes(pooled_shrinkage=0.5),
}

SWITCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "reference": ("reference", {}),
    "reference, later rate 0.1 (text)": ("reference", {"representation.later.learning_rate": 0.1}),
    "reference, sums (text)": ("reference", SUMS),
    "reference, no first-task rotations (text)": ("reference", {"representation.label_augmentation.kind": "none"}),
    "reference, crops and flips only (text)": ("reference", {"augmentation.policy": "none"}),
    "reference, no clipping (text)": ("reference", UNCLIPPED),
    "paper": ("paper", {}),
    "paper, means (code)": ("paper", MEANS),
    "paper, clipping (code)": ("paper", CLIPPED),
    "paper, means and clipping (code)": ("paper", {**MEANS, **CLIPPED}),
}


def measure(folder: Path, dataset: Dataset, name: str, seed: int) -> None:
    """One run and its replay; what is finished already is left as it is."""
    preset, settings = SWITCHES[name]
    config = make_config(
        "adagauss-affine",
        PROTOCOL.stream,
        preset=preset,
        settings=settings,
        protocol=PROTOCOL,
        seed=seed,
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
    (folder / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")


def rows(out: Path) -> list[dict[str, str]]:
    table = []
    for name in SWITCHES:
        seeds = [
            json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob(f"seed*/{_folder(name)}/{FACTS}"))
        ]
        if seeds:
            table.append(
                {
                    "AdaGauss": name,
                    "seeds": str(len(seeds)),
                    "half tied, task 1": _first_task(seeds),
                    **{kind: _pair(seeds, f"affine, {kind}") for kind in CLASSIFIERS},
                    "half tied, real statistics": _pair(seeds, "oracle, half tied"),
                    "config": seeds[0]["config"],
                }
            )
    return table


def _first_task(seeds: list[dict[str, Any]]) -> str:
    known = [facts["task 1"] for facts in seeds if "task 1" in facts]
    return str(Spread.of(known)) if known else ""


def _pair(seeds: list[dict[str, Any]], key: str) -> str:
    """A_last / A_inc over seeds."""
    pairs = [facts[key] for facts in seeds if key in facts]
    lost = len(seeds) - len(pairs)
    scores = " / ".join(str(Spread.of(values)) for values in zip(*pairs, strict=True))
    return scores + (f" ({lost} diverged)" if scores and lost else "") or "diverged"


def _folder(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def main() -> None:
    out, seed, *names = sys.argv[1:]
    dataset = read("cifar100")
    for name in names or SWITCHES:
        folder = Path(out) / f"seed{seed}" / _folder(name)
        if not (folder / FACTS).exists():
            measure(folder, dataset, name, int(seed))
    print(markdown(rows(Path(out))))


if __name__ == "__main__":
    main()
