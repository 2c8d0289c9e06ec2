"""Class orders and the division of classes into tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adagauss import Learner
from adagauss.core.config import plain
from adagauss.data.dataset import Dataset, load_dataset
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.data.stream import (
    StreamConfig,
    TaskStream,
    blurry,
    by_task,
    class_incremental,
    class_order,
    domain_incremental,
    few_shot,
    long_tailed,
    repeated,
    task_sizes,
)
from adagauss.errors import ConfigError, DataError, UnsupportedError
from adagauss.experiments.config import make_config
from adagauss.methods import make_method

ICARL = """68 56 78 8 23 84 90 65 74 76 40 89 3 92 55 9 26 80 43 38 58 70 77 1 85 19 17 50 28 53 13 81 45 82 6 59 83 16
15 44 91 41 72 60 79 52 20 10 31 54 37 95 14 71 96 98 97 2 64 66 42 22 35 86 24 34 87 21 99 0 88 27 18 94 11 12 47 25
30 46 62 69 36 61 7 63 75 5 32 4 51 48 73 93 39 67 29 49 57 33"""
NAMES = tuple("abcdefghij")


def letters() -> Dataset:
    """Ten classes; the pixels of an image hold the number of its class. Three train, two test."""

    def images(each: int) -> LabelledImages:
        targets = torch.arange(10).repeat(each)
        pixels = targets.view(-1, 1, 1, 1).expand(-1, 1, 2, 2).to(torch.uint8)
        return LabelledImages(ArrayImages(pixels), targets, NAMES)

    return Dataset("letters", images(3), images(2), (0.5,), (0.5,))


def sizes_of(config: StreamConfig) -> list[int]:
    return [len(task.classes) for task in TaskStream(letters(), config)]


@given(classes=st.integers(1, 200), data=st.data())
def test_equal_tasks_differ_by_one_class_at_most(classes: int, data: st.DataObject) -> None:
    tasks = data.draw(st.integers(1, classes))
    sizes = task_sizes(classes, tasks)
    assert len(sizes) == tasks
    assert sum(sizes) == classes
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("classes", "tasks", "first", "expected"),
    [
        (100, 10, None, [10] * 10),
        (100, 6, 50, [50, *[10] * 5]),
        (100, 11, 50, [50, *[5] * 10]),
        (200, 10, 10, [10, 22, *[21] * 8]),
        (10, 3, None, [4, 3, 3]),
        (10, 1, 10, [10]),
        (10, 2, 9, [9, 1]),
    ],
)
def test_task_sizes(classes: int, tasks: int, first: int | None, expected: list[int]) -> None:
    assert task_sizes(classes, tasks, first) == expected


@pytest.mark.parametrize(
    ("classes", "tasks", "first", "message"),
    [
        (10, 11, None, "11 tasks were requested, but there are only 10 classes"),
        (10, 3, 9, "leaves too few"),
        (10, 2, 10, "leaves too few"),
        (10, 2, 11, "leaves too few"),
        (10, 1, 5, "must have all 10"),
    ],
)
def test_impossible_sizes_say_why(classes: int, tasks: int, first: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task_sizes(classes, tasks, first)


def test_streams_of_every_kind() -> None:
    assert sizes_of(StreamConfig(tasks=5)) == [2] * 5
    assert sizes_of(StreamConfig(tasks=6, first=5)) == [5, 1, 1, 1, 1, 1]
    assert sizes_of(StreamConfig(sizes=(1, 7, 2))) == [1, 7, 2]
    assert sizes_of(StreamConfig(tasks=3, classes=6)) == [2, 2, 2]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (StreamConfig(sizes=(5, 6)), "add up to 11, but there are 10"),
        (StreamConfig(classes=11), "11 classes were requested, but letters has 10"),
        (StreamConfig(tasks=3, classes=2), "at most 2"),
        (StreamConfig(class_order=(0, 1, 1)), "at most once"),
        (StreamConfig(class_order=(0, 10)), r"0\.\.9"),
        (StreamConfig(class_order="natrual"), "did you mean 'natural'"),
    ],
)
def test_a_stream_that_cannot_be_says_why(config: StreamConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TaskStream(letters(), config)


def test_a_misspelt_setting_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'tasks'"):
        StreamConfig.of({"task": 5})


@pytest.mark.parametrize("value", [0, -1, 2.5, "many"])
def test_a_number_of_tasks_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="tasks"):
        StreamConfig.of({"tasks": value})


def test_tasks_hold_the_images_of_their_classes_in_order() -> None:
    order = (3, 1, 4, 0, 5, 9, 2, 6, 8, 7)
    seen: list[object] = []
    for task in TaskStream(letters(), StreamConfig(tasks=5, class_order=order)):
        assert task.classes == tuple(NAMES[position] for position in order[2 * task.index : 2 * task.index + 2])
        seen.extend(task.classes)
        for part, each in ((task.train, 3), (task.test, 2)):
            assert part.classes == task.classes
            assert part.counts().tolist() == [each, each]
            pixels = part.images.batch(torch.arange(len(part)))[:, 0, 0, 0].tolist()
            assert [NAMES[pixel] for pixel in pixels] == part.labels
    assert sorted(map(str, seen)) == list(NAMES)


def test_part_of_the_classes_can_be_taught() -> None:
    stream = TaskStream(letters(), StreamConfig(tasks=2, classes=4, class_order=(9, 8, 7, 6, 5)))
    assert stream.task_classes == [("j", "i"), ("h", "g")]


def test_the_default_order_is_used_unless_the_configuration_has_one() -> None:
    config = StreamConfig(tasks=1)
    icarl = tuple(NAMES[position] for position in class_order("icarl", range(10)))
    assert TaskStream(letters(), config, "icarl").task_classes == [icarl]
    assert TaskStream(letters(), config).task_classes == [NAMES]
    config = StreamConfig(tasks=1, class_order="natural")
    assert TaskStream(letters(), config, "icarl").task_classes == [NAMES]


def test_the_order_of_the_field() -> None:
    assert class_order("icarl", range(100)) == [int(number) for number in ICARL.split()]
    tiny = [168, 136, 51, 9, 183, 101, 171, 99, 42, 159, 191, 70, 16, 188, 27, 10, 175, 26, 68, 187]
    assert class_order("icarl", range(200))[:20] == tiny


def test_ways_to_name_an_order() -> None:
    assert class_order("natural", range(5)) == [0, 1, 2, 3, 4]
    assert class_order(1993, range(100)) == class_order("1993", range(100)) == class_order("icarl", range(100))
    assert class_order("per-run", range(100), seed=7) == class_order(7, range(100))
    assert (
        class_order("seeded", range(100), seed=7)
        == class_order(7, range(100))
        != class_order("seeded", range(100), seed=8)
    )
    assert class_order([2, 0, 1], range(3)) == [2, 0, 1]


@pytest.mark.parametrize("order", [-1, 2**32, "-1", "--5", str(2**32)])
def test_a_seed_out_of_range_is_a_readable_error(order: str | int) -> None:
    with pytest.raises(ConfigError):
        class_order(order, range(10))


def test_a_seed_can_be_given_as_a_number_in_the_configuration() -> None:
    stream = TaskStream(letters(), StreamConfig.of({"tasks": 1, "class_order": 7}))
    assert stream.task_classes == [tuple(NAMES[position] for position in class_order(7, range(10)))]


@pytest.mark.parametrize(("order", "run_seed", "expected"), [("per-run", 7, 7), ("seeded", 7, 3)])
def test_only_a_per_run_order_follows_the_seed_of_the_run(order: str, run_seed: int, expected: int) -> None:
    config = StreamConfig(tasks=1, class_order=order, class_order_seed=3)
    stream = TaskStream(letters(), config, run_seed=run_seed)
    assert stream.task_classes == [tuple(NAMES[position] for position in class_order(expected, range(10)))]


TARGETS = torch.arange(6).repeat(200)
TASKS = class_incremental(TARGETS, [2, 2, 2])


def counts(tasks: torch.Tensor) -> list[list[int]]:
    """The number of images of each class in each task."""
    return [torch.bincount(TARGETS[tasks == task], minlength=6).tolist() for task in range(3)]


def test_class_incremental_tasks_by_image() -> None:
    assert counts(TASKS) == [[200, 200, 0, 0, 0, 0], [0, 0, 200, 200, 0, 0], [0, 0, 0, 0, 200, 200]]
    with pytest.raises(ConfigError, match="add up to 5, but there are 6 classes"):
        class_incremental(TARGETS, [2, 3])


def test_long_tailed_classes_shrink_geometrically() -> None:
    tasks = long_tailed(TASKS, TARGETS, imbalance=32)
    assert counts(tasks) == [[200, 100, 0, 0, 0, 0], [0, 0, 50, 25, 0, 0], [0, 0, 0, 0, 12, 6]]
    assert torch.equal(tasks[tasks >= 0], TASKS[tasks >= 0])
    assert counts(long_tailed(TASKS, TARGETS, imbalance=1e9))[2] == [0, 0, 0, 0, 1, 1]
    assert not torch.equal(tasks, long_tailed(TASKS, TARGETS, imbalance=32, seed=1))


def test_few_shot_sessions_follow_a_whole_first_task() -> None:
    tasks = few_shot(TASKS, TARGETS, shots=5)
    assert counts(tasks) == [[200, 200, 0, 0, 0, 0], [0, 0, 5, 5, 0, 0], [0, 0, 0, 0, 5, 5]]
    assert counts(few_shot(long_tailed(TASKS, TARGETS, 32), TARGETS, 10))[2] == [0, 0, 0, 0, 10, 6]
    mixed = counts(few_shot(blurry(TASKS, share=0.3), TARGETS, shots=5))
    assert mixed[1:] == [[5] * 6] * 2


def test_repeated_classes_come_again_later_only() -> None:
    tasks = repeated(TASKS, share=0.5)
    assert bool((tasks >= TASKS).all())
    found = counts(tasks)
    assert found[2][4:] == [200, 200]
    for number in (0, 1):
        assert sum(row[number] for row in found) == 200
        assert 70 < found[0][number] < 130
        assert min(found[1][number], found[2][number]) > 20
    assert torch.equal(repeated(TASKS, share=0.0), TASKS)


def test_blurry_boundaries_exchange_a_share_of_the_images() -> None:
    tasks = blurry(TASKS, share=0.3)
    moved = tasks != TASKS
    assert 0.25 < float(moved.double().mean()) < 0.35
    assert torch.bincount(tasks).sum() == len(TASKS)
    assert all(min(row) > 10 for row in counts(tasks))
    few = few_shot(TASKS, TARGETS, 5)
    assert torch.equal(blurry(few, share=1.0) < 0, few < 0)


def test_domains_are_tasks_with_all_classes() -> None:
    data = letters().train
    tasks = domain_incremental(["photo"] * 10 + ["sketch"] * 10 + ["photo"] * 10)
    assert [(len(task), task.classes) for task in by_task(data, tasks)] == [(20, NAMES), (10, NAMES)]
    assert domain_incremental(torch.tensor([3, 3, 1])).tolist() == [0, 0, 1]


def test_images_of_a_task_keep_their_groups_and_labels_may_be_a_tensor() -> None:
    data = LabelledImages.from_labels(ArrayImages(torch.zeros(4, 8, 8)), torch.tensor([0, 1, 0, 1]))  # type: ignore[arg-type]
    data = replace(data, groups=torch.arange(4), grouped_by="one group")
    (task,) = by_task(data, torch.tensor([-1, 0, -1, 0]))
    assert (data.classes, task.classes, task.grouped_by) == ((0, 1), (1,), "one group")
    assert task.groups is not None
    assert task.groups.tolist() == [1, 3]


def test_task_numbers_that_do_not_fit_say_why() -> None:
    data = letters().train
    with pytest.raises(DataError, match=r"30 images but tasks of shape \(5,\): give one task number per image"):
        list(by_task(data, torch.zeros(5, dtype=torch.long)))
    with pytest.raises(DataError, match="task 0 has no images: number the tasks 0, 1, 2"):
        list(by_task(data, torch.ones(30, dtype=torch.long)))


def test_a_stream_of_tasks_may_be_long_tailed_with_few_shots() -> None:
    stream = TaskStream(letters(), StreamConfig(tasks=5, imbalance=9, shots=1, class_order=(9, *range(9))))
    assert stream[0].classes == ("j", "a")
    assert stream[0].train.counts().tolist() == [3, 2]
    assert all(task.train.counts().tolist() == [1, 1] for task in list(stream)[1:])
    assert stream[0].test.counts().tolist() == [2, 2]
    with pytest.raises(ConfigError, match="imbalance"):
        StreamConfig.of({"imbalance": 0.5})


def test_unused_settings_of_a_stream_are_not_stored() -> None:
    assert "shots" not in plain(StreamConfig())
    assert plain(StreamConfig(shots=5))["shots"] == 5
    one, other = (make_config("fecam", StreamConfig(shots=shots)) for shots in (None, 5))
    assert one.digest() != other.digest()


@pytest.mark.parametrize("kind", ["repeated", "blurry", "domain"])
def test_methods_learn_classes_again_or_say_why_not(kind: str) -> None:
    digits = load_dataset("digits").train
    data = digits.rows(torch.arange(0, len(digits), 5))
    home = class_incremental(data.targets, [5, 5])
    tasks = {
        "repeated": repeated(home),
        "blurry": blurry(home),
        "domain": domain_incremental([index % 2 for index in range(len(data))]),
    }[kind]
    settings = {"backbone.options.filters": 8, "backbone.options.patches": 500}
    learner = Learner(make_method("analytic-patches", settings=settings), (1, 8, 8), (0.3,), (0.4,))
    for task in by_task(data, tasks):
        learner.learn(task)
    assert sorted(learner.classes, key=str) == list(range(10))
    assert learner.predict(data.images)[:3] == data.labels[:3]
    other = Learner(make_method("lwf", settings={"backbone.name": "convnet"}, epochs=1), (1, 8, 8), (0.3,), (0.4,))
    first, second = by_task(data, tasks)
    other.learn(first)
    with pytest.raises(UnsupportedError, match=r"this method cannot learn more of it: .* needs one trained output"):
        other.learn(second)
