"""What the checkpoints alone tell about the memory: no image is needed."""

from __future__ import annotations

import torch
from torch import Tensor

from adagauss.analysis.distances import class_spectra
from adagauss.analysis.measured.kept import Tables
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learn import Learner
from adagauss.errors import UnsupportedError
from adagauss.experiments.config import RunConfig
from adagauss.experiments.run import RunFolder
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime


def measure_memory(folder: RunFolder, config: RunConfig, reporter: Reporter) -> Tables:
    """Eigenvalues of the memorised covariances, and shifts of the means, after each task.

    ``memory.spectra`` is (T, C, S); ``memory.shift`` is (T, C, 2): ‖μ_c after − μ_c before‖₂ of the drift in each task,
    and the same over √tr Σ_c before. NaN stands where a class was not known yet.
    """
    count = folder.finished_tasks()
    banks: list[ClassGaussians] = []
    with reporter.progress(f"memory of {folder.path.name}", count) as advance:
        for index in range(count):
            bank = Learner.load(folder.checkpoint(index), Runtime(config.runtime, config.seed)).memory
            if not len(bank):
                raise UnsupportedError(f"{config.method_name} remembers nothing per class")
            banks.append(bank)
            advance()
    classes = len(banks[-1])
    shift = torch.full((count, classes, 2), torch.nan, dtype=torch.float64)
    for index in range(1, count):
        known = len(banks[index - 1])
        shift[index, :known] = _shift(banks[index - 1], banks[index])
    tables = {"memory.shift": shift}
    if banks[-1].covariance != "none":
        spectra = torch.full((count, classes, banks[-1].size), torch.nan, dtype=torch.float64)
        for index, bank in enumerate(banks):
            spectra[index, : len(bank)] = class_spectra(bank)
        tables["memory.spectra"] = spectra
    return tables


def _shift(before: ClassGaussians, after: ClassGaussians) -> Tensor:
    moved: Tensor = torch.linalg.vector_norm(before.means - after.select(before.labels).means, dim=1)
    if before.covariance == "none":
        return torch.stack([moved, torch.full_like(moved, torch.nan)], 1).cpu()
    # √tr Σ: the root of the sum of the eigenvalues.
    spread = class_spectra(before).sum(1).clamp_min(0).sqrt().to(moved)
    return torch.stack([moved, moved / spread], 1).cpu()
