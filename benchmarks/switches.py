"""Text against published code, one switch at a time: `python -m benchmarks.switches OUT [NAME ...]`.

CIFAR-100 in 10 tasks at the CPU scale, seed 0. Switches of the representation are runs of their own; each is also
replayed with one drift and one classifier that do not depend on the presets, so that representations compare. The
switches of the classifier need no runs: `benchmarks.drift_grid` scores them on one representation.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from adagauss.allocator import keep_freed_memory
from adagauss.analysis.replay import replay
from adagauss.benchmark import RunFolder, make_config, run
from adagauss.benchmark.compare import markdown
from adagauss.benchmark.protocols import protocol
from adagauss.classifiers import Bayes
from adagauss.data.dataset import Dataset, ReadOptions, load_dataset
from adagauss.drift import Adapter
from adagauss.errors import NumericalError

PROTOCOL = protocol("cifar100-10-cpu")
MEANS = {"representation.terms.distillation.reduction": "mean", "drift.reduction": "mean"}
CLIPPED = {f"{stage}.clip_norm": 1.0 for stage in ("representation.first", "representation.later", "drift.recipe")}
SUMS = dict.fromkeys(MEANS, "sum")
UNCLIPPED = dict.fromkeys(CLIPPED)

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
        "adagauss", PROTOCOL.stream, dataset, preset=preset, settings=settings, protocol=PROTOCOL, diagnostics="none"
    )
    facts: dict[str, Any] = {"config": config.digest()}
    try:
        result = run(config, folder, resume=True, dataset=dataset)
    except NumericalError as error:
        facts["diverged"] = str(error)
    else:
        scored = replay(RunFolder(folder), dataset, {"affine": Adapter(network="affine")}, {"rda": Bayes(tied=0.5)})
        facts |= {"own": [result["a_last"]["task_mean"], result["a_inc"]["task_mean"]]}
        facts |= {row.drift: [row.a_last, row.a_inc] for row in scored.rows}
        facts |= {"first": result["accuracy_after_task"]["task_mean"][0], "aware": result["task_aware_last"]}
    (folder / "switch.json").write_text(json.dumps(facts, indent=1))


def rows(out: Path) -> list[dict[str, str]]:
    table = []
    for name in SWITCHES:
        path = out / _folder(name) / "switch.json"
        if path.exists():
            facts = json.loads(path.read_text())
            own = "diverged: " + facts["diverged"] if "diverged" in facts else _pair(facts["own"])
            table.append(
                {
                    "AdaGauss": name,
                    "task 1": _percent(facts.get("first")),
                    "task-aware, last": _percent(facts.get("aware")),
                    "own drift and classifier": own,
                    "affine drift, half tied": _pair(facts.get("affine")),
                    "real statistics, half tied": _pair(facts.get("oracle")),
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
    keep_freed_memory()
    out, *names = sys.argv[1:]
    dataset = load_dataset("cifar100", ReadOptions(root=Path(os.environ.get("ADAGAUSS_DATA", "data"))))
    for name in names or SWITCHES:
        if not (Path(out) / _folder(name) / "switch.json").exists():
            measure(Path(out) / _folder(name), dataset, name)
    print(markdown(rows(Path(out))))


if __name__ == "__main__":
    main()
