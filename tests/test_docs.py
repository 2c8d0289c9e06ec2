"""README and docs: their links, files and examples work."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import printed

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "notebooks").glob("*.md")),
    *sorted((ROOT / "results").glob("*.md")),
]
HAND_WRITTEN = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def words(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").split())


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_first_two_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    commands = re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert commands[:2] == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{command}:" in makefile for command in commands)


def test_hand_written_texts_are_short() -> None:
    assert words(ROOT / "README.md") <= 650
    assert words(ROOT / "CONTRIBUTING.md") <= 700
    assert sum(map(words, HAND_WRITTEN)) <= 17_000


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_linked_files_exist(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\((?!http)([^)#\s]+)", text)
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=named)
def test_linked_headings_exist(path: Path) -> None:
    for file, anchor in re.findall(r"\]\((?!http)([^)#\s]*)#([^)]+)\)", path.read_text(encoding="utf-8")):
        target = (path.parent / file if file else path).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)", target, re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
        assert anchor in slugs, file


@pytest.mark.parametrize("path", HAND_WRITTEN, ids=named)
def test_named_files_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    files = re.findall(r"`((?:tests|examples|src|benchmarks)/[\w./+]+\.py)`", text)
    tests = [f"tests/faults/{name}" for name in re.findall(r"`(test_\w+\.py)`", text)]
    assert [name for name in [*files, *tests] if not (ROOT / name).exists()] == []


def test_files_of_the_architecture_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = re.findall(r"`((?:[a-z]+/)+(?:[a-z_]+\.py)?)`", text)
    assert len(files) > 20
    source = ROOT / "src" / "adagauss"
    assert [name for name in files if not (source / name).exists() and not (ROOT / name).exists()] == []


def test_examples_of_the_reference_run() -> None:
    outcome = doctest.testfile(str(ROOT / "docs" / "api.md"), module_relative=False)
    assert outcome.attempted > 30
    assert outcome.failed == 0


def test_programs_of_the_notebooks_fit_the_library(tmp_path: Path) -> None:
    """`make docs` executes them; here their names and types are checked."""
    notebooks = tmp_path / "notebooks"  # pyproject.toml has mypy's settings for this package
    notebooks.mkdir()
    (notebooks / "__init__.py").touch()
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.md")):
        cells = re.findall(r"```{code-cell}[^\n]*\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
        assert cells, path
        (notebooks / path.name).with_suffix(".py").write_text("\n".join(cells), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", str(notebooks)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stdout


def run_program(folder: Path, name: str) -> None:
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    importlib.import_module(name)


@pytest.mark.parametrize("name", ["your_data", "write_a_method"])
def test_programs_of_a_page_run(name: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    (tmp_path / f"{name}.py").write_text(program, encoding="utf-8")
    printed(run_program, tmp_path, name)  # another process, whose registries are empty
