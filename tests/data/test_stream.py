"""Class orders and the division of classes into tasks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adagauss.data.dataset import Dataset
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.data.stream import StreamConfig, TaskStream, class_order, task_sizes
from adagauss.errors import ConfigError

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
