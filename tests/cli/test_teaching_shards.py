from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from adagauss.core.learn import Learner
from tests.cli.conftest import SMALL, Command
from tests.shards.conftest import Digits, digits, packed, samples

__all__ = ["digits"]  # a fixture


@pytest.fixture
def shards(tmp_path: Path, digits: Digits) -> list[Path]:
    """Three tar files, the last one of them damaged."""
    paths = [
        packed(tmp_path / f"{index}.tar", samples(digits, range(40 * index, 40 * index + 40))) for index in range(3)
    ]
    paths[2].write_bytes(paths[2].read_bytes()[:5000])
    return paths


def test_a_model_is_made_and_goes_on_after_an_error(adagauss: Command, tmp_path: Path, shards: list[Path]) -> None:
    model = tmp_path / "digits.safetensors"
    stopped = adagauss("teach", model, *shards, *SMALL, "--quiet")
    assert stopped.code == 2
    assert "2.tar cannot be read" in stopped.said
    assert int(Learner.load(model).state.evidence.learned.sum()) == 80
    done = adagauss("teach", model, *shards, "--skip-bad", "--quiet")
    assert done.code == 0, done.err
    assert "2 shards already learned" in done.out
    assert "Skipped: " in done.out
    assert "now knows 10 classes" in done.out
    assert int(Learner.load(model).state.evidence.learned.sum()) == 80
    again = adagauss("teach", model, *shards[:2], "--quiet")
    assert "Taught 0 images from 0 shards" in again.out
    assert "--method takes effect only" in adagauss("teach", model, shards[0], "--method", "exact").said


def test_a_forgotten_class_is_not_brought_back_by_known_shards(
    adagauss: Command, tmp_path: Path, shards: list[Path]
) -> None:
    model = tmp_path / "digits.safetensors"
    assert adagauss("teach", model, *shards[:2], *SMALL, "--quiet").code == 0
    assert "stay forgotten" not in adagauss("teach", model, *shards[:2], "--quiet").out
    assert adagauss("forget", model, "digit 3").code == 0
    again = adagauss("teach", model, *shards[:2], "--quiet")
    assert "2 shards already learned" in again.out
    assert "Classes that were forgotten stay forgotten" in again.out
    assert "now knows 9 classes" in again.out


def test_a_file_of_another_kind_is_refused(adagauss: Command, tmp_path: Path, shards: list[Path]) -> None:
    shutil.copy(shards[0], tmp_path / "x.zip")
    refused = adagauss("teach", tmp_path / "new.safetensors", tmp_path / "x.zip", *SMALL, "--quiet")
    assert refused.code == 2
    assert "x.zip is not a shard" in refused.said
    assert not (tmp_path / "new.safetensors").exists()


def test_shards_and_a_folder_of_them_teach_the_same(adagauss: Command, tmp_path: Path, shards: list[Path]) -> None:
    shards[2].unlink()
    old, new = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in shards[:2]:
        shutil.copy(path, folder)
    assert adagauss("teach", old, *shards[:2], *SMALL, "--quiet").code == 0
    done = adagauss("teach", new, folder, *SMALL, "--quiet")
    assert "Taught 80 images from 2 shards" in done.out
    assert Learner.load(new).classes == Learner.load(old).classes
    assert "--class does not apply to shards" in adagauss("teach", new, folder, "--class", "x").said
