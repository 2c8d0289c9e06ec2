"""A million small images through `adagauss.shards`, in one process: images, seconds and peak memory on the way.

`python -m benchmarks.million` writes 100 npz files of 10,000 noisy images of 8×8 grey pixels (64 MB in a temporary
folder), and teaches them with a dictionary of a few patches: a small extractor, so that a million images take a minute
or two on one thread. The benchmark measures the pipeline; its memory does not depend on the number of images so far.
`--kind tar` and `--kind parquet` write encoded images (PNG) instead; give fewer `--images`.
"""

from __future__ import annotations

import argparse
import io
import resource
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import torch
from PIL import Image

from adagauss.analytic.batches import teach_shards
from adagauss.core.learn import Learner
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.methods import make_method
from adagauss.utils.process import keep_freed_memory
from adagauss.utils.progress import Advance, Reporter

SIDE, CLASSES = 8, 100
SETTINGS = {
    "backbone.options.filters": 8,
    "backbone.options.patches": 2000,
    "backbone.options.stride": 2,
    "backbone.mirror": False,
}
SHOWN = (0.1, 0.5, 1.0)
Pixels = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def pictures(number: int, seed: int) -> tuple[Pixels, Pixels]:
    """Noise about one random picture per class, and the classes."""
    means = np.random.default_rng(0).integers(32, 224, (CLASSES, SIDE, SIDE))
    draw = np.random.default_rng(seed + 1)
    labels = draw.integers(0, CLASSES, number, dtype=np.uint8)
    noise = draw.integers(-32, 33, (number, SIDE, SIDE), dtype=np.int16)
    return (means[labels] + noise).astype(np.uint8), labels


def png(pixels: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write(path: Path, kind: str, pixels: Pixels, labels: Pixels) -> None:
    if kind == "npz":
        np.savez(path, images=pixels, labels=labels)
    elif kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        images = [{"bytes": png(image), "path": None} for image in pixels]
        pyarrow.parquet.write_table(pyarrow.table({"image": images, "label": labels}), path, row_group_size=1000)
    else:
        with tarfile.open(path, "w") as tar:
            for row, (image, label) in enumerate(zip(pixels, labels, strict=True)):
                for suffix, content in (("png", png(image)), ("cls", str(label).encode())):
                    info = tarfile.TarInfo(f"{row:06}.{suffix}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))


def peak() -> float:
    """Largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--shard", type=int, default=10_000, help="images per shard")
    parser.add_argument("--kind", choices=("npz", "tar", "parquet"), default="npz")
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    learner = Learner(make_method("analytic-patches", settings=SETTINGS), (1, SIDE, SIDE), (0.5,), (0.25,))
    pixels, labels = pictures(1000, -1)
    learner.learn(LabelledImages.from_labels(ArrayImages(pixels), labels.tolist()))
    learner = learner.empty_like()
    shards = max(1, given.images // given.shard)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        paths = [place / f"{index:06}.{given.kind}" for index in range(shards)]
        for index, path in enumerate(paths):
            write(path, given.kind, *pictures(given.shard, index))
        print(f"{given.kind}: {shards} shards, {sum(path.stat().st_size for path in paths) / 1e6:.0f} MB")
        print(f"{learner.network.extractor.size} features; {peak():.0f} MB before the first shard")
        print("| images | seconds | CPU seconds | peak RSS, MB |\n|---|---|---|---|")
        started, worked, count = perf_counter(), process_time(), 0
        marks = {max(1, round(share * shards)) for share in SHOWN}

        class Measuring(Reporter):
            @contextmanager
            def progress(self, title: str, total: float) -> Iterator[Advance]:
                def advance(note: str = "", step: float = 1.0) -> None:
                    nonlocal count
                    count += title == "shards"
                    if title == "shards" and count in marks:
                        seconds = f"{perf_counter() - started:.1f} | {process_time() - worked:.1f}"
                        print(f"| {count * given.shard:,} | {seconds} | {peak():.0f} |", flush=True)

                yield advance

        found = teach_shards(learner, paths, reporter=Measuring())
        print(f"in the model: {int(learner.state.evidence.learned.sum()):,} images of {found.shards} shards")


if __name__ == "__main__":
    main()
