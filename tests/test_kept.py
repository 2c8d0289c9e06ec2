"""What is said to be kept of old images is what is kept, to the byte."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from adagauss.analytic.moments import packed_numbers
from adagauss.core.state import State
from adagauss.data.images import LabelledImages, Subset
from adagauss.kept import formula, kept, single_images, table
from tests.contracts.toy import LEARNING, taught, toy_learner, toy_tasks

PRIVACY = Path(__file__).parent.parent / "docs" / "privacy.md"


def test_the_table_of_the_documentation_is_that_of_the_methods() -> None:
    assert table() in PRIVACY.read_text(encoding="utf-8"), "write adagauss.kept.table() into docs/privacy.md"


def evaluated(text: str, sizes: dict[str, int]) -> int:
    """A formula such as 4CS² + 4C with numbers in the place of letters."""
    total = 0
    for term in filter(None, text.split(" + ")):
        factor = re.match(r"\d+", term)
        assert factor is not None, term
        value = int(factor[0])
        for letter, square in re.findall(r"([A-Z])(²?)", term):
            value *= sizes[letter] ** (2 if square else 1)
        total += value
    return total


@pytest.mark.parametrize("name", ["adagauss", "sdc", "ewc", "efc", "pass", "dsal", "exact", "ranpac"])
def test_the_formulas_give_the_bytes_of_every_state(name: str) -> None:
    known = taught(name, 1).state
    holders = [known.parts, *([known.memory] if len(known.memory) else [])]
    states = [module for one in holders for module in one.modules() if isinstance(module, State)]
    for state in states:
        sizes = {"C": len(known.classes), "S": known.memory.size}
        sizes["W"] = sum(parameter.numel() for parameter in known.network.extractor.parameters())
        for buffer, letters in state.axes.items():
            for letter, size in zip(letters, state.get_buffer(buffer).shape, strict=True):
                sizes.update({"E": size} if letter == "e" else {"Q": size} if letter == "q" else {})
        counted = sum(
            state.get_buffer(buffer).numel() * state.get_buffer(buffer).element_size()
            for buffer, letters in state.axes.items()
            if set(letters) & set("csewq")
        )
        halves = 4 * sizes["E"] ** 2 if "p" in state.axes.values() else 0
        assert evaluated(formula(state), sizes) == counted + halves


def test_a_large_symmetric_matrix_takes_about_half_of_its_square() -> None:
    assert packed_numbers(20_000) == pytest.approx(20_000**2 / 2, rel=0.06)


@pytest.mark.parametrize("name", LEARNING)
def test_all_that_is_kept_is_listed_with_words(name: str) -> None:
    known = taught(name, 1).state
    listed = kept(known)
    tensors = [*known.parts.state_dict().values(), *known.memory.state_dict().values()]
    assert sum(one.size for one in listed) == sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert all(one.words for one in listed)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("exact", {}), ("exact", {"backbone.mirror": True}), ("exact", {"backbone.mirror": False}), ("frozen", {})],
)
def test_classes_of_one_image_are_named_for_their_mean_is_its_feature(name: str, settings: dict[str, object]) -> None:
    task = toy_tasks()[0]
    first = torch.nonzero(task.targets == 1).flatten()[:1]
    rows = torch.cat([torch.nonzero(task.targets == 0).flatten(), first])
    learner = toy_learner(name, None, **settings)
    learner.learn(LabelledImages(Subset(task.images, rows), task.targets[rows], task.classes))
    assert single_images(learner.state) == ["one"]
    feature = learner.features(Subset(task.images, first))[0].double()
    tensors = learner.state.state_dict()
    mean = tensors["parts.classifier.sums.cross"][:, 1] if name == "exact" else tensors["memory.means"][1]
    assert torch.allclose(mean, feature, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [("exact", {"classifier.flips": True}, True), ("acil", {}, True), ("dsal", {}, True), ("finetune", {}, False)],
)
def test_a_class_of_one_image_is_named_wherever_a_sum_of_it_is_kept(
    name: str, settings: dict[str, object], named: bool
) -> None:
    task = toy_tasks()[0]
    rows = torch.cat([torch.nonzero(task.targets == 0).flatten(), torch.nonzero(task.targets == 1).flatten()[:1]])
    learner = toy_learner(name, None, **settings)
    learner.learn(LabelledImages(Subset(task.images, rows), task.targets[rows], task.classes))
    assert single_images(learner.state) == (["one"] if named else [])
