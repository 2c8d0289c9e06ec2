"""Registration by import, and optional libraries."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from importlib.metadata import version
from typing import Any

from adagauss.errors import ConfigError


def import_submodules(package: str) -> None:
    """Import every module of a package, so that a new method, part or dataset needs only one new file."""
    module = import_module(package)
    for found in pkgutil.iter_modules(module.__path__):
        import_module(f"{package}.{found.name}")


def import_extra(module: str, extra: str, who: str) -> Any:
    """Import an optional library; if it is missing, the error names the extra that installs it.

    Args:
        module: what is imported.
        extra: the extra of this package that installs it.
        who: what needs it, the subject of the error's sentence.
    """
    try:
        return import_module(module)
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        lacking = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if lacking == module.partition(".")[0]:
            problem = f"which is not installed: pip install 'adagauss[{extra}]'"
        else:
            problem = (
                f"which is installed but cannot be imported ({error}): pip install 'adagauss[{extra}]' in a fresh "
                f"environment, with a {lacking or module} that belongs to this torch ({version('torch')})"
            )
        raise ConfigError(f"{who} needs {module}, {problem}") from error
