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
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from stepspec.orchestrator.errors import ConfigurationError, near
from stepspec.orchestrator.interfaces import holding
from stepspec.orchestrator.run_options import models

PREFIX = "STEPSPEC_"
CONFIG = f"{PREFIX}CONFIG"
DEFAULT_FILE = "stepspec.toml"
DEFAULT_POLICY = "specreason"
ROLES = ("small", "large", "critic")
ANY_KEY = "*"
"""Stands for every key of a table that takes any keys."""

Place: TypeAlias = tuple[str, ...]
"""The keys that lead to a setting, such as ("large", "api_key")."""

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
        """Return the flag, the variable, or the key that sets *place*."""
        key = ".".join(place)
        if self.path:
            return f"{self.path}: {key}"
        for length in range(len(place), 0, -1):
            name = self.names.get(place[:length])
            if name is not None:
                return f"{name} {'.'.join(place[length:])}".strip()
        return key

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


def layers(settings: type[BaseSettings], arguments: Mapping[str, Any]) -> tuple[Layer, ...]:
    """
    Return the layers of *settings*, the first one first, without the values that others hide.

    Raise `ConfigurationError` for an unknown variable, and for a file that cannot be read.
    """
    flags = command_line()
    with_urls = frozenset(role for role in ROLES if "url" in flags.values.get(role, ()))
    found = [
        Layer("flag", dict(flags.values), flags.flags, replaces=with_urls),
        _with_tables(Layer("argument", dict(arguments), {})),
        _variables(settings),
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


class _Variables(EnvSettingsSource):
    """The variables. A value in a table of any values, such as ``template``, may be JSON."""

    def _load_env_vars(self) -> Mapping[str, str | None]:
        """Read the URL of a server, such as ``STEPSPEC_LARGE``, as a key of its table."""
        urls = {_variable((role,)).lower(): _variable((role, "url")).lower() for role in ROLES}
        return {urls.get(name, name): text for name, text in super()._load_env_vars().items()}

    def _coerce_env_val_strict(self, field: Any, value: Any) -> Any:
        with suppress(ValueError):
            if field is Any:
                return json.loads(value)
            return super()._coerce_env_val_strict(field, value)
        return value


def _variables(settings: type[BaseSettings]) -> Layer:
    names = dict(_set_variables(settings))
    try:
        values = _Variables(settings)()
    except SettingsError as exc:
        field = str(exc).split('"')[1]  # The message quotes it.
        wrong = ", ".join(name for place, name in names.items() if place[0] == field)
        raise ConfigurationError(f"{wrong}: {exc.__cause__}; the value has to be JSON") from exc
    whole = frozenset(role for role in ROLES if (role,) in names)
    return Layer("variable", values, names, replaces=whole)


def _set_variables(settings: type[BaseSettings]) -> Iterator[tuple[Place, str]]:
    """
    Yield the place and the name of each variable that is set.

    Raise `ConfigurationError` for a variable that is no setting.
    """
    for variable in os.environ:
        name = variable.upper()
        if not name.startswith(PREFIX) or name == CONFIG:
            continue
        place = tuple(name.removeprefix(PREFIX).lower().split("__"))
        if not _is_setting(settings, place):
            raise ConfigurationError(f"unknown setting {variable}{_meant(settings, place)}")
        yield place, variable
        if name.removeprefix(PREFIX).lower() in ROLES:
            yield (*place, "url"), variable


def _meant(settings: type[BaseSettings], unknown: Place) -> str:
    """Say which variable the name of an *unknown* place may stand for."""
    meant = moved(settings, unknown)
    key = unknown[-1].partition("_")[2]  # "threshold" of "options_threshold"
    names = [
        _variable(place).replace(ANY_KEY, key.upper())
        for place in ([meant] if meant else places(settings))
    ]
    firsts = ", ".join(sorted(_variable((name,)) for name in settings.model_fields))
    return near(_variable(unknown), names) or f"; the first parts of those that exist: {firsts}"


def _variable(place: Place) -> str:
    return f"{PREFIX}{'__'.join(place)}".upper()


def moved(settings: type[BaseModel], unknown: Place) -> Place | None:
    """Return the place of a setting without its table: ("sampling", "seed") for ("seed",)."""
    for table in ("sampling", "budget"):
        if _is_setting(settings, (table, *unknown)):
            return (table, *unknown)
    return None


def _is_setting(settings: type[BaseModel], place: Place) -> bool:
    """Whether *place* leads to a setting, or below a table that takes any keys."""
    known = places(settings)
    above = [place[:length] for length in range(1, len(place))]
    return place in known or any((*table, ANY_KEY) in known for table in above)


@cache
def places(model: type[BaseModel]) -> Sequence[Place]:
    """
    Return the places of all settings of *model* as users write them.

    `ANY_KEY` stands for the keys of a table that takes any. No user writes a role.
    """
    found: list[Place] = []
    for name, info in model.__pydantic_fields__.items():
        inner = [place for kind in models(info.annotation) for place in places(kind)]
        if _takes_any_key(info.annotation):
            inner.append((ANY_KEY,))
        if name != "role":
            found += [(name,), *((name, *rest) for rest in inner)]
    return found


def _takes_any_key(annotation: object) -> bool:
    return get_origin(annotation) is dict or any(map(_takes_any_key, get_args(annotation)))
