"""Registries of objects by name, and optional libraries."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Any, Generic, TypeVar

from adagauss.errors import ConfigError, unknown_name


def import_custom(names: Iterable[object]) -> None:
    """Import the module of each name of the form ``module:name``, which registers the object of that name."""
    for name in names:
        module = name.rpartition(":")[0] if isinstance(name, str) else ""
        if not module:
            continue
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or module.partition(".")[0] != error.name.partition(".")[0]:
                raise
            raise ConfigError(
                f"{name!r} is defined in the module {module!r}, which cannot be found: put its folder on PYTHONPATH"
            ) from error


def import_extra(module: str, extra: str, who: str) -> Any:
    """Import an optional library for ``who``; if it is missing, the error names the extra that installs it."""
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


T = TypeVar("T")


class Registry(Generic[T]):
    """Objects of one sort by name.

    With ``modules``, a name is looked up by importing the one module that defines it. With a ``package``, all its
    modules are imported if a name is still not found or if all names are requested, so that a new method or dataset
    needs only one new file.

    >>> shapes: Registry[int] = Registry("shape")
    >>> shapes.register("triangle", 3, by=len)
    >>> shapes.find("triangle")
    3
    """

    def __init__(self, sort: str, package: str | None = None, modules: Mapping[str, str] | None = None) -> None:
        self._sort = sort
        self._package = package
        self._modules = modules or {}
        self._entries: dict[str, tuple[T, str, str]] = {}
        """For each name the object, and the module and name of the code that defines it."""

    def register(self, name: str, thing: T, *, by: Callable[..., Any]) -> None:
        """Register an object under a name; ``by`` is the function or class that defines it.

        The same code may register again, as when a module is reloaded or a notebook cell is run twice.
        """
        source = by.__module__, by.__qualname__
        holder = self._entries[name][1:] if name in self._entries else source
        if holder != source:
            taken, other = ".".join(holder), ".".join(source)
            raise ConfigError(f"{other} cannot be the {self._sort} {name!r}: {taken} has this name; choose another")
        self._entries[name] = (thing, *source)

    def remove(self, name: str) -> None:
        """Remove an object."""
        del self._entries[name]

    def find(self, name: object) -> T:
        """Return the object of that name; the error for an unknown name suggests the nearest one."""
        if isinstance(name, str) and name not in self._entries and name in self._modules:
            import_module(self._modules[name])
        if not isinstance(name, str) or (name not in self._entries and name not in self.all()):
            raise unknown_name(self._sort, name, self.all())
        return self._entries[name][0]

    def find_custom(self, name: object) -> T:
        """Find an object, also by ``module:name`` if code outside this package has registered it."""
        module, _, local = name.rpartition(":") if isinstance(name, str) else ("", "", name)
        if module and local not in self._entries:
            raise ConfigError(
                f"the module {module!r}, which defines the {self._sort} {local!r}, is not imported: import it first"
            )
        return self.find(local)

    def stored_name(self, name: str) -> str:
        """Return the name to store in a file: ``module:name`` if code outside this package has registered it.

        Code of a script or notebook cannot be imported again, so its names are stored unchanged.
        """
        module = self._entries[name][1] if name in self._entries else ""
        inside = module.partition(".")[0] in ("", "adagauss", "__main__")
        return name if inside else f"{module}:{name}"

    def all(self) -> dict[str, T]:
        """Return all objects, sorted by name."""
        if self._package is not None:
            for found in pkgutil.iter_modules(import_module(self._package).__path__):
                import_module(f"{self._package}.{found.name}")
        return {name: self._entries[name][0] for name in sorted(self._entries)}

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self.all()
