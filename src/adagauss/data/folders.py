"""Image files: find them in folders, read them, and build a dataset from lists of files."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adagauss.data.dataset import IMAGENET_MEAN, IMAGENET_STD, Dataset, ReadOptions
from adagauss.data.decode import (
    READS_HEIC,
    Pixels,
    ResizeMode,
    Size,
    as_picture,
    decode_image,
    fitted,
    image_size,
    pixel_limit,
)
from adagauss.data.images import CACHE_BYTES, Label, LabelledImages
from adagauss.errors import DataError
from adagauss.utils.progress import Advance, Reporter, ignore
from adagauss.utils.runtime import available_memory

logger = logging.getLogger(__name__)

PHOTO_SIZE = 224
HEIC_SUFFIXES = {".heic", ".heif"}
IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
    | (HEIC_SUFFIXES if READS_HEIC else set())
)
UNSUPPORTED_SUFFIXES = (
    frozenset({".avif", ".jxl", ".jp2", ".dng", ".cr2", ".nef", ".arw", ".svg"} | HEIC_SUFFIXES) - IMAGE_SUFFIXES
)
"""Image formats that are not read; a warning or an error names them."""

MAX_OPENED = 1000
"""Files without a known extension that are opened to find images among them."""
RENAME = "give them the extension of their format, such as .jpg"

WHOLE_SIDE = 8 / 7
"""Shorter side of a whole picture, in units of the side of its central square: 256 for 224, as papers prepare them."""
WORKERS = 2
"""Threads that decode (Pillow releases the GIL); their number does not change the result."""
MAX_NAMED = 5
"""Bad images that a message names."""
Files = list[tuple[Path, int]]
"""Image files, each with its class number."""


def file_dataset(
    name: str,
    classes: Sequence[Label],
    train: Files,
    test: Files,
    options: ReadOptions,
    *,
    size: int = PHOTO_SIZE,
    channels: int = 3,
    margin: bool = False,
    mean: tuple[float, ...] = IMAGENET_MEAN,
    std: tuple[float, ...] = IMAGENET_STD,
) -> Dataset:
    """Decode, or prepare to decode, the listed files at ``size``, unless the options set another size.

    With ``margin``, whole photographs are kept; see `FileImages`.
    Training and test images share the memory limit; training images come first, since they are read most often.
    """
    side, budget = options.size or size, options.cache_bytes
    parts: list[LabelledImages] = []
    for part, files in (("training", train), ("test", test)):
        _check_every_class(classes, files, f"{part} images in its files")
        images = FileImages(
            [path for path, _ in files],
            side,
            channels=channels,
            cache_bytes=budget,
            skip_bad=options.skip_bad_images,
            reporter=options.reporter,
            margin=margin,
        )
        files = [files[position] for position in images.kept.tolist()]
        _check_every_class(classes, files, f"{part} images after bad ones were skipped")
        budget -= images.nbytes if images.in_memory else 0
        targets = torch.tensor([target for _, target in files], dtype=torch.long)
        parts.append(LabelledImages(images, targets, tuple(classes)))
    return Dataset(name, parts[0], parts[1], mean, std)


def _check_every_class(classes: Sequence[Label], files: Files, what: str) -> None:
    if absent := sorted({*range(len(classes))} - {target for _, target in files}):
        raise DataError(
            f"{len(absent)} of {len(classes)} classes have no {what}, the first being {classes[absent[0]]!r}"
        )


def require(path: Path) -> Path:
    """Return the path of a file or folder; raise if it is missing."""
    if not path.exists():
        raise DataError(f"{path.name} is missing, expected at {path}")
    if not (path.is_file() or path.is_dir()):
        raise DataError(f"{path} is neither a file nor a folder")
    return path


def require_files(files: Files) -> Files:
    """Return the files that a dataset lists; raise if some are missing, as after a partial extraction."""
    if missing := [path for path, _ in files if not path.is_file()]:
        raise DataError(
            f"{len(missing)} of {len(files)} listed images are missing, the first expected at {missing[0]}: the "
            "dataset seems to be only partly extracted"
        )
    return files


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file in UTF-8, without empty ones."""
    try:
        text = require(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error})") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def read_table(path: Path) -> list[tuple[str, str]]:
    """Read a text file of ``key value`` lines, which many datasets use for labels and splits."""
    rows = [line.split(maxsplit=1) for line in read_lines(path)]
    if not rows or any(len(row) != 2 for row in rows):
        raise DataError(f"{path} is empty or damaged")
    return [(row[0], row[1]) for row in rows]


def class_folders(folder: Path) -> list[Path]:
    """List the folders in ``folder``, sorted by name; raise if there are none."""
    found = folders_in(require(folder))
    if not found:
        raise DataError(f"{folder} holds no class folders")
    return found


def images_in(folder: Path) -> list[Path]:
    """List all image files in a folder and below, sorted by path; warn about images that are left out.

    These have an unsupported format, or no known extension.
    """
    files = image_files(require(folder), None)
    found = [path for path in files if path.suffix.lower() in IMAGE_SUFFIXES]
    unnamed = [path for path in files if path.suffix.lower() not in IMAGE_SUFFIXES | UNSUPPORTED_SUFFIXES]
    unnamed = [path for path in unnamed[:MAX_OPENED] if _is_image(path)]
    others = Counter(suffix for path in files if (suffix := path.suffix.lower()) in UNSUPPORTED_SUFFIXES)
    named = ", ".join(f"{count} {suffix}" for suffix, count in sorted(others.items()))
    advice = "convert them to JPEG or PNG"
    if not HEIC_SUFFIXES.isdisjoint(others):
        advice += ", or install the extra heic (pip install 'adagauss[heic]')"
    if not found:
        unread = ": fill it or remove it"
        if unnamed:
            unread = f", only images without a known extension, such as {unnamed[0].name}: {RENAME}"
        if others:
            unread = f", only files that are not read ({named}): {advice}"
        raise DataError(f"{folder} holds no images{unread}")
    if others:
        logger.warning("%s: files that are not read (%s) are left out; %s", folder, named, advice)
    if unnamed:
        count, name = len(unnamed), unnamed[0].name
        logger.warning(
            "%s: %d images without a known extension, such as %s, are left out; %s", folder, count, name, RENAME
        )
    return found


def _is_image(path: Path) -> bool:
    """Whether the file begins like an image."""
    try:
        image_size(path)
    except MemoryError:
        raise
    except Exception:  # image decoders raise nearly any exception
        return False
    return True


def files_of_classes(folders: Sequence[Path]) -> Files:
    """List all image files of class folders, numbered in the given order."""
    return [(path, target) for target, folder in enumerate(folders) for path in images_in(folder)]


def seeded_split(count: int, test_share: float, seed: int) -> tuple[list[int], list[int]]:
    """Split ``count`` positions into training and test, the same on every machine; at least one of each."""
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    held_out = min(max(1, round(count * test_share)), count - 1)
    return sorted(shuffled[held_out:]), sorted(shuffled[:held_out])


def split_by_class(folders: Sequence[Path], test_share: float, *, same_seed: bool = True) -> tuple[Files, Files]:
    """Split the images of each class folder into training and test; the split is the same on every machine.

    The seed of a class is its number, or with ``same_seed`` 0, so that its split does not depend on other classes.
    """
    train, test = Files(), Files()
    for target, folder in enumerate(folders):
        images = images_in(folder)
        if len(images) < 2:
            raise DataError(f"{folder} holds one image, too few to train and test on")
        for files, positions in zip(
            (train, test), seeded_split(len(images), test_share, 0 if same_seed else target), strict=True
        ):
            files += [(images[position], target) for position in positions]
    return train, test


def holds_class_folders(folder: Path) -> bool:
    """Return whether the folder exists and any folder in it holds images."""
    return folder.is_dir() and any(image_files(path) for path in folders_in(folder))


def folders_in(folder: Path) -> list[Path]:
    """List the visible folders in a folder, sorted by name; there may be none."""
    own = folder.resolve()
    return sorted(
        path
        for path in folder.iterdir()
        # A link to this folder or to one of its parents is a loop, not a class.
        if _visible(path.name) and path.is_dir() and not own.is_relative_to(path.resolve())
    )


def image_files(folder: Path, suffixes: Collection[str] | None = IMAGE_SUFFIXES) -> list[Path]:
    """List all image files in a folder and its subfolders, sorted by path; there may be none. None lists all files.

    Links are followed, but not to a parent folder, which would bring in other classes.
    """

    def fail(error: OSError) -> None:
        raise error

    found, visited = list[Path](), {_identity(parent) for parent in folder.resolve().parents}
    for place, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        identity = _identity(Path(place))
        folders[:] = sorted(filter(_visible, folders)) if identity not in visited else []
        if identity not in visited:
            paths = (Path(place, name) for name in names if _visible(name))
            found += [path for path in paths if suffixes is None or path.suffix.lower() in suffixes]
        visited.add(identity)
    # Not only files: a pipe or a device with the name of an image is refused when it is read, not skipped.
    return sorted(path for path in found if path.exists())


def _identity(folder: Path) -> tuple[int, int]:
    state = folder.stat()
    return state.st_dev, state.st_ino


def _visible(name: str) -> bool:
    # Besides hidden files: archives made on a Mac contain a folder of metadata files with image names.
    return not name.startswith(".") and name != "__MACOSX"


FEW_BYTES = 2**24
"""Pixels that are kept without a look at the available memory."""


class FileImages:
    """Images in files, resized to ``size`` (see `decode_image`).

    If all of them fit into ``cache_bytes`` and half of the available memory, they are decoded once and kept. If they do
    not fit, every batch is decoded when requested, and only the headers are checked beforehand, unless bad images are
    to be skipped.

    With ``margin``, whole pictures are kept, with a shorter side of 8/7 ``size`` (256 for 224): an image is the centre
    of that, and random crops are cut from all of it.

    Files that cannot be decoded raise a `DataError`, or are skipped with ``skip_bad``: one warning is logged, and
    `kept` holds which of ``paths`` remain.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        size: Size,
        *,
        channels: int = 3,
        cache_bytes: int = CACHE_BYTES,
        skip_bad: bool = False,
        reporter: Reporter | None = None,
        resize_mode: ResizeMode = "crop",
        margin: bool = False,
    ) -> None:
        if not paths:
            raise DataError("no image files given")
        height, width = (size, size) if isinstance(size, int) else size
        if min(height, width) < 1 or channels not in (1, 3):
            raise DataError(f"images need a size of at least 1 and 1 or 3 channels; got {size} and {channels}")
        pixel_limit()  # a wrong limit is one error, not one of every image
        self.shape = (channels, height, width)
        self.paths = list(paths)
        self._margin, self._mode = margin, resize_mode
        if margin:
            height, width = round(height * WHOLE_SIDE), round(width * WHOLE_SIDE)
        self._size = height, width
        # Whole photographs are mostly 4:3 or 3:2.
        self.nbytes = int(len(paths) * channels * height * width * (1.5 if margin else 1))
        """Memory that all decoded images take, about."""
        self.in_memory = self.nbytes <= cache_bytes
        """Whether the pixels are kept in memory, rather than decoded at every use."""
        if self.in_memory and self.nbytes > FEW_BYTES and (free := available_memory()) is not None:
            self.in_memory = self.nbytes <= free // 2
        reporter, count = reporter or Reporter(), len(paths)
        pixels, bad = list[Pixels](), dict[int, str]()
        if self.in_memory or skip_bad:
            with reporter.progress("decoding images", count) as advance:
                pixels, bad = self._decode(range(count), advance, keep=self.in_memory)
        else:
            with reporter.progress("checking images", count) as advance:
                # Reading a header holds the GIL: more threads would only block each other.
                bad = map_collecting_errors(lambda row: image_size(self.paths[row]), count, 1, advance)
        kept = usable(bad, count, lambda row: str(self.paths[row]), skip_bad)
        self._pixels = [pixels[row] for row in kept] if self.in_memory else None
        self.kept = torch.tensor(kept)
        """Positions of the usable images among the given paths."""
        self.paths = [self.paths[row] for row in kept]

    def __len__(self) -> int:
        return len(self.paths)

    def batch(self, indices: Tensor) -> Tensor:
        if self._margin:
            return self._cut(indices, _central_squares)
        pixels = self._read(indices.tolist())
        return torch.from_numpy(np.stack(pixels) if pixels else np.empty((0, *self.shape), np.uint8))

    def crops(self, indices: Tensor, boxes_of: Callable[[Tensor], Tensor]) -> Tensor | None:
        """Cut boxes out of whole pictures, if these are kept: ``boxes_of`` maps heights and widths to boxes."""
        return self._cut(indices, boxes_of) if self._margin else None

    def _cut(self, indices: Tensor, boxes_of: Callable[[Tensor], Tensor]) -> Tensor:
        """Cut boxes (top, left, height, width) out of whole pictures and resize them to squares."""
        pictures = self._read(indices.tolist())
        boxes = boxes_of(torch.tensor([one.shape[1:] for one in pictures]).view(-1, 2)).tolist()
        found = np.empty((len(pictures), *self.shape), dtype=np.uint8)
        for row, (pixels, (top, left, height, width)) in enumerate(zip(pictures, boxes, strict=True)):
            box = as_picture(pixels[:, top : top + height, left : left + width])
            found[row] = fitted(box, *self.shape[1:], "stretch")
        return torch.from_numpy(found)

    def _read(self, rows: list[int]) -> list[Pixels]:
        if self._pixels is not None:
            return [self._pixels[row] for row in rows]
        pixels, bad = self._decode(rows)
        usable(bad, len(rows), lambda row: str(self.paths[rows[row]]), skip_bad=False)
        return pixels

    def _decode(
        self, rows: Sequence[int], advance: Advance = ignore, keep: bool = True
    ) -> tuple[list[Pixels], dict[int, str]]:
        """Decode some files; returns their pixels, and the reason for each that failed, which has no pixels."""
        pixels = [np.empty(0, np.uint8)] * (len(rows) if keep else 0)

        def decode(row: int) -> None:
            mode = None if self._margin else self._mode
            image = decode_image(self.paths[rows[row]], self._size, self.shape[0], mode)
            if keep:
                pixels[row] = image

        return pixels, map_collecting_errors(decode, len(rows), WORKERS, advance)


def _central_squares(sizes: Tensor) -> Tensor:
    """Return the boxes of the images within whole pictures of these heights and widths (N, 2); see `FileImages`."""
    sides = (sizes.double().amin(1, keepdim=True) / WHOLE_SIDE).round()
    return torch.cat([((sizes - sides) / 2).round(), sides, sides], dim=1).long()


def usable(bad: Mapping[int, str], count: int, name: Callable[[int], str], skip_bad: bool) -> list[int]:
    """Return the positions of the usable images among ``count``; ``bad`` maps the other positions to the reasons.

    One warning names the bad images; without ``skip_bad``, they are an error.
    """
    if not bad:
        return list(range(count))
    named = first_reasons([(name(position), reason) for position, reason in bad.items()])
    if not skip_bad:
        raise DataError(
            f"{len(bad)} of {count} images cannot be decoded: {named}. Repair or remove them, or skip them with "
            "--skip-bad (in Python, skip_bad=True)."
        )
    if len(bad) == count:
        raise DataError(f"none of {count} images can be decoded: {named}")
    logger.warning("skipped %d of %d images: %s", len(bad), count, named)
    return [position for position in range(count) if position not in bad]


def first_reasons(bad: Collection[tuple[str, str]]) -> str:
    """Name the first few bad images with the reasons, and count the rest.

    >>> first_reasons([("a.png", "empty"), ("b.png", "torn")])
    'a.png (empty); b.png (torn)'
    """
    named = "; ".join(f"{name} ({reason})" for name, reason in islice(bad, MAX_NAMED))
    return named + (f"; and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else "")


def map_collecting_errors(
    work: Callable[[int], object], count: int, workers: int, advance: Advance = ignore
) -> dict[int, str]:
    """Call ``work`` for every index below ``count`` in threads; returns the error messages by index."""
    failed: dict[int, str] = {}

    def attempt(index: int) -> None:
        try:
            work(index)
        except MemoryError:
            raise
        except Exception as error:  # image decoders raise nearly any exception on damaged files
            failed[index] = str(error) or type(error).__name__

    # Several indices per submitted task: submitting one costs as much as decoding a small image.
    tasks = [range(first, min(first + 16, count)) for first in range(0, count, 16)]
    pool = ThreadPoolExecutor(workers)
    try:
        for results in pool.map(lambda task: [*map(attempt, task)], tasks):
            advance(step=len(results))
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupted run must not wait for queued tasks
    return dict(sorted(failed.items()))
