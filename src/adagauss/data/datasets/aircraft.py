"""FGVC-Aircraft: 100 variants of aircraft in the official layout and split."""

from __future__ import annotations

from pathlib import Path

from adagauss.data.dataset import Dataset, ReadOptions, Trait, register_dataset
from adagauss.data.folders import Files, file_dataset, read_lines, read_table, require_files
from adagauss.errors import DataError


@register_dataset(
    "aircraft",
    title="FGVC-Aircraft, 100 variants",
    classes=100,
    images="6,667 training (official train and val), 3,333 test",
    licence="non-commercial research; images belong to their photographers",
    folder="fgvc-aircraft-2013b",
    downloads={
        "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz": (
            "d4acdd33327262359767eeaa97a4f732"
        )
    },
    markers=("data/variants.txt", "data/images"),
    traits=(Trait.PHOTOGRAPHS,),
)
def read_aircraft(options: ReadOptions) -> Dataset:
    """Classes are the variants in the order of ``variants.txt``; the images keep their copyright banners."""
    folder = options.folder / "data"
    variants = read_lines(folder / "variants.txt")
    number = {variant: target for target, variant in enumerate(variants)}

    def part(label_file: Path) -> Files:
        rows = read_table(label_file)
        if foreign := [variant for _, variant in rows if variant not in number]:
            raise DataError(f"{label_file} names {foreign[0]!r}, which is not in variants.txt")
        return require_files([(folder / "images" / f"{image}.jpg", number[variant]) for image, variant in rows])

    train, test = (part(folder / f"images_variant_{name}.txt") for name in ("trainval", "test"))
    return file_dataset("aircraft", variants, train, test, options, margin=True)
