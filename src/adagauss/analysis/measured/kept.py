"""What was measured is kept beside the run, so that drawing again is free. Only statistics are kept, no features.

Every file says from which checkpoints, and on which data, it was measured; one that does not fit the run as it is now,
or is damaged, is measured again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from torch import Tensor

from adagauss.analysis.measured.quantities import Quantity
from adagauss.errors import AdagaussError, CheckpointError
from adagauss.experiments.run import DATA, RunFolder
from adagauss.utils.checkpoint import load_tensors, save_tensors, stored_digest

VERSION = 2
"""Of the definitions: what was measured with other ones is measured again."""
Tables = dict[str, Tensor]

logger = logging.getLogger(__name__)


def file_of(folder: RunFolder, quantity: Quantity) -> Path:
    """Where a quantity is kept."""
    return folder.path / "analysis" / f"{quantity}.safetensors"


def read(folder: RunFolder, quantity: Quantity) -> Tables | None:
    """What was kept of a quantity, if it was measured from the run as it is now."""
    path = file_of(folder, quantity)
    if not path.exists():
        return None
    try:
        tables, facts = load_tensors(path, "measured")
    except CheckpointError as error:  # it only saves time
        logger.warning("%s; it is measured again", error)
        return None
    return tables if facts.get("source") == _source(folder) else None


def write(folder: RunFolder, quantity: Quantity, tables: Tables) -> str | None:
    """Keep a quantity; returns why it could not be kept, which costs only the time to measure it again."""
    try:
        save_tensors(file_of(folder, quantity), "measured", tables, {"source": _source(folder)})
    except (AdagaussError, OSError) as error:
        return f"what was measured of {folder.path} is not kept and will be measured again ({error})"
    return None


def _source(folder: RunFolder) -> dict[str, Any]:
    """What the numbers depend on: definitions, data, and the networks and answers of every finished task."""
    files = [folder.checkpoint(index) for index in range(folder.finished_tasks())]
    data = json.dumps(folder.read_json_or_nothing(DATA), sort_keys=True)
    return {
        "version": VERSION,
        "data": hashlib.sha256(data.encode()).hexdigest(),
        "checkpoints": [stored_digest(path) if path.exists() else "" for path in files],
    }
