"""Paths of files and folders as images."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from adagauss.data.decode import image_size
from adagauss.data.files import FileImages
from adagauss.data.folders import PHOTO_SIZE, folders_in, image_files
from adagauss.data.images import LabelledImages, evenly_spaced
from adagauss.errors import DataError
from adagauss.inputs.doubles import in_several
from adagauss.inputs.named import NamedImages, Wanted, usual_side

logger = logging.getLogger(__name__)

MEASURED = 64
"""Files whose size is looked up, to choose one for all."""
COLOUR = 3
OTHER_PICTURES = frozenset({".heic", ".heif", ".avif", ".jxl", ".jp2", ".dng", ".cr2", ".nef", ".arw", ".svg"})
"""Suffixes of pictures that are not read; a folder that holds some is told so."""


def path_images(path: Path, wanted: Wanted) -> NamedImages:
    """One file, or all images of a folder."""
    path = existing(path)
    if not path.is_dir():
        return file_images([path], [str(path)], wanted)
    files = images_in(path)
    return file_images(files, [str(file.relative_to(path)) for file in files], wanted)


def listed_images(paths: Iterable[object], wanted: Wanted) -> NamedImages:
    """Files and folders in the order of a list."""
    files: list[Path] = []
    for position, item in enumerate(paths):
        if not isinstance(item, str | os.PathLike):
            raise DataError(
                f"item {position} is {type(item).__name__}, those before it are paths: give one kind, all paths or all "
                "images"
            )
        path = existing(Path(item))
        files += images_in(path) if path.is_dir() else [path]
    return file_images(files, [str(file) for file in files], wanted)


def class_folder_images(path: Path, wanted: Wanted) -> LabelledImages:
    """The images of a folder of class folders; the folders' names are the classes."""
    path = existing(path)
    if not path.is_dir():
        raise DataError(f"{path} is a file: give its label as well, or a folder with one folder per class")
    folders = folders_in(path)
    if not folders:
        raise DataError(
            f"{path} holds no class folders: put the images of each class into a folder named after it, or give the "
            "label of all of them as the second argument"
        )
    found = {folder: images_in(folder) for folder in folders}
    if inside := deeper(found):
        logger.warning("%s: %s; such a folder is taken as one class", path, inside)
    members = {folder.name: files for folder, files in found.items()}
    if doubles := in_several(members):
        one, other = (file.relative_to(path) for file in doubles[0])
        more = f", as are {len(doubles) - 1} more pairs" if len(doubles) > 1 else ""
        logger.warning(
            "%s: %s and %s are the same picture%s, learned as both. If it belongs to one only, forget the other "
            "class with its images as they are now, delete the file there, and teach that class again",
            path,
            one,
            other,
            more,
        )
    targets = torch.tensor([target for target, files in enumerate(members.values()) for _ in files])
    read = file_images([file for files in members.values() for file in files], None, wanted)
    data = LabelledImages(read.images, targets[read.kept], tuple(members))
    for label, count in zip(data.classes, data.counts().tolist(), strict=True):
        if not count:
            raise DataError(
                f"none of the images in {path / str(label)} can be decoded: repair them or remove the class"
            )
    return data


def deeper(members: Mapping[Path, list[Path]]) -> str:
    """An example if a folder holds no images itself, but several folders of images: these may be the classes.

    One folder within a class folder, as in TinyImageNet's ``n01443537/images``, leaves no doubt.
    """
    for folder, files in members.items():
        inner = list(dict.fromkeys(file.relative_to(folder).parts[0] for file in files))
        if len(inner) > 1 and not any(file.parent == folder for file in files):
            return f"{folder.name} holds no images itself, only folders of images: {', '.join(inner[:3])}"
    return ""


def existing(path: Path) -> Path:
    """The path, with ~ resolved; an error if there is nothing."""
    path = path.expanduser()
    try:
        if path.exists():
            return path
    except (OSError, ValueError):  # too long for a path, or with a NUL character: text that never was one
        pass
    text = str(path)
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    if "://" in text or ":/" in text[1:]:
        raise DataError(f"{shown!r} is an address, not a path: download the images first")
    raise DataError(f"there is no file or folder {shown!r}")


def images_in(folder: Path) -> list[Path]:
    """All image files in a folder and below, sorted by path; pictures of other kinds are spoken of, not passed over."""
    found, others = image_files(folder), Counter(_other_pictures(folder))
    named = ", ".join(f"{count} {suffix}" for suffix, count in sorted(others.items()))
    if not found:
        unread = f", only files that are not read ({named}): convert them to JPEG or PNG"
        held = unread if others else ": fill it or remove it"
        raise DataError(f"{folder} holds no images{held}")
    if others:
        logger.warning("%s: files that are not read (%s) are left out; convert them to JPEG or PNG", folder, named)
    return found


def file_images(files: list[Path], names: list[str] | None, wanted: Wanted) -> NamedImages:
    """Files at the wanted size. Nothing is decoded twice, and what does not fit into memory only when it is used."""
    if not files:
        raise DataError("no images were given")
    channels, height, width = wanted.shape or (COLOUR, *[wanted.size or _common_side(files)] * 2)
    if height != width:
        raise DataError(
            f"files are read as square images, but this classifier was taught images of {height}×{width} pixels: "
            "open them with Pillow and give the images"
        )
    images = FileImages(
        files,
        height,
        channels=channels,
        workers=wanted.workers,
        skip_bad_images=wanted.skip_bad,
        skip_option=wanted.skip_option,
        reporter=wanted.reporter,
    )
    all_names = names if names is not None else [str(file) for file in files]
    kept = tuple(all_names[index] for index in images.kept.tolist())
    return NamedImages(images, kept, images.kept, len(files))


def _common_side(files: list[Path]) -> int:
    """From the headers of some files; what cannot be read is for whoever decodes it to say."""
    sides = []
    for index in evenly_spaced(len(files), MEASURED).tolist():
        try:
            sides.append(min(image_size(files[index])))
        except Exception:  # image headers may be damaged in any way
            continue
    return usual_side(sides) if sides else PHOTO_SIZE


def _other_pictures(folder: Path) -> list[str]:
    return [
        suffix
        for _, _, names in os.walk(folder)
        for name in names
        if (suffix := Path(name).suffix.lower()) in OTHER_PICTURES and not name.startswith(".")
    ]
