"""`teach`, `predict`, `evaluate` and upkeep, as a user at 80 columns meets them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.cli.conftest import SMALL, Command, Photographs


def test_teach_makes_a_model_and_says_how_to_go_on(
    adagauss: Command, photographs: Photographs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    photographs(tmp_path / "seen", ("owl", "robin"))
    outcome = adagauss("teach", "birds.safetensors", "seen", *SMALL)
    assert outcome.code == 0, outcome.err
    assert "Taught 2 classes from 24 images" in outcome.out
    assert "adagauss predict birds.safetensors" in outcome.out
    assert Path("birds.safetensors").exists()


def test_teach_goes_on_with_new_classes_and_more_images(
    adagauss: Command, photographs: Photographs, birds: Path, tmp_path: Path
) -> None:
    photographs(tmp_path / "more", ("wren", "tit"), first=50)
    outcome = adagauss("teach", birds, "more")
    assert outcome.code == 0, outcome.err
    lines = {line.split()[0]: line for line in outcome.out.splitlines()}
    assert "new" in lines["tit"]
    assert "more images" in lines["wren"]
    assert "knows 4 classes" in outcome.out


def test_one_folder_is_taught_as_one_class(adagauss: Command, photographs: Photographs, birds: Path) -> None:
    photographs(Path("more"), ("tit",))
    refused = adagauss("teach", birds, "more/tit")
    assert refused.code == 2
    assert "--class NAME" in refused.said
    outcome = adagauss("teach", birds, "more/tit", "--class", "Blue tit")
    assert outcome.code == 0, outcome.err
    assert "Blue tit" in outcome.out


def test_a_folder_too_high_is_refused(adagauss: Command, photographs: Photographs, birds: Path) -> None:
    for place in ("all/spring", "all/summer"):
        photographs(Path(place), ("owl", "tit"), 2)
    photographs(Path("all"), ("unsorted",), 2)
    before = birds.read_bytes()
    refused = adagauss("teach", birds, "all")
    assert refused.code == 2
    assert "spring holds no images itself, only folders of images: owl, tit" in refused.said
    assert "--nested" in refused.said
    assert birds.read_bytes() == before
    outcome = adagauss("teach", birds, "all", "--nested")
    assert outcome.code == 0, outcome.err
    assert "knows 6 classes" in outcome.out


def test_one_folder_within_each_class_folder_is_accepted(
    adagauss: Command, photographs: Photographs, birds: Path
) -> None:
    for label in ("tit", "crow"):
        photographs(Path("more", label), ("images",), 2)
    outcome = adagauss("teach", birds, "more")
    assert outcome.code == 0, outcome.err
    assert "knows 5 classes" in outcome.out


def test_info_names_a_class_of_one_image(adagauss: Command, photographs: Photographs, tmp_path: Path) -> None:
    photographs(tmp_path / "one", ("owl",), 1)
    outcome = adagauss("teach", tmp_path / "one.safetensors", tmp_path / "one", *SMALL)
    assert "Taught 1 class from 1 image in" in outcome.out
    said = " ".join(adagauss("info", tmp_path / "one.safetensors").out.split())
    assert "1 class, taught in 1 task " in said
    assert "that image's feature is stored (owl)" in said
    assert "knows one class and always predicts it" in outcome.said
    assert "of a class of one image, that image's feature is stored (owl): add images" in outcome.said
    for command in ("evaluate", "predict"):
        assert "knows one class and" in adagauss(command, tmp_path / "one.safetensors", tmp_path / "one").said


def test_too_few_images_for_estimates_and_unknown_classes_are_named(
    adagauss: Command, photographs: Photographs, tmp_path: Path
) -> None:
    photographs(tmp_path / "one", ("owl", "wren"), 1)
    photographs(tmp_path / "two", ("owl", "wren"), 2, first=20)
    model = tmp_path / "m.safetensors"
    adagauss("teach", model, tmp_path / "one", *SMALL)
    said = adagauss("predict", model, tmp_path / "one", "--unknown", "0.05").said
    assert "no held-out images of known classes, so no image is labelled unknown: teach at least two classes" in said
    adagauss("teach", model, tmp_path / "two")
    outcome = adagauss("info", model)
    assert "100" not in outcome.out.split("estimated accuracy")[1]
    assert "fewer than 10 held-out images; adagauss evaluate measures it" in outcome.out
    assert "method   analytic-patches:" in outcome.out
    assert "held-out" not in adagauss("predict", model, tmp_path / "one", "--unknown", "0.05").said


def test_pictures_that_are_not_read_are_told_of_once(
    adagauss: Command, birds: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Path("seen/owl/phone.avif").write_bytes(b"")
    assert adagauss("teach", birds, "seen", "--again").code == 0
    assert caplog.text.count("1 .avif") == 1


def test_images_without_a_known_extension_are_counted(
    adagauss: Command, birds: Path, caplog: pytest.LogCaptureFixture
) -> None:
    image = next(Path("seen/owl").iterdir()).read_bytes()
    Path("more/tit").mkdir(parents=True)
    for name in ("photo", "photo.jfif", "notes.txt"):
        Path("more/tit", name).write_bytes(b"text" if name == "notes.txt" else image)
    refused = adagauss("teach", birds, "more")
    assert refused.code == 2
    assert "more/tit holds no images, only images without a known extension, such as photo: give them" in refused.said
    Path("more/tit/a.png").write_bytes(image)
    assert adagauss("teach", birds, "more").code == 0
    assert "2 images without a known extension, such as photo, are left out" in caplog.text


def test_options_of_a_new_model_are_refused_for_an_old_one(adagauss: Command, birds: Path) -> None:
    before = birds.read_bytes()
    refused = adagauss("teach", birds, "seen", "--set", "backbone.options.filters=9")
    assert refused.code == 2
    assert "--set takes effect only when a model is created" in refused.said
    assert birds.read_bytes() == before


def test_an_effort_chooses_the_method(adagauss: Command, birds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = ("analytic-patches", {"backbone.options.filters": 20, "backbone.options.patches": 2000})
    monkeypatch.setattr("adagauss.classifier.quick_method", lambda: quick)
    outcome = adagauss("teach", "quick.safetensors", "seen", "--effort", "quick")
    assert outcome.code == 0, outcome.err
    assert "effort quick" in adagauss("info", "quick.safetensors").out
    refused = adagauss("teach", "other.safetensors", "seen", "--effort", "quick", "--method", "analytic-patches")
    assert refused.code == 2
    assert "chooses the method itself" in refused.said


def test_a_failed_teach_leaves_the_model_unchanged(adagauss: Command, birds: Path) -> None:
    before = birds.read_bytes()
    Path("more/tit").mkdir(parents=True)
    Path("more/tit/a.png").write_bytes(b"no image")
    refused = adagauss("teach", birds, "more")
    assert refused.code == 2
    assert "--skip-bad" in refused.said
    assert birds.read_bytes() == before


def test_predict_prints_a_table_of_80_columns(adagauss: Command, birds: Path) -> None:
    outcome = adagauss("predict", birds, "unseen", "--top", "2", "--quiet")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert len(lines) == 2 * 18
    assert max(map(len, lines)) <= 80
    right = sum(Path(line.split()[0]).parent.name == line.split()[1] for line in lines[::2])
    assert right >= 16


def test_long_names_are_cut_to_80_columns(adagauss: Command, photographs: Photographs, birds: Path) -> None:
    deep = Path("unseen", *(["a_rather_long_folder_name"] * 6))
    photographs(deep, ("w" * 200,), 2)
    assert adagauss("teach", birds, deep).code == 0
    outcome = adagauss("predict", birds, deep, "--quiet")
    assert max(map(len, outcome.out.splitlines())) == 80
    assert all("…" in line and ".png" in line for line in outcome.out.splitlines())


def test_json_lines_hold_every_answer(adagauss: Command, birds: Path) -> None:
    outcome = adagauss("predict", birds, "unseen/owl", "--json", "--top", "2", "--quiet")
    answers = [json.loads(line) for line in outcome.out.splitlines()]
    assert [Path(answer["image"]).name for answer in answers] == [f"{number}.png" for number in range(100, 106)]
    for answer in answers:
        assert answer["class"] == answer["top"][0]["class"]
        assert answer["probability"] == answer["top"][0]["probability"] >= answer["top"][1]["probability"]
        assert "unknown" not in answer


def test_an_unknown_image_has_no_class_and_no_probability_of_it(adagauss: Command, birds: Path) -> None:
    # All images but the most typical one are strange at this rate.
    lines = adagauss("predict", birds, "unseen", "--json", "--unknown", "0.99", "--quiet").out.splitlines()
    answers = [json.loads(line) for line in lines]
    for answer in answers:
        assert answer["unknown"] == (answer["class"] is None) == (answer["probability"] is None)
        assert answer["top"][0]["probability"] > 0
    assert any(answer["unknown"] for answer in answers)
    table = adagauss("predict", birds, "unseen", "--csv", "--unknown", "0.99", "--quiet").out
    rows = list(csv.DictReader(io.StringIO(table)))
    assert [row["probability"] == "" for row in rows] == [answer["unknown"] for answer in answers]
    both = adagauss("predict", birds, "unseen", "--csv", "--unknown", "0.99", "--top", "2", "--quiet").out
    likeliest = [answer["top"][0]["class"] for answer in answers]
    for row, label in zip(csv.DictReader(io.StringIO(both)), likeliest, strict=True):
        assert row["class_2" if row["class"] == "unknown" else "class"] == label


def test_skipped_images_do_not_count_as_taught(adagauss: Command, birds: Path) -> None:
    Path("more/owl").mkdir(parents=True)
    for name in ("100.png", "101.png"):
        Path("more/owl", name).write_bytes(Path("unseen/owl", name).read_bytes())
    Path("more/owl/bad.png").write_bytes(b"no image")
    outcome = adagauss("teach", birds, "more", "--skip-bad", "--quiet")
    assert "Taught 1 class from 2 images in" in outcome.out
    assert "classes 1, images 2" in adagauss("info", birds).out


def test_names_are_found_however_their_accents_are_written(adagauss: Command, birds: Path) -> None:
    assert adagauss("rename", birds, "owl", "e\u0301cole").code == 0
    assert adagauss("rename", birds, "\u00e9cole", "owl").code == 0
    same = adagauss("rename", birds, "owl", "owl")
    assert same.code == 2
    assert "its name already" in same.said
    twice = adagauss("forget", birds, "owl", "owl")
    assert "Forgot 'owl'; " in twice.out
    assert "forget; classes 1" in adagauss("info", birds).out


def test_csv_has_a_heading_and_a_line_per_image(adagauss: Command, birds: Path) -> None:
    outcome = adagauss("predict", birds, "unseen/owl", "--csv", "--top", "2", "--quiet")
    rows = list(csv.DictReader(io.StringIO(outcome.out)))
    assert list(rows[0]) == ["image", "class", "probability", "class_2", "probability_2"]
    assert len(rows) == 6
    refused = adagauss("predict", birds, "unseen", "--csv", "--json")
    assert refused.code == 2


def test_bad_images_are_named_or_skipped(adagauss: Command, birds: Path) -> None:
    Path("unseen/owl/bad.png").write_bytes(b"no image")
    refused = adagauss("predict", birds, "unseen/owl")
    assert refused.code == 2
    assert "bad.png" in refused.said
    assert "--skip-bad" in refused.said
    skipped = adagauss("predict", birds, "unseen/owl", "--skip-bad", "--json")
    assert skipped.code == 0
    assert len(skipped.out.splitlines()) == 6


def test_evaluate_tells_accuracy_worst_classes_and_draws(
    adagauss: Command, photographs: Photographs, birds: Path
) -> None:
    photographs(Path("unseen"), ("visitor",), 2)
    photographs(Path("odd/wren"), ("",), 3, first=500)
    Image.open("unseen/owl/100.png").save("unseen/wren/owl.png")
    outcome = adagauss("evaluate", birds, "unseen", "--figures", "drawn", "--quiet")
    assert outcome.code == 0, outcome.err
    assert "of 19 images" in outcome.out
    assert "unknown classes: visitor" in outcome.out
    rows = {line.split()[0]: line.split() for line in outcome.out.splitlines() if line.split()}
    assert rows["wren"][1] == "7"
    assert rows["wren"][3] == "owl"
    assert max(map(len, outcome.out.splitlines())) <= 80
    for name in ("worst.png", "confusion.png"):
        with Image.open(Path("drawn", name)) as image:
            assert image.width > 300


def test_evaluate_as_json_agrees_with_predict(adagauss: Command, birds: Path) -> None:
    numbers = json.loads(adagauss("evaluate", birds, "unseen", "--json", "--quiet").out)
    lines = adagauss("predict", birds, "unseen", "--json", "--quiet").out.splitlines()
    answers = [json.loads(line) for line in lines]
    right = [Path(answer["image"]).parent.name == answer["class"] for answer in answers]
    assert numbers["images"] == len(right)
    assert numbers["accuracy"] == sum(right) / len(right)
    assert len(numbers["wrong"]) == len(right) - sum(right)


def test_two_programs_do_not_overwrite_each_other(
    adagauss: Command, photographs: Photographs, birds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    photographs(Path("more"), ("tit",))
    from adagauss.classifier import IncrementalClassifier

    learn = IncrementalClassifier.partial_fit

    def slowly(self: IncrementalClassifier, *given: Any, **options: Any) -> IncrementalClassifier:
        birds.write_bytes(b"another program was here")
        return learn(self, *given, **options)

    monkeypatch.setattr(IncrementalClassifier, "partial_fit", slowly)
    refused = adagauss("teach", birds, "more")
    assert refused.code == 2
    assert "another program changed" in refused.said
    assert birds.read_bytes() == b"another program was here"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "nowhere", "seen"], "adagauss teach NAME.safetensors FOLDER"),
        (["predict", "birds.safetensors", "nowhere.png"], "no such file or folder"),
        (["predict", "birds.safetensors", "seen", "--unknown", "7"], "between 0 and 1"),
        (["evaluate", "birds.safetensors", "seen/owl"], "holds no class folders"),
        (["teach", "birds.safetensors", "nowhere"], "no such file or folder"),
        (["teach", "new.safetensors", "seen", "--method", "analitic"], "did you mean 'analytic'"),
        (["teach", "seen", "seen"], "runs are not changed"),
        (["forget", "birds.safetensors", "robni"], "did you mean 'robin'"),
        (["rename", "birds.safetensors", "robni", "x"], "did you mean 'robin'"),
        (["rename", "birds.safetensors", "robin", "owl"], "--merge"),
        (["teach", "birds.safetensors", "nowhere.safetensors"], "no model nowhere"),
        (["teach", "birds.safetensors", "seen/owl", "--class", " "], "a name that is not empty"),
        (["teach", "birds.safetensors", "unseen", "--device", "gpu"], "device"),
        (["export", "birds.safetensors", "birds.txt"], "end in .onnx"),
    ],
)
def test_mistakes_are_one_sentence(adagauss: Command, birds: Path, words: list[str], message: str) -> None:
    before = birds.read_bytes()
    outcome = adagauss(*words)
    assert outcome.code == 2
    assert message in outcome.said
    assert "Traceback" not in outcome.err
    assert birds.read_bytes() == before


def test_models_are_merged_by_teaching(adagauss: Command, photographs: Photographs, birds: Path) -> None:
    photographs(Path("more"), ("tit",))
    assert adagauss("teach", "tits.safetensors", "more", "--features-from", birds, "--quiet").code == 0
    both = adagauss("teach", "all.safetensors", birds, "tits.safetensors", "--quiet")
    assert both.code == 0, both.err
    assert "all.safetensors now knows 4 classes" in both.out
    refused = adagauss("teach", "new.safetensors", birds, "--quiet")
    assert "name two models" in refused.said
    assert "now knows 4 classes" in adagauss("teach", birds, "tits.safetensors", "--quiet").out
