"""A classifier for a team: a page to teach and try it, and the same by REST. Needs the extra ``serve``.

One process serves one model. Predictions come from an immutable snapshot while one thread learns; every change is on
disk before it is acknowledged. See ``docs/serving.md``.
"""

from __future__ import annotations

import os
from pathlib import Path

from adagauss.errors import ConfigError

PORT = 8000
TOKEN = "ADAGAUSS_TOKEN"


def main(
    model: Path,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    *,
    hosts: tuple[str, ...] = (),
    undo: int = 10,
) -> None:
    """Serve a model until the process is stopped; a file that is not there yet begins with its first class.

    Args:
        model: the file; nothing else may write to it meanwhile.
        host: address to listen on; any other than this machine's own needs a token.
        port: 0 takes a free one.
        token: what every request must carry; at least 16 characters. None takes the environment variable
            ``ADAGAUSS_TOKEN``, which other users of the machine cannot see, if it is set.
        hosts: names that the server is also reached by, such as that of a proxy before it.
        undo: how many changes can be undone; each keeps one file beside the model.
    """
    try:
        import fastapi
        import prometheus_client
        import python_multipart
        import uvicorn
    except ImportError as error:
        raise ConfigError(f"serving needs the package {error.name}: pip install 'adagauss[serve]'") from None
    del fastapi, prometheus_client, python_multipart, uvicorn
    from adagauss.deploy.serve.app import run

    run(Path(model), host, port, token or os.environ.get(TOKEN) or None, hosts, undo)
