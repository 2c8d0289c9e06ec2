from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adagauss.analytic.batches import TOTAL, MomentBatch, teach_shards
from adagauss.core.learn import Learner
from adagauss.data.shards import Shard, find_shards
from adagauss.errors import CheckpointError, DataError, UnsupportedError, WorkerError
from adagauss.methods import make_method
from adagauss.utils.progress import Reporter
from tests.shards.conftest import NUMBER, Digits, mixed, packed, samples, scores


def test_shards_of_all_kinds_give_what_one_task_of_all_images_gives(
    tmp_path: Path, digits: Digits, prepared: Learner, at_once: Learner
) -> None:
    learner = prepared.empty_like()
    found = teach_shards(learner, mixed(tmp_path / "shards", digits), tmp_path / "stock")
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


def test_a_command_that_was_killed_goes_on_and_counts_no_shard_twice(
    tmp_path: Path, digits: Digits, prepared: Learner, at_once: Learner
) -> None:
    paths, stock = mixed(tmp_path / "shards", digits), tmp_path / "stock"
    read: list[str] = []

    def stop(shard: Shard) -> None:
        read.append(shard.name)
        if len(read) == 2:
            raise _StopError

    with pytest.raises(_StopError):
        teach_shards(prepared.empty_like(), paths, stock, on_shard=stop)
    learner = prepared.empty_like()
    later: list[str] = []
    found = teach_shards(learner, paths, stock, on_shard=lambda shard: later.append(shard.name))
    assert found.known == 2
    assert not set(read) & set(later)
    assert learner.state.scorer.class_sums is not None
    torch.testing.assert_close(learner.state.scorer.class_sums, at_once.state.scorer.class_sums)


def test_sums_on_disk_that_the_model_holds_already_are_dropped(
    tmp_path: Path, digits: Digits, prepared: Learner
) -> None:
    path, stock = packed(tmp_path / "a.tar", samples(digits, range(40))), tmp_path / "stock"
    learner = prepared.empty_like()
    teach_shards(learner, [path], stock)
    learner.save(tmp_path / "model.safetensors")
    assert (stock / TOTAL).exists()  # the command was killed before it cleaned up
    again = Learner.load(tmp_path / "model.safetensors")
    found = teach_shards(again, [path], stock)
    assert (found.shards, found.known) == (0, 1)
    assert again.state.scorer.class_sums is not None
    assert torch.equal(again.state.scorer.class_sums, learner.state.scorer.class_sums)  # type: ignore[arg-type]


def test_the_same_images_packed_again_elsewhere_count_once(tmp_path: Path, digits: Digits, prepared: Learner) -> None:
    one = packed(tmp_path / "a.tar", samples(digits, range(30)))
    other = packed(tmp_path / "b.tgz", samples(digits, range(30), "json"))
    learner = prepared.empty_like()
    found = teach_shards(learner, [one, other], tmp_path / "stock")
    assert (found.shards, found.known, found.images) == (1, 1, 30)
    found.clear()
    found = teach_shards(learner, [other], tmp_path / "stock")  # the same from the note in the model
    assert (found.shards, found.known) == (0, 1)
    assert found.learned == 0


def test_a_shard_that_has_changed_is_refused(tmp_path: Path, digits: Digits, prepared: Learner) -> None:
    path, learner = packed(tmp_path / "a.tar", samples(digits, range(30))), prepared.empty_like()
    teach_shards(learner, [path], tmp_path / "stock").clear()
    packed(path, samples(digits, range(40)))
    with pytest.raises(DataError, match=r"a\.tar has changed since it was learned"):
        teach_shards(learner, [path], tmp_path / "stock")


def test_a_damaged_shard_is_named_or_left_out_and_taken_in_when_it_is_repaired(
    tmp_path: Path, digits: Digits, prepared: Learner
) -> None:
    good = packed(tmp_path / "good.tar", samples(digits, range(30)))
    torn = packed(tmp_path / "torn.tar", samples(digits, range(30, 60)))
    whole = torn.read_bytes()
    torn.write_bytes(whole[: len(whole) // 2 // 512 * 512])
    with pytest.raises(DataError, match=r"torn\.tar is damaged \(it ends too early"):
        teach_shards(prepared.empty_like(), [good, torn], tmp_path / "stock")
    learner = prepared.empty_like()
    found = teach_shards(learner, [good, torn], tmp_path / "stock", skip_bad=True)
    assert found.known == 1  # the good one was finished before the error
    assert len(found.damaged) == 1
    assert int(learner.state.evidence.learned.sum()) == 30
    found.clear()
    torn.write_bytes(whole)
    assert teach_shards(learner, [good, torn], tmp_path / "stock").images == 30
    assert int(learner.state.evidence.learned.sum()) == 60


def test_labels_of_two_kinds_are_refused_before_they_are_mixed(
    tmp_path: Path, digits: Digits, prepared: Learner
) -> None:
    pixels, labels = digits
    np.savez(tmp_path / "text.npz", images=pixels[:20], labels=np.array(labels[:20]))
    np.savez(tmp_path / "whole.npz", images=pixels[:20] // 2, labels=np.arange(20) % 3)
    with pytest.raises(DataError, match=r"whole\.npz.*text and some are numbers"):
        teach_shards(prepared.empty_like(), [tmp_path / "text.npz", tmp_path / "whole.npz"], tmp_path / "stock")


def test_a_method_that_keeps_more_than_sums_is_refused(tmp_path: Path, digits: Digits) -> None:
    learner = Learner(make_method("adagauss", settings={"backbone.name": "convnet"}), (1, 8, 8), (0.3,), (0.4,))
    path = packed(tmp_path / "a.tar", samples(digits, range(2)))
    with pytest.raises(UnsupportedError, match="family analytic"):
        teach_shards(learner, [path], tmp_path / "stock")


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
        teach_shards(prepared.empty_like(), [path], tmp_path / "stock")


def test_a_full_disk_loses_no_finished_shard(
    tmp_path: Path, digits: Digits, prepared: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [packed(tmp_path / f"{row}.tar", samples(digits, range(30 * row, 30 * row + 30))) for row in range(3)]
    monkeypatch.setattr("adagauss.analytic.batches.SAVE_SECONDS", 0)
    save, calls = MomentBatch.save, []

    def full(batch: MomentBatch, path: Path) -> None:
        calls.append(path)
        if len(calls) > 1:
            raise CheckpointError("total could not be written (No space left on device)")
        save(batch, path)

    monkeypatch.setattr(MomentBatch, "save", full)
    with pytest.raises(CheckpointError, match=r"No space left"):
        teach_shards(prepared.empty_like(), paths, tmp_path / "stock")
    monkeypatch.undo()
    found = teach_shards(prepared.empty_like(), paths, tmp_path / "stock")
    assert (found.shards, found.known) == (2, 1)


def test_a_copy_that_comes_after_its_sums_were_added_up_counts_once(
    tmp_path: Path, digits: Digits, prepared: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adagauss.analytic.batches.SAVE_SECONDS", 0)
    one = packed(tmp_path / "a.tar", samples(digits, range(30)))
    copy = tmp_path / "b.tar"
    copy.write_bytes(one.read_bytes())

    found = teach_shards(prepared.empty_like(), [one, copy], tmp_path / "stock", jobs=2)
    assert (found.shards, found.known, found.images) == (1, 1, 30)


def test_files_of_an_earlier_command_are_reported(tmp_path: Path, digits: Digits, prepared: Learner) -> None:
    first = packed(tmp_path / "a.tar", samples(digits, range(30)))
    second = packed(tmp_path / "b.tar", samples(digits, range(30, 60)))
    teach_shards(prepared.empty_like(), [first], tmp_path / "stock")
    heard: list[str] = []

    class Listening(Reporter):
        def message(self, text: str) -> None:
            heard.append(text)

    teach_shards(prepared.empty_like(), [second], tmp_path / "stock", reporter=Listening())
    assert "1 shards of an earlier call" in heard[0]


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
    found = teach_shards(learner, paths, tmp_path / "stock", jobs=2)
    assert found.images == NUMBER
    torch.testing.assert_close(scores(learner, digits), scores(at_once, digits), rtol=0, atol=1e-3)
