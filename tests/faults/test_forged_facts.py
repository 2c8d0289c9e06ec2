"""Facts in a file, forged with a right digest: commands ignore them or raise an error."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adagauss import IncrementalClassifier
from adagauss.cli import main
from adagauss.core.learn import Learner
from adagauss.core.learner_state import check_labels
from adagauss.errors import CheckpointError, DataError, NumericalError
from adagauss.utils.checkpoint import load_tensors, save_tensors

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)


def taught(labels: list[Any]) -> IncrementalClassifier:
    classifier = IncrementalClassifier("exact", settings={"backbone.options.filters": 4})
    classifier.partial_fit(IMAGES, labels)
    return classifier


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose classes are numbers."""
    path = tmp_path_factory.mktemp("model") / "numbered.safetensors"
    taught([1] * 6 + [2] * 6).save(path)
    return path


def forged(source: Path, path: Path, about: Any) -> Path:
    tensors, facts = load_tensors(source, "learner")
    save_tensors(path, "learner", tensors, {**facts, "about": about})
    return path


def called(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["adagauss", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("about", [5, [1], "text", {"estimator": 5}, {"estimator": {"nonsense": 1}}])
def test_facts_that_are_none_are_refused(numbered: Path, tmp_path: Path, about: Any) -> None:
    path = forged(numbered, tmp_path / "forged.safetensors", about)
    with pytest.raises(CheckpointError, match="does not fit the learner it describes"):
        IncrementalClassifier.load(path)


@pytest.mark.parametrize("history", [5, "ab", [{"when": 5}, 7, None], {"when": "x"}])
def test_a_history_that_is_none_is_passed_over(
    numbered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: Any
) -> None:
    path = forged(numbered, tmp_path / "forged.safetensors", {"history": history})
    assert called(monkeypatch, "info", path) == 0
    assert called(monkeypatch, "forget", path, "1") == 0
    assert [change["action"] for change in Learner.load(path).about["history"]] == ["forget"]


@pytest.mark.parametrize("name", ["robin", "1_0", "", " "])
def test_a_class_that_is_a_number_is_not_called_otherwise(
    numbered: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    before = numbered.read_bytes()
    assert called(monkeypatch, "rename", numbered, "1", name) == 2
    assert "unexpected" not in capsys.readouterr().err
    assert numbered.read_bytes() == before


def test_labels_that_could_not_be_loaded_again_are_refused() -> None:
    with pytest.raises(DataError, match="got inf"):
        taught([float("inf")] * 6 + [1.5] * 6)
    with pytest.raises(CheckpointError, match="rename the class"):
        check_labels([1.5, float("-inf")])


@pytest.mark.parametrize("name", ["bias_3", "deviation", "directions_3", "mean", "weight_3"])
def test_a_dictionary_of_patches_that_does_not_fit_is_refused(numbered: Path, tmp_path: Path, name: str) -> None:
    tensors, facts = load_tensors(numbered, "learner")
    key = f"network.extractor.trunk.features.{name}"
    tensors[key] = tensors[key][:-1].clone()
    save_tensors(tmp_path / "cut.safetensors", "learner", tensors, facts)
    with pytest.raises(CheckpointError, match="does not fit"):
        Learner.load(tmp_path / "cut.safetensors")


def test_a_number_of_scales_that_takes_forever_is_refused(numbered: Path, tmp_path: Path) -> None:
    tensors, facts = load_tensors(numbered, "learner")
    facts["method"]["backbone"]["options"]["scales"] = 10**7
    save_tensors(tmp_path / "scales.safetensors", "learner", tensors, facts)
    with pytest.raises(CheckpointError, match="scales"):
        Learner.load(tmp_path / "scales.safetensors")


def test_infinite_scores_are_an_error_and_no_prediction(numbered: Path) -> None:
    classifier = IncrementalClassifier.load(numbered)
    classifier.learner_.state.scorer.get_buffer("weight").fill_(3e38)
    with pytest.raises(NumericalError, match="not finite"):
        classifier.predict_proba(IMAGES)


def test_a_header_of_lists_takes_little_memory(tmp_path: Path) -> None:
    header = b'{"__metadata__":{"digest":"' + b"0" * 64 + b'"},"x":[' + b"[]," * 1_000_000 + b"0]}"
    path = tmp_path / "forged.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="more entries"):
            load_tensors(path, "learner")
        assert tracemalloc.get_traced_memory()[1] < 10 * len(header)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("huge", [2**63 - 1, -(2**62), 1e300])
def test_huge_counts_and_weights_are_rejected_at_load(numbered: Path, tmp_path: Path, huge: float) -> None:
    tensors, facts = load_tensors(numbered, "learner")
    tried = 0
    for name, tensor in tensors.items():
        fits = tensor.dtype == (torch.int64 if isinstance(huge, int) else torch.float64)
        if name.startswith("network.") or not fits or not tensor.numel():
            continue
        forgery = tensor.clone()
        forgery.view(-1)[0] = huge
        save_tensors(tmp_path / "forged.safetensors", "learner", {**tensors, name: forgery}, facts)
        with pytest.raises(CheckpointError, match=r"contains|does not fit"):
            IncrementalClassifier.load(tmp_path / "forged.safetensors")
        tried += 1
    assert tried


@pytest.mark.parametrize(("name", "number"), [("sums.images", 2**53 + 2), ("sums.cross", 1e31), ("trunk.", torch.nan)])
def test_numbers_that_could_not_be_loaded_are_not_saved(tmp_path: Path, name: str, number: float) -> None:
    classifier = taught(["a"] * 6 + ["b"] * 6)
    classifier.save(tmp_path / "model.safetensors")
    before = (tmp_path / "model.safetensors").read_bytes()
    tensors = classifier.learner_.state.state_dict()
    next(one for key, one in tensors.items() if name in key and one.numel()).view(-1)[0] = number
    with pytest.raises(CheckpointError, match="use a file"):
        classifier.save(tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_names_that_could_not_be_loaded_are_not_saved(tmp_path: Path) -> None:
    classifier = taught(["a"] * 6 + ["b"] * 6)
    classifier.save(tmp_path / "model.safetensors")
    before = (tmp_path / "model.safetensors").read_bytes()
    classifier.rename("a", "[" * 300_000)
    with pytest.raises(CheckpointError, match="brackets"):
        classifier.save(tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").read_bytes() == before
