"""Settings of the methods on the paper's benchmarks, against the published code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from adagauss.core.config import flatten, plain
from adagauss.data.augment import affine
from adagauss.data.stream import StreamConfig
from adagauss.experiments.config import make_config
from adagauss.methods import methods
from tests.contracts.toy import taught

ROOT = Path(__file__).parents[2]


def settings(method: str, dataset: str, preset: str | None = None) -> dict[str, Any]:
    """Every setting of a method on a dataset by dotted key."""
    return flatten(plain(make_config(method, StreamConfig(dataset=dataset, tasks=10), preset=preset).method))


@pytest.mark.parametrize("dataset", ["cifar100", "tiny", "imagenet-subset-seed1993", "cub"])
def test_dpcr_has_the_values_that_its_code_uses(dataset: str) -> None:
    """DPCR, lwf.py: 0.05 and 10 for every dataset; its tables of other values are never read."""
    found = settings("dpcr", dataset)
    assert found["representation.later.learning_rate"] == 0.05
    assert found["representation.terms.distillation.weight"] == 10.0
    assert found["drift.project"] is True
    assert settings("dpcr", dataset, "published")["drift.project"] is False


def skips_last_batch(method: str, dataset: str) -> set[bool]:
    found = settings(method, dataset)
    return {found[key] for key in found if key.startswith("representation.") and key.endswith(".drop_last")}


@pytest.mark.parametrize(
    "name", ["efc", "efc++", "pass", "il2a", "ssre", "fecam", "fetril", "acil", "dsal", "lwf", "ldc"]
)
def test_the_last_batch_of_an_epoch_is_used(name: str) -> None:
    """EFC, main.py:94; PASS.py:76; SSRE, prepare_loader.py:33; PyCIL, fetril.py:77 and acil.py:168."""
    assert skips_last_batch(name, "cifar100") == {False}


def test_the_last_batch_of_an_epoch_is_skipped() -> None:
    """AdaGauss, ada_gauss.py:271 and 436; PASS_tiny.py:59; main_PASS_imagenet.py:91; IL2A_tiny.py:59."""
    assert settings("adagauss", "cifar100")["drift.recipe.drop_last"]
    rows = [("adagauss", "cifar100"), ("pass", "tiny"), ("pass", "imagenet-subset-seed1993"), ("il2a", "tiny")]
    assert [skips_last_batch(*row) for row in rows] == [{True}] * len(rows)


def test_later_tasks_of_pass_on_imagenet_lower_the_rate_at_epochs_45_and_90() -> None:
    """main_PASS_imagenet.py:109 and 155: the schedule is stepped at the end of an epoch."""
    method = make_config("pass", StreamConfig(dataset="imagenet-subset-seed1993", tasks=10)).method
    later = method.representation.later
    assert later is not None
    assert (later.epochs, later.drops) == (100, [45, 90])


def test_efc_trains_the_backbone_ten_times_slower_in_later_tasks_of_imagenet() -> None:
    """EFC, OptimizerManager.py:83."""
    assert settings("efc", "imagenet-subset-seed1993")["representation.later_trunk_rate"] == 0.1
    assert settings("efc", "cifar100")["representation.later_trunk_rate"] is None
    learner = taught("efc", 1, None, **{"representation.later_trunk_rate": 0.1})
    parts = torch.nn.Linear(1, 1)
    groups = [
        learner.method.representation.parameter_groups(learner.network, parts, 1.0, first) for first in (True, False)
    ]
    assert [[group["lr"] for group in rates] for rates in groups] == [[1.0, 1.0], [0.1, 1.0]]


@pytest.mark.parametrize("dataset", ["cub", "aircraft", "cars"])
def test_only_adagauss_and_ldc_slow_down_a_pretrained_backbone(dataset: str) -> None:
    """The baselines of the paper's Table 2 were trained with their default rates."""
    assert [settings(name, dataset)["representation.trunk_rate"] for name in ("adagauss", "adagauss+")] == [0.1, 0.1]
    assert settings("ldc", "cub")["representation.trunk_rate"] == 0.1
    assert {settings(name, dataset)["representation.trunk_rate"] for name in ("fecam", "efc", "pass", "lwf")} == {1.0}


def test_fetril_cuts_out_squares() -> None:
    """PyCIL, fetril.py:56."""
    assert settings("fetril", "cifar100")["augmentation.cutout"] == 16


@pytest.mark.parametrize("name", ["acil", "dsal", "fetril", "fecam"])
def test_recipes_of_pycil_change_the_brightness(name: str) -> None:
    """PyCIL, data.py:47."""
    assert settings(name, "cifar100")["augmentation.brightness"] == 63 / 255


def test_autoaugment_fills_with_grey() -> None:
    """AutoAugment of FACIL and PyCIL, autoaugment.py: 128; TrivialAugment of torchvision: 0."""
    white, half = torch.full((1, 3, 8, 8), 255, dtype=torch.uint8), torch.tensor([[1.0, 0, -4, 0, 1, 0]])
    assert affine(white, half, fill=128)[0, :, 0].tolist() == [[128] * 4 + [255] * 4] * 3
    assert affine(white, half)[0, :, 0].tolist() == [[0] * 4 + [255] * 4] * 3


def test_each_method_says_whose_recipe_it_has() -> None:
    recipes = {name: info.recipe for name, info in methods().items()}
    assert {recipe.partition(";")[0] for recipe in recipes.values()} == {
        "authors",
        "authors of LDC",
        "FACIL",
        "PyCIL",
        "ours",
    }
    assert (recipes["adagauss"], recipes["adagauss+"], recipes["acil"]) == ("authors", "ours", "PyCIL")
    documented: dict[str, str] = {}
    for line in (ROOT / "docs/choose_a_method.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| `") and len(cells := line.split("|")) == 9:
            documented.update(dict.fromkeys(re.findall("`([^`]+)`", cells[1]), cells[6].strip()))
    assert documented == recipes
