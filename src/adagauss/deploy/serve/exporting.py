"""The model as ONNX, made by another process: tracing a network changes state of torch that the threads here share."""

from __future__ import annotations

import asyncio
import sys
from io import BufferedReader
from pathlib import Path

from adagauss.deploy.serve.security import ApiError
from adagauss.deploy.serve.store import Store
from adagauss.errors import AdagaussError
from adagauss.utils.files import open_regular

SECONDS = 600.0


class Exporter:
    """Exports one version once, and keeps the file for the next who asks.

    The file has no name any more once it is opened: the system removes it with the last who reads it, also where this
    process is killed, and nothing of a class that is forgotten later stays on disk.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._version = -1
        self._kept: BufferedReader | None = None

    async def file(self) -> BufferedReader:
        """The ONNX file of the present model; others read it as well, so its position means nothing."""
        async with self._lock:
            version, kept = self._store.snapshot.version, self._kept
            if kept is None or version != self._version:
                target = self._store.history.export_file
                try:
                    await _export(self._store.path, target)
                    kept = open_regular(target)
                finally:
                    target.unlink(missing_ok=True)
                if version == self._store.snapshot.version:  # otherwise what was forgotten meanwhile would be kept
                    self._kept, self._version = kept, version
            return kept

    def drop(self) -> None:
        """Keep nothing; those who read it go on."""
        self._kept = None


async def _export(model: Path, target: Path) -> None:
    # Without -P, Python would look for modules in the current folder first, and run whatever it finds there.
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", __name__, str(model), str(target), stderr=asyncio.subprocess.PIPE
    )
    try:
        _, said = await asyncio.wait_for(child.communicate(), SECONDS)
    except TimeoutError:
        raise ApiError(504, f"the export took longer than {SECONDS:g} seconds") from None
    finally:
        if child.returncode is None:
            child.kill()
    if child.returncode:
        lines = said.decode("utf-8", "replace").strip().splitlines()
        raise ApiError(409 if child.returncode == 2 else 500, lines[-1] if lines else "the export failed")


def main(arguments: list[str]) -> int:
    """Export a saved classifier: ``python -m adagauss.deploy.serve.exporting MODEL OUT.onnx``."""
    from adagauss.classifier import IncrementalClassifier

    try:
        IncrementalClassifier.load(arguments[0], device="cpu").export(arguments[1])
    except (AdagaussError, ImportError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
