"""The actions of the REST interface on a small classifier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from adagauss import IncrementalClassifier
from tests.deploy.serve.colours import Serve, classes_of, ended, form, pixels, png


def labels(client: TestClient, *colours: str, query: str = "") -> list[str | None]:
    files = [("pictures", (f"{colour}.png", png(colour, 7))) for colour in colours]
    answer = client.post(f"/api/predict{query}", files=files)
    assert answer.status_code == 200, answer.text
    return [one["label"] for one in answer.json()["predictions"]]


def test_several_pictures_are_classified_in_order_with_their_names(reader: TestClient) -> None:
    files = [("pictures", (f"{colour}.png", png(colour, 9))) for colour in ("green", "red", "green")]
    answer = reader.post("/api/predict?top=2", files=files).json()
    assert [one["name"] for one in answer["predictions"]] == ["green.png", "red.png", "green.png"]
    assert [one["label"] for one in answer["predictions"]] == ["green", "red", "green"]
    for one in answer["predictions"]:
        assert sum(likely["probability"] for likely in one["top"]) == 1.0 or len(one["top"]) == 2
        assert one["probability"] == one["top"][0]["probability"]


def test_an_answer_is_that_of_the_classifier_itself(reader: TestClient, saved: Path) -> None:
    here = IncrementalClassifier.load(saved).predict_proba(pixels("red", 5)[None])
    there = reader.post("/api/predict", content=png("red", 5), headers={"Content-Type": "image/png"}).json()
    found = {one["label"]: one["probability"] for one in there["predictions"][0]["top"]}
    assert abs(found["red"] - here[0][1]) < 1e-6  # columns are sorted: green, red


def test_pictures_get_the_size_of_a_classifier_of_oblong_images(serve: Serve, tmp_path: Path) -> None:
    images = np.stack([pixels(colour, seed)[:8] for colour in ("red", "green") for seed in range(12)])
    classifier = IncrementalClassifier("exact", settings={"backbone.options.filters": 20})
    classifier.fit(images, ["red"] * 12 + ["green"] * 12).save(tmp_path / "oblong.safetensors")
    client = serve(tmp_path / "oblong.safetensors")
    assert client.get("/api/model").json()["picture_size"] == 12
    assert labels(client, "green", "red") == ["green", "red"]


def test_a_file_that_is_not_an_image_does_not_stop_the_others(reader: TestClient) -> None:
    files = [("pictures", ("a.txt", b"no picture")), ("pictures", ("b.png", png("red")))]
    first, second = reader.post("/api/predict", files=files).json()["predictions"]
    assert "not an image" in first["problem"]
    assert second["label"] == "red"


@pytest.mark.parametrize("route", ["predict", "teach"])
def test_an_empty_body_is_refused(reader: TestClient, route: str) -> None:
    answer = reader.post(f"/api/{route}", content=b"", headers={"Content-Type": "image/png"})
    assert answer.status_code == 422
    assert "no pictures" in answer.json()["detail"]


def test_a_new_class_and_more_of_a_known_one_are_taught_together(client: TestClient) -> None:
    before = classes_of(client)
    job = ended(client, client.post("/api/teach", files=form(blue=8, red=3)))
    assert job["progress"] == 1.0
    assert classes_of(client) == {"blue": 8, "green": before["green"], "red": before["red"] + 3}
    assert labels(client, "blue", "red", "green") == ["blue", "red", "green"]


def test_pictures_that_cannot_be_read_are_skipped_and_named(client: TestClient) -> None:
    pictures = [png("blue", seed) for seed in range(6)]
    job = ended(client, client.post("/api/teach", files=form(blue=[*pictures, b"no picture"])))
    assert [one["name"] for one in job["skipped"]] == ["blue-6.png"]
    assert classes_of(client)["blue"] == 6


def test_a_class_without_any_picture_is_refused(reader: TestClient) -> None:
    answer = reader.post("/api/teach", files=form(blue=[b"no picture"]))
    assert answer.status_code == 422
    assert "no picture of 'blue'" in answer.json()["detail"]


def test_forget_rename_history_and_undo(client: TestClient) -> None:
    ended(client, client.post("/api/rename", json={"old": "red", "new": "scarlet"}))
    ended(client, client.post("/api/teach", files=form(blue=6)))
    ended(client, client.post("/api/forget", json={"classes": ["green"]}))
    assert set(classes_of(client)) == {"blue", "scarlet"}
    actions = [one["action"] for one in client.get("/api/history").json()]
    assert actions == ["forget", "teach", "rename", "found"]

    ended(client, client.post("/api/undo"))
    assert set(classes_of(client)) == {"blue", "green", "scarlet"}
    ended(client, client.post("/api/undo"))
    ended(client, client.post("/api/undo"))
    assert set(classes_of(client)) == {"green", "red"}
    assert labels(client, "red", "green") == ["red", "green"]
    answer = client.post("/api/undo")
    assert answer.status_code == 422
    assert "nothing to undo" in answer.json()["detail"]


def test_a_class_is_renamed_to_an_existing_name_only_to_merge_both(client: TestClient) -> None:
    before = classes_of(client)
    ended(client, client.post("/api/teach", files=form(blue=6)))
    ended(client, client.post("/api/rename", json={"old": "blue", "new": "red"}), "failed")
    ended(client, client.post("/api/rename", json={"old": "blue", "new": "rot", "merge": True}), "failed")
    ended(client, client.post("/api/rename", json={"old": "blue", "new": "red", "merge": True}))
    assert classes_of(client) == {"green": before["green"], "red": before["red"] + 6}
    assert client.get("/api/history").json()[0]["summary"] == "blue is now part of red"


def test_an_undone_file_is_the_file_before_byte_by_byte(client: TestClient, model: Path, saved: Path) -> None:
    ended(client, client.post("/api/teach", files=form(blue=6)))
    assert model.read_bytes() != saved.read_bytes()
    ended(client, client.post("/api/undo"))
    assert model.read_bytes() == saved.read_bytes()


def test_forgetting_for_good_leaves_no_copy(client: TestClient, model: Path) -> None:
    ended(client, client.post("/api/teach", files=form(blue=6)))
    copies = model.with_name(model.name + ".history")
    assert list(copies.glob("*.safetensors"))
    ended(client, client.post("/api/forget", json={"classes": ["blue"], "for_good": True}))
    assert not list(copies.glob("*.safetensors"))
    assert client.post("/api/undo").status_code == 422


def test_forgetting_for_good_removes_the_names_from_history_and_jobs(client: TestClient) -> None:
    ended(client, client.post("/api/teach", files=form(blue=6)))
    ended(client, client.post("/api/rename", json={"old": "blue", "new": "r"}))
    ended(client, client.post("/api/forget", json={"classes": ["r"], "for_good": True}))
    ended(client, client.post("/api/rename", json={"old": "red", "new": "rose"}))
    hidden = "classes that were forgotten for good"
    assert [one["summary"] for one in client.get("/api/jobs").json()] == ["red is now rose", hidden, hidden, hidden]
    assert [one["summary"] for one in client.get("/api/history").json()][:4] == ["red is now rose"] + [hidden] * 3


def test_only_so_many_changes_can_be_undone(client: TestClient, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adagauss.deploy.serve.store.UNDO", 2)
    for name in ("a", "b", "c"):
        old = next(iter(classes_of(client)))
        ended(client, client.post("/api/rename", json={"old": old, "new": name}))
    assert len(list(model.with_name(model.name + ".history").glob("before-*"))) == 2


def test_a_file_that_is_not_there_yet_begins_with_its_first_classes(serve: Serve, tmp_path: Path) -> None:
    client = serve(tmp_path / "new.safetensors")
    assert classes_of(client) == {}
    assert client.post("/api/predict", files=form(red=1)).status_code == 409
    assert client.get("/api/download/model").status_code == 409


def test_classes_that_are_not_there_fail_and_change_nothing(client: TestClient) -> None:
    version = client.get("/api/model").json()["version"]
    job = ended(client, client.post("/api/forget", json={"classes": ["owl"]}), "failed")
    assert "unknown class 'owl'" in job["error"]
    job = ended(client, client.post("/api/rename", json={"old": "red", "new": "green"}), "failed")
    assert "already" in job["error"]
    assert client.get("/api/model").json()["version"] == version


def test_the_downloaded_file_is_the_model(reader: TestClient, tmp_path: Path, saved: Path) -> None:
    answer = reader.get("/api/download/model")
    assert answer.headers["content-disposition"] == 'attachment; filename="colours.safetensors"'
    assert answer.content == saved.read_bytes()


def test_what_a_method_cannot_do_is_refused_with_the_reason(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "trained.safetensors"
    settings = {"backbone.name": "convnet", "backbone.features": 8}
    classifier = IncrementalClassifier("finetune", settings=settings, epochs=1)
    images = np.stack([pixels(colour, seed) for colour in ("red", "green") for seed in range(8)])
    classifier.partial_fit(images, ["red"] * 8 + ["green"] * 8).save(path)
    client = serve(path)
    reason = client.get("/api/model").json()["cannot"]["teach more"]
    assert "one trained output" in reason
    answer = client.post("/api/teach", files=form(red=3))
    assert answer.status_code == 409
    assert answer.json()["detail"] == reason
    ended(client, client.post("/api/forget", json={"classes": ["green"]}))
    assert list(classes_of(client)) == ["red"]


def test_pictures_of_unknown_classes_are_unknown_at_the_target_rate(reader: TestClient) -> None:
    assert labels(reader, "grey") != [None]
    answer = reader.post("/api/predict?unknown=0.05", content=png("blue", 3), headers={"Content-Type": "image/png"})
    assert answer.json()["warning"] == ""
    strange = answer.json()["predictions"][0]
    assert strange["unknown"]
    assert strange["label"] is None
    assert strange["top"], "the most similar classes are still listed"
    assert labels(reader, "red", "green", query="?unknown=0.05") == ["red", "green"]
    for rate in ("0", "1", "x"):
        assert reader.post(f"/api/predict?unknown={rate}", files=form(red=1)).status_code == 422


def test_an_unknown_rate_without_held_out_images_is_a_warning(serve: Serve, tmp_path: Path) -> None:
    classifier = IncrementalClassifier("analytic-patches", settings={"backbone.options.filters": 20})
    classifier.fit(np.stack([pixels("red", 0), pixels("green", 0)]), ["red", "green"]).save(
        tmp_path / "two.safetensors"
    )
    client = serve(tmp_path / "two.safetensors")
    for rate, words in (("?unknown=0.05", "no held-out images"), ("", "")):
        found = client.post(f"/api/predict{rate}", files=form(red=1)).json()["warning"]
        assert (words in found) if words else not found


def test_everything_is_in_the_description_of_the_interface(reader: TestClient) -> None:
    paths = reader.get("/api/openapi.json").json()["paths"]
    assert paths.keys() >= {"/api/predict", "/api/teach", "/api/forget", "/api/rename", "/api/undo", "/api/jobs/{job}"}
    assert "multipart/form-data" in paths["/api/teach"]["post"]["requestBody"]["content"]


def test_metrics_count_requests_pictures_and_jobs(client: TestClient) -> None:
    def counts() -> dict[str, float]:
        lines = client.get("/api/metrics").text.splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    before = counts()
    labels(client, "red", "green")
    ended(client, client.post("/api/rename", json={"old": "red", "new": "scarlet"}))
    grown = {name: value - before.get(name, 0.0) for name, value in counts().items()}
    assert grown["adagauss_pictures_total"] == 2.0
    assert grown['adagauss_requests_total{route="/api/predict",status="200"}'] == 1.0
    assert grown["adagauss_predict_seconds_count"] == 1.0
    assert grown['adagauss_jobs_total{action="rename",state="done"}'] == 1.0
    assert counts()["adagauss_classes"] == 2.0
