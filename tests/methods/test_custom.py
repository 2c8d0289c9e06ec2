"""Finding methods: one module at a time, old and removed names, and methods of modules outside the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from adagauss.cli import app
from adagauss.core.config import Part, old_names, plain
from adagauss.errors import ConfigError
from adagauss.methods import make_method, method_info
from adagauss.methods.base import _METHODS, MODULES, methods
from adagauss.utils.files import read_yaml
from tests.processes import printed

EXAMPLE = Path(__file__).parents[2] / "examples" / "new_method.py"
RUN = ("-d", "digits", "--tasks", "2", "--epochs", "1", "--set", "backbone.name=convnet", "--quiet")


def run_commands(folder: Path, *commands: tuple[str, ...]) -> None:
    """Run commands in a folder, which is searched for modules."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    for words in commands:
        app(words, standalone_mode=False)


def test_a_run_with_a_custom_part_is_resumed_shown_and_rescored_in_new_processes(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").touch()
    shutil.copy(EXAMPLE, tmp_path / "own" / "shifting.py")
    run = tmp_path / "run"
    printed(run_commands, tmp_path, ("run", "-m", "own.shifting:mean-shift", *RUN, "--out", str(run)))
    stored = read_yaml(run / "config.yaml")
    assert stored["method_name"] == "own.shifting:mean-shift"
    assert stored["method"]["drift"]["kind"] == "own.shifting:mean_shift"
    metrics = (run / "metrics.json").read_text()
    shutil.rmtree(run / "tasks" / "02")
    (run / "metrics.json").unlink()
    shown = printed(
        run_commands,
        tmp_path,
        ("run", "--out", str(run), "--resume", "--quiet"),
        ("info", str(run)),
        ("rescore", str(run), "--set", "drift.step=0.5", "--quiet"),
    )
    assert "mean-shift" in shown
    assert json.loads((run / "metrics.json").read_text())["metrics"]["a_last"] == pytest.approx(
        json.loads(metrics)["metrics"]["a_last"]
    )


def test_a_module_that_cannot_be_found_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'nowhere\.at_all' cannot be found: install its package, put its"):
        method_info("nowhere.at_all:method")
    with pytest.raises(ConfigError, match=r"'nowhere\.at_all' cannot be found"):
        make_method("adagauss", settings={"drift.kind": "nowhere.at_all:shift"})


def test_every_method_is_in_the_module_that_the_table_names() -> None:
    homes = {name: info.build.__module__.removeprefix("adagauss.methods.") for name, info in methods().items()}
    known = {name: module for module, names in MODULES.items() for name in names}
    assert {name: homes[name] for name in known} == known
    assert {name for name in homes if _METHODS.stored_name(name) == name} == set(known)


def imported_by_making() -> None:
    """Print the modules of methods that are imported by the first use of a module's methods."""
    for names in (("lwf", "sdc"), ("adagauss",)):
        before = {name for name in sys.modules if name.startswith("adagauss.methods.")}
        for name in names:
            make_method(name)
        loaded = {name for name in sys.modules if name.startswith("adagauss.methods.")} - before
        sys.stdout.write(f"{sorted(loaded)}\n")


def test_making_a_method_imports_its_module_only() -> None:
    assert printed(imported_by_making) == "['adagauss.methods.lwf']\n['adagauss.methods.adagauss']\n"


def test_old_names_are_accepted_and_removed_ones_say_what_to_use() -> None:
    names = old_names()
    for old, new in names["methods"].items():
        assert method_info(old) is method_info(new)
    for name in names["removed"]["method"]:
        with pytest.raises(ConfigError, match=rf"{name}' was removed in version 0.3: .*; use "):
            make_method(name)
    for name, instead in names["removed"]["preset"].items():
        method, preset = name.split(maxsplit=1)
        with pytest.raises(
            ConfigError, match=rf"preset '{re.escape(name)}' was removed in version 0.3: {instead[:20]}"
        ):
            make_method(method, preset)
        settings = dict(re.findall(r"(\S+)=(\S+?)(?:,|$| )", instead))
        make_method(method, settings=settings)


def test_old_setting_keys_are_accepted_and_removed_ones_say_what_to_use() -> None:
    spec = {**plain(make_method("adagauss").drift), "kind": "adapter", "mean_by": "samples", "fallback": False}
    assert Part.build("drift", spec) == make_method("adagauss").drift
    with pytest.raises(ConfigError, match=r"drift.fallback was removed in version 0.3: use drift.kind=affine"):
        make_method("adagauss", settings={"drift.fallback": True})
    method = make_method("adagauss", settings={"classifier.tied": 0.5, "drift.least_steps": 7})
    assert (plain(method.classifier)["pooled_shrinkage"], plain(method.drift)["min_steps"]) == (0.5, 7)
    with pytest.raises(ConfigError, match=r"backbone.companion was removed in version 0.3: use more patches"):
        make_method("adagauss", settings={"backbone.companion": {"name": "patches"}})
