"""The features of a new model: from some images of some shards, before any of them is summed."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from itertools import islice

from PIL import Image

from adagauss.data.decode import decode_image, image_size
from adagauss.data.folders import PHOTO_SIZE
from adagauss.data.images import Label, evenly_spaced
from adagauss.data.inputs import as_picture
from adagauss.errors import DataError
from adagauss.shards.example import Example, ShardError
from adagauss.shards.finding import Shard

SAMPLE, SAMPLED_SHARDS = 1000, 20
"""Images, and shards that they are the first of."""


def first_pictures(shards: Sequence[Shard]) -> tuple[list[Image.Image], list[Label]]:
    """Pictures and labels of evenly spaced shards, at most `SAMPLE`; what cannot be read is passed over here."""
    chosen = [shards[index] for index in evenly_spaced(len(shards), SAMPLED_SHARDS).tolist()]
    pictures: list[Image.Image] = []
    labels: list[Label] = []
    problems: list[str] = []
    for shard in chosen:
        try:
            for example in islice(shard.examples({}), -(-SAMPLE // len(chosen))):
                try:
                    pictures.append(_picture(example))
                    labels.append(example.label)
                except Exception as error:  # image decoders raise nearly any exception on damaged files
                    problems.append(f"{shard.name}: {example.name} ({error})")
        except ShardError as error:
            problems.append(str(error))
    if not pictures:
        raise DataError(f"no image can be read: {problems[0] if problems else 'the shards are empty'}")
    return pictures, labels


def _picture(example: Example) -> Image.Image:
    if not isinstance(example.image, bytes):
        return as_picture(example.image)
    side = min(PHOTO_SIZE, *image_size(BytesIO(example.image)))
    return Image.fromarray(decode_image(BytesIO(example.image), side).transpose(1, 2, 0))
