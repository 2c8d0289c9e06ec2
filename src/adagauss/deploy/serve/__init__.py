"""Serve a classifier over HTTP: a web page and a REST API. Requires the extra ``serve``.

One process serves one model. Predictions use an immutable snapshot while one thread learns. Every change is on disk
before it is acknowledged. See ``docs/serving.md``.
"""

from __future__ import annotations

import os
from pathlib import Path

from adagauss.utils.registry import import_extra


def main(
    model: Path, host: str = "127.0.0.1", port: int = 8000, token: str | None = None, *, hosts: tuple[str, ...] = ()
) -> None:
    """Serve a model until the process is stopped.

    Args:
        model: model file; created with the first class if missing. No other program may write to it.
        host: address to listen on. Non-loopback addresses require a token.
        port: 0 selects a free port.
        token: bearer token that every request must send; at least 16 characters. None uses the environment variable
            ``ADAGAUSS_TOKEN`` if it is set. Other users of the machine cannot see that variable.
        hosts: additional host names of the server, such as the name of a reverse proxy.
    """
    for module in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        import_extra(module, "serve", "adagauss serve")
    from adagauss.deploy.serve.app import run

    run(Path(model), host, port, token or os.environ.get("ADAGAUSS_TOKEN") or None, hosts)
