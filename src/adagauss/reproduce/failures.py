"""Why something could not be computed, kept for tables and pages written later; it is tried again next time."""

from __future__ import annotations

import json
from pathlib import Path

from adagauss.utils.checkpoint import save_json
from adagauss.utils.files import IrregularFileError, read_text


class Failures:
    """One small file per failure, by the name of what failed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, name: str, reason: str) -> None:
        save_json(self._file(name), {"reason": reason})

    def forget(self, name: str) -> None:
        """It has worked now."""
        self._file(name).unlink(missing_ok=True)

    def reason(self, name: str) -> str | None:
        """Why it failed; None if it did not, or if that cannot be read."""
        try:
            return str(json.loads(read_text(self._file(name)))["reason"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError, IrregularFileError):
            return None

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.json"
