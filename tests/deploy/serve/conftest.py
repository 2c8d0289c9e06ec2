"""Fixtures of the server, where what it needs is installed; elsewhere its tests are left out, as colours.py says."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("fastapi") and find_spec("python_multipart"):
    from tests.deploy.serve.colours import client, model, no_token, reader, saved, serve

    __all__ = ["client", "model", "no_token", "reader", "saved", "serve"]
else:
    collect_ignore_glob = ["remote.py", "test_*.py"]
