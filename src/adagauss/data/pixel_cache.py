"""A cache of decoded images on disk, so that the next run on a dataset starts at once."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adagauss.atomic import TEMPORARY
from adagauss.checkpoint import load_tensors, save_tensors
from adagauss.data.decode import DECODER, Pixels, pixel_limit
from adagauss.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)

Indices = npt.NDArray[np.int64]
SWITCH = "ADAGAUSS_CACHE"
OURS = re.compile(
    r"[0-9a-f]{32}\.(pixels|kept)\.safetensors|"
    r"[0-9a-f]{32}(\.kept)?(\.npy|\.[0-9a-f]{32}\.part)|" + TEMPORARY.pattern  # those of release 0.1
)
"""Names of the files a cache writes; other files in the folder are never touched."""


def switched_on() -> bool:
    """Whether decoded images may be kept on disk: yes, unless the environment has ``ADAGAUSS_CACHE=off``.

    >>> switched_on()
    True
    """
    value = os.environ.get(SWITCH, "on").lower()
    if value not in ("on", "off", ""):
        raise ConfigError(f"{SWITCH} is on or off; got {value!r}")
    return value != "off"


def root_cache(root: Path) -> Path:
    """The cache of the datasets below a data root."""
    return root / ".cache"


def cached_files(folder: Path) -> list[Path]:
    """The cache files in a folder; the folder need not exist."""
    return sorted(file for file in folder.glob("*") if OURS.fullmatch(file.name)) if folder.is_dir() else []


def user_cache() -> Path | None:
    """This user's cache folder, created if needed and readable only by its owner; None if it is not writable."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        # The XDG specification says to ignore relative paths.
        folder = (base if base.is_absolute() else Path.home() / ".cache") / "adagauss"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # the home folder is read-only or missing
        logger.info("decoded images are not kept for the next run: %s", error)
        return None
    return folder if os.access(folder, os.W_OK) else None


@dataclass(frozen=True)
class StoredPixels:
    """Decoded images and their positions among the given files."""

    pixels: Pixels
    kept: Indices


class PixelCache:
    """Decoded images in a file that is named by their source; its digest is checked at every read.

    The name is a hash of every file's path, size and times of change and of how images are decoded: a changed file is
    decoded again. Problems with the cache are logged, never raised, since it only saves time. Images may be private:
    the files, and the folder if it is created here, are readable only by their owner. Files of other users are not
    read.
    """

    def __init__(
        self, folder: Path, paths: Sequence[Path], size: int, channels: int, max_pixels: int | None = None
    ) -> None:
        self._folder = folder
        self._shape = (channels, size, size)
        self._count = len(paths)
        self._name = _fingerprint(paths, size, channels, pixel_limit(max_pixels))
        self.pixels_file = folder / f"{self._name}.pixels.safetensors"
        self.kept_file = folder / f"{self._name}.kept.safetensors"

    def load(self) -> StoredPixels | None:
        """The pixels stored for these files, mapped from disk; None if there is no valid cache."""
        tensors = self._read(self.pixels_file, "pixels")
        kept = self._sound(tensors)
        if kept is None or "pixels" not in tensors:
            return None
        # Copy-on-write mapping: pages are shared between runs, yet torch sees a writable array.
        pixels = tensors["pixels"]
        if pixels.dtype != torch.uint8 or tuple(pixels.shape) != (len(kept), *self._shape):
            return None
        return StoredPixels(pixels.numpy(), kept)

    def load_kept(self) -> Indices | None:
        """Which of the files can be decoded, if this is stored."""
        return self._sound(self._read(self.kept_file, "kept"))

    def store(self, pixels: Pixels, kept: Indices) -> None:
        """Keep decoded images for the next run."""
        if self.store_kept(kept):
            self._write(self.pixels_file, "pixels", {"pixels": pixels, "kept": kept})

    def store_kept(self, kept: Indices) -> bool:
        """Store which files can be decoded; returns whether it was written."""
        return self._write(self.kept_file, "kept", {"kept": kept})

    def _sound(self, tensors: Mapping[str, Tensor]) -> Indices | None:
        kept = tensors.get("kept")
        if kept is None or kept.dtype != torch.int64 or kept.ndim != 1:
            return None
        rising = len(kept) > 0 and kept[0] >= 0 and kept[-1] < self._count and bool((kept.diff() > 0).all())
        return kept.numpy() if rising else None

    def _write(self, file: Path, kind: str, arrays: Mapping[str, npt.NDArray[Any]]) -> bool:
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            save_tensors(file, kind, tensors, {"made of": self._name}, mode=0o600)
        except (OSError, CheckpointError) as error:
            logger.info("decoded images are not kept for the next run: %s", error)
            return False
        return True

    def _read(self, file: Path, kind: str) -> dict[str, Tensor]:
        try:
            if file.stat().st_uid not in (os.getuid(), 0):
                logger.info("%s belongs to another user: images are decoded again", file)
                return {}
            tensors, facts = load_tensors(file, kind, mapped=True)
        except FileNotFoundError:
            return {}
        except (OSError, CheckpointError):
            logger.warning("ignored a damaged cache of decoded images, %s: they are decoded again", file)
            return {}
        return tensors if facts.get("made of") == self._name else {}


def _fingerprint(paths: Sequence[Path], size: int, channels: int, limit: int) -> str:
    digest = hashlib.sha256(f"{DECODER};{size};{channels};{limit};{len(paths)}".encode())
    for path in paths:
        digest.update(b"\0" + os.fsencode(path.absolute()))
        try:
            state = path.stat()
            # The change time (ctime) as well: copying tools reset the modification time.
            digest.update(f"\0{state.st_size};{state.st_mtime_ns};{state.st_ctime_ns}".encode())
        except OSError:  # a missing file fails later, when it is decoded, with a better message
            digest.update(b"\0missing")
    return digest.hexdigest()[:32]
