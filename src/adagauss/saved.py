"""What a saved learner says about itself beside its tensors, checked before anything is made of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError, model_validator
from torch import Tensor
from torch.overrides import TorchFunctionMode

from adagauss.backbones import BackboneConfig, build_extractor
from adagauss.data.images import Label
from adagauss.errors import AdagaussError, CheckpointError, DataError
from adagauss.methods import Method

Name = StrictStr | StrictBool | StrictInt | Annotated[float, Field(strict=True, allow_inf_nan=False)]
Pixel = Annotated[int, Field(strict=True, ge=0, le=255)]
Side = Annotated[int, Field(strict=True, ge=1, le=2**14)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Outputs = Annotated[int, Field(strict=True, ge=0)]
UNFIT = (AdagaussError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What goes wrong where the parts of a file do not fit together."""
SPARE = 2**22
"""Numbers that a network may have beyond those in the file."""


class KnowledgeFacts(BaseModel):
    """The classes, and which states there are."""

    model_config = ConfigDict(frozen=True)

    tasks: list[list[Name]]
    remembered: list[Name]
    head: list[tuple[Outputs, Outputs]]
    parts: list[str]


class InputFacts(BaseModel):
    """How images are prepared."""

    model_config = ConfigDict(frozen=True)

    mean: list[Number]
    std: list[Annotated[Number, Field(gt=0)]]
    size: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = None


class LearnerFacts(BaseModel):
    """All facts of a saved learner."""

    model_config = ConfigDict(frozen=True)

    method: dict[str, Any]
    knowledge: KnowledgeFacts
    shape: tuple[Side, Side, Side]
    mean: tuple[Number, ...]
    std: tuple[Annotated[Number, Field(gt=0)], ...]
    input: InputFacts
    seed: Annotated[int, Field(strict=True)]
    scale: tuple[Pixel, Pixel] | None = None
    """The smallest and largest pixel of all tasks."""
    about: dict[str, Any]

    @model_validator(mode="after")
    def _statistics_of_channels(self) -> LearnerFacts:
        if not {len(self.mean), len(self.std)} <= {1, self.shape[0]}:
            raise ValueError("images have one mean and one deviation for each channel, or for all of them")
        return self

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> LearnerFacts:
        """The facts, or an error that names the first one that cannot be."""
        try:
            return cls.model_validate(facts)
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(map(str, problem["loc"])) or "facts"
            raise DataError(f"{place}: {problem['msg']}") from None


def check_size(method: Method, facts: LearnerFacts, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a network far larger than the file, or for other images: it is first made without taking memory."""
    described = _described(method.backbone, facts.shape, tuple(facts.mean), tuple(facts.std))
    if described is None:
        return
    channels, wanted = described
    if {len(facts.input.mean), len(facts.input.std)} != {channels}:
        raise DataError(f"its network takes {channels} channels, and images are prepared for another number")
    found = sum(tensor.numel() for tensor in tensors.values())
    if wanted > found + SPARE:
        raise DataError(f"its network would have {wanted:,} numbers, and the file holds {found:,}")


class _NothingDrawn(TorchFunctionMode):
    """Leaves initial weights undrawn: without memory they mean nothing, and torch would load its compiler for them."""

    def __torch_function__(
        self, function: Any, types: Any, given: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        if function in (Tensor.normal_, Tensor.uniform_):
            return given[0]
        return function(*given, **(named or {}))


@lru_cache(maxsize=32)
def _described(
    backbone: BackboneConfig, shape: tuple[int, int, int], mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[int, int] | None:
    """Channels and numbers of a network, which is not made; None if that cannot be said without making it."""
    if ":" in backbone.name:  # a network of another library, which may look for its description elsewhere
        return None
    try:
        with torch.device("meta"), _NothingDrawn():
            network = build_extractor(backbone, shape, mean, std, False)
    except AdagaussError:
        raise
    except Exception:  # a network that cannot be made without memory
        return None
    return network.mean.numel(), sum(tensor.numel() for tensor in network.state_dict().values())


def check_labels(labels: Sequence[Label]) -> None:
    """Refuse, before it is saved, a label that a file cannot hold."""
    for label in labels:
        if not isinstance(label, (str, int, float, bool)):
            raise CheckpointError(
                f"label {label!r} is a {type(label).__name__}; a saved learner can hold labels that are text or numbers"
            )
        if isinstance(label, float) and not math.isfinite(label):
            raise CheckpointError(f"label {label!r} is no number that a saved learner can hold: rename the class")
