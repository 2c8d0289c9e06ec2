"""Registries of objects by name, and optional libraries."""

from __future__ import annotations

import os
import pkgutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Any, Generic, TypeVar

from adagauss.errors import ConfigError, unknown_name

GROUP = "adagauss.plugins"
"""Entry points of installed packages: modules that register methods, parts, backbones, datasets or metrics."""
VARIABLE = "ADAGAUSS_PLUGINS"
"""Environment variable with further plugins: modules or Python files, separated by commas."""
_tried: set[str] = set()


def import_plugin(name: str) -> None:
    """Import a module by name, or a Python file; other modules are then also looked for in the folder of the file."""
    file = Path(name).expanduser().absolute() if name.endswith(".py") else None
    module = module_name(name)
    if file is not None:
        if not file.is_file():
            raise ConfigError(f"{name} does not exist: give the path of a Python file")
        if str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))
    try:
        found = getattr(import_module(module), "__file__", None)
    except (Exception, SystemExit) as error:
        if not (isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")):
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise ConfigError(
                f"{name} cannot be imported ({type(error).__name__}: {error}; {place.filename}, line {place.lineno})"
            ) from error
        load_plugins()
        if module not in sys.modules:
            raise ConfigError(
                f"the module {module!r} cannot be found: install its package, put its folder on PYTHONPATH, or "
                f"name its file in {VARIABLE}"
            ) from error
        return
    if file is not None and not (found and file.samefile(found)):
        raise ConfigError(
            f"{name} cannot be imported, since {found or 'a built-in module'} has the same name: rename the file"
        )


def import_custom(names: Iterable[object]) -> None:
    """Import the module or file of each name of the form ``module:name`` or ``file.py:name``, which registers it."""
    for name in names:
        if module := _split(name)[0]:
            import_plugin(module)


def _split(name: object) -> tuple[str, Any]:
    """The module or file in ``module:name``, empty if there is none, and the name."""
    module, _, local = name.rpartition(":") if isinstance(name, str) else ("", "", "")
    return (module, local) if module and local else ("", name)


def module_name(plugin: str) -> str:
    """The name of the module that a plugin is imported as.

    >>> module_name("my.methods"), module_name("code/my_method.py")
    ('my.methods', 'my_method')
    """
    return Path(plugin).stem if plugin.endswith(".py") else plugin


def load_plugins() -> None:
    """Import the plugins of the environment variable and of installed packages, each once.

    A plugin that cannot be imported causes a warning that names it, and nothing else.
    """
    given = {name: f"{name} in {VARIABLE}" for name in map(str.strip, os.environ.get(VARIABLE, "").split(",")) if name}
    packages = {point.module: f"{point.module} of the package {package_of(point.module)}" for point in _installed()}
    for name, what in {**packages, **given}.items():
        if name in _tried:
            continue
        _tried.add(name)
        try:
            import_plugin(name)
        except ConfigError as error:
            remedy = "correct or remove it" if name in given else "correct, update or uninstall the package"
            warnings.warn(f"the plugin {what} is left out: {error}. To use it, {remedy}", stacklevel=2)


@cache
def _installed() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


def package_of(module: str) -> str:
    """Name and version of the installed package whose plugin has this module; empty if there is none."""
    top = module.partition(".")[0]
    found = (point.dist for point in _installed() if point.module.partition(".")[0] == top and point.dist)
    return next((f"{one.name} {one.version}" for one in found), "")


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
    needs only one new file. Plugins are imported last.

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
        if by.__module__.partition(".")[0] != "adagauss":
            self._import_package()  # so that no plugin takes a name of the library
        holder = self._entries[name][1:] if name in self._entries else source
        if holder != source:
            taken, other = ".".join(holder), ".".join(source)
            raise ConfigError(f"{other} cannot be the {self._sort} {name!r}: {taken} has this name; choose another")
        self._entries[name] = (thing, *source)

    def remove(self, name: str) -> None:
        """Remove an object."""
        del self._entries[name]

    def find(self, name: object) -> T:
        """Return the object of that name; the error for an unknown name suggests the nearest one.

        ``module:name`` is an object that code outside this package has registered. Its module is not imported here.
        """
        module, local = _split(name)
        if module and local not in self:
            raise ConfigError(
                f"the module {module!r}, which defines the {self._sort} {local!r}, is not imported: import it first"
            )
        if not isinstance(local, str) or local not in self:
            raise unknown_name(self._sort, local, self.all())
        return self._entries[local][0]

    def stored_name(self, name: str) -> str:
        """Return the name to store in a file: ``module:name`` if code outside this package has registered it.

        Code of a script or notebook cannot be imported again, so its names are stored unchanged.
        """
        module = self._entries[name][1] if name in self._entries else ""
        return name if module.partition(".")[0] in ("", "adagauss", "__main__") else f"{module}:{name}"

    def all(self) -> dict[str, T]:
        """Return all objects, sorted by name."""
        self._import_package()
        load_plugins()
        return {name: self._entries[name][0] for name in sorted(self._entries)}

    def __contains__(self, name: str) -> bool:
        if name not in self._entries and name in self._modules:
            import_module(self._modules[name])
        if name not in self._entries:
            self._import_package()
        if name not in self._entries:
            load_plugins()
        return name in self._entries

    def _import_package(self) -> None:
        if self._package is not None:
            for found in pkgutil.iter_modules(import_module(self._package).__path__):
                import_module(f"{self._package}.{found.name}")
