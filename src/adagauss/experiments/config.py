"""Everything a run depends on, and how it is resolved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr, model_validator

from adagauss.backbones.extractor import NAMED_WEIGHTS
from adagauss.core.config import Config, Layer, plain
from adagauss.data.dataset import dataset_info
from adagauss.data.stream import StreamConfig, divided_sizes
from adagauss.errors import ConfigError
from adagauss.experiments.protocols import Protocol
from adagauss.methods import Method, dataset_layers, method_info, resolve_method
from adagauss.methods.base import stored_method_name
from adagauss.utils.runtime import RuntimeConfig

SHARED_RECIPE = "shared recipe"
"""Origin of the settings of a recipe for all methods."""


class RunConfig(Config):
    """Everything a run depends on, resolved: equal configurations on one machine give equal numbers."""

    method_name: str
    preset: str | None = None
    stream: StreamConfig = Field(default_factory=StreamConfig)
    method: Method
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)
    seed: int = 0
    scale: str = "paper"
    """``cpu`` marks a protocol reduced for a CPU: its numbers are comparable only with each other."""

    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _import_method(cls, data: Any) -> Any:
        """Import the module of the method, which a stored configuration names, and use its present name."""
        if not isinstance(data, Mapping) or not isinstance(name := data.get("method_name"), str):
            return data
        current = {key: value for key, value in data.items() if key != "diagnostics"}  # a setting of 0.2.0
        return {**current, "method_name": stored_method_name(name)}

    @property
    def origins(self) -> Mapping[str, str]:
        """The layer that each setting of the method comes from, by dotted key; empty if it was read from a file."""
        return self._origins

    def digest(self) -> str:
        """A short digest of this configuration without the seed."""
        data = {key: value for key, value in plain(self).items() if key != "seed"}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:10]

    def check_inputs(self) -> None:
        """Raise if weights of the network are missing or the tasks do not fit the dataset, before it is read.

        A run that has learned a task no longer needs the weights.
        """
        self.method.backbone.check()
        info, order = dataset_info(self.stream.dataset), self.stream.class_order
        if info.classes is not None:
            divided_sizes(self.stream, len(order) if isinstance(order, tuple) else info.classes, info.name)
        weights = self.method.backbone.weights
        if weights is not None and weights not in NAMED_WEIGHTS and not Path(weights).is_file():
            raise ConfigError(
                f"backbone.weights: {weights} does not exist; give the path of a .safetensors or .pth file"
            )

    @property
    def folder_name(self) -> str:
        """The name of its run folder among those of other methods, settings and seeds."""
        return f"{self.method_name}-{self.digest()}-seed{self.seed}"


def make_config(
    method: str,
    stream: StreamConfig,
    *,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    seed: int = 0,
    runtime: RuntimeConfig | None = None,
    protocol: Protocol | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Resolve a method; each layer overrides those before it.

    The order: composition, preset, the authors' settings for this dataset, a recipe for all methods, settings of the
    dataset and of the protocol for any method, the user's settings, epochs. A dataset does not override the authors'
    settings for it, and a protocol's settings for one preset do not override the recipe for all methods. What
    ``runtime`` leaves out, the protocol may set.
    """
    info = method_info(method)
    chosen = preset or info.default_preset
    authors = info.authors_layer(stream.dataset)
    layers = [
        authors,
        Layer(SHARED_RECIPE, recipe or {}),
        *(layer.without(authors.settings) for layer in dataset_layers(stream.dataset)),
        *(protocol.layers(chosen, recipe) if protocol else []),
    ]
    resolved = resolve_method(method, preset, settings, layers, epochs)
    given = (runtime or RuntimeConfig()).model_dump(exclude_unset=True)
    config = RunConfig(
        method_name=stored_method_name(method),
        preset=chosen,
        stream=stream,
        method=resolved.config,
        runtime=RuntimeConfig.of({**(protocol.runtime if protocol else {}), **given}, "runtime."),
        seed=seed,
        scale=protocol.scale if protocol else "paper",
    )
    config._origins = resolved.origins
    return config
