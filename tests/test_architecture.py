"""The one arrow: each line of the layout imports only from the lines above it."""

from __future__ import annotations

import ast
from importlib.util import resolve_name
from pathlib import Path

import pytest

import adagauss

ROOT = Path(adagauss.__file__).parent
LAYERS = [
    [
        "errors",
        "names",
        "needs",
        "plugins",
        "state",
        "registry",
        "config",
        "settings",
        "progress",
        "allocator",
        "threads",
        "workers",
        "yaml_files",
        "temperature",
    ],
    ["linalg", "low_rank", "networks", "spectra", "sums"],
    ["gaussians", "losses", "evidence"],
    ["atomic", "tensor_header", "checkpoint", "parallel", "runtime", "data"],
    ["patches"],
    ["backbones"],
    ["training", "sampling"],
    ["task"],
    ["memory", "representation", "drift", "classifiers", "assessment"],
    ["methods"],
    ["predictor"],
    ["knowledge", "kept", "upkeep", "saved", "algorithm", "gathered", "learner", "bayes"],
    ["deploy", "classifier"],
    ["runs"],
    ["shards"],
    ["analysis"],
    ["report"],
    ["reproduce"],
    ["cli"],
    ["__main__"],
]
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}


def imported(source: str, package: str) -> set[str]:
    """Parts of the layout that a file in ``package`` imports in any form, at its top or within a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            names |= {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names |= {
                word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)
            }
    parts = [name.split(".") for name in names]
    homes = {name: home.split(".")[1] for name, home in adagauss._HOMES.items()}
    inner = {homes.get(words[1], words[1]) for words in parts if words[0] == "adagauss" and len(words) > 1}
    return inner & HEIGHT.keys()


@pytest.mark.parametrize(
    "source",
    [
        "from adagauss.learner import Learner",
        "from adagauss import learner",
        "from adagauss import Learner",
        "import adagauss.learner",
        "import numpy, adagauss.learner as other",
        "from .. import learner",
        "from ..learner import Learner",
        "def late():\n    from adagauss.learner import Learner",
        "def late():\n    import adagauss.learner",
        "import importlib\nimportlib.import_module('adagauss.learner')",
    ],
)
def test_every_form_of_import_is_seen(source: str) -> None:
    assert imported(source, "adagauss.drift") == {"learner"}


def test_imports_of_other_packages_are_not_ours() -> None:
    assert imported("import learner, torch\nfrom task import x\nfrom . import adapter", "adagauss.drift") == {"drift"}


def test_every_module_has_its_place_in_the_layout() -> None:
    present = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert present - {"__init__"} == HEIGHT.keys()


def test_imports_point_upwards_only() -> None:
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if place == "__init__":
            continue
        package = ".".join(path.parent.relative_to(ROOT.parent).parts)
        names = imported(path.read_text(encoding="utf-8"), package)
        wrong += [f"{path.relative_to(ROOT)} -> {name}" for name in names if HEIGHT[name] > HEIGHT[place]]
    assert wrong == []


def test_the_documented_layers_are_these() -> None:
    text = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("## Layers")[2].partition("\n## ")[0]
    # Names come first in a line, divided by commas; what they are for stands behind two spaces.
    lines = [line.strip().split("  ")[0] for line in section.splitlines() if line.startswith("    ")]
    names = [name for line in lines for name in line.split(", ")]
    assert sorted(names) == sorted(HEIGHT.keys() - {"__main__"})
