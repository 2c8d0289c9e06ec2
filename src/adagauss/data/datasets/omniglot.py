"""Omniglot: 1,623 handwritten characters of 50 alphabets, 20 drawings each."""

from __future__ import annotations

from adagauss.data.dataset import Dataset, ReadOptions, Trait, register_dataset
from adagauss.data.folders import class_folders, file_dataset, split_by_class

_ADDRESS = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
TEST_SHARE = 0.25


@register_dataset(
    "omniglot",
    title="Omniglot characters, 32x32 grey",
    classes=1623,
    images="24,345 training, 8,115 test: 15 and 5 of each character's drawings",
    licence="MIT",
    folder="omniglot",
    downloads={
        f"{_ADDRESS}/images_background.zip": "68d2efa1b9178cc56df9314c21c6e718",
        f"{_ADDRESS}/images_evaluation.zip": "6b91aef0f799c5bb55b94e3f2daec811",
    },
    unpack_into="omniglot",
    markers=("images_background", "images_evaluation"),
    traits=(Trait.GREY, Trait.MIRRORING_HARMS),
    settings={"augmentation.crop_padding": 2},
)
def read_omniglot(options: ReadOptions) -> Dataset:
    """Classes are ``alphabet/character``, from both the background and the evaluation set."""
    characters = {
        f"{alphabet.name}/{character.name}": character
        for part in ("images_background", "images_evaluation")
        for alphabet in class_folders(options.folder / part)
        for character in class_folders(alphabet)
    }
    classes = sorted(characters)
    # Drawings are numbered by drawer: one seed per class avoids that all test drawings come from the same few people.
    files = split_by_class([characters[name] for name in classes], TEST_SHARE, same_seed=False)
    return file_dataset("omniglot", classes, *files, options, size=32, channels=1, mean=(0.9195,), std=(0.2261,))
