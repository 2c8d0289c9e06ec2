"""Exact learning on a dictionary of patches, CIFAR-100 in the usual order: `python -m benchmarks.exact_cifar --help`.

The dictionary comes from photographs that belong to no task or, with ``--dictionary-from first_task``, from the first
ten classes (``--first``), whatever the number of tasks. Every image is looked at once, with its mirror image; of the
mean of their features only sums are kept. The ridge's strength is chosen on arriving images, each left out in turn.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from adagauss.analytic.moments import MomentSums
from adagauss.analytic.ridge_lda import Ridge
from adagauss.analytic.selection import ModelSelection, Standardizer
from adagauss.backbones.patches import PatchFeatures, PatchSettings, fit_patches
from adagauss.data.images import LabelledImages, Subset
from adagauss.data.stream import class_order

from .real_data import read

IMAGES = 50
"""Images of one piece of work."""


@dataclass(frozen=True)
class Extraction:
    """How images become features."""

    features: PatchFeatures
    workers: int
    folder: Path | None
    """Where features are kept in half precision, to be read instead of computed the next time."""

    def of(self, part: LabelledImages, name: str) -> Tensor:
        """(N, width) features of images, class after class."""
        return torch.cat([self._of_class(part, target, name) for target in sorted(set(part.targets.tolist()))])

    def _of_class(self, part: LabelledImages, target: int, name: str) -> Tensor:
        file = self.folder / f"{name}-{target}.pt" if self.folder else None
        if file and file.exists():
            kept: Tensor = torch.load(file, weights_only=True)
            return kept.float()
        indices = (part.targets == target).nonzero().flatten()
        with ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            found = torch.cat(list(pool.map(lambda some: self._some(part, some), torch.split(indices, IMAGES))))
        if file:
            torch.save(found.half(), file)
        return found

    @torch.inference_mode()
    def _some(self, part: LabelledImages, indices: Tensor) -> Tensor:
        images = part.images.batch(indices).float() / 255
        both = torch.stack([self.features(images), self.features(images.flip(3))])
        return both.mean(0)


def parts(options: argparse.Namespace) -> tuple[LabelledImages, LabelledImages]:
    """Training and test images of the classes in their order; ``--validate`` tests on the last training images."""
    dataset = read("cifar100")
    names = [dataset.classes[position] for position in class_order("icarl", range(100))[: options.classes]]
    train = dataset.train.of_classes(names)
    test = ranked(train, 400, 500) if options.validate else ranked(dataset.test.of_classes(names), 0, 100)
    return ranked(train, 0, options.images), test


def ranked(part: LabelledImages, start: int, stop: int) -> LabelledImages:
    """The images of each class from number ``start`` to ``stop``, class after class."""
    places = [(part.targets == target).nonzero().flatten()[start:stop] for target in range(len(part.classes))]
    chosen = torch.cat(places)
    return LabelledImages(Subset(part.images, chosen), part.targets[chosen], part.classes)


def between(part: LabelledImages, start: int, stop: int) -> LabelledImages:
    """The images of classes number ``start`` to ``stop``, targets as they are."""
    chosen = ((part.targets >= start) & (part.targets < stop)).nonzero().flatten()
    return LabelledImages(Subset(part.images, chosen), part.targets[chosen], part.classes)


class Exact:
    """The state stored between tasks, and the features of the test images, which are only scored."""

    def __init__(self, extraction: Extraction, strengths: list[float], loo_images: int, seed: int) -> None:
        self.extraction = extraction
        self.sums = MomentSums(extraction.features.width)
        self.choice = ModelSelection([Ridge(images, intercept=True) for images in sorted(strengths)])
        self.loo_images = loo_images
        self.generator = torch.Generator().manual_seed(seed)
        self.tests: list[tuple[Tensor, Tensor]] = []

    def learn(self, train: LabelledImages, test: LabelledImages, stop: int) -> None:
        """Take in the images of classes up to ``stop``."""
        self.newest = self.extraction.of(train, "train"), train.targets
        self.sums.add_(*self.newest, stop)
        self.tests.append((self.extraction.of(test, "test"), test.targets))

    def evaluate(self) -> tuple[float, float]:
        """λ, selected with the newest images too, and the accuracy over all test images so far."""
        features, targets = self.newest
        held_out = torch.randperm(len(targets), generator=self.generator)[: self.loo_images]
        weighing = Standardizer(self.sums)
        self.choice.observe(weighing, features[held_out], targets[held_out])
        classifier = self.choice.solve(weighing)
        best = self.choice.best_rule
        assert isinstance(best, Ridge)
        strength = best.strength / int(self.sums.images)
        hits = [(classifier(rows).argmax(1) == labels).float() for rows, labels in self.tests]
        return strength, 100 * float(torch.cat(hits).mean())


def claim(folder: Path | None, facts: str) -> None:
    """Use a folder of features for these settings only: others would be read without a word."""
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        note = folder / "settings.txt"
        if note.exists() and note.read_text(encoding="utf-8") != facts:
            raise SystemExit(
                f"{folder} holds features of {note.read_text(encoding='utf-8')}: choose another folder for {facts}"
            )
        note.write_text(facts, encoding="utf-8")


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.workers)
    started = time.monotonic()
    train, test = parts(options)
    settings = PatchSettings.of(
        {
            name: getattr(options, name)
            for name in PatchSettings.model_fields
            if getattr(options, name, None) is not None
        }
    )
    facts = {name: getattr(options, name) for name in ("seed", "first", "images", "validate")}
    claim(options.keep, f"{settings!r}, {facts}")
    features = fit_patches(
        between(train, 0, options.first).images, settings, torch.Generator().manual_seed(options.seed)
    )
    print(f"{settings!r}: {features.width} features, dictionary after {time.monotonic() - started:.0f} s", flush=True)
    exact = Exact(
        Extraction(features, options.workers, options.keep), options.strengths, options.loo_images, options.seed
    )
    bounds = [round(task * options.classes / options.tasks) for task in range(options.tasks + 1)]
    accuracies: list[float] = []
    for task, (start, stop) in enumerate(itertools.pairwise(bounds), 1):
        exact.learn(between(train, start, stop), between(test, start, stop), stop)
        if task % options.evaluate_every and task < options.tasks:
            continue
        strength, accuracy = exact.evaluate()
        accuracies.append(accuracy)
        seconds = time.monotonic() - started
        hits = " ".join(f"{100 * float(hit) / int(exact.choice.images):.2f}" for hit in exact.choice.hits)
        print(
            f"{stop:3d} classes: {accuracy:.2f}  (λ {strength:.5f}; left out {hits}; {seconds:.0f} s)",
            flush=True,
        )
    kept = sum(tensor.nbytes for module in (features, exact.sums) for tensor in module.state_dict().values())
    mean = sum(accuracies) / len(accuracies)
    print(
        f"A_last {accuracies[-1]:.2f}, A_inc {mean:.2f} in {options.tasks} tasks, evaluated {len(accuracies)} times; "
        f"{(time.monotonic() - started) / 60:.1f} minutes ({time.process_time() / 60:.1f} of processors), "
        f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB, kept {kept / 2**30:.2f} GiB"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filters", type=int)
    parser.add_argument("--patch-sizes", type=int, nargs="+")
    parser.add_argument("--stride", type=int)
    parser.add_argument("--grid", type=int)
    parser.add_argument("--threshold", type=float)
    parser.add_argument("--epsilon", type=float)
    parser.add_argument("--energy", type=float)
    parser.add_argument("--power", type=float)
    parser.add_argument("--dictionary-from", choices=["photographs", "first_task"])
    parser.add_argument("--first", type=int, default=10, help="classes that the dictionary comes from, if from a task")
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument(
        "--evaluate-every", type=int, default=1, metavar="N", help="choose and test in every Nth task only"
    )
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--images", type=int, default=500, help="training images per class")
    parser.add_argument("--validate", action="store_true", help="test on training images 400 to 500 of each class")
    parser.add_argument(
        "--loo-images", type=int, default=500, help="images per task that choose the strength, left out in turn"
    )
    parser.add_argument("--strengths", type=float, nargs="+", default=[30.0, 100.0, 300.0, 1000.0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder for features, read from there the next time")
    return parser.parse_args()


if __name__ == "__main__":
    main()
