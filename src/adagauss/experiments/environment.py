"""Where a run was started: the data, the machine and the versions, compared when it is resumed."""

from __future__ import annotations

import hashlib
import platform
import shlex
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

import adagauss
from adagauss.core.config import flatten, plain
from adagauss.data.dataset import Dataset
from adagauss.data.fingerprint import fingerprints
from adagauss.distributed.processes import Processes
from adagauss.errors import CheckpointError
from adagauss.experiments.config import RunConfig
from adagauss.experiments.run import DATA, PLUGIN, RunFolder
from adagauss.utils.progress import Reporter
from adagauss.utils.registry import module_name, package_of

COMMAND = "command"
"""Stored with the environment of a run, and not compared when it is resumed."""
PACKAGES = ("adagauss", "torch", "lightning-fabric", "numpy", "scikit-learn", "pillow")


def environment(
    device: torch.device | str = "cpu", processes: Processes | None = None, config: RunConfig | None = None
) -> dict[str, str]:
    """Versions, machine and processes, stored with every run, and the plugins that its configuration names."""
    processes = processes or Processes()
    return {
        **{name: version(name) for name in PACKAGES},
        "source": source_digest(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "device": str(device),
        "threads": str(torch.get_num_threads()),
        "processes": str(processes.world),
        **(_plugins(config) if config else {}),
    }


def _plugins(config: RunConfig) -> dict[str, str]:
    """The package or file of each custom object of a configuration, and a digest of its code."""
    named = {module_name(str(value).rpartition(":")[0]) for value in flatten(plain(config)).values()}
    files = {module: getattr(sys.modules.get(module), "__file__", None) for module in sorted(named)}
    return {
        PLUGIN + module: f"{package_of(module) or file}, source {source_digest(Path(file))}"
        for module, file in files.items()
        if file is not None
    }


def check_data(folder: RunFolder, dataset: Dataset, reporter: Reporter) -> None:
    """Refuse other data than those that the run was started on."""
    before, now = folder.data, fingerprints(dataset)
    changed = [name for name, digest in now.items() if before.get(name) != digest]
    if not before:
        reporter.message(
            f"{folder.path / DATA} is missing or damaged, so the data are not compared; those of today are stored there"
        )
        folder.write_json(DATA, now)
    elif changed:
        raise CheckpointError(
            f"{folder.path} was started on other data ({', '.join(changed)} changed since): restore the old data, or "
            "start a new run with another --out"
        )


@cache
def source_digest(place: Path = Path(adagauss.__file__)) -> str:
    """A short digest of the source code of the library, or of another file; an ``__init__`` is its whole package."""
    root = place.parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")) if place.name == "__init__.py" else [place]:
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:10]


def command() -> dict[str, str]:
    """The command of this process under `COMMAND`; empty in an interactive session."""
    program, *words = sys.argv or [""]
    name = Path(program).name
    # `python -m adagauss` puts the path of a file there.
    shown = ["python", "-m", "adagauss"] if name == "__main__.py" else [name]
    return {} if name in ("", "-c") else {COMMAND: shlex.join([*shown, *words])}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
