"""The processes that learn together, as one of them sees them; a single process by default."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from adagauss.errors import DataError
from adagauss.parallel.division import Division
from adagauss.parallel.exchange import all_rows, bytes_from_first, bytes_of_all

if TYPE_CHECKING:
    from lightning_fabric import Fabric

BatchNorm = Literal["global", "local"]
Saved = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors by name, and plain facts."""


class Processes:
    """This process and those that run the same program with it.

    All of them do the same and know the same. What is divided among them: the images of every training batch, the
    images whose features are wanted, and sums over images. Methods that communicate must be called in every process.

    Args:
        fabric: a launched Fabric with a data-parallel strategy; None is a single process.
        batch_norm: ``global``: batch norm sees the batch of all processes, as one process would. ``local``: its own
            share only, which sends less and gives other numbers than one process.

    >>> alone = Processes()
    >>> alone.world, alone.first, alone.told(lambda: 3)
    (1, True, 3)
    """

    def __init__(self, fabric: Fabric | None = None, batch_norm: BatchNorm = "global") -> None:
        self.fabric = fabric
        self.batch_norm: BatchNorm = batch_norm
        self.rank = 0 if fabric is None else fabric.global_rank
        self.world = 1 if fabric is None else fabric.world_size

    @property
    def alone(self) -> bool:
        return self.world == 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and reports progress."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where what is sent must be."""
        return torch.device("cpu") if self.fabric is None else self.fabric.device

    def divide(self, number: int) -> Division:
        """A batch of so many rows, of which every process has its share."""
        return Division.turns(number, self)

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if not self.alone:
            dist.all_reduce(tensor)
        return tensor

    def everyones(self, tensor: Tensor) -> Tensor:
        """(W, ...) the tensors of all processes, which have one shape."""
        return tensor.unsqueeze(0) if self.alone else all_rows(tensor.unsqueeze(0), [1] * self.world)

    def told(self, value: Callable[[], Any]) -> Any:
        """What the first process finds; plain data, which the others do not compute."""
        if self.alone:
            return value()
        content = json.dumps(value()).encode() if self.first else b""
        return json.loads(bytes_from_first(content, self.first, self.device))

    def saved(self, found: Saved | None) -> Saved | None:
        """What the first process has read, if anything, in all processes."""
        if self.alone:
            return found
        layout = None
        if self.first and found is not None:
            shapes = {name: (tuple(tensor.shape), str(tensor.dtype)) for name, tensor in found[0].items()}
            layout = shapes, found[1]
        said = self.told(lambda: layout)
        if said is None:
            return None
        shapes, facts = said
        tensors = {
            name: found[0][name] if found else torch.empty(shape, dtype=getattr(torch, kind.rpartition(".")[2]))
            for name, (shape, kind) in shapes.items()
        }
        self.equalise(tensors.values())
        return tensors, facts

    @contextmanager
    def file(self, path: Path) -> Iterator[Path]:
        """A file of the first process, readable in all: other machines need not have its disk."""
        if self.alone:
            yield path
            return
        content = bytes_from_first(path.read_bytes() if self.first else b"", self.first, self.device)
        if self.first:
            yield path
            return
        with tempfile.TemporaryDirectory() as folder:
            copied = Path(folder, path.name)
            copied.write_bytes(content)
            yield copied

    def equalise(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the numbers of the first: different processors round differently."""
        if self.alone:
            return
        for tensor in tensors:
            sent = tensor.detach().to(self.device).contiguous().clone()
            dist.broadcast(sent, 0)
            tensor.detach().copy_(sent)

    def agree(self, module: nn.Module) -> None:
        """`equalise` a module whose buffers may have other sizes here: where one process rounds up, a class is another.

        Sizes are adopted by loading, so that those of a `Learned` may differ.
        """
        if self.alone:
            return
        found = module.state_dict()
        sizes = self.told(lambda: {name: list(tensor.shape) for name, tensor in found.items()})
        other = {name: found[name].new_zeros(size) for name, size in sizes.items() if list(found[name].shape) != size}
        if other:
            module.load_state_dict({**found, **other})
        self.equalise(module.state_dict().values())

    def require_same(self, facts: Callable[[], Mapping[str, str]], of: str) -> None:
        """Raise in every process unless all of them find the same ``facts`` about ``of``."""
        if self.alone:
            return
        said = json.dumps([socket.gethostname(), dict(facts())]).encode()
        (_, wanted), *others = (json.loads(one) for one in bytes_of_all(said, self.world, self.device))
        for rank, (machine, found) in enumerate(others, start=1):
            differing = [name for name, value in wanted.items() if found.get(name) != value]
            if differing:
                raise DataError(
                    f"process {rank} on {machine} has other {of} than process 0 ({', '.join(differing)} differ): "
                    "give every machine the same files"
                )
