"""The one arrow: each line of the layout imports only from the lines above it."""

from __future__ import annotations

import ast
from importlib.util import resolve_name
from pathlib import Path

import pytest

import adagauss

ROOT = Path(adagauss.__file__).parent
LAYERS = [
    ["errors", "utils.files", "utils.checkpoint", "utils.progress", "utils.process", "utils.registry"],
    ["core.state", "core.config", "core.linalg"],
    ["core.gaussians"],
    ["distributed", "utils", "data"],
    ["backbones"],
    ["core.train"],
    ["core.task"],
    ["core.near_duplicates", "core.ood"],
    ["core.calibration"],
    ["core.predictor"],
    ["parts"],
    ["methods", "analytic", "core.predictor", "core.learner_state", "core.class_edits", "core.learn"],
    ["bayes", "deploy.onnx", "classifier"],
    ["experiments", "analysis"],
    ["analytic.batches"],
    ["deploy"],
    ["cli"],
    ["__main__"],
]
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}


def place(module: str) -> str | None:
    """The entry of the layout that a module below ``adagauss`` belongs to: the longest that it starts with."""
    words = module.split(".")
    prefixes = (".".join(words[:number]) for number in range(len(words), 0, -1))
    return next((prefix for prefix in prefixes if prefix in HEIGHT), None)


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
    inner = {name.removeprefix("adagauss.") for name in names if name.startswith("adagauss.")}
    inner = {
        f"{adagauss._HOMES[name]}.{name}".removeprefix("adagauss.") if name in adagauss._HOMES else name
        for name in inner
    }
    return {found for name in inner if (found := place(name)) is not None}


@pytest.mark.parametrize(
    "source",
    [
        "from adagauss.core.learn import Learner",
        "from adagauss.core import learn",
        "from adagauss import Learner",
        "import adagauss.core.learn",
        "import numpy, adagauss.core.learn as other",
        "from ..core import learn",
        "from ..core.learn import Learner",
        "def late():\n    from adagauss.core.learn import Learner",
        "def late():\n    import adagauss.core.learn",
        "import importlib\nimportlib.import_module('adagauss.core.learn')",
    ],
)
def test_every_form_of_import_is_seen(source: str) -> None:
    assert imported(source, "adagauss.parts") == {"core.learn"}


def test_imports_of_other_packages_are_not_ours() -> None:
    assert imported("import learner, torch\nfrom task import x\nfrom . import memory", "adagauss.parts") == {"parts"}


def modules() -> dict[str, Path]:
    """Every module below ``adagauss`` by its dotted name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        words = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    return found


def test_every_module_has_its_place_in_the_layout() -> None:
    assert [name for name in modules() if name not in ("", "core") and place(name) is None] == []


def test_imports_point_upwards_only() -> None:
    wrong = []
    for module, path in modules().items():
        home = place(module)
        if home is None:
            continue
        package = ".".join(path.parent.relative_to(ROOT.parent).parts)
        names = imported(path.read_text(encoding="utf-8"), package)
        wrong += [f"{module} -> {name}" for name in names if HEIGHT[name] > HEIGHT[home]]
    assert wrong == []
