"""One shard on its way into sums: read, decoded, extracted and added in small batches, so that memory stays flat."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO

import numpy as np
import torch

from adagauss.core.learn import Learner
from adagauss.core.task import CurrentTask
from adagauss.data.decode import Pixels, decode_image
from adagauss.data.files import failures, some_named
from adagauss.data.images import ArrayImages, LabelledImages, PixelScale
from adagauss.data.inputs import of_shape
from adagauss.errors import DataError
from adagauss.gathered import KEY_BITS, Gathered, exact_classifier, nothing_gathered, occasion
from adagauss.shards.example import Example, ShardError
from adagauss.shards.finding import Shard
from adagauss.shards.tars import Bad
from adagauss.utils.progress import Reporter

BATCH, BATCH_BYTES = 256, 2**26
"""Images, and bytes of encoded images, that wait for the extractor at most."""


@dataclass
class Summed:
    """What a shard gives."""

    part: Gathered
    digest: str = ""
    """Of its images and labels in their order, however they are packed."""
    bad: Bad = field(default_factory=dict)
    """Images that were passed over, and why."""


def sum_shard(
    learner: Learner, shard: Shard, *, skip_bad: bool = False, workers: int = 1, reporter: Reporter | None = None
) -> Summed:
    """The sums over the images of a shard, with the features of a learner, which stays as it is.

    Args:
        learner: one of an exact method after its first task, or its `blank`.
        shard: what is read, once from its beginning to its end.
        skip_bad: pass over images that cannot be decoded or have no label, instead of raising an error.
        workers: threads that decode.
        reporter: is told of every batch.
    """
    found = Summed(nothing_gathered(learner.method, learner.state, learner.runtime))
    digest = hashlib.blake2b(digest_size=12)
    taking = _Taking(learner, found, workers)
    with (reporter or Reporter()).progress(shard.name, 1) as advance:
        for batch in _batches(shard.examples(found.bad)):
            keys = [example.digest() for example in batch]
            for example, key in zip(batch, keys, strict=True):
                digest.update(key + repr(example.label).encode("utf-8", "backslashreplace") + b"\0")
            taking.add(batch, keys)
            if found.bad and not skip_bad:
                named = "; ".join(f"{name} ({reason})" for name, reason in list(found.bad.items())[:5])
                raise ShardError(f"{shard.name}: images cannot be used: {named}. Repair them, or give --skip-bad")
            advance(f"{found.part.images:,} images", step=0)
    if not found.part.images:
        listed = dict(enumerate(found.bad.values()))
        reason = f" ({some_named(listed, 'image {}'.format)})" if listed else ""
        raise ShardError(f"{shard.name} holds no usable images{reason}: leave it out, or skip it with --skip-bad")
    found.digest = digest.hexdigest()
    return found


@dataclass
class _Taking:
    """Batches into sums."""

    learner: Learner
    found: Summed
    workers: int

    def __post_init__(self) -> None:
        learner = self.learner
        self.flips = exact_classifier(learner.method).flips
        self.expanded = exact_classifier(learner.method).begun(occasion(learner.state, learner.runtime)).expanded

    def add(self, batch: list[Example], keys: list[bytes]) -> None:
        """Take in what can be decoded; note the rest."""
        channels, height, width = self.learner.shape
        pixels = np.empty((len(batch), channels, height, width), dtype=np.uint8)

        def fill(row: int) -> None:
            image = batch[row].image
            if isinstance(image, bytes):
                if height != width:
                    raise DataError(f"files are read as squares, and the model takes {height}×{width} pixels")
                pixels[row] = decode_image(BytesIO(image), height, channels)
            else:
                pixels[row] = of_shape(image, self.learner.shape).numpy()

        bad = failures(fill, len(batch), self.workers)
        self.found.bad |= {batch[row].name: reason for row, reason in bad.items()}
        good = [row for row in range(len(batch)) if row not in bad]
        if good:
            self._sum(pixels[good] if bad else pixels, [batch[row] for row in good], [keys[row] for row in good])

    def _sum(self, pixels: Pixels, batch: list[Example], keys: list[bytes]) -> None:
        learner, part = self.learner, self.found.part
        labels = [example.label for example in batch]
        data = LabelledImages(ArrayImages(pixels), torch.zeros(len(batch), dtype=torch.long), (None,))
        now = CurrentTask(1, data, learner.network, None, learner.method.augmentation, learner.runtime)
        order = torch.tensor([int.from_bytes(key[:8], "big") >> (64 - KEY_BITS) for key in keys])
        with torch.no_grad():
            blocks = [[self.expanded(view) for view in views] for _, views in now.blocks(self.flips)]
        # All blocks at once: the sums are copied whenever there are new classes.
        part.add_([torch.cat(view) for view in zip(*blocks, strict=True)], labels, order)
        part.noticed_(PixelScale(int(pixels.min()), int(pixels.max())))


def _batches(examples: Iterator[Example]) -> Iterator[list[Example]]:
    batch: list[Example] = []
    size = 0
    for example in examples:
        batch.append(example)
        size += example.size
        if len(batch) >= BATCH or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch
