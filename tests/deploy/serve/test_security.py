"""Who is let in, and how much of what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from adagauss.deploy.serve import main
from adagauss.deploy.serve.security import Access, Limits
from adagauss.errors import ConfigError
from tests.deploy.serve.colours import Serve, classes_of, ended, form, png, serving

TOKEN = "0123456789abcdef-secret"
PICTURE = {"Content-Type": "image/png"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def guarded(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    path = tmp_path_factory.mktemp("guarded") / "colours.safetensors"
    path.write_bytes(saved.read_bytes())
    limits = Limits(changes=1000.0, wrong_tokens=1000.0)
    with serving(path, access=Access("127.0.0.1", TOKEN), limits=limits) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/model"),
        ("POST", "/api/predict"),
        ("POST", "/api/teach"),
        ("POST", "/api/forget"),
        ("POST", "/api/undo"),
        ("DELETE", "/api/history/copies"),
        ("GET", "/api/history"),
        ("GET", "/api/jobs"),
        ("GET", "/api/download/model"),
        ("GET", "/api/metrics"),
        ("GET", "/api/openapi.json"),
        ("GET", "/nothing"),
    ],
)
def test_nothing_but_page_and_health_is_open_without_the_token(guarded: TestClient, method: str, path: str) -> None:
    assert guarded.request(method, path).status_code == 401
    assert guarded.request(method, path, headers=bearer(TOKEN[:-1])).status_code == 401
    assert guarded.request(method, path, headers={"Authorization": f"Basic {TOKEN}"}).status_code == 401
    assert guarded.request(method, path, headers=bearer(TOKEN)).status_code != 401
    assert guarded.get("/").status_code == guarded.get("/api/health").status_code == 200


def test_wrong_tokens_are_slowed_down_for_their_address_only(serve: Serve) -> None:
    client = serve(access=Access("127.0.0.1", TOKEN))
    answers = [client.get("/api/model", headers=bearer("wrong")).status_code for _ in range(12)]
    assert answers[0] == 401
    assert answers[-1] == 429
    assert client.get("/api/health").status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "evil.example:8000", "a@localhost", "[::1]evil", ""]
)
def test_a_name_that_was_pointed_at_this_machine_is_refused(reader: TestClient, host: str) -> None:
    assert reader.get("/api/model", headers={"Host": host}).status_code == 403
    assert reader.get("/", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000"])
def test_names_and_addresses_of_this_machine_are_served(reader: TestClient, host: str) -> None:
    assert reader.get("/api/model", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_pages_of_other_sites_can_neither_change_nor_read(reader: TestClient, headers: dict[str, str]) -> None:
    before = classes_of(reader)
    assert reader.post("/api/teach", files=form(blue=3), headers=headers).status_code == 403
    assert reader.get("/api/download/model", headers=headers).status_code == 403
    assert classes_of(reader) == before


def test_the_page_itself_may_do_both(client: TestClient) -> None:
    headers = {"Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}
    ended(client, client.post("/api/rename", json={"old": "red", "new": "scarlet"}, headers=headers))
    assert "scarlet" in classes_of(client)
    assert client.get("/api/download/model", headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/model", "/api/nothing", "/static/../app.py"])
def test_every_answer_carries_the_security_headers(reader: TestClient, path: str) -> None:
    headers = reader.get(path).headers
    assert "'unsafe" not in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "....//app.py", "%00", "/etc/passwd"])
def test_only_files_of_the_page_are_given_out(reader: TestClient, name: str) -> None:
    assert reader.get(f"/static/{name}").status_code == 404


def test_a_request_that_says_it_is_too_large_is_refused_before_it_is_read(serve: Serve) -> None:
    client = serve(limits=Limits(body=1000))
    answer = client.post("/api/predict", content=bytes(1001), headers=PICTURE)
    assert answer.status_code == 413
    assert answer.headers["connection"] == "close"


def chunks(count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield bytes(100)


@pytest.mark.parametrize("path", ["/api/predict", "/api/rename"])
def test_a_request_in_chunks_that_says_no_length_is_refused_as_well(serve: Serve, path: str) -> None:
    client = serve(limits=Limits(body=1000, changes=1000.0))
    kind = "image/png" if path.endswith("predict") else "application/json"
    assert client.post(path, content=chunks(11), headers={"Content-Type": kind}).status_code == 413


@pytest.mark.parametrize(
    "body", [b'{"old": NaN, "new": "x"}', b'{"old": {"\\ud800": 1}, "new": "x"}', b'{"\\ud800": 1}', b"[" * 20_000]
)
def test_values_that_no_answer_could_repeat_are_refused_as_others_are(reader: TestClient, body: bytes) -> None:
    answer = reader.post("/api/rename", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.json()["detail"]


def test_a_request_without_pictures_is_small(reader: TestClient) -> None:
    names = ["x" * 1000] * 1100
    assert reader.post("/api/forget", json={"classes": names}).status_code == 413


def test_one_large_picture_is_refused(serve: Serve) -> None:
    picture = png("red", side=64)
    client = serve(limits=Limits(picture=len(picture) - 1))
    assert client.post("/api/predict", files=[("pictures", ("a.png", picture))]).status_code == 413
    assert client.post("/api/predict", content=picture, headers=PICTURE).status_code == 413
    assert client.post("/api/predict", content=png("red"), headers=PICTURE).status_code == 200


def test_too_many_pictures_are_refused(serve: Serve) -> None:
    client = serve(limits=Limits(pictures=3, changes=1000.0))
    assert client.post("/api/teach", files=form(blue=4)).status_code == 413
    ended(client, client.post("/api/teach", files=form(blue=3)))


def test_a_picture_of_too_many_pixels_is_not_decoded(reader: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAGAUSS_MAX_PIXELS", "1000")
    answer = reader.post("/api/predict", content=png("red", side=40), headers=PICTURE).json()
    assert "1600 pixels" in answer["predictions"][0]["problem"]


def test_requests_and_changes_of_one_address_are_limited(serve: Serve) -> None:
    client = serve(limits=Limits(requests=1.0, changes=1000.0))
    answers = [client.get("/api/health").status_code for _ in range(4)]
    assert answers[:2] == [200, 200]
    assert answers[-1] == 429
    client = serve(limits=Limits(changes=0.25), path=_another(client))
    answers = [client.post("/api/undo").status_code for _ in range(3)]
    assert answers[-1] == 429


def _another(client: TestClient) -> Path:
    store = client.app.state.server.store  # type: ignore[attr-defined]
    other = Path(store.path).with_name("other.safetensors")
    other.write_bytes(store.path.read_bytes())
    return other


@pytest.mark.parametrize("name", ["", "  ", "a\x00b", "x" * 101, "a\u202eb", "a\ufffd"])
def test_names_that_cannot_be_read_are_refused(reader: TestClient, name: str) -> None:
    files = [("label", (None, name.encode())), ("pictures", ("a.png", png("blue")))]
    assert reader.post("/api/teach", files=files).status_code == 422
    assert reader.post("/api/rename", json={"old": "red", "new": name}).status_code == 422


@pytest.mark.parametrize("name", ["../../etc/passwd", "<script>alert(1)</script>", "a/b\\c", "%2e%2e", "CON"])
def test_any_other_name_is_only_a_name(client: TestClient, model: Path, name: str) -> None:
    before = sorted(path.name for path in model.parent.iterdir())
    files = [("label", (None, name.encode()))]
    files += [("pictures", (name, png("blue", seed))) for seed in range(4)]  # type: ignore[misc]
    ended(client, client.post("/api/teach", files=files))
    assert name in classes_of(client)
    assert sorted(path.name for path in model.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{}", "application/json", 415),
        (b"--x\r\nnonsense", "multipart/form-data; boundary=y", 400),
        (b"", "multipart/form-data", 400),
        (b"", "multipart/form-data; boundary=x", 400),
        (b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--x--', "multipart/form-data; boundary=x", 422),
    ],
)
def test_a_damaged_form_is_refused_with_the_reason(reader: TestClient, content: bytes, kind: str, status: int) -> None:
    answer = reader.post("/api/predict", content=content, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert answer.json()["detail"]


def test_another_address_than_this_machine_needs_a_token(tmp_path: Path) -> None:
    for host in ("0.0.0.0", ""):
        with pytest.raises(ConfigError, match="token is required"):
            main(tmp_path / "m.safetensors", host=host)
    with pytest.raises(ConfigError, match="at least 16"):
        main(tmp_path / "m.safetensors", host="0.0.0.0", token="short")
    assert not list(tmp_path.iterdir())


def test_a_token_of_the_environment_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAGAUSS_TOKEN", "short")
    with pytest.raises(ConfigError, match="at least 16"):
        main(tmp_path / "m.safetensors")
