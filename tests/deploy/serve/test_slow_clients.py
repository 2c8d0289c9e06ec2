"""Silent, slow and vanishing clients do not stop the server for others."""

from __future__ import annotations

import http.client
import io
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from PIL import Image
from prometheus_client import REGISTRY
from starlette.testclient import TestClient

from adagauss.data import decode
from adagauss.data.decode import decode_image
from adagauss.deploy.serve.app import socket_config
from adagauss.deploy.serve.security import Connection, Limits
from adagauss.deploy.serve.server import Server
from adagauss.deploy.serve.store import Store
from adagauss.errors import DataError
from tests.deploy.serve.colours import Serve, classes_of, png

HEAD = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: %s\r\nContent-Length: 100000\r\n\r\n"
FORM = b"multipart/form-data; boundary=x"


@contextmanager
def listening(model: Path, limits: Limits) -> Iterator[int]:
    """Serve a model on a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(socket_config(Server(Store(model), limits=limits)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 30
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(30)


def opened(port: int, content: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.sendall(content)
    return client


def received(client: socket.socket) -> bytes:
    """All bytes until the server closes the connection."""
    content = b""
    try:
        while chunk := client.recv(4096):
            content += chunk
    except ConnectionError:
        pass
    return content


def status(port: int, picture: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/api/predict", picture, {"Content-Type": "image/png"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_silent_connections_do_not_stop_predictions(model: Path) -> None:
    with listening(model, Limits(connections=20, address_connections=10)) as port, ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(opened(port))
            assert not _ % 20 or status(port, png()) == 200
        assert status(port, png()) == 200


def test_unfinished_headers_end_the_connection(model: Path) -> None:
    with listening(model, Limits(headers=0.3)) as port:
        for begin in (b"", b"GET / HTTP/1.1\r\nHost: "):
            with opened(port, begin) as client:
                started = time.monotonic()
                assert received(client) == b""
                assert time.monotonic() - started < 5
        kept = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        for _ in range(2):
            kept.request("GET", "/api/health")
            assert kept.getresponse().read()
        kept.close()


@pytest.mark.parametrize(("fast", "rate"), [(0, 1e6), (50_000, 1e4)])
def test_a_slow_body_is_rejected_even_if_it_began_fast(model: Path, fast: int, rate: float) -> None:
    with (
        listening(model, Limits(idle=0.4, body_rate=rate)) as port,
        opened(port, HEAD % (b"/api/predict", b"image/png") + bytes(fast)) as client,
    ):
        for _ in range(30):
            time.sleep(0.1)
            try:
                client.sendall(b"-")
            except ConnectionError:
                break
        else:
            pytest.fail("the server goes on receiving")
        assert b" 408 " in received(client)


def test_a_client_that_reads_no_response_is_disconnected(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, lose = threading.Event(), Connection.connection_lost

    def connection_lost(connection: Connection, error: Exception | None) -> None:
        lose(connection, error)
        lost.set()

    monkeypatch.setattr(Connection, "connection_lost", connection_lost)
    request = b"GET /api/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with listening(model, Limits(idle=0.3)) as port, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(request * 500)
        assert lost.wait(20)
        assert status(port, png()) == 200


def test_slow_teachers_do_not_block_others(model: Path) -> None:
    limits = Limits(uploads=6)
    with listening(model, limits) as port, ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(opened(port, HEAD % (b"/api/teach", FORM) + b"--x\r\n"))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        parts = [b'--x\r\nContent-Disposition: form-data; name="label"\r\n\r\nblue\r\n']
        head = b'--x\r\nContent-Disposition: form-data; name="pictures"; filename="a.png"\r\n\r\n'
        body = b"".join([*parts, head, png("blue"), b"\r\n--x--\r\n"])
        connection.request("POST", "/api/teach", body, {"Content-Type": FORM.decode()})
        assert connection.getresponse().status == 202
        connection.close()


def test_too_many_unfinished_uploads_of_an_address_are_rejected(model: Path) -> None:
    with listening(model, Limits(uploads=1)) as port, opened(port, HEAD % (b"/api/teach", FORM) + b"--x\r\n"):
        time.sleep(0.2)
        with opened(port, HEAD % (b"/api/teach", FORM)) as second:
            second.settimeout(10)
            assert b" 429 " in second.recv(4096)


def test_received_bytes_have_a_limit_for_all_requests(serve: Serve) -> None:
    client = serve(limits=Limits(received=3000, changes=1000.0))
    files = [("pictures", ("a.bin", bytes(4000)))]
    for _ in range(2):  # rejected requests return their bytes
        assert client.post("/api/predict", files=files).status_code == 503
        assert client.post("/api/predict", content=png(), headers={"Content-Type": "image/png"}).status_code == 200


def test_bytes_in_memory_have_a_limit_for_one_address(model: Path) -> None:
    half = HEAD % (b"/api/predict", b"image/png") + bytes(3000)
    with listening(model, Limits(received=9000, address_received=4000)) as port, opened(port, half) as other:
        time.sleep(0.2)
        with opened(port, half) as client:
            assert b" 429 " in client.recv(4096)
        other.close()
        deadline = time.monotonic() + 10
        while status(port, png() + bytes(3000)) != 200 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert time.monotonic() < deadline, "the bytes of a client that left are not returned"


@pytest.mark.parametrize("cut", [b"--x--\r\n", b"\r\n--x--\r\n", b"--x\r\n"])
def test_a_form_without_closing_boundary_teaches_nothing(client: TestClient, cut: bytes) -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    picture = b'--x\r\nContent-Disposition: form-data; name="pictures"; filename="a.png"\r\n\r\n%s\r\n'
    body = head % (b"label", b"blue") + b"".join(picture % png("blue", seed) for seed in range(3))
    ends = {b"--x--\r\n": b"", b"\r\n--x--\r\n": b"--x\r\n", b"--x\r\n": b"--x"}
    answer = client.post("/api/teach", content=body + ends[cut], headers={"Content-Type": FORM.decode()})
    assert answer.status_code == 400
    assert "boundary" in answer.json()["detail"]
    assert "blue" not in classes_of(client)
    assert client.get("/api/jobs").json() == []


@pytest.mark.parametrize("headers", [b"a: b\r\n" * 10_000, b"a" * 50_000 + b": b\r\n", b"a: " + b"b" * 50_000])
def test_headers_of_a_part_have_a_limit(client: TestClient, headers: bytes) -> None:
    answer = client.post("/api/teach", content=b"--x\r\n" + headers, headers={"Content-Type": FORM.decode()})
    assert answer.status_code == 400
    assert "header" in answer.json()["detail"]


def scans(count: int, side: int = 64, levels: int = 256) -> bytes:
    """A progressive JPEG of noise whose last scan is repeated."""
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, levels, (side, side, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last, end = content.rindex(b"\xff\xda"), content.rindex(b"\xff\xd9")
    return content[:last] + content[last:end] * count + content[end:]


def test_a_jpeg_with_many_scans_is_not_decoded(client: TestClient) -> None:
    assert decode_image(scans(1), 8).shape == (3, 8, 8)
    with pytest.raises(DataError, match="scans"):
        decode_image(scans(200), 8)
    answer = client.post("/api/predict", content=scans(200), headers={"Content-Type": "image/jpeg"}).json()
    assert "scans" in answer["predictions"][0]["problem"]


def test_scans_count_together_with_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MAX_SCANNED_PIXELS", 64 * 64 * 20)
    assert decode_image(scans(5), 8).shape == (3, 8, 8)
    with pytest.raises(DataError, match="scans"):
        decode_image(scans(30), 8)


def test_a_file_of_many_tiny_chunks_does_not_hold_the_threads(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere: list[int] = []

    def decode_elsewhere(content: bytes, *_: object) -> None:
        elsewhere.append(len(content))
        raise DataError("takes more than 10 s")

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    monkeypatch.setattr(decode, "_decode_in_child", decode_elsewhere)
    picture = png()
    for count, decoded in ((1000, 0), (100_000, 1)):
        content = picture[:33] + chunk(b"tEXt", b"a\0b") * count + picture[33:]
        answer = client.post("/api/predict", content=content, headers={"Content-Type": "image/png"}).json()
        assert len(elsewhere) == decoded
        assert bool(answer["predictions"][0]["problem"]) == bool(decoded)


def test_a_client_that_leaves_during_an_upload_is_not_a_server_error(model: Path) -> None:
    def count(status: str) -> float:
        labels = {"route": "/api/teach", "status": status}
        return REGISTRY.get_sample_value("adagauss_requests_total", labels) or 0.0

    gone, errors = count("499"), count("500")
    with listening(model, Limits()) as port:
        opened(port, HEAD % (b"/api/teach", FORM) + b"--x\r\n").close()
        deadline = time.monotonic() + 10
        while count("499") == gone and time.monotonic() < deadline:
            time.sleep(0.01)
    assert (count("499"), count("500")) == (gone + 1, errors)


def test_upgraded_connections_stay_within_the_limits(model: Path) -> None:
    upgrade = (
        b"GET /api/model HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with listening(model, Limits(connections=4, address_connections=4)) as port:
        for _ in range(8):
            with opened(port, upgrade) as client:
                assert client.recv(4096).startswith(b"HTTP/1.1 200")
        assert status(port, png()) == 200


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG"])
def test_one_frame_of_many_is_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (100, 32, 32, 3), dtype=np.uint8)
    frames = [Image.fromarray(frame) for frame in noise]
    content = io.BytesIO()
    frames[0].save(content, kind, save_all=True, append_images=frames[1:])

    count = 0

    class Counting(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            nonlocal count
            found = super().read(size)
            count += len(found)
            return found

    monkeypatch.setattr(decode, "BytesIO", Counting)
    with decode._opened(content.getvalue()) as image:
        assert decode._decoded(image, 8, 3, "crop").shape == (3, 8, 8)
    assert 0 < count < len(content.getvalue()) / 3
