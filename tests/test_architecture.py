"""The one arrow: each line of the layout imports only from the lines above it."""

from __future__ import annotations

import ast
from pathlib import Path

import adagauss

ROOT = Path(adagauss.__file__).parent
LAYERS = [
    ["errors", "plugins", "config", "progress", "allocator"],
    ["linalg", "networks", "sums"],
    ["gaussians", "losses"],
    ["checkpoint", "runtime", "data"],
    ["backbones", "patches"],
    ["training", "sampling"],
    ["task"],
    ["memory", "representation", "drift", "classifiers"],
    ["methods"],
    ["learner", "bayes", "estimator"],
    ["benchmark"],
    ["analysis"],
    ["cli"],
    ["__main__"],
]
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}


def imported(path: Path) -> set[str]:
    """First parts below ``adagauss`` of all imports in a file, lazy ones included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("adagauss"):
            parts = node.module.split(".")
            names |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return names & HEIGHT.keys()


def test_every_module_has_its_place_in_the_layout() -> None:
    present = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert present - {"__init__"} == HEIGHT.keys()


def test_imports_point_upwards_only() -> None:
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if place == "__init__":
            continue
        wrong += [f"{path.name} -> {name}" for name in imported(path) if HEIGHT[name] > HEIGHT[place]]
    assert wrong == []
