"""Settings of a dictionary of patches side by side: `python -m benchmarks.patch_settings power=0.5 power=1,grid=3`.

Each argument is one dictionary: settings that differ from the usual ones, by their names in `adagauss.patches`. Twenty
classes at random in tasks of five; as many other *training* images to judge as to learn from.
"""

from __future__ import annotations

import argparse

from adagauss.backbones.patches import PatchSettings
from adagauss.cli.options import parse_settings

from .dictionaries import DATASETS, accuracy

SMALL = {"cub": 15, "omniglot": 10}
"""Datasets with fewer training images of a class than asked for."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="+", metavar="NAME=VALUE[,NAME=VALUE]")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--images", type=int, nargs="+", default=[40, 200], help="of each class to learn from, at most")
    parser.add_argument("--filters", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    compared = [
        PatchSettings.of({"filters": options.filters, **parse_settings(text.split(","))}) for text in options.settings
    ]
    print("| dataset | images each | " + " | ".join(options.settings) + " |")
    print("|---|---|" + "---|" * len(compared))
    for name in options.datasets:
        for most in sorted({min(images, SMALL.get(name, images)) for images in options.images}):
            found = [[accuracy(name, one, seed, most=most) for seed in options.seeds] for one in compared]
            cells = " | ".join(", ".join(f"{value:.1f}" for value in each) for each in found)
            print(f"| {name} | {most} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
