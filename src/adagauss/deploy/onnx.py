"""Export a learner, including preprocessing, to one ONNX file."""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import adagauss
from adagauss.core.learn import Learner
from adagauss.core.predictor import Predictor
from adagauss.data.decode import PADDING, ResizeMode
from adagauss.errors import CheckpointError
from adagauss.utils.files import write_atomically
from adagauss.utils.registry import import_extra

FORMAT = 1
"""Version of inputs, outputs and metadata. Readers must reject other versions."""
INPUT, OUTPUTS = "pixels", ("probabilities", "label_index", "typicality")
FALSE_ALARMS = (0.01, 0.05, 0.1)
"""False-positive rates for which the file contains OOD thresholds."""
MOST_BYTES = 2**31 - 2**20
"""Maximum size of a protocol buffer, minus space for the graph."""
LEVELS = 255
# Pillow's weights of red, green and blue for grey images, in units of 2⁻¹⁶.
GREY_WEIGHTS = (19595, 38470, 7471)


def export_onnx(learner: Learner, path: Path | str) -> None:
    """Export a learner to an ONNX file. Running it requires only onnxruntime.

    Input ``pixels``: uint8 (N, H, W, 3), a batch of upright RGB images of the same size. Outputs ``probabilities``:
    float32 (N, C), ``label_index``: int64 (N,), the most probable class, and ``typicality``: float32 (N,). The metadata
    contain, as JSON, ``labels`` in the order of the columns; ``unknown``, which maps false-positive rates to the
    typicality below which an image belongs to no known class; ``format``; and ``facts`` about the learner. The file is
    replaced atomically.
    """
    learner.state.scorer  # noqa: B018  # raises if nothing has been learned
    import_extra("onnxscript", "onnx", "ONNX export")  # torch's exporter needs it
    onnx = import_extra("onnx", "onnx", "ONNX export")
    program = _program(DeployedPredictor(learner))
    size = sum(value.const_value.nbytes for value in program.model.graph.initializers.values() if value.const_value)
    if size > MOST_BYTES:
        raise CheckpointError(
            f"{path}: an ONNX file has at most 2 GB, but this learner needs {size / 1e9:.1f} GB: use fewer features"
        )
    channels, height, width = learner.shape
    metadata = {
        "format": FORMAT,
        "labels": learner.classes,
        "unknown": {str(rate): rate for rate in FALSE_ALARMS},
        "facts": {
            "adagauss": adagauss.__version__,
            "backbone": learner.method.backbone.name,
            "classifier": learner.method.classifier.kind,
            "features": learner.network.extractor.size,
            "channels": channels,
            "height": height,
            "width": width,
            "resize_mode": learner.resize_mode,
            "tasks": learner.tasks,
        },
    }
    for key, value in metadata.items():
        program.model.metadata_props[key] = json.dumps(value)
    model = program.model_proto
    onnx.checker.check_model(model, full_check=True)
    write_atomically(Path(path), model.SerializeToString())


class DeployedPredictor(nn.Module):
    """Map uint8 images (N, H, W, 3) of any size to probabilities, the most probable class and typicality."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        # A copy on the CPU in contiguous format; the learner is unchanged.
        predictor: Predictor = copy.deepcopy(learner.state.predictor).cpu().requires_grad_(False).eval()
        predictor.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.predictor = predictor
        self.channels, self.height, self.width = learner.shape
        self.resize_mode = learner.resize_mode

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        levels = pixels.permute(0, 3, 1, 2)
        levels = grey(levels) if self.channels == 1 else levels.float()
        images = resized(levels, self.height, self.width, self.resize_mode) / LEVELS
        scores, p_value = self.predictor(images)
        probabilities = torch.softmax(scores.double(), dim=1)
        return probabilities.float(), probabilities.argmax(1), p_value.float()


def grey(levels: Tensor) -> Tensor:
    """Convert (N, 3, H, W) to (N, 1, H, W) integer levels, exactly as Pillow does."""
    weights = torch.tensor(GREY_WEIGHTS, dtype=torch.int32).view(1, 3, 1, 1)
    total = (levels.int() * weights).sum(1, keepdim=True, dtype=torch.int32) + 2**15
    return torch.div(total, 2**16, rounding_mode="floor").float()


def resized(levels: Tensor, height: int, width: int, mode: ResizeMode) -> Tensor:
    """Resize images (N, C, H, W), as `adagauss.data.decode.fitted` does.

    With weights w_ij = max(0, 1 − |j + ½ − c_i| / max(1, s)), normalised over j, c_i = start + (i + ½)s and s the
    source pixels per target pixel, the image is round(W_down · round(X · W_acrossᵀ)): Pillow's bilinear filter,
    within one level of 255. Uses tensor operations only, so that the exported program accepts images of any size.
    """
    rows, columns = (torch.arange(levels.shape[axis], dtype=torch.float64) for axis in (2, 3))
    down, across = rows[-1] + 1, columns[-1] + 1
    used = torch.stack([down, across])
    inner = torch.tensor([height, width], dtype=torch.float64)
    if mode == "crop":
        fitting = torch.stack([torch.floor(across * height / width), torch.floor(down * width / height)])
        used = torch.minimum(used, fitting).clamp(min=1)
    elif mode == "pad":
        fitting = torch.stack([torch.floor(down * width / across), torch.floor(across * height / down)])
        inner = torch.minimum(inner, fitting).clamp(min=1)
    sideways, inside_across = _weights(columns, across, used[1], width, inner[1])
    downwards, inside_down = _weights(rows, down, used[0], height, inner[0])
    found = _rounded(downwards @ _rounded(levels @ sideways.mT))
    if mode == "pad":
        found = torch.where(inside_down.unsqueeze(1) & inside_across, found, float(PADDING))
    return found


def _weights(positions: Tensor, there: Tensor, used: Tensor, wanted: int, inner: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of the source pixels for each target pixel, and which target pixels show the image."""
    scale = used / inner
    targets = torch.arange(wanted, dtype=torch.float64) - torch.floor((wanted - inner) / 2)
    centres = torch.floor((there - used) / 2) + (targets + 0.5) * scale
    distances = (positions.unsqueeze(0) + 0.5 - centres.unsqueeze(1)).abs()
    weights = (1 - distances / scale.clamp(min=1)).clamp(min=0)
    normalised = weights / weights.sum(1, keepdim=True).clamp(min=1e-9)
    return normalised.float(), (targets >= 0) & (targets < inner)


def _rounded(levels: Tensor) -> Tensor:
    return torch.floor(levels + 0.5).clamp(0, LEVELS)


def _program(module: DeployedPredictor) -> Any:
    dimension = torch.export.Dim
    shapes = {0: dimension("batch"), 1: dimension("height", min=1), 2: dimension("width", min=1)}
    # The example size differs from the target size, so that the exporter does not treat it as constant.
    example = torch.zeros(3, module.height + 5, module.width + 7, 3, dtype=torch.uint8)
    with torch.inference_mode(False), torch.no_grad(), _quiet():
        return torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            input_names=[INPUT],
            output_names=list(OUTPUTS),
            dynamic_shapes=(shapes,),
            verbose=False,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence log messages and warnings of the exporter."""
    disabled = logging.root.manager.disable
    try:
        logging.disable(logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
