"""Run a server on a socket."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

import uvicorn

from adagauss.deploy.serve.app import make_app
from adagauss.deploy.serve.security import access_for, is_loopback
from adagauss.deploy.serve.server import Server
from adagauss.deploy.serve.store import Store
from adagauss.errors import ConfigError

CONNECTIONS = 512
"""Connections at the same time; more are answered with 503."""


def run(model: Path, host: str, port: int, token: str | None, hosts: tuple[str, ...], undo: int) -> None:
    """Serve until the process is told to stop."""
    if undo < 0:
        raise ConfigError(f"undo must not be negative; got {undo}")
    access = access_for(host, token, hosts)
    server = Server(Store(model, undo), access)
    with _listening(host, port) as listener:
        server.start()  # before anything is announced: what is wrong with the file is an error of this command
        config = uvicorn.Config(
            make_app(server),
            log_level="warning",
            access_log=False,
            proxy_headers=False,  # a client could give itself another address, and the limits go by address
            server_header=False,
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=5,
        )
        sys.stderr.write(_greeting(server, host, listener.getsockname()[1]))
        sys.stderr.flush()
        with suppress(KeyboardInterrupt):  # Ctrl+C is how it is stopped
            uvicorn.Server(config).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, reuse_port=False)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"{host}:{port} cannot be listened on ({error}): choose another port or host") from None


def _greeting(server: Server, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    # After the sign # nothing is sent to a server or written into its log; the page takes the token from there.
    link = f"http://{shown}:{port}/" + ("#token=TOKEN, with your token" if server.access.token else "")
    note = "" if is_loopback(host) else "Traffic is not encrypted: put a proxy with TLS before it.\n"
    return f"Serving {server.store.path.name} at {link} (process {os.getpid()}; stop with Ctrl+C)\n{note}"
