"""Experiment trackers by name, each behind the logger interface of Lightning Fabric, which is imported only if used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagauss.errors import unknown_name
from adagauss.utils.registry import import_extra

if TYPE_CHECKING:
    from adagauss.runs.loggers import FigureLogger

TRACKERS: Mapping[str, str] = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
"""The library of each tracker; its extra has the name of the tracker."""


def require_trackers(names: Sequence[str]) -> None:
    """Raise if a tracker does not exist or is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise unknown_name("tracker", name, TRACKERS)
        import_extra(TRACKERS[name], name, f"--log {name}")


class Opened:
    """A tracker at work on one run."""

    def __init__(self, name: str, folder: Path, known: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self.sent = int(known.get("sent", 0))
        self.broken = False
        self.drawn = bool(known.get("drawn"))
        identity = known.get("id")
        self._logger: FigureLogger | None = MAKERS[name](folder, identity, settings)
        self._id = str(self._logger.version)
        if identity is None:
            self._logger.log_hyperparams({key: _short(value) for key, value in settings.items()})

    @classmethod
    def failed(cls, name: str, known: Mapping[str, Any]) -> Opened:
        """A tracker that could not be opened."""
        made = cls.__new__(cls)
        made.sent, made.broken, made._logger, made._id = int(known.get("sent", 0)), True, None, str(known.get("id"))
        made.drawn = bool(known.get("drawn"))
        return made

    def send(self, values: dict[str, float], step: int) -> None:
        """Send one entry of a log, which must arrive even if this process is killed next."""
        if self._logger is not None:
            self._logger.log_metrics(values, step)
            self._logger.save()
            self.sent += 1

    def draw(self, files: Sequence[Path]) -> None:
        """Send the figures of a finished run, once."""
        if self._logger is not None and not self.drawn:
            self._logger.log_figures(files)
            self.drawn = True

    def facts(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {"sent": self.sent, "id": self._id, "drawn": self.drawn}

    def finalize(self, status: str) -> None:
        if self._logger is not None and not self.broken:
            self._logger.finalize(status)


def _short(value: Any) -> str | int | float:
    return value if isinstance(value, (int, float)) else str(value)[:500]


def _tensorboard(folder: Path, identity: str | None, settings: Mapping[str, Any]) -> FigureLogger:
    from adagauss.runs.loggers import TensorBoardFolder

    return TensorBoardFolder(folder)


def _mlflow(folder: Path, identity: str | None, settings: Mapping[str, Any]) -> FigureLogger:
    from adagauss.runs.loggers import MlflowLogger

    return MlflowLogger(folder.name, identity)


def _wandb(folder: Path, identity: str | None, settings: Mapping[str, Any]) -> FigureLogger:
    from adagauss.runs.loggers import WandbLogger

    return WandbLogger(folder, identity)


MAKERS: Mapping[str, Callable[[Path, str | None, Mapping[str, Any]], FigureLogger]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}
