"""Where a run was started: the data, the machine and the versions; and what it means if they have changed since."""

from __future__ import annotations

import hashlib
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

import adagauss
from adagauss.data.dataset import Dataset
from adagauss.data.fingerprint import fingerprints
from adagauss.distributed.processes import Processes
from adagauss.errors import CheckpointError
from adagauss.experiments.run import DATA, ENVIRONMENT, RunFolder
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime

COMMAND, COMMIT = "command", "commit"
"""Kept with the environment of a run, and not compared when it is resumed: the digest of the source says more."""
PACKAGES = ("adagauss", "torch", "lightning-fabric", "numpy", "scikit-learn", "pillow")
ROUNDING = "numbers may differ in their last digits, and training makes such differences grow"
MEANINGS = {
    "source": "its numbers may differ",
    "adagauss": "its numbers may differ",
    "pillow": "image files may be decoded to slightly other pixels",
    "threads": f"sums are divided differently, so {ROUNDING}",
    "processor": f"other instructions round differently, so {ROUNDING}",
    "device": f"other instructions round differently, so {ROUNDING}",
    "processes": f"sums are divided differently, so {ROUNDING}",
    "batch norm": "its numbers will differ",
}
"""What a difference means for the numbers; others round differently."""
UNSAID = {"processes": "1", "batch norm": "global"}
"""What runs had before they noted it."""


def environment(device: torch.device | str = "cpu", processes: Processes | None = None) -> dict[str, str]:
    """Versions, machine and processes, stored with every run."""
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
        "batch norm": processes.batch_norm,
    }


def differences(before: Mapping[str, object], now: Mapping[str, str]) -> list[str]:
    """What has changed, and what it means.

    >>> differences({"threads": "2", "python": "3.12.1"}, {"threads": "1", "python": "3.12.1"})[0][:32]
    'other threads (2, now 1): sums a'
    """
    found = []
    for key, value in now.items():
        then = before.get(key, UNSAID.get(key))
        if then != value:
            name = "code" if key == "source" else key
            found.append(f"other {name} ({then}, now {value}): {MEANINGS.get(key, ROUNDING)}")
    return found


def code_name(started: Mapping[str, object]) -> str:
    """Version, commit and digest of the code that began a run, from its environment; a release has no commit.

    >>> code_name({"adagauss": "0.2.0", "commit": "0123456789ab", "source": "abcdef0123"})
    '0.2.0, commit 0123456789ab, source abcdef0123'
    """
    version, source = started.get("adagauss"), started.get("source")
    if not version or not source:
        return "of unknown version"
    return f"{version}, " + (f"commit {started[COMMIT]}, " if started.get(COMMIT) else "") + f"source {source}"


def begin(folder: RunFolder, dataset: Dataset, runtime: Runtime) -> None:
    """Keep the environment and the fingerprints of the data in a run folder."""
    folder.write_json(ENVIRONMENT, {**environment(runtime.device, runtime.processes), **_beginning()})
    folder.write_json(DATA, fingerprints(dataset))


def check_resumed(folder: RunFolder, dataset: Dataset, reporter: Reporter, runtime: Runtime) -> None:
    """Refuse to continue a run on other data; report what else has changed since it was started."""
    check_data(folder, dataset, reporter)
    before = folder.read_json_or_nothing(ENVIRONMENT)
    if not before:
        reporter.message(
            f"{folder.path / ENVIRONMENT} is missing or damaged: if this machine or its software has changed since the "
            "run was started, its numbers may differ"
        )
    elif found := differences(before, environment(runtime.device, runtime.processes)):
        reporter.message(f"{folder.path} was started with " + "; ".join(found))


def check_data(folder: RunFolder, dataset: Dataset, reporter: Reporter) -> None:
    """Refuse other data than those that the run was started on."""
    before, now = folder.read_json_or_nothing(DATA), fingerprints(dataset)
    if not before:
        reporter.message(
            f"{folder.path / DATA} is missing or damaged, so it cannot be checked that the run was started on the same "
            "data; what is there now is noted for the next time"
        )
        folder.write_json(DATA, now)
        return
    changed = [name for name, digest in now.items() if before.get(name) != digest]
    if changed:
        raise CheckpointError(
            f"{folder.path} was started on other data ({', '.join(changed)} changed since), and results on a mixture "
            "mean nothing: bring the old data back, or start a new run with another --out"
        )


@cache
def source_digest() -> str:
    """A short digest of the installed source code of the library."""
    root = Path(adagauss.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:10]


@cache
def commit() -> str | None:
    """The commit of the library's source if it runs from a repository of its own; ``-dirty`` if files were changed."""
    root = Path(adagauss.__file__).parent
    try:
        # Installed into an environment within someone's repository, it is not part of that repository.
        if not _git(root, "ls-files", "__init__.py"):
            return None
        return _git(root, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _beginning() -> dict[str, str]:
    """The command and the commit, as far as they are known: an interactive session has no command."""
    program, *words = sys.argv or [""]
    name = Path(program).name
    # `python -m adagauss` puts the path of a file there.
    shown = ["python", "-m", "adagauss"] if name == "__main__.py" else [name]
    known = {COMMAND: "" if name in ("", "-c") else shlex.join([*shown, *words]), COMMIT: commit()}
    return {key: value for key, value in known.items() if value}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
