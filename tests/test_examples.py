"""The examples run, small, use what `adagauss` offers by name, and stay short."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from adagauss.methods import base

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def main_of(name: str) -> Any:
    return runpy.run_path(str(Path(__file__).parent.parent / "examples" / f"{name}.py"))["main"]


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """Methods that an example registers are gone after it, and no figure needs a screen."""
    known = set(base.methods())
    plt.switch_backend("Agg")
    yield
    plt.close("all")
    for name in base.methods().keys() - known:
        base._METHODS.remove(name)


def test_digits_two_at_a_time(tmp_path: Path) -> None:
    accuracies = main_of("digits_two_at_a_time")(str(tmp_path / "digits.png"), epochs=1)
    assert {method: len(course) for method, course in accuracies.items()} == {"adagauss": 5, "finetune": 5}
    assert (tmp_path / "digits.png").stat().st_size > 1000


def test_bayes_on_features() -> None:
    measured = main_of("bayes_on_features")()
    assert measured["with nines"] > measured["without nines"] + 0.05
    assert measured["with nines"] > 0.9
    assert measured["as learned at once"] == 1


def test_new_method() -> None:
    accuracy = main_of("new_method")(epochs=2, tasks=2)
    assert set(accuracy) == {0.0, 1.0}
    assert accuracy[0.0] != accuracy[1.0], "the new drift is at work"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short_and_use_the_public_names(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 40
    modules = [node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    own = set() if path.stem == "onnx_predict" else {"adagauss"}  # see test_onnx: it must run without this library
    assert {module for module in modules if module and module.startswith("adagauss")} == own
    assert "import adagauss" not in text
