"""
Registries: things that are chosen by name, such as policies, from stepspec itself and from plugins.

A plugin is an entry point of an installed package, in a group such as ``stepspec.policies``.
Plugins are loaded when a name is looked up that stepspec does not have itself, or when all names
are listed. A plugin that cannot be used is logged as a warning with its name and its package, and
disturbs nothing else.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar, cast

from .errors import ConfigurationError, near

T = TypeVar("T")

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
log = logging.getLogger("stepspec")


@dataclass(eq=False)
class Registry(Mapping[str, T]):
    """What a user can choose by name: built-in entries, plugins, and what a program adds."""

    kind: str
    """What an entry is called in messages."""
    kinds: str
    """The plural of the kind."""
    group: str
    """The name of the entry points of plugins."""
    built_in: Mapping[str, T]
    """The entries of stepspec itself."""
    read: Callable[[str, object], T]
    """
    Makes an entry of a name and of what an entry point refers to.

    It raises an exception for what cannot be an entry.
    """
    reserved: frozenset[str] = frozenset()
    """Names that no plugin may have."""

    def __post_init__(self) -> None:
        self._added: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        for entries in (self.built_in, self._added):
            if name in entries:
                return entries[name]
        return self._plugins[0][name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self.built_in, **self._plugins[0], **self._added})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def broken(self) -> Mapping[str, str]:
        """Why plugins cannot be used, by their names."""
        return self._plugins[1]

    def find(self, name: str) -> T:
        """
        Return the entry called *name*.

        Raise `ConfigurationError` if there is none, or if its plugin is broken.
        """
        entry = self.get(name)
        if entry is not None:
            return entry
        if name in self.broken:
            raise ConfigurationError(self.broken[name])
        raise ConfigurationError(
            f"there is no {self.kind} {name!r}{near(name, self)}; the {self.kinds}:"
            f" {', '.join(self)}"
        )

    def add(self, value: object, name: str | None = None) -> str:
        """
        Add an entry made of *value* for the rest of the process. Return the name to choose it by.

        The name is *name*, by default that of the class or function. A number follows if another
        entry has the name, because no name ever changes its meaning. Raise `ConfigurationError` for
        what cannot be an entry, or has no name, such as a lambda.
        """
        inner = behind(value)
        name = name or str(getattr(inner, "__name__", type(inner).__name__))
        entry = self.read(name, value)
        if not NAME.fullmatch(name):
            raise ConfigurationError(
                f"a {self.kind} has to have a name: write {value!r} as a class or a function"
            )
        free = name
        count = 1
        while (known := self.get(free)) is not None:
            if known == entry:
                return free
            count += 1
            free = f"{name}-{count}"
        self._added[free] = entry
        return free

    @cached_property
    def _plugins(self) -> tuple[Mapping[str, T], Mapping[str, str]]:
        """The plugins that can be used, and what is wrong with the others; loaded once."""
        usable: dict[str, T] = {}
        broken: dict[str, str] = {}
        points = entry_points(group=self.group)
        for point in sorted(points, key=lambda point: (point.name, _package(point))):
            try:
                self._check_name(point.name, usable)
                usable[point.name] = self.read(point.name, point.load())
            except (Exception, SystemExit) as exc:  # whatever the code of somebody else raises
                cause = f"{type(exc).__name__}: {exc}"
                if isinstance(exc, ConfigurationError):
                    cause = str(exc)
                message = (
                    f"the {self.kind} {point.name!r} of {_package(point)} cannot be used: {cause}"
                )
                log.warning("%s", message)
                broken.setdefault(point.name, message)
        return usable, broken

    def _check_name(self, name: str, usable: Mapping[str, T]) -> None:
        if not NAME.fullmatch(name):
            raise ConfigurationError("a name is a letter, followed by letters, digits, '-' and '_'")
        if name in self.built_in or name in self.reserved:
            raise ConfigurationError(
                "stepspec has this name itself: the package has to choose another"
            )
        if name in usable:
            raise ConfigurationError("another package has this name too: uninstall one of both")


def behind(value: object) -> object:
    """Return the class or function *value*, without arguments that are bound to it."""
    if isinstance(value, partial):
        return cast("partial[object]", value).func
    return value


def _package(point: EntryPoint) -> str:
    if point.dist is None:
        return "an unknown package"
    return f"{point.dist.name} {point.dist.version}"
