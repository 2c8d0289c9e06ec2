"""The search for settings uses held-out training images only, and can be resumed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adagauss.core.config import plain
from adagauss.data.dataset import Dataset, load_dataset
from adagauss.data.images import Images, LabelledImages, Subset
from adagauss.data.stream import StreamConfig
from adagauss.errors import AdagaussError, CheckpointError, ConfigError, DataError, NumericalError, WorkerError
from adagauss.experiments import grid as grid_module
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.grid import Workers
from adagauss.experiments.runner import ValidationSplit
from adagauss.experiments.tune import Range, Search, tune

STREAM = StreamConfig(dataset="digits", tasks=5, class_order=(3, 1, 4, 0, 5, 9, 2, 6, 8, 7))
TIED = Range.parse("classifier.pooled_shrinkage=0..1.0")


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


class RecordedImages:
    """Images that record which of them are read."""

    def __init__(self, images: Images) -> None:
        self.images = images
        self.read: set[int] = set()

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.images.shape

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor) -> Tensor:
        self.read |= set(indices.tolist())
        return self.images.batch(indices)


def recorded(part: LabelledImages) -> tuple[LabelledImages, RecordedImages]:
    images = RecordedImages(part.images)
    return replace(part, images=images), images


def test_neither_test_images_nor_later_tasks_are_read(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    # Fingerprints, by which a resumed run knows its data, read all images.
    monkeypatch.setattr("adagauss.experiments.runner.fingerprints", lambda _: {"none": "0"})
    train, learned = recorded(digits.train)
    test, tested = recorded(digits.test)
    search = Search(make_config("fecam", STREAM, epochs=1), (TIED,), ValidationSplit(tasks=2))
    monkeypatch.setattr(grid_module, "load_dataset", lambda *_: replace(digits, train=train, test=test))
    tune(search, tmp_path, trials=1)
    assert tested.read == set()
    labels = {int(digits.train.targets[row]) for row in learned.read}
    assert labels == {3, 1, 4, 0}, "the classes of the first two tasks"


def test_training_and_validation_images_of_every_class_differ(digits: Dataset) -> None:
    _, found = ValidationSplit(tasks=2, share=0.25).of(make_config("frozen", STREAM), digits)
    assert found.classes == (3, 1, 4, 0)
    whole = digits.train.of_classes(found.classes)
    assert len(found.train) + len(found.test) == len(whole)
    assert torch.equal(found.train.counts() + found.test.counts(), whole.counts())
    assert torch.equal(found.test.counts(), (whole.counts() * 0.25).round().long())
    rows = [part.images.indices for part in (found.train, found.test)]  # type: ignore[attr-defined]
    assert len(set(torch.cat(rows).tolist())) == len(whole)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [({"tasks": 6}, ConfigError, "has 5 tasks"), ({"share": 1.0}, ConfigError, "between 0 and 1")],
)
def test_an_impossible_split_is_refused(
    digits: Dataset, change: dict[str, Any], error: type[AdagaussError], message: str
) -> None:
    with pytest.raises(error, match=message):
        ValidationSplit(**change).of(make_config("frozen", STREAM), digits)


def test_a_class_of_one_image_cannot_be_split(digits: Dataset) -> None:
    one = digits.train.of_classes([3, 1])
    first = torch.cat([torch.nonzero(one.targets == target).flatten()[:count] for target, count in ((0, 1), (1, 9))])
    few = LabelledImages(Subset(one.images, first), one.targets[first], one.classes)
    config = make_config("frozen", StreamConfig(dataset="digits", tasks=1))
    with pytest.raises(DataError, match="class 3 has 1 training image"):
        ValidationSplit(tasks=1).of(config, replace(digits, train=few))


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a=",
        "=1..2",
        "a=1..",
        "a=x..y",
        "a=2..1",
        "a=0..1:log",
        "a=1..nan",
        "a=sgd",
        "a=[1,2",
        "a=1,1",
        "a=[1],[2]",
        "a=1..2:lin",
    ],
)
def test_an_invalid_range_is_an_error_message(text: str) -> None:
    with pytest.raises(ConfigError, match="--range"):
        Range.parse(text)


class FakeRun:
    """Runs whose accuracy is a function of the setting; each call is recorded."""

    def __init__(self, fails: float = 2.0, dies: int = 10**9) -> None:
        self.calls: list[str] = []
        self.fails, self.dies = fails, dies

    def __call__(self, config: RunConfig, folder: Path, **_: Any) -> Any:
        self.calls.append(folder.name)
        if len(self.calls) > self.dies:
            raise KeyboardInterrupt
        pooled_shrinkage = plain(config.method.classifier)["pooled_shrinkage"]
        if pooled_shrinkage > self.fails:
            raise NumericalError("lower the learning rate")
        return _Result([1.0, 1 - abs(pooled_shrinkage - 0.3)])


class _Result:
    def __init__(self, accuracy: Sequence[float]) -> None:
        self.curve = accuracy


@pytest.fixture
def search() -> Search:
    pytest.importorskip("optuna")
    return Search(make_config("fecam", STREAM), (TIED,), ValidationSplit(tasks=2))


def use(monkeypatch: pytest.MonkeyPatch, fake: FakeRun) -> FakeRun:
    monkeypatch.setattr(grid_module, "run", fake)
    return fake


def states(tuned: Sequence[Any]) -> list[str]:
    return [one.state.name for one in tuned]


def found(tuned: Sequence[Any]) -> list[tuple[int, Any, Any]]:
    return [(one.number, one.params, one.value) for one in tuned]


def test_the_best_settings_are_found_and_failures_are_trials(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, FakeRun(fails=0.8))
    with ThreadPoolExecutor(2) as executor:
        tuned = tune(search, tmp_path, trials=16, workers=Workers(executor, 2))
    assert abs(tuned[0].params["classifier.pooled_shrinkage"] - 0.3) < 0.1
    assert len(tuned) == 16
    failed = [one for one in tuned if one.state.name == "FAIL"]
    assert failed
    assert all(one.params["classifier.pooled_shrinkage"] > 0.8 for one in failed)


def test_a_search_that_was_stopped_continues_its_trial_and_draws_what_it_would_have_drawn(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, FakeRun())
    whole = tune(search, tmp_path / "whole", trials=4)
    use(monkeypatch, FakeRun(dies=1))
    with pytest.raises(KeyboardInterrupt):
        tune(search, tmp_path / "parts", trials=4)
    rest = use(monkeypatch, FakeRun())
    assert found(tune(search, tmp_path / "parts", trials=4)) == found(whole)
    assert rest.calls[0] == "0001"
    assert found(tune(search, tmp_path / "parts", trials=4)) == found(whole)
    assert len(rest.calls) == 3


def test_a_trial_of_a_lost_machine_goes_on_later(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any, **__: Any) -> Any:
        raise WorkerError("gone")

    monkeypatch.setattr(grid_module, "run", lost)
    with pytest.raises(WorkerError):
        tune(search, tmp_path, trials=1)
    use(monkeypatch, FakeRun())
    assert states(tune(search, tmp_path, trials=1)) == ["COMPLETE"]


def test_a_fault_of_a_machine_leaves_the_trial_open_and_ends_the_search(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Faulty(FakeRun):
        def __call__(self, config: RunConfig, folder: Path, **_: Any) -> Any:
            if folder.name == "0001":
                raise DataError("node 7 reads other data")
            return super().__call__(config, folder)

    use(monkeypatch, Faulty())
    assert states(tune(search, tmp_path, trials=4)) == ["COMPLETE", "RUNNING"]
    use(monkeypatch, FakeRun())
    assert states(tune(search, tmp_path, trials=4)) == ["COMPLETE"] * 4


def test_another_search_in_the_same_folder_is_a_study_of_its_own(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, FakeRun())
    tune(search, tmp_path, trials=1)
    other = replace(search, ranges=(Range.parse("classifier.pooled_shrinkage=0..0.5"),))
    assert len(tune(other, tmp_path, trials=2)) == 2
    assert len(tune(search, tmp_path, trials=3)) == 3


def test_a_damaged_journal_is_an_error_message(search: Search, tmp_path: Path) -> None:
    (tmp_path / "study.journal").write_bytes(b"[1, 2]\n")
    with pytest.raises(CheckpointError, match="choose another --out"):
        tune(search, tmp_path, trials=1)


@pytest.mark.parametrize(
    ("ranges", "settings", "message"),
    [
        ((), {}, "at least one setting"),
        (("classifier.pooled_shrinkag=0..1.0",), {}, "classifier.pooled_shrinkage"),
        (("classifier.pooled_shrinkage=0..2.0",), {}, "classifier.pooled_shrinkage"),
        (("classifier.pooled_shrinkage=0..1.0",), {"classifier.pooled_shrinkage": 0.5}, "given twice"),
    ],
)
def test_ranges_that_do_not_fit_the_method_are_refused_first(
    ranges: Sequence[str], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Search(
            make_config("fecam", STREAM, settings=settings), tuple(map(Range.parse, ranges)), ValidationSplit()
        ).check()
