"""FGVC-Aircraft: 100 variants of aircraft in the official layout and split."""

from __future__ import annotations

from adagauss.data.dataset import Dataset, ReadOptions, Trait, archive, dataset_error, register_dataset
from adagauss.data.folders import FileList, file_dataset, require_files, table, text_of

FOLDER = "fgvc-aircraft-2013b"


@register_dataset(
    "aircraft",
    title="FGVC-Aircraft, 100 variants",
    classes=100,
    images="6,667 training (official train and val), 3,333 test",
    licence="non-commercial research; images belong to their photographers",
    folder=FOLDER,
    source=archive(
        "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz",
        "d4acdd33327262359767eeaa97a4f732",
    ),
    markers=("data/variants.txt", "data/images"),
    traits=(Trait.PHOTOGRAPHS,),
)
def read_aircraft(options: ReadOptions) -> Dataset:
    """Classes are the variants in the order of ``variants.txt``; the images keep their copyright banners."""
    folder = options.root / FOLDER / "data"
    lines = text_of(folder / "variants.txt", "aircraft").splitlines()
    variants = [line.strip() for line in lines if line.strip()]
    number = {variant: target for target, variant in enumerate(variants)}
    parts = {"trainval": FileList(), "test": FileList()}
    for part, files in parts.items():
        label_file = folder / f"images_variant_{part}.txt"
        for image, variant in table(label_file, "aircraft"):
            if variant not in number:
                raise dataset_error("aircraft", f"{label_file} names {variant!r}, which is not in variants.txt")
            files.add([folder / "images" / f"{image}.jpg"], number[variant])
        require_files(files.paths, "aircraft")
    return file_dataset("aircraft", variants, parts["trainval"], parts["test"], options)
