"""What every method is set to on every benchmark, recorded as digests, so that a change of how settings are resolved
cannot change a value unnoticed.

`python -m tests.test_settings_layers` records them anew, after a change that is meant to change values or their names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adagauss.benchmark import make_config
from adagauss.benchmark.grid import RECIPES, shared_recipe
from adagauss.benchmark.protocols import PROTOCOLS
from adagauss.config import plain
from adagauss.data.dataset import load_dataset
from adagauss.data.datasets import mnist
from adagauss.data.file_dataset import PHOTO_SETTINGS
from adagauss.data.stream import StreamConfig
from adagauss.methods import make_method, methods

RECORD = Path(__file__).parent / "fixtures" / "resolved_settings.json"
SETS = ("digits", "mnist", "fashion-mnist", "omniglot")
BENCHMARKS = (
    "cifar100-10",
    "cifar100-10-cpu",
    "tiny-10",
    "tiny-10-cpu",
    "cub-10",
    "cub-20",
    "cub-10-cpu",
    "cars-10",
    "imagenet-subset-10",
)
OMNIGLOT: dict[str, Any] = {
    "augmentation.crop_padding": 2,
    "augmentation.flip": False,
    "augmentation.policy": "none",
    "memory.flips": False,
}
WISHES: dict[str, Mapping[str, Any]] = {
    "mnist": mnist._DIGITS,
    "fashion-mnist": mnist._GREY,
    "omniglot": OMNIGLOT,
    "cifar100": {},
    "tiny": {"augmentation.crop_padding": 8},
}


def resolved(place: str, method: str, preset: str | None, recipe: str, epochs: int | None) -> Any:
    """The plain settings of a method on a dataset or under a protocol."""
    protocol = PROTOCOLS.get(place)
    stream = protocol.stream if protocol else StreamConfig(dataset=place)
    dataset = load_dataset("digits")
    if stream.dataset != "digits":
        dataset = replace(dataset, settings=WISHES.get(stream.dataset, PHOTO_SETTINGS))
    shared = shared_recipe(make_method(method)) if recipe == "shared" else None
    config = make_config(method, stream, dataset, preset=preset, epochs=epochs, protocol=protocol, recipe=shared)
    return plain(config.method)


def digests(place: str, recipe: str) -> dict[str, str]:
    """One for each method, over its presets, with its own epochs and with three."""
    found = {}
    for name, info in methods().items():
        every = [
            resolved(place, name, preset, recipe, epochs) for preset in (None, *info.presets) for epochs in (None, 3)
        ]
        found[name] = hashlib.sha256(json.dumps(every, sort_keys=True).encode()).hexdigest()[:12]
    return found


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("place", [*SETS, *BENCHMARKS])
def test_settings_are_resolved_as_recorded(place: str, recipe: str) -> None:
    recorded = json.loads(RECORD.read_text())
    assert digests(place, recipe) == recorded[place][recipe]


def main() -> None:
    record = {place: {recipe: digests(place, recipe) for recipe in RECIPES} for place in (*SETS, *BENCHMARKS)}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
