"""
Read and merge settings: flags of a command, arguments, ``STEPSPEC_*`` variables, and a TOML file.

Each source is a `Layer`. Values are merged key by key, and the first layer that sets a value wins.
Two values hide more than their own key:

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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from stepspec.orchestrator.errors import ConfigurationError, near
from stepspec.orchestrator.interfaces import holding
from stepspec.orchestrator.run_options import models

PREFIX = "STEPSPEC_"
CONFIG = f"{PREFIX}CONFIG"
DEFAULT_FILE = "stepspec.toml"
DEFAULT_POLICY = "specreason"
ROLES = ("small", "large", "critic")

Place: TypeAlias = tuple[str, ...]
"""The keys that lead to a setting, such as ("large", "api_key")."""

Source: TypeAlias = Literal["flag", "argument", "variable", "file"]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The settings that the flags of a command set."""

    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The values, nested as in a settings file."""
    flags: Mapping[Place, str] = field(default_factory=dict[Place, str])
    """The flag of each place."""
    file: Path | None = None
    """The file that ``--config`` names; None: the flag is not given."""


OUTSIDE = CommandLine()
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
    values: Mapping[str, Any]
    """The values, nested as in a settings file."""
    names: Mapping[Place, str] = field(default_factory=dict[Place, str])
    """The flag or variable of each place, if the source has such names."""
    path: Path | None = None
    """The file; None for other sources."""
    replaces: frozenset[str] = frozenset()
    """The models whose tables hide the tables of later layers that name a server too."""

    def name(self, place: Place) -> str:
        """Return the flag, the variable, or the key that sets *place*."""
        for length in range(len(place), 0, -1):
            name = self.names.get(place[:length])
            rest = ".".join(place[length:])
            if name is not None and rest in ("", "url"):
                return name
            if name is not None:
                between = " " if self.source == "flag" else ", "
                return f"{name}{between}{rest}"
        key = ".".join(place)
        return f"{self.path}: {key}" if self.path else key

    def depth(self, place: Place) -> int:
        """
        Return how many keys of *place* lead to a value in this layer.

        All of them do if a value stands above the last key.
        """
        value: object = self.values
        for depth, key in enumerate(place):
            table = _table(value)
            if table is None:
                break
            if key not in table:
                return depth
            value = table[key]
        return len(place)


def layers(settings: type[BaseSettings], arguments: Mapping[str, Any]) -> tuple[Layer, ...]:
    """
    Return the layers of *settings*, the first one first, without the values that others hide.

    Raise `ConfigurationError` for an unknown variable, and for a file that cannot be read.
    """
    flags = command_line()
    with_urls = frozenset(role for role in ROLES if "url" in flags.values.get(role, ()))
    found = [
        Layer("flag", flags.values, flags.flags, replaces=with_urls),
        _with_tables(Layer("argument", arguments)),
        _variables(settings),
        *_file(flags.file),
    ]
    return tuple(_without_hidden(found))


def merged(layers: Sequence[Layer]) -> dict[str, Any]:
    """Return the values of all *layers*, as nested mappings."""
    values: dict[str, Any] = {}
    for layer in reversed(layers):
        values = _merged(layer.values, values)
    return values


def origin(layers: Iterable[Layer], place: Place) -> Layer | None:
    """Return the first layer that sets most keys of *place*; None: no layer sets the first key."""
    deepest = max(layers, key=lambda layer: layer.depth(place))
    return deepest if deepest.depth(place) else None


def _merged(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(lower)
    for key, value in upper.items():
        below = _table(values.get(key))
        if isinstance(value, Mapping) and below is not None:
            value = _merged(cast("Mapping[str, Any]", value), below)
        values[key] = value
    return values


def _table(value: object) -> dict[str, Any] | None:
    """Return a table or the fields of a model as a new table; None for other values."""
    if isinstance(value, Mapping | BaseModel):
        return dict(cast("Mapping[str, Any]", value))
    return None


def _with_tables(layer: Layer) -> Layer:
    """Turn a URL in place of a model's table into a table, which hides those of later layers."""
    models = {role: layer.values[role] for role in ROLES if role in layer.values}
    urls = [role for role, model in models.items() if isinstance(model, str | BaseModel)]
    tables = {role: _with_url(model) for role, model in models.items()}
    return replace(layer, values={**layer.values, **tables}, replaces=frozenset(urls))


def _with_url(model: object) -> object:
    """Turn the URL of a *model* into a table."""
    if isinstance(model, str):
        return {"url": model}
    return model


def _without_hidden(found: Sequence[Layer]) -> Iterator[Layer]:
    """
    Yield the layers without the values that earlier layers hide.

    The options of a layer are for the policy that it sets, or else for that of the next later layer
    that sets one. Without any they are for the default policy.
    """
    replaced: frozenset[str] = frozenset()
    policies = [layer.values.get("policy") for layer in found]
    chosen = next(filter(None, policies), None)
    for number, layer in enumerate(found):
        hidden = {role for role in replaced if _names_server(layer.values.get(role))}
        own = next(filter(None, policies[number:]), DEFAULT_POLICY)
        if any(policies[:number]) and own != chosen:
            hidden.add("options")
        values = {key: value for key, value in layer.values.items() if key not in hidden}
        yield replace(layer, values=values)
        replaced |= layer.replaces


def _names_server(table: object) -> bool:
    """Whether the *table* of a model names a server. Other tables add keys to such a table."""
    if not isinstance(table, Mapping):
        return True
    return any(key in table for key in ("url", "function"))


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
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as exc:  # ValueError: it is no TOML, or not even text
        raise ConfigurationError(f"{path} is no settings file: {exc}") from exc
    yield _with_tables(Layer("file", values, path=path))


class _Variables(EnvSettingsSource):
    """The variables. A value in a table of any values, such as ``template``, may be JSON."""

    def _coerce_env_val_strict(self, field: Any, value: Any) -> Any:
        with suppress(ValueError):
            if field is Any:
                return json.loads(value)
            return super()._coerce_env_val_strict(field, value)
        return value


def _variables(settings: type[BaseSettings]) -> Layer:
    places = dict(_set_variables(settings))
    source = _Variables(settings)
    try:
        values = source()
    except SettingsError as exc:
        name = _wrong_variable(exc, places)
        raise ConfigurationError(f"{name}: {exc.__cause__}; the value has to be JSON") from exc
    layer = _with_tables(Layer("variable", values, places))
    tables = dict(layer.values)
    for role in layer.replaces:  # pydantic reads the variable of the URL, and none below it.
        below = source.explode_env_vars(
            role,
            settings.model_fields[role],
            source.env_vars,
        )
        tables[role] = {**tables[role], **below}
    return replace(layer, values=tables)


def _wrong_variable(error: SettingsError, places: Mapping[Place, str]) -> str:
    """Return the variable that an *error* of pydantic is about. Its message quotes the field."""
    field = str(error).split('"')[1]
    text = getattr(error.__cause__, "doc", "")
    own = [name for place, name in places.items() if place[0] == field]
    return next((name for name in own if os.environ[name] == text), _variable((field,)))


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
        if not is_setting(settings, place):
            raise ConfigurationError(f"unknown setting {variable}{_meant(settings, place)}")
        yield place, variable


def _meant(settings: type[BaseSettings], unknown: Place) -> str:
    """Say which variable the name of an *unknown* place may stand for."""
    meant = _with_more_tables(settings, unknown) or moved(settings, unknown)
    known = [meant] if meant else places(settings, len(unknown))
    names = sorted(map(_variable, known))
    firsts = ", ".join(sorted(_variable((name,)) for name in settings.model_fields))
    return near(_variable(unknown), names) or f"; the first parts of those that exist: {firsts}"


def _variable(place: Place) -> str:
    return f"{PREFIX}{'__'.join(place)}".upper()


def _with_more_tables(settings: type[BaseSettings], unknown: Place) -> Place | None:
    """Return the setting of A__B_C for A_B_C; None if there is none."""
    *table, last = unknown
    for index, letter in enumerate(last):
        place = (*table, last[:index], last[index + 1 :])
        if letter == "_" and is_setting(settings, place):
            return place
    return None


def moved(settings: type[BaseModel], unknown: Place) -> Place | None:
    """Return the place of a setting without its table: ("sampling", "seed") for ("seed",)."""
    for table in ("sampling", "budget"):
        if is_setting(settings, (table, *unknown)):
            return (table, *unknown)
    return None


def is_setting(model: type[BaseModel], place: Place) -> bool:
    """
    Whether *place* leads to a field of *model*, or below a field that takes any keys.

    Case does not matter.
    """
    rest = place[1:]
    for name, info in _fields(model):
        if name.lower() == place[0].lower():
            kind = info.annotation
            inner_models = models(kind)
            return not rest or _is_table(kind) or any(is_setting(m, rest) for m in inner_models)
    return False


def places(model: type[BaseModel], depth: int = 3) -> Iterator[Place]:
    """Yield the places of all settings of *model* with at most *depth* keys, tables first."""
    for name, info in _fields(model):
        yield (name,)
        if depth > 1:
            for inner in models(info.annotation):
                yield from ((name, *rest) for rest in places(inner, depth - 1))


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields of *model* with the names that users write. No user writes a role."""
    for name, info in model.model_fields.items():
        if name != "role":
            yield name, info


def _is_table(annotation: object) -> bool:
    return get_origin(annotation) is dict or any(map(_is_table, get_args(annotation)))
