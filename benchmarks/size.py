"""Print the size of the project as a table: `make size`, or `python -m benchmarks.size --list` with the details.

Definitions:
- Lines are all lines of Python files, blank lines and docstrings included.
- A module has one importer if exactly one other module in ``src`` imports it, at module level or within a function.
  ``__init__`` and ``__main__`` files do not count as imported modules, nor do plug-ins, which are loaded by name:
  methods, datasets and networks. An import through a package counts for the module that defines the name.
- Commands are those of the command line without deprecated names; hidden ones are counted separately, and so are
  hidden options. Options exclude arguments, --help and old names.
- A run is `adagauss run -m adagauss -d digits`: all lines of the functions that it calls, with their docstrings, and
  the files that hold at least 1 % of these lines. Calls during the import of a module do not count.
- Functions called by `classify`: the functions of this package that a warm call with two files executes.
- Words are those of README.md and docs/*.md, as `wc -w` counts them.
- Banned words are listed below. They are counted in src, README.md, docs and, separately, in tests and benchmarks; also
  within names (``kept_from``, ``KeptFrom``). ``ALLOWED`` lists the exceptions.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).parent.parent
PLUG_INS = ("methods", "data.datasets", "backbones")
RUN = (
    "run", "-m", "adagauss", "-d", "digits", "--tasks", "2", "-e", "1", "--quiet",
    "-s", "backbone=convnet", "-s", "backbone.features=8",
)  # fmt: skip
BANNED = (
    r"truthful\w*", "asked", "asks for", "judge[sd]?", "begun", "kept from", "beside", "stands? still", "strangers?",
    "surprise[sd]?", "(?<!all )gathered", "nobody", "somebody", "wished", r"(?<=\w )otherwise(?= than|[.,;:)]|$)",
    "(?<!there )(?:is|are) no(?! longer)", "of its own kind", "anew", "as it was", "is said", "is told", "spoken of",
    "looks? alike", "in words", "a sentence", "farewell", "believed", "matter of", "citizens?",
)  # fmt: skip
ALLOWED: tuple[tuple[str, str, str], ...] = (
    ("benchmarks/size.py", ".*", "the list itself"),
    ("docs/architecture.md", "banned words", "the table of `make size`"),
    ("src/adagauss/analytic/classifier.py", '"judges"', "purpose of a seed"),
    ("src/adagauss/core/old_names.yaml", "classifier.judged", "name of a setting of 0.2.0"),
    ("src/adagauss/analytic/selection.py", "surprise", "name of a buffer in saved files"),
    ("src/adagauss/core/calibration.py", '"asked"|"surprise"', "purpose of a seed; name of a buffer of 0.2.0"),
    ("src/adagauss/deploy/serve/server.py", "asked: ", "field of a stored job"),
    ("src/adagauss/experiments/paper_results.json", "is said", "statements of the paper"),
    ("src/adagauss/cli/options.py", "in words", "an expression of Python"),
    ("tests/analytic/test_moments.py", r"choice\.surprise", "name of a buffer in saved files"),
    ("tests/analytic/test_row_space.py", r"\.surprise", "name of a buffer in saved files"),
)
"""Exceptions: file, pattern of the line, reason."""
_BANNED = re.compile(r"\b(?:" + "|".join(BANNED) + r")\b", re.IGNORECASE)


def modules(package: Path) -> dict[str, Path]:
    """Map dotted names, without ``adagauss``, to files. A package has the name of its folder."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        words = path.relative_to(package).with_suffix("").parts
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    return found


def imports(path: Path, package: str, known: dict[str, Path]) -> set[str]:
    """Return the modules of this package that a file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            words = name.split(".")
            if words[0] == "adagauss":
                inner = [".".join(words[1:end]) for end in range(len(words), 0, -1)]
                found |= {next(one for one in inner if one in known)}
    return found


def importers(package: Path) -> dict[str, set[str]]:
    """Map each module that is not a package, a plug-in or ``__main__`` to the modules that import it."""
    known = modules(package)
    found: dict[str, set[str]] = {
        name: set()
        for name, path in known.items()
        if path.stem not in ("__init__", "__main__") and name.rpartition(".")[0] not in PLUG_INS
    }
    for name, path in known.items():
        home = ".".join(path.parent.relative_to(package.parent).parts)
        for used in imports(path, home, known) & found.keys() - {name}:
            found[used].add(name)
    return found


def lines(paths: list[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def words(paths: list[Path]) -> int:
    return sum(len(path.read_text("utf-8").split()) for path in paths)


def banned_words(root: Path, files: list[Path]) -> list[str]:
    """Return ``file:line: word`` for each banned word without an exception."""
    found = []
    for path in files:
        name = path.relative_to(root).as_posix()
        allowed = [re.compile(pattern) for file, pattern, _ in ALLOWED if file == name]
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if any(pattern.search(line) for pattern in allowed):
                continue
            spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", line.replace("_", " "))
            found += [f"{name}:{number}: {match[0]}" for match in _BANNED.finditer(spaced)]
    return found


def prose(root: Path) -> list[Path]:
    """Return the files with texts for users: src, README.md and docs."""
    kinds = {".py", ".html", ".js", ".css", ".yaml", ".json", ".txt"}
    sources = [path for path in sorted((root / "src" / "adagauss").rglob("*")) if path.suffix in kinds]
    return [*sources, root / "README.md", *sorted((root / "docs").glob("*.md"))]


def commands() -> Iterator[tuple[str, bool, int, int]]:
    """Yield for each command: its name, whether it is hidden, and its visible and hidden options."""
    import typer.main

    from adagauss.cli import app

    def walk(command: Any, path: str) -> Iterator[tuple[str, bool, int, int]]:
        options = [one for one in command.params if one.param_type_name == "option" and one.name != "help"]
        current = [one for one in options if not (one.help or "").startswith("Old name")]
        hidden = sum(one.hidden for one in current)
        inner = getattr(command, "commands", {})
        if not command.deprecated:
            yield path, command.hidden or not path, len(current) - hidden, hidden
        for name, one in inner.items():
            yield from walk(one, f"{path} {name}".strip())

    return walk(typer.main.get_command(app), "")


def traced(work: Callable[[], object]) -> set[CodeType]:
    """Return the code of the functions of this package that are called, in any thread."""
    import adagauss

    package = str(Path(adagauss.__file__).parent)
    found: set[CodeType] = set()

    importing = 0

    def note(frame: Any, event: str, _: object) -> None:
        nonlocal importing
        code = frame.f_code
        if code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        elif (
            event == "call"
            and not importing
            and code.co_filename.startswith(package)
            and not code.co_name.startswith("<")
        ):
            found.add(code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def run_code() -> set[CodeType]:
    """Return the functions that `adagauss run -m adagauss` calls."""
    from adagauss import cli

    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["adagauss", *RUN, "-o", str(Path(folder) / "run")]

        def work() -> None:
            try:
                cli.main()
            except SystemExit as ended:
                if ended.code:
                    raise

        return traced(work)


def classify_code() -> set[CodeType]:
    """Return the functions that a warm `classify` of two files calls."""
    import numpy as np
    from PIL import Image

    from adagauss import IncrementalClassifier

    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for index, shade in enumerate((60, 180)):
            images = generator.integers(shade - 50, shade + 50, (12, 32, 32, 3), dtype=np.uint8)
            for number, image in enumerate(images):
                path = Path(folder) / str(index) / f"{number}.png"
                path.parent.mkdir(exist_ok=True)
                Image.fromarray(image).save(path)
            files.append(path)
        classifier = IncrementalClassifier().partial_fit(folder)
        classifier.classify(files)
        return traced(lambda: classifier.classify(files))


def lines_by_file(code: set[CodeType]) -> dict[str, int]:
    """Return the number of lines of functions in each file; lines of nested functions are counted once."""
    found = defaultdict[str, set[int]](set)
    for one in code:
        source, start = inspect.getsourcelines(one)
        found[one.co_filename] |= set(range(start, start + len(source)))
    return {name: len(numbers) for name, numbers in sorted(found.items(), key=lambda item: -len(item[1]))}


def measure(what: str) -> dict[str, Any]:
    """Measure one thing that needs a fresh process."""
    if what == "commands":
        return {"commands": list(commands())}
    code = run_code() if what == "run" else classify_code()
    files = lines_by_file(code)
    names = sorted(f"{Path(one.co_filename).name}:{one.co_firstlineno} {one.co_qualname}" for one in code)
    return {"functions": len(code), "files": files, "names": names}


def measured(root: Path, what: str) -> dict[str, Any]:
    """Call `measure` in a new process, with the package of ``root``."""
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", what]
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, cwd=root)
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the size of the project as a table.")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of the project")
    parser.add_argument("--list", action="store_true", help="also print single importers, banned words and functions")
    parser.add_argument("--measure", choices=("commands", "run", "classify"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure)))
        return
    root = given.root.resolve()
    package = root / "src" / "adagauss"
    sources = sorted(package.rglob("*.py"))
    single = {name: users for name, users in importers(package).items() if len(users) == 1}
    listed = measured(root, "commands")["commands"]
    shown = [one for one in listed if not one[1]]
    hidden = [one for one in listed if one[1] and one[0]]
    visible_options = sum(one[2] for one in [*shown, listed[0]])
    hidden_options = sum(one[3] for one in [*shown, listed[0]]) + sum(one[2] + one[3] for one in hidden)
    run, classify = measured(root, "run"), measured(root, "classify")
    run_lines = sum(run["files"].values())
    large = [name for name, count in run["files"].items() if 100 * count >= run_lines]
    readme = root / "README.md"
    banned = banned_words(root, prose(root))
    tests = banned_words(
        root, [path for name in ("tests", "benchmarks") for path in sorted((root / name).rglob("*.py"))]
    )
    at_root = [path for path in package.glob("*.py") if path.stem not in ("__init__", "__main__")]
    rows = [
        ("lines in src (Python)", f"{lines(sources):,}", "25,000"),
        ("Python files in src", f"{len(sources)}", "190"),
        ("modules at the package root", f"{len(at_root)}", "6"),
        ("modules with exactly one importer", f"{len(single)}", "40"),
        ("files and lines of a run", f"{len(large)} files, {run_lines:,} lines", "18 files, 3,000 lines"),
        ("functions / modules of classify", f"{classify['functions']} / {len(classify['files'])}", "45 / 15"),
        ("commands / options", f"{len(shown)} / {visible_options}", "17 / 120"),
        ("hidden commands / options", f"{len(hidden)} / {hidden_options}", ""),
        ("words of README and docs", f"{words([readme, *(root / 'docs').glob('*.md')]):,}", "17,000"),
        ("words of README", f"{words([readme]):,}", "650"),
        ("banned words in src, README, docs", f"{len(banned)}", "0"),
        ("banned words in tests, benchmarks", f"{len(tests)}", "0"),
    ]
    print("| measure | now | at most |\n|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    if given.list:
        print(
            "\nOne importer:", *(f"{name} <- {next(iter(users))}" for name, users in sorted(single.items())), sep="\n  "
        )
        print("\nRun:", *(f"{count} {name}" for name, count in run["files"].items()), sep="\n  ")
        print("\nclassify:", *classify["names"], sep="\n  ")
        print("\nBanned words:", *banned, *tests, sep="\n  ")


if __name__ == "__main__":
    main()
