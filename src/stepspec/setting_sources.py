"""
Read and merge settings: flags of a command, arguments, ``STEPSPEC_*`` variables, and a TOML file.

Each source is a `Layer`. pydantic merges the values key by key: the first layer that sets a value
wins. Two values hide more than their own key:

- A URL in place of a model's table hides the tables of later layers that name a server, so that no
  API key goes to another server.
- A policy hides the options in later layers, because options belong to their own policy.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from pydantic import BaseModel

from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.interfaces import holding
from stepspec.orchestrator.run_options import Place

PREFIX = "STEPSPEC_"
CONFIG = f"{PREFIX}CONFIG"
DEFAULT_FILE = "stepspec.toml"
DEFAULT_POLICY = "specreason"
ROLES = ("small", "large", "critic")
OPEN_TABLES = frozenset({"options", "template", "conditions"})
"""The tables with any keys and any values. A variable may set such a key to any JSON."""

Source: TypeAlias = Literal["flag", "argument", "variable", "file"]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The settings that the flags of a command set."""

    values: Mapping[str, Any]
    """The values, nested as in a settings file."""
    flags: Mapping[Place, str]
    """The flag of each place."""
    file: Path | None = None
    """The file that ``--config`` names; None: the flag is not given."""


OUTSIDE = CommandLine({}, {})
_COMMAND_LINE: ContextVar[CommandLine] = ContextVar("_COMMAND_LINE", default=OUTSIDE)


def command_line() -> CommandLine:
    """Return the flags of the command that runs; `OUTSIDE` if none runs."""
    return _COMMAND_LINE.get()


def with_command_line(flags: CommandLine) -> AbstractContextManager[None]:
    """Let the settings that are loaded in this block come from *flags* first."""
    return holding(_COMMAND_LINE, flags)


@dataclass(frozen=True, slots=True)
class Layer:
    """The values that one source sets."""

    source: Source
    """The kind of the source."""
    values: dict[str, Any]
    """The values, nested as in a settings file."""
    names: Mapping[Place, str]
    """The flag or variable of each place; empty if the source has no such names."""
    path: Path | None = None
    """The file; None for other sources."""
    replaces: frozenset[str] = frozenset()
    """The models whose tables hide the tables of later layers that name a server too."""

    def name(self, place: Place) -> str:
        """Return the flag, the variable, or the key that sets *place*, or else a key below it."""
        key = ".".join(place)
        if self.path:
            return f"{self.path}: {key}"
        for length in range(len(place), 0, -1):
            name = self.names.get(place[:length])
            if name is not None:
                return f"{name} {'.'.join(place[length:])}".strip()
        below = (name for known, name in self.names.items() if known[: len(place)] == place)
        return next(below, key)

    def depth(self, place: Place) -> int:
        """
        Return how many keys of *place* lead to a value in this layer.

        All of them do if a value stands above the last key.
        """
        table = self.values
        for depth, key in enumerate(place):
            if key not in table:
                return depth
            if not isinstance(table[key], dict):
                break
            table = table[key]
        return len(place)


def layers(arguments: Mapping[str, Any]) -> tuple[Layer, ...]:
    """
    Return the layers, the first one first, without the values that others hide.

    Raise `ConfigurationError` for a file that cannot be read.
    """
    flags = command_line()
    with_urls = frozenset(role for role in ROLES if "url" in flags.values.get(role, ()))
    found = [
        Layer("flag", dict(flags.values), flags.flags, replaces=with_urls),
        _with_tables(Layer("argument", dict(arguments), {})),
        _variables(),
        *_file(flags.file),
    ]
    return tuple(_without_hidden(found))


def origin(layers: Iterable[Layer], place: Place) -> Layer | None:
    """Return the first layer that sets most keys of *place*; None: no layer sets the first key."""
    deepest = max(layers, key=lambda layer: layer.depth(place))
    return deepest if deepest.depth(place) else None


def _with_tables(layer: Layer) -> Layer:
    """Turn URLs and models into tables. A server that is named so hides those of later layers."""
    values = {key: _as_table(key, value) for key, value in layer.values.items()}
    whole = frozenset(role for role in ROLES if isinstance(layer.values.get(role), str | BaseModel))
    return replace(layer, values=values, replaces=whole)


def _as_table(key: str, value: Any) -> Any:
    """Return a model as a table of its fields, and the URL of a server as a table with its URL."""
    if isinstance(value, Mapping | BaseModel):
        return dict(cast("Mapping[str, Any]", value))
    if isinstance(value, str) and key in ROLES:
        return {"url": value}
    return value


def _without_hidden(found: Sequence[Layer]) -> Iterator[Layer]:
    """
    Yield the layers without the values that earlier layers hide.

    The options of a layer are for the policy that it sets, or else for that of the next later layer
    that sets one. Without any they are for the default policy.
    """
    replaced: frozenset[str] = frozenset()
    policies = [layer.values.get("policy") for layer in found]
    for number, layer in enumerate(found):
        hidden = {role for role in replaced if _names_server(layer.values.get(role))}
        own = next(filter(None, policies[number:]), DEFAULT_POLICY)
        chosen = next(filter(None, policies[:number]), own)
        if own != chosen:
            hidden.add("options")
        values = {key: value for key, value in layer.values.items() if key not in hidden}
        yield replace(layer, values=values)
        replaced |= layer.replaces


def _names_server(table: Any) -> bool:
    """Whether the *table* of a model names a server. Other tables add keys to such a table."""
    return not isinstance(table, dict) or "url" in table or "function" in table


def _file(named: Path | None) -> Iterator[Layer]:
    """
    Yield the settings file, if there is one.

    It is the file of ``--config``, of ``STEPSPEC_CONFIG``, or ``stepspec.toml``.
    """
    name = os.environ.get(CONFIG) if named is None else str(named)
    path = Path(DEFAULT_FILE if name is None else name)
    if not path.is_file():
        if name is None:
            return
        chosen_by = CONFIG if named is None else "--config"
        raise ConfigurationError(f"{chosen_by} names {name!r}, which is not a file")
    yield _with_tables(Layer("file", read_toml(path), {}, path))


def read_toml(path: Path) -> dict[str, Any]:
    """Read the settings file at *path*. Raise `ConfigurationError` if it is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as exc:  # ValueError: it is no TOML, or not even text
        raise ConfigurationError(f"{path} is no settings file: {exc}") from exc


def _variables() -> Layer:
    """Return the layer of the variables. A variable that is no setting is in it too."""
    values: dict[str, Any] = {}
    names: dict[Place, str] = {}
    for variable in sorted(os.environ):  # A table comes before its keys.
        name = variable.upper()
        if not name.startswith(PREFIX) or name == CONFIG:
            continue
        place = tuple(name.removeprefix(PREFIX).lower().split("__"))
        names[place] = variable
        if name.removeprefix(PREFIX).lower() in ROLES:
            place = (*place, "url")
            names[place] = variable
        put(values, place, _decoded(place, os.environ[variable]))
    whole = frozenset(role for role in ROLES if (role,) in names)
    return Layer("variable", values, names, replaces=whole)


def _decoded(place: Place, text: str) -> Any:
    """
    Return the value of the variable that sets *place* to *text*.

    A list, a table, and what is in an open table are written as JSON.
    """
    if text.startswith(("[", "{")) or not OPEN_TABLES.isdisjoint(place[:-1]):
        with suppress(ValueError):
            return json.loads(text)
    return text


def put(values: dict[str, Any], place: Place, value: object) -> None:
    """Set *value* at *place* in nested *values*."""
    *tables, last = place
    for key in tables:
        if not isinstance(values.get(key), dict):
            values[key] = {}
        values = values[key]
    values[last] = value


def variable_name(place: Place) -> str:
    """Return the variable that sets *place*."""
    return f"{PREFIX}{'__'.join(place)}".upper()
