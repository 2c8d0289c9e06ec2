from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adagauss.analytic.batches import teach_shards
from adagauss.core.learn import Learner
from adagauss.data.shards import find_shards
from adagauss.errors import DataError, UnsupportedError, WorkerError
from adagauss.methods import make_method
from adagauss.utils.progress import Advance, Reporter
from tests.shards.conftest import NUMBER, Digits, mixed, packed, samples, scores


def test_shards_of_all_kinds_give_what_one_task_of_all_images_gives(
    tmp_path: Path, digits: Digits, prepared: Learner, at_once: Learner
) -> None:
    learner = prepared.empty_like()
    found = teach_shards(learner, mixed(tmp_path / "shards", digits))
    assert found.images == NUMBER
    assert learner.classes == at_once.classes
    for name, one, other in _buffers(learner, at_once):
        most = float(other.abs().max()) if other.numel() else 0.0  # features are products in float32
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * most, msg=name)
    assert learner.scale == at_once.scale


def _buffers(one: Learner, other: Learner) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    mine, theirs = (learner.state.scorer.state_dict() for learner in (one, other))
    found = [(name, mine[name].double(), theirs[name].double()) for name in theirs]
    learned, expected = (learner.state.evidence.learned.double() for learner in (one, other))
    return [*found, ("learned", learned, expected)]


class _StopError(Exception):
    pass


class _Stopping(Reporter):
    """Raises an error when this many shards are done."""

    def __init__(self, shards: int) -> None:
        self.left = shards

    @contextmanager
    def progress(self, title: str, total: float) -> Iterator[Advance]:
        def advance(note: str = "", step: float = 1.0) -> None:
            self.left -= title == "shards"
            if not self.left:
                raise _StopError

        yield advance


def test_a_stopped_call_has_learned_finished_shards_and_goes_on(
    tmp_path: Path, digits: Digits, prepared: Learner, at_once: Learner
) -> None:
    paths, learner, model = mixed(tmp_path / "shards", digits), prepared.empty_like(), tmp_path / "model.safetensors"
    with pytest.raises(_StopError):
        teach_shards(learner, paths, lambda _: learner.save(model), reporter=_Stopping(2))
    again = Learner.load(model)
    assert teach_shards(again, paths).known == 2
    assert int(again.state.evidence.learned.sum()) == NUMBER
    mine, theirs = (
        {one.label: one.images for one in found.state.evidence.summary(found.classes)} for found in (again, at_once)
    )
    assert mine == theirs


def test_finished_shards_are_learned_and_saved_from_time_to_time(
    tmp_path: Path, digits: Digits, prepared: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adagauss.analytic.batches.CHECKPOINT_SECONDS", -1)
    paths = [packed(tmp_path / f"{row}.tar", samples(digits, range(30 * row, 30 * row + 30))) for row in range(3)]
    learner, saved = prepared.empty_like(), list[int]()
    teach_shards(learner, paths, lambda report: saved.append(report.images))
    assert saved == [30, 60, 90]
    assert sum(one.images for one in learner.summary()) == 90
    assert int(learner.state.evidence.learned.sum()) == 90


def test_the_same_images_packed_again_elsewhere_count_once(tmp_path: Path, digits: Digits, prepared: Learner) -> None:
    one = packed(tmp_path / "a.tar", samples(digits, range(30)))
    other = packed(tmp_path / "b.tgz", samples(digits, range(30), "json"))
    learner = prepared.empty_like()
    found = teach_shards(learner, [one, other])
    assert (found.shards, found.known, found.images) == (1, 1, 30)
    found = teach_shards(learner, [other])  # the same from the note in the model
    assert (found.shards, found.known) == (0, 1)


def test_a_shard_that_has_changed_is_refused(tmp_path: Path, digits: Digits, prepared: Learner) -> None:
    path, learner = packed(tmp_path / "a.tar", samples(digits, range(30))), prepared.empty_like()
    teach_shards(learner, [path])
    packed(path, samples(digits, range(40)))
    with pytest.raises(DataError, match=r"a\.tar has changed since it was learned"):
        teach_shards(learner, [path])


def test_a_damaged_shard_is_named_or_left_out_and_taken_in_when_it_is_repaired(
    tmp_path: Path, digits: Digits, prepared: Learner
) -> None:
    good = packed(tmp_path / "good.tar", samples(digits, range(30)))
    torn = packed(tmp_path / "torn.tar", samples(digits, range(30, 60)))
    whole = torn.read_bytes()
    torn.write_bytes(whole[: len(whole) // 2 // 512 * 512])
    learner = prepared.empty_like()
    with pytest.raises(DataError, match=r"torn\.tar cannot be read \(it ends too early"):
        teach_shards(learner, [good, torn])
    found = teach_shards(learner, [good, torn], skip_bad=True)
    assert found.known == 1  # the good one was finished before the error
    assert len(found.damaged) == 1
    assert int(learner.state.evidence.learned.sum()) == 30
    torn.write_bytes(whole)
    assert teach_shards(learner, [good, torn]).images == 30
    assert int(learner.state.evidence.learned.sum()) == 60


def test_labels_of_two_kinds_are_refused_before_they_are_mixed(
    tmp_path: Path, digits: Digits, prepared: Learner
) -> None:
    pixels, labels = digits
    np.savez(tmp_path / "text.npz", images=pixels[:20], labels=np.array(labels[:20]))
    np.savez(tmp_path / "whole.npz", images=pixels[:20] // 2, labels=np.arange(20) % 3)
    with pytest.raises(DataError, match=r"whole\.npz.*text and some are numbers"):
        teach_shards(prepared.empty_like(), [tmp_path / "text.npz", tmp_path / "whole.npz"])


def test_a_method_that_keeps_more_than_sums_is_refused(tmp_path: Path, digits: Digits) -> None:
    learner = Learner(make_method("adagauss", settings={"backbone.name": "convnet"}), (1, 8, 8), (0.3,), (0.4,))
    path = packed(tmp_path / "a.tar", samples(digits, range(2)))
    with pytest.raises(UnsupportedError, match="family analytic"):
        teach_shards(learner, [path])


def test_a_folder_of_shard_files_is_all_of_them(tmp_path: Path, digits: Digits) -> None:
    for name in ("b.tar", "a.tar", ".hidden.tar"):
        packed(tmp_path / name, samples(digits, range(2)))
    assert [shard.path.name for shard in find_shards([tmp_path, tmp_path / "a.tar"])] == ["a.tar", "b.tar"]


def test_full_memory_gives_a_message(
    tmp_path: Path, digits: Digits, prepared: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedy(*_: Any, **__: Any) -> None:
        torch.empty(2**60, dtype=torch.uint8)

    monkeypatch.setattr("adagauss.analytic.batches.sum_shard", greedy)
    path = packed(tmp_path / "a.tar", samples(digits, range(30)))
    with pytest.raises(WorkerError, match=r"a\.tar: out of memory"):
        teach_shards(prepared.empty_like(), [path])


def test_class_folders_next_to_shard_files_are_rejected(tmp_path: Path, digits: Digits) -> None:
    packed(tmp_path / "a.tar", samples(digits, range(3)))
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "1.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"and the shard a\.tar"):
        find_shards([tmp_path])


def test_shards_read_at_once_give_what_one_after_the_other_gives(
    tmp_path: Path, digits: Digits, prepared: Learner, at_once: Learner
) -> None:
    paths, learner = mixed(tmp_path / "shards", digits), prepared.empty_like()
    found = teach_shards(learner, paths, jobs=2)
    assert found.images == NUMBER
    torch.testing.assert_close(scores(learner, digits), scores(at_once, digits), rtol=0, atol=1e-3)
