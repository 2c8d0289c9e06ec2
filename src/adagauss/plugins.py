"""Registration by being there: importing every module of a package registers what it defines."""

from __future__ import annotations

import importlib
import pkgutil


def import_submodules(package: str) -> None:
    """Import every module of a package, so that adding a method, a part or a dataset is adding one file."""
    module = importlib.import_module(package)
    for found in pkgutil.iter_modules(module.__path__):
        importlib.import_module(f"{package}.{found.name}")
