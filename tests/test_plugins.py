"""Plugins: packages and files that extend the library, in new processes, whose registries are empty."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from adagauss.cli import app
from adagauss.errors import AdagaussError, ConfigError
from adagauss.experiments import metrics
from adagauss.methods import make_method, methods
from adagauss.utils.registry import VARIABLE, import_plugin
from tests.processes import printed, started

TEMPLATE = Path(__file__).parent.parent / "examples" / "plugin"
MODULE = "adagauss_example"
RUN = ("run", "-m", "momentum", "-d", "stripes", "--tasks", "3", "-s", "backbone.name=tiny_net", "--quiet")


def install(site: Path, module: str, source: str | None = None) -> Path:
    """Install a package with one plugin into a folder, as `pip install --target` does."""
    about = site / f"{module}-0.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text(f"[adagauss.plugins]\nplugin = {module}\n")
    text = source if source is not None else (TEMPLATE / f"{module}.py").read_text(encoding="utf-8")
    (site / f"{module}.py").write_text(text, encoding="utf-8")
    return site


def commands(site: Path | None, *lines: tuple[str, ...]) -> None:
    """Run commands with a folder of packages, and print warnings and errors."""
    sys.path += [str(site)] if site else []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for words in lines:
            try:
                app(words, standalone_mode=False)
            except AdagaussError as error:
                sys.stdout.write(f"error: {error}\n")
    sys.stdout.writelines(f"warning: {one.message}\n" for one in caught)


def in_environment(variable: str, work: Callable[..., None], *given: object) -> None:
    os.environ[VARIABLE] = variable
    work(*given)


def test_a_run_of_an_installed_plugin_is_killed_resumed_analysed_and_reported(tmp_path: Path) -> None:
    site, killed, whole = install(tmp_path / "site", MODULE), tmp_path / "killed", tmp_path / "whole"
    process = started(commands, site, (*RUN, "-e", "5", "--out", str(killed)))
    deadline = time.monotonic() + 120
    while not (killed / "tasks" / "01" / "evaluation.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.join()
    shown = printed(
        commands,
        site,
        ("run", "--out", str(killed), "--resume", "--quiet"),
        (*RUN, "-e", "5", "--out", str(whole)),
        ("info", str(killed)),
        ("analyse", str(killed), "--study", "accuracy", "--out", str(tmp_path / "figures"), "--quiet"),
        ("report", str(killed), "--study", "none", "--out", str(tmp_path / "page.html"), "--quiet"),
        ("list", "metrics"),
    )
    assert "error" not in shown
    assert "worst task" in shown
    first, second = (json.loads((run / "metrics.json").read_text()) for run in (killed, whole))
    assert first["metrics"] == second["metrics"]
    assert first["metrics"]["worst_task"] == min(first["details"]["accuracy_matrix"][-1])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "worst task" in page
    assert "adagauss-example 0.1, source" in page
    stored = yaml.safe_load((killed / "config.yaml").read_text())
    assert stored["method_name"] == f"{MODULE}:momentum"
    assert stored["stream"]["dataset"] == f"{MODULE}:stripes"
    assert stored["method"]["backbone"]["name"] == f"{MODULE}:tiny_net"
    assert stored["method"]["drift"]["kind"] == f"{MODULE}:momentum"
    # Without the package, one message names it, and other runs are still reported.
    other = str(tmp_path / "other")
    shown = printed(
        commands,
        None,
        ("run", "-m", "analytic-patches", "-s", "backbone.options.filters=8", "--out", other, "--quiet"),
        ("run", "--out", str(killed), "--resume", "--quiet"),
        ("report", str(killed), other, "--study", "none", "--out", str(tmp_path / "without.html"), "--quiet"),
    )
    assert shown.count("error") == 1
    assert f"error: {killed}: the module '{MODULE}' cannot be found" in shown
    assert f"plugin {MODULE} (adagauss-example 0.1, source" in shown
    assert "1 run:" in shown


def test_a_file_is_named_on_the_command_line_or_in_the_environment(tmp_path: Path) -> None:
    file, run = tmp_path / "own.py", tmp_path / "run"
    shutil.copy(TEMPLATE / f"{MODULE}.py", file)
    options = ("-s", f"backbone.name={file}:tiny_net", "-e", "1", "--tasks", "2", "--quiet", "--out", str(run))
    shown = printed(commands, None, ("run", "-m", f"{file}:momentum", "-d", f"{file}:stripes", *options))
    assert "error" not in shown
    assert f"{file}, source" in json.loads((run / "environment.json").read_text())["plugin own"]
    shown = printed(commands, None, ("info", str(run)))
    assert "name its file in ADAGAUSS_PLUGINS; the run was started with" in shown
    assert f"plugin own ({file}, source" in shown
    shown = printed(in_environment, str(file), commands, None, ("info", str(run)), ("list", "datasets"))
    assert "own:momentum" in shown
    assert "Stripes" in shown
    assert "error" not in shown


BROKEN = {
    "raises": ("1 / 0\n", "ZeroDivisionError: division by zero"),
    "exits": ("raise SystemExit(3)\n", "SystemExit: 3"),
    "lacks": ("import nowhere_at_all\n", "No module named 'nowhere_at_all'"),
    "twice": (
        "from adagauss import register_metric\n@register_metric('same', 'one')\ndef one(runs): ...\n"
        "@register_metric('same', 'two')\ndef two(runs): ...\n",
        "twice.two cannot be the metric 'same': twice.one has this name",
    ),
    "taken": (
        "from adagauss import make_method, register_method\n"
        "@register_method('fecam', title='', family='', stores='', paper='')\ndef mine(): return make_method('sdc')\n",
        "taken.mine cannot be the method 'fecam': adagauss.methods.fecam.fecam has this name",
    ),
}


def test_a_broken_plugin_is_named_once_and_breaks_nothing(tmp_path: Path) -> None:
    for name, (source, _) in BROKEN.items():
        install(tmp_path, name, source)
    run = ("run", "-m", "fecam", "-d", "digits", "--tasks", "2", "-e", "1", "-s", "backbone.name=convnet", "--quiet")
    lists = [("list", kind) for kind in ("methods", "backbones", "datasets", "metrics")]
    shown = printed(commands, tmp_path, *lists, (*run, "--out", str(tmp_path / "run")))
    assert "error" not in shown
    assert "A_last" in shown
    messages = [line for line in shown.splitlines() if line.startswith("warning: the plugin")]
    assert len(messages) == len(BROKEN)
    for name, (_, reason) in BROKEN.items():
        (message,) = (line for line in messages if f" {name} of the package {name} 0.1 " in line)
        assert reason in message
        assert message.endswith("uninstall the package")


def test_plugins_are_imported_only_if_a_name_is_not_found(tmp_path: Path) -> None:
    install(tmp_path, "quiet", "import sys\nsys.stdout.write('imported ')\n")
    assert printed(names_of_the_library, tmp_path) == "first imported second"


def names_of_the_library(site: Path) -> None:
    sys.path.append(str(site))
    make_method("fecam", settings={"backbone.name": "convnet", "drift.kind": "affine"})
    sys.stdout.write("first ")
    with pytest.raises(ConfigError, match="unknown method 'fecamm'; did you mean 'fecam'"):
        make_method("fecamm")
    with pytest.raises(ConfigError, match="unknown method 'fecamm'"):
        make_method("fecamm")
    sys.stdout.write("second")


def test_a_file_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.py does not exist: give the path of a Python file"):
        import_plugin("nowhere.py")
    (tmp_path / "json.py").touch()
    with pytest.raises(ConfigError, match=r"json\.py cannot be imported, since .* has the same name: rename the file"):
        import_plugin(str(tmp_path / "json.py"))
    (tmp_path / "wrong_syntax.py").write_text("def:\n")
    with pytest.raises(ConfigError, match=r"wrong_syntax\.py cannot be imported \(SyntaxError"):
        make_method(f"{tmp_path}/wrong_syntax.py:mine")
    assert "mine" not in methods()


@pytest.mark.parametrize("value", [float("nan"), None])
def test_a_metric_that_fails_leaves_the_others(value: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    one = metrics.Metric("odd", "odd", lambda runs: value)  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(metrics, "METRICS", (*metrics.METRICS[:1], one))
    task = torch.tensor([0, 1])
    with pytest.warns(UserWarning, match=r"the metric 'odd' is not available \((NaN|TypeError.*)\): correct its code"):
        found = metrics.summary([metrics.Evaluation(task, task, task, (2,))])
    assert found["a_last"] == 1
    with pytest.raises(ConfigError, match="the metric 'a_last' exists: choose another name"):
        metrics.register_metric("a_last", "mine")(lambda runs: 0.0)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("memory.with_statistics(memory.means * float('nan'), None)", "returned wrong statistics (means of"),
        ("None", "returned NoneType: its `move` must return ClassGaussians"),
    ],
)
def test_a_drift_that_returns_nonsense_is_named_and_the_run_stays_readable(
    returned: str, message: str, tmp_path: Path
) -> None:
    file, run = tmp_path / "odd.py", tmp_path / "run"
    file.write_text(
        "from adagauss import Drift\nclass Odd(Drift):\n    kind = 'odd'\n"
        f"    def move(self, memory, now):\n        return {returned}\n"
    )
    options = ("-s", f"drift.kind={file}:odd", "-s", "backbone.name=convnet", "-d", "digits", "--tasks", "2")
    shown = printed(
        in_environment, str(file), commands, None,
        ("run", "-m", "sdc", *options, "-e", "1", "--out", str(run), "--quiet"),
        ("info", str(run)),
    )  # fmt: skip
    assert f"error: task 2: drift 'odd' {message}" in shown
    assert shown.count("error") == 1
    assert f"/{run.name}\nknows" in shown.partition("model")[2]
