"""No training step waits for the device: nothing is read from it, and every copy to it is asynchronous.

The device ``meta`` stands for a GPU. Its tensors have no values, so reading one (``item``, ``bool``, ``nonzero``, a
copy to the CPU) is an error. `Transfers` counts what a GPU would wait for beyond that.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adagauss.core.learn import Learner, _current_task
from adagauss.core.task import CurrentTask
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.methods import methods
from adagauss.utils.progress import Advance, Reporter
from adagauss.utils.runtime import Runtime, RuntimeConfig, to_device
from tests.contracts.toy import quick_method

META = torch.device("meta")


def place() -> str:
    """The innermost line of the library that runs."""
    frames = [frame for frame in traceback.extract_stack() if "/src/adagauss/" in frame.filename]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "a test"


class Transfers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects blocking copies to the device and operations that mix tensors of CPU and device."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        on_cpu = [one for one in given if one.device.type == "cpu"]
        on_device = any(one.device == META for one in [*given, *tree_leaves(result)] if isinstance(one, Tensor))
        if on_cpu and on_device:
            copies = func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_)
            waits = not (kwargs.get("non_blocking") or True in args[2:]) if copies else any(x.ndim for x in on_cpu)
            if waits:
                self.found.append(f"{func} in {place()}")
        return result


class Constants(TorchFunctionMode):
    """Collects tensors that are made of Python numbers on the device."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor) and result.device == META:
            self.found.append(f"{func} in {place()}")
        return result


class EnoughError(Exception):
    """Ends a training."""


class ThreeSteps(Reporter):
    """Watches the steps of a training, and ends it in the third."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def progress(self, title: str, total: float) -> Iterator[Advance]:
        steps = iter(range(3))

        def advance(note: str = "", step: float = 1.0) -> None:
            if next(steps) == 2:
                raise EnoughError

        with Transfers(self.found), Constants(self.found):
            yield advance


class Direct:
    """Fabric on a device that it does not know."""

    def setup(self, *both: Any) -> Any:
        return both

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def clip_gradients(self, module: nn.Module, optimizer: Any, max_norm: float, error_if_nonfinite: bool) -> None:
        nn.utils.clip_grad_norm_(module.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite)


AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "crops": {"augmentation.policy": "none", "augmentation.cutout": 3, "augmentation.brightness": 0.5},
    "boxes": {"augmentation.policy": "trivial", "augmentation.resized_crop": True},
    "autoaugment": {"augmentation.policy": "autoaugment"},
}
WAITS = {"efc": "draws of new images depend on their labels", "il2a": "mixes images of different labels"}
"""Methods whose steps read labels from the device."""
SAME = ("adagauss+", "adagauss-affine", "adagauss-linear", "adc", "ldc")
"""Methods that are trained like others."""
TRAINED = [
    name
    for name, info in methods().items()
    if info.build().representation.later is not None and not info.joint and name not in (*WAITS, *SAME)
]
CASES = [(name, "crops") for name in TRAINED] + [("adagauss", "boxes"), ("adagauss", "autoaugment")]


def task_on_device(name: str, settings: dict[str, Any]) -> tuple[CurrentTask, Any, Any, list[str]]:
    """The second task of a method on the device, after the first was learned on the CPU; and what made steps wait."""
    method = quick_method(name, **settings)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (160, 3, 8, 8), generator=generator).to(torch.uint8)
    learner = Learner(method, (3, 8, 8), (0.5,) * 3, (0.5,) * 3)
    learner.learn(LabelledImages(ArrayImages(pixels), torch.arange(160) % 2, (0, 1)))
    reporter = ThreeSteps()
    runtime = Runtime(RuntimeConfig(device="meta"), reporter=reporter)
    runtime.__dict__["fabric"] = Direct()
    data = LabelledImages(ArrayImages(pixels), torch.arange(160) % 2, (2, 3))
    now = _current_task(method, learner.state, data, runtime)
    for module in (now.network, now.previous, learner.memory, *now.term_states.values()):
        assert module is not None
        module.to(META)
    return now, method, learner.memory, reporter.found


@pytest.mark.parametrize(("name", "augmentation"), CASES)
def test_a_training_step_does_not_wait_for_the_device(name: str, augmentation: str) -> None:
    now, method, memory, found = task_on_device(name, AUGMENTATIONS[augmentation])
    with pytest.raises(EnoughError):
        method.representation.fit(now, memory)
    assert found == []


def test_a_step_on_cached_features_does_not_wait_for_the_device() -> None:
    off = {"augmentation.policy": "none", "augmentation.crop_padding": 0}
    now, method, memory, found = task_on_device("adagauss", {**off, "backbone.train_blocks": "none"})
    assert now.caches_frozen
    maps = now.network.extractor.frozen(torch.zeros(160, 3, 8, 8, device=META))
    now._frozen |= {"test": maps, "flip": maps}
    with pytest.raises(EnoughError):
        method.representation.fit(now, memory)
    assert found == []


def test_a_step_of_the_adapter_does_not_wait_for_the_device() -> None:
    now, method, _, found = task_on_device("adagauss", {"drift.views": 1})
    features = torch.zeros(2, 160, now.network.extractor.size, device=META)
    with pytest.raises(EnoughError):
        method.drift.train_map(now, *features)
    assert found == []


def test_what_waits_is_found() -> None:
    found: list[str] = []
    with Transfers(found), Constants(found):
        pixels = to_device(torch.zeros(3), META)
        assert found == []
        pixels[torch.tensor([0, 1])]
        torch.zeros(3).to(META)
        torch.tensor([1.0], device=META)
        assert len(found) == 3, found
        with pytest.raises(RuntimeError):
            bool(pixels.any())
        with pytest.raises((RuntimeError, NotImplementedError)):
            pixels.nonzero()


def test_a_gpu_gets_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[Tensor] = []

    def pin(self: Tensor) -> Tensor:
        pinned.append(self)
        return self

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    monkeypatch.setattr(Tensor, "to", lambda self, device, non_blocking: (device.type, non_blocking))
    copied: Any = to_device(torch.zeros(3), torch.device("cuda"))
    assert copied == ("cuda", True)
    assert len(pinned) == 1
