"""An exported learner gives the same answers in onnxruntime, and its file is whole and understood by others."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch import nn

from adagauss.classifier import IncrementalClassifier
from adagauss.core.learn import Learner
from adagauss.data.decode import ResizeMode, fitted
from adagauss.data.images import ArrayImages
from adagauss.deploy import onnx as export
from adagauss.deploy.onnx import DeployedPredictor, export_onnx, grey, resized
from adagauss.errors import CheckpointError, ConfigError, DataError
from tests.contracts.toy import LEARNING, quick_method, same, state, taught, toy_images, toy_learner

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

Array = npt.NDArray[Any]
PAGE = Path(export.__file__).parent / "serve" / "static" / "index.html"
EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_predict.py"
RNG = np.random.default_rng(0)


def run(path: Path, pixels: Array) -> tuple[Array, Array, Array]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    probabilities, best, p_value = session.run(None, {"pixels": pixels})
    return probabilities, best, p_value


def facts_of(path: Path) -> dict[str, Any]:
    return {entry.key: json.loads(entry.value) for entry in onnx.load(path).metadata_props}


KINDS: dict[str, tuple[str, dict[str, object]]] = {quick_method(name).classifier.kind: (name, {}) for name in LEARNING}
CASES = ("acil", "adagauss-linear", "dsal", "exact-auto", "fecam", "ranpac", "sdc")
"""Every kind of scorer."""


class Given(nn.Module):
    """In place of an extractor: its input are the features."""

    def forward(self, features: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return features


class Predictors(nn.Module):
    """The first learner from its images, and the scorers of all others from their features, in one program."""

    def __init__(self, learners: list[Learner]) -> None:
        super().__init__()
        self.first, *self.others = (DeployedPredictor(learner).predictor for learner in learners)
        self.extractors = [one.extractor for one in self.others]
        for one in self.others:
            vars(one)["_modules"]["extractor"] = Given()

    def features(self, images: torch.Tensor) -> list[torch.Tensor]:
        return [extractor(images) for extractor in self.extractors]

    def forward(self, images: torch.Tensor, features: list[torch.Tensor]) -> list[torch.Tensor]:
        scores = [one(some) for one, some in zip(self.others, features, strict=True)]
        return [output for one in [self.first(images), *scores] for output in one]


def test_every_scorer_has_the_same_outputs_in_onnxruntime(tmp_path: Path) -> None:
    learners = [taught(name, 2) for name in CASES]
    before, path = [state(learner) for learner in learners], tmp_path / "toy.onnx"
    levels = toy_images(test=True).images.batch(torch.arange(len(toy_images(test=True).images)))
    images = levels.float() / 255
    with torch.inference_mode(False), torch.no_grad(), export._quiet():
        predictors = Predictors(learners)
        features = predictors.features(images)
        batch = {0: torch.export.Dim("batch")}
        names = ["images", *CASES[1:]]
        torch.onnx.export(
            predictors,
            (images[:3].contiguous(), [some[:3].contiguous() for some in features]),
            path,
            dynamo=True,
            input_names=names,
            dynamic_shapes=(batch, [batch] * len(features)),
            verbose=False,
        )
    assert all(same(state(learner), old) for learner, old in zip(learners, before, strict=True))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for number in (1, 2, 9, len(images)):
        given = [some[:number].numpy() for some in (images, *features)]
        outputs = session.run(None, dict(zip(names, given, strict=True)))
        for position, learner in enumerate(learners):
            scores, p_value = outputs[2 * position : 2 * position + 2]
            expected = learner.predictions(ArrayImages(levels[:number]))
            np.testing.assert_allclose(p_value, expected.p_value.numpy(), rtol=1e-3, atol=1e-3)
            probabilities = torch.softmax(torch.from_numpy(scores).double(), 1)
            ordered = probabilities.numpy()[:, learner.state.predictor.order]
            np.testing.assert_allclose(ordered, expected.probabilities, atol=1e-4)
            assert (ordered.argmax(1) == expected.probabilities.argmax(1)).mean() > 0.99


def modules_of_scorer(name: str, **settings: object) -> frozenset[type]:
    return frozenset(map(type, taught(name, 2, None, **settings).state.scorer.modules()))


def test_every_classifier_has_a_scorer_that_is_tested() -> None:
    tested = {modules_of_scorer(name) for name in CASES}
    assert [kind for kind, (name, settings) in KINDS.items() if modules_of_scorer(name, **settings) not in tested] == []


@pytest.fixture(scope="module")
def colours() -> tuple[IncrementalClassifier, Array]:
    """A classifier of noisy red and blue pictures of 12 by 12 pixels, and such pictures, larger."""
    labels = np.arange(20) % 2
    pictures = RNG.integers(0, 120, (20, 40, 90, 3), dtype=np.uint8)
    pictures[labels == 0, ..., 0] += 100
    pictures[labels == 1, ..., 2] += 100
    small = np.ascontiguousarray(pictures[:, ::3, ::5][:, :12, :12])
    names = np.array(["red", "blue"])[labels]
    return IncrementalClassifier("exact", settings={"backbone.options.filters": 8}).fit(small, names), pictures


@pytest.fixture(scope="module")
def translated(
    colours: tuple[IncrementalClassifier, Array], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any]:
    """The exported file, and the program that was written to it."""
    path, translate, programs = tmp_path_factory.mktemp("exported") / "colours.onnx", export._program, list[Any]()

    def noted(module: export.DeployedPredictor) -> Any:
        programs.append(translate(module))
        return programs[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_program", noted)
        colours[0].export(path)
    return path, programs[0]


@pytest.fixture(scope="module")
def exported(translated: tuple[Path, Any]) -> Path:
    return translated[0]


def test_pictures_of_any_size_are_prepared_inside(colours: tuple[IncrementalClassifier, Array], exported: Path) -> None:
    classifier, pictures = colours
    labels = facts_of(exported)["labels"]
    order = [labels.index(label) for label in classifier.classes_]
    for height, width in ((12, 12), (40, 90), (40, 20), (1, 1), (7, 60)):
        some = np.ascontiguousarray(pictures[:4, :height, :width])
        probabilities, _, _ = run(exported, some)
        expected = classifier.predict_proba([Image.fromarray(picture) for picture in some])
        np.testing.assert_allclose(probabilities[:, order], expected, atol=5e-3)


@pytest.mark.parametrize("shape", [(50, 70), (70, 50), (9, 9), (10, 20), (200, 3), (13, 10)])
@pytest.mark.parametrize("size", [(10, 10), (10, 20), (33, 11)])
@pytest.mark.parametrize("mode", get_args(ResizeMode))
def test_resampling_is_that_of_files(shape: tuple[int, int], size: tuple[int, int], mode: ResizeMode) -> None:
    picture = RNG.integers(0, 256, (*shape, 3), dtype=np.uint8)
    expected = fitted(Image.fromarray(picture), *size, mode).astype(int)
    ours = resized(torch.from_numpy(picture).permute(2, 0, 1)[None].float(), *size, mode)[0].numpy()
    assert np.abs(ours - expected).max() <= 1


class EveryMode(nn.Module):
    """Images resized in every mode."""

    height, width = 10, 20

    def forward(self, pixels: torch.Tensor) -> list[torch.Tensor]:
        levels = pixels.permute(0, 3, 1, 2).float()
        return [resized(levels, self.height, self.width, mode) for mode in get_args(ResizeMode)]


def test_resampling_in_onnxruntime_is_that_of_files(tmp_path: Path) -> None:
    modes, module, path = get_args(ResizeMode), EveryMode(), tmp_path / "resized.onnx"
    assert len(modes) == len(export.OUTPUTS)
    export._program(cast(DeployedPredictor, module)).save(path)
    session = onnxruntime.InferenceSession(str(path))
    for shape in ((50, 70), (70, 50), (10, 20), (200, 3), (1, 1)):
        pictures = RNG.integers(0, 256, (2, *shape, 3), dtype=np.uint8)
        for mode, ours in zip(modes, session.run(None, {"pixels": pictures}), strict=True):
            for picture, one in zip(pictures, ours, strict=True):
                expected = fitted(Image.fromarray(picture), module.height, module.width, mode).astype(int)
                assert np.abs(one - expected).max() <= 1, (mode, shape)


def test_grey_is_that_of_files() -> None:
    picture = RNG.integers(0, 256, (60, 60, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(picture).convert("L"))
    np.testing.assert_array_equal(grey(torch.from_numpy(picture).permute(2, 0, 1)[None])[0, 0].numpy(), expected)


def test_the_file_says_what_it_holds(colours: tuple[IncrementalClassifier, Array], exported: Path) -> None:
    learner, facts = colours[0].learner_, facts_of(exported)
    assert facts["labels"] == learner.classes
    assert facts["format"] == export.FORMAT
    assert facts["unknown"]["0.05"] == 0.05
    assert (facts["facts"]["height"], facts["facts"]["channels"]) == (12, 3)
    assert facts["facts"]["tasks"] == [list(task) for task in learner.tasks]
    assert list(exported.parent.iterdir()) == [exported]


def test_what_is_too_large_is_refused_and_the_rest_stays(
    colours: tuple[IncrementalClassifier, Array],
    translated: tuple[Path, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (classifier, pictures), path = colours, tmp_path / "toy.onnx"
    learner, small = classifier.learner_, np.ascontiguousarray(pictures[:, :12, :12])
    path.write_bytes(b"an older file")
    before, values = state(learner), classifier.predict_proba(small)
    monkeypatch.setattr(export, "MOST_BYTES", 10)
    monkeypatch.setattr(export, "_program", lambda _: translated[1])  # which takes seconds
    with pytest.raises(CheckpointError, match="at most 2 GB"):
        export_onnx(learner, path)
    assert path.read_bytes() == b"an older file"
    assert same(state(learner), before)
    assert np.array_equal(classifier.predict_proba(small), values)


def test_nothing_learned_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing has been learned"):
        export_onnx(toy_learner("exact"), tmp_path / "toy.onnx")


def test_the_missing_extra_is_named(
    colours: tuple[IncrementalClassifier, Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r"pip install 'adagauss\[onnx\]'"):
        colours[0].export(tmp_path / "toy.onnx")


def test_the_example_needs_neither_torch_nor_this_library(
    colours: tuple[IncrementalClassifier, Array], exported: Path, tmp_path: Path
) -> None:
    classifier, pictures = colours
    files = [tmp_path / f"{number}.png" for number in range(4)]
    for file, pixels in zip(files, pictures, strict=False):
        Image.fromarray(pixels).save(file)
    unreadable = [tmp_path, tmp_path / "text.jpg", tmp_path / "half.png"]
    unreadable[1].write_bytes(b"text")
    unreadable[2].write_bytes(files[0].read_bytes()[:-40])
    program = f"""
import runpy, sys
sys.modules["torch"] = sys.modules["adagauss"] = None  # importing them raises
sys.argv[1:] = {[str(exported), *map(str, [*unreadable, *files])]!r}
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    for path, line in zip(unreadable, child.stderr.splitlines(), strict=True):
        assert line.startswith(f"{path}: skipped (")
    answers = [line.split("\t") for line in child.stdout.splitlines()]
    assert [(path, label) for path, label, _ in answers] == [
        (prediction.name, prediction.label) for prediction in classifier.classify(files)
    ]


def test_the_code_on_the_page_of_the_server_prints_the_predictions(
    colours: tuple[IncrementalClassifier, Array],
    exported: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    classifier, pictures = colours
    classifier.save(tmp_path / "model.safetensors")
    shutil.copy(exported, tmp_path / "model.onnx")
    for file in (tmp_path / "photo.jpg", tmp_path / "photos" / "photo.jpg"):
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(pictures[0]).save(file, quality=95)
    (photo,) = classifier.classify(tmp_path / "photos")
    found = re.findall("<code>(.*?)</code>", PAGE.read_text(), re.DOTALL)
    model, _, onnx_model, _ = (html.unescape(re.sub("<.*?>", "", code)) for code in found)
    monkeypatch.chdir(tmp_path)
    exec(model, {})
    assert capsys.readouterr().out.split() == ["photo.jpg", photo.label, str(photo.probability)]
    exec(onnx_model, {})
    label, probability = capsys.readouterr().out.split()
    assert label == photo.label
    assert float(probability) == pytest.approx(photo.probability, abs=1e-4)
