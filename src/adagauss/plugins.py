"""Registration by import: importing every module of a package registers what it defines."""

from __future__ import annotations

import importlib
import pkgutil


def import_submodules(package: str) -> None:
    """Import every module of a package, so that a new method, part or dataset needs only one new file."""
    module = importlib.import_module(package)
    for found in pkgutil.iter_modules(module.__path__):
        importlib.import_module(f"{package}.{found.name}")
