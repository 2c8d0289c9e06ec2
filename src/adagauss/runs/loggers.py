"""TensorBoard, MLflow and Weights & Biases as loggers of Lightning Fabric that take figures too."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from time import time
from typing import Any

import numpy as np
from lightning_fabric.loggers.logger import Logger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger
from PIL import Image

PROJECT = "adagauss"
PARAMETERS_AT_ONCE = 100
"""How many settings MLflow takes in one request."""


class FigureLogger(Logger, ABC):
    """A logger that takes pictures too."""

    @abstractmethod
    def log_figures(self, files: Sequence[Path]) -> None:
        """Send picture files, each under its name."""


class TensorBoardFolder(TensorBoardLogger, FigureLogger):
    """The folder ``tensorboard`` of a run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, name="", version="tensorboard")

    def log_figures(self, files: Sequence[Path]) -> None:
        for file in files:
            with Image.open(file) as picture:
                self.experiment.add_image(f"figures/{file.stem}", np.asarray(picture.convert("RGB")), dataformats="HWC")
        self.save()


class MlflowLogger(FigureLogger):
    """A run of the experiment ``adagauss`` at MLFLOW_TRACKING_URI."""

    def __init__(self, name: str, identity: str | None) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric, self._param = Metric, Param
        # A tracker that does not answer must not stop a run for an hour.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        self._client = MlflowClient()
        if identity is None:
            experiment = self._client.get_experiment_by_name(PROJECT)
            place = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
            identity = str(self._client.create_run(place, run_name=name).info.run_id)
        else:
            self._client.update_run(identity, status="RUNNING")
        self._id = identity

    @property
    def name(self) -> str:
        return PROJECT

    @property
    def version(self) -> str:
        return self._id

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        now = int(1000 * time())
        self._client.log_batch(
            self.version, metrics=[self._metric(key, value, now, step or 0) for key, value in metrics.items()]
        )

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        given = vars(params) if isinstance(params, Namespace) else params
        made = [self._param(key, str(value)) for key, value in given.items()]
        for start in range(0, len(made), PARAMETERS_AT_ONCE):
            self._client.log_batch(self.version, params=made[start : start + PARAMETERS_AT_ONCE])

    def log_figures(self, files: Sequence[Path]) -> None:
        for file in files:
            self._client.log_artifact(self._id, str(file), "figures")

    def save(self) -> None:
        """Requests have been answered already."""

    def finalize(self, status: str) -> None:
        self._client.set_terminated(self.version, "FINISHED" if status == "success" else "FAILED")


class WandbLogger(FigureLogger):
    """A run of the project ``adagauss``, or of WANDB_PROJECT."""

    def __init__(self, folder: Path, identity: str | None) -> None:
        import wandb

        settings = wandb.Settings(console="off", silent=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            dir=str(folder),
            id=identity,
            resume="allow",
            settings=settings,
        )
        self._image = wandb.Image
        self._axes: set[str] = set()

    @property
    def name(self) -> str:
        return PROJECT

    @property
    def version(self) -> str:
        return str(self._run.id)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        # Stages have steps of their own, so that the axis of each is its epochs or tasks.
        for group in {key.partition("/")[0] for key in metrics}:
            if group not in self._axes:
                self._run.define_metric(f"{group}/*", step_metric=f"{group}/step")
                self._axes.add(group)
            metrics = {**metrics, f"{group}/step": float(step or 0)}
        self._run.log(metrics)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        self._run.config.update(vars(params) if isinstance(params, Namespace) else params, allow_val_change=True)

    def log_figures(self, files: Sequence[Path]) -> None:
        self._run.log({f"figures/{file.stem}": self._image(str(file)) for file in files})

    def save(self) -> None:
        """A process of its own sends what it was given, also after this one is killed."""

    def finalize(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "success" else 1)
