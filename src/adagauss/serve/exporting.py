"""The model as ONNX, made by another process: tracing a network changes state of torch that the threads here share."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from adagauss.errors import AdagaussError
from adagauss.serve.errors import Refusal
from adagauss.serve.store import Store

SECONDS = 600.0


class Exporter:
    """Exports one version once, and keeps the file for the next who asks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = tempfile.TemporaryDirectory(prefix="adagauss-onnx-")
        self._lock = asyncio.Lock()
        self._version = -1

    async def file(self) -> Path:
        """The ONNX file of the present model."""
        async with self._lock:
            target = Path(self._folder.name) / "model.onnx"
            version = self._store.snapshot.version
            if version != self._version or not target.exists():
                await _export(self._store.path, target)
                self._version = version
            return target

    def close(self) -> None:
        """Remove the file."""
        self._folder.cleanup()


async def _export(model: Path, target: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, str(model), str(target), stderr=asyncio.subprocess.PIPE
    )
    try:
        _, said = await asyncio.wait_for(child.communicate(), SECONDS)
    except TimeoutError:
        raise Refusal(504, f"the export took longer than {SECONDS:g} seconds") from None
    finally:
        if child.returncode is None:
            child.kill()
    if child.returncode:
        lines = said.decode("utf-8", "replace").strip().splitlines()
        raise Refusal(409 if child.returncode == 2 else 500, lines[-1] if lines else "the export failed")


def main(arguments: list[str]) -> int:
    """Export a saved classifier: ``python -m adagauss.serve.exporting MODEL OUT.onnx``."""
    from adagauss.estimator import IncrementalClassifier

    try:
        IncrementalClassifier.load(arguments[0], device="cpu").export(arguments[1])
    except (AdagaussError, ImportError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
