"""The one registry: things by name, put there by the code that defines them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from adagauss.errors import ConfigError, unknown_name
from adagauss.plugins import import_submodules

T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one sort by name.

    With a ``package``, every module of it is imported as soon as somebody looks for more than is there already, so
    that adding a method or a dataset is adding one file.

    >>> shapes: Registry[int] = Registry("shape")
    >>> shapes.register("triangle", 3, by=len)
    >>> shapes.find("triangle")
    3
    """

    def __init__(self, sort: str, package: str | None = None) -> None:
        self._sort = sort
        self._package = package
        self._things: dict[str, T] = {}
        self._sources: dict[str, str] = {}

    def register(self, name: str, thing: T, *, by: Callable[..., Any]) -> None:
        """Put a thing under a name; ``by`` is the function or class that defines it.

        The same code may register again, as it does when a module is reloaded or a notebook's cell is run twice.
        """
        source = f"{by.__module__}.{by.__qualname__}"
        holder = self._sources.get(name, source)
        if holder != source:
            raise ConfigError(f"{source} cannot be the {self._sort} {name!r}: {holder} has that name; choose another")
        self._things[name] = thing
        self._sources[name] = source

    def remove(self, name: str) -> None:
        """Take a thing out again."""
        del self._things[name], self._sources[name]

    def find(self, name: object) -> T:
        """The thing of that name; an unknown one raises with the nearest known one."""
        thing = self._things.get(name) if isinstance(name, str) else None
        if thing is None:
            known = self.all()
            if not isinstance(name, str) or name not in known:
                raise unknown_name(self._sort, name, known)
            thing = known[name]
        return thing

    def all(self) -> dict[str, T]:
        """Everything there is, sorted by name."""
        if self._package is not None:
            import_submodules(self._package)
        return dict(sorted(self._things.items()))

    def __contains__(self, name: object) -> bool:
        return name in self._things or name in self.all()
