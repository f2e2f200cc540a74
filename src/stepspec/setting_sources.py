"""
Where settings come from: the flags of a command, arguments, ``STEPSPEC_*`` variables, and a TOML
file.

Each source is a `Layer`. Values are merged key by key, and the first layer that sets one wins. Two
values hide more than their own key. A URL in place of a model's table hides that table in later
layers if it names a server too, so that no API key goes to another server. Another policy hides the
options in later layers, which belong to their own policy.
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
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsError,
)

from stepspec.orchestrator.errors import ConfigurationError, near
from stepspec.orchestrator.interfaces import holding
from stepspec.orchestrator.run_options import models

PREFIX = "STEPSPEC_"
CONFIG = f"{PREFIX}CONFIG"
DEFAULT_FILE = "stepspec.toml"
ROLES = ("small", "large", "critic")

Place: TypeAlias = tuple[str, ...]
"""The keys that lead to a setting, such as ("large", "api_key")."""

Source: TypeAlias = Literal["flag", "argument", "variable", "file"]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """
    What the flags of a command set.

    *values* are nested as in a settings file; *flags* has the flag of each place. *file* is the one
    that ``--config`` names; None if it names none.
    """

    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    flags: Mapping[Place, str] = field(default_factory=dict[Place, str])
    file: Path | None = None


OUTSIDE = CommandLine()
# it is frozen
_COMMAND_LINE: ContextVar[CommandLine] = ContextVar("_COMMAND_LINE", default=OUTSIDE)


def command_line() -> CommandLine:
    """The flags of the command that runs; empty outside of one."""
    return _COMMAND_LINE.get()


def with_command_line(flags: CommandLine) -> AbstractContextManager[None]:
    """Let the settings that are loaded in this block come from *flags* first."""
    return holding(_COMMAND_LINE, flags)


@dataclass(frozen=True, slots=True)
class Layer:
    """
    The *values* that one source sets.

    *names* has the flag or variable of each place that the source sets by such a name, *path* is
    the file. The tables of the models in *replaces* hide those of later layers which name a server
    too.
    """

    source: Source
    values: Mapping[str, Any]
    names: Mapping[Place, str] = field(default_factory=dict[Place, str])
    path: Path | None = None
    replaces: frozenset[str] = frozenset()

    def name(self, place: Place) -> str:
        """
        The flag, the variable, or the key in the file or among the arguments that sets *place*.
        """
        for end in range(len(place), 0, -1):
            if (name := self.names.get(place[:end])) is not None:
                rest = ".".join(place[end:])
                return f"{name}, {rest}" if rest not in ("", "url") else name
        key = ".".join(place)
        return f"{self.path}: {key}" if self.path else key

    def depth(self, place: Place) -> int:
        """
        How many keys of *place* lead to a value in this layer; all of them if a value stands above
        the last one.
        """
        values: Any = self.values
        for depth, key in enumerate(place):
            if isinstance(values, BaseModel):
                values = dict(values)
            if not isinstance(values, Mapping):
                return len(place)
            if key not in values:
                return depth
            values = cast("Mapping[str, Any]", values)[key]
        return len(place)


def layers(settings: type[BaseSettings], arguments: Mapping[str, Any]) -> tuple[Layer, ...]:
    """
    The layers of *settings*, the first one first, without what an earlier one hides.

    Raise `ConfigurationError` for an unknown variable, and for a file that cannot be read.
    """
    flags = command_line()
    own = frozenset(role for role in ROLES if "url" in flags.values.get(role, ()))
    found = [
        Layer("flag", flags.values, flags.flags, replaces=own),
        _with_tables(Layer("argument", arguments)),
        _variables(settings),
        *_file(flags.file),
    ]
    return tuple(_without_hidden(found))


def merged(layers: Sequence[Layer]) -> dict[str, Any]:
    """The values of all *layers*, as nested mappings."""
    values: Mapping[str, Any] = {}
    for layer in reversed(layers):
        values = _merged(layer.values, values)
    return dict(values)


def origin(layers: Iterable[Layer], place: Place) -> Layer | None:
    """
    The layer that sets *place*, or else as many of its keys as any does; None if none sets even the
    first.
    """
    deepest = max(layers, key=lambda layer: layer.depth(place))  # the first one of several
    return deepest if deepest.depth(place) else None


class MergedSource(PydanticBaseSettingsSource):
    """All layers as the one source that pydantic reads."""

    def __init__(self, settings_cls: type[BaseSettings], arguments: Mapping[str, Any]) -> None:
        super().__init__(settings_cls)
        self._arguments = arguments

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError("the source is read as a whole")

    def __call__(self) -> dict[str, Any]:
        return merged(layers(self.settings_cls, self._arguments))


def _merged(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(lower)
    for key, value in upper.items():
        below = values.get(key)
        if isinstance(below, BaseModel):
            below = dict(below)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            value = _merged(cast("Mapping[str, Any]", value), cast("Mapping[str, Any]", below))
        values[key] = value
    return values


def _with_tables(layer: Layer) -> Layer:
    """
    Turn URLs that stand in place of a model's table into tables, which hide those of later layers.
    """
    given = {role: layer.values[role] for role in ROLES if role in layer.values}
    replaces = frozenset(
        role for role, value in given.items() if isinstance(value, str | BaseModel)
    )
    tables = {role: _as_table(value) for role, value in given.items()}
    return replace(layer, values={**layer.values, **tables}, replaces=replaces)


def _as_table(model: object) -> object:
    """Turn the URL of a *model* into a table, also within the tables of a nested pair."""
    if isinstance(model, str):
        return {"url": model}
    if not isinstance(model, Mapping):
        return model
    table = cast("Mapping[str, object]", model)
    return {
        key: _as_table(value) if key in ("small", "large") else value
        for key, value in table.items()
    }


def _without_hidden(found: Sequence[Layer]) -> Iterator[Layer]:
    replaced: frozenset[str] = frozenset()
    policies = [layer.values.get("policy") for layer in found]
    chosen = next(filter(None, policies), None)
    for number, layer in enumerate(found):
        hidden = {role for role in replaced if _names_server(layer.values.get(role))}
        own = next(filter(None, policies[number:]), None)
        if any(policies[:number]) and (own or "specreason") != chosen:
            hidden.add("options")
        yield replace(
            layer, values={key: value for key, value in layer.values.items() if key not in hidden}
        )
        replaced |= layer.replaces


def _names_server(table: object) -> bool:
    """
    Whether the *table* of a model says where it is; else its keys belong to whatever server another
    layer names.
    """
    keys = {"url", "small", "large", "function"}
    return not isinstance(table, Mapping) or not keys.isdisjoint(cast("Mapping[str, Any]", table))


def _file(named: Path | None) -> Iterator[Layer]:
    """
    The settings file: of ``--config``, of ``STEPSPEC_CONFIG``, or ``stepspec.toml`` if it exists.
    """
    by, name = ("--config", str(named)) if named is not None else (CONFIG, os.environ.get(CONFIG))
    if name is not None and not Path(name).is_file():
        raise ConfigurationError(f"{by} names {name!r}, which is not a file")
    path = Path(DEFAULT_FILE if name is None else name)
    if not path.is_file():
        return
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as exc:  # it cannot be read, is no TOML, or not even text
        raise ConfigurationError(f"{path} is no settings file: {exc}") from exc
    yield _with_tables(Layer("file", values, path=path))


class _Variables(EnvSettingsSource):
    """
    The variables; what stands in a table of any values, such as ``template``, is JSON if it can be.
    """

    def _coerce_env_val_strict(self, field: Any, value: Any) -> Any:
        with suppress(ValueError):
            return (
                json.loads(value) if field is Any else super()._coerce_env_val_strict(field, value)
            )
        return value


def _variables(settings: type[BaseSettings]) -> Layer:
    places = dict(_set_variables(settings))
    source = _Variables(settings)
    try:
        values = source()
    except SettingsError as exc:
        # the message quotes the field first
        field = str(exc).split('"')[1]
        text = getattr(exc.__cause__, "doc", "")
        names = (
            name for place, name in places.items() if place[0] == field and os.environ[name] == text
        )
        name = next(names, f"{PREFIX}{field.upper()}")
        raise ConfigurationError(f"{name}: {exc.__cause__}; the value has to be JSON") from exc
    layer = _with_tables(Layer("variable", values, places))
    tables = {
        role: {
            **values_of,
            **source.explode_env_vars(role, settings.model_fields[role], source.env_vars),
        }
        for role, values_of in layer.values.items()
        if role in layer.replaces  # pydantic reads a variable for the URL alone, and none below it
    }
    return replace(layer, values={**layer.values, **tables})


def _set_variables(settings: type[BaseSettings]) -> Iterator[tuple[Place, str]]:
    """
    The place and the name of each variable that is set. Raise `ConfigurationError` for one that is
    no setting.
    """
    for variable in os.environ:
        if not variable.upper().startswith(PREFIX) or variable.upper() == CONFIG:
            continue
        place = tuple(variable.upper().removeprefix(PREFIX).lower().split("__"))
        if not is_setting(settings, place):
            raise ConfigurationError(f"unknown setting {variable}{_meant(settings, place)}")
        yield place, variable


def _meant(settings: type[BaseSettings], unknown: Place) -> str:
    """Say which variable the one of an *unknown* place may stand for: first A__B_C for A_B_C."""
    *table, last = unknown
    spelt = ((*table, last[:at], last[at + 1 :]) for at, letter in enumerate(last) if letter == "_")
    same = next((place for place in spelt if is_setting(settings, place)), None) or moved(
        settings, unknown
    )
    known = [same] if same else places(settings, len(unknown))
    variable, *names = (f"{PREFIX}{'__'.join(place)}".upper() for place in (unknown, *known))
    firsts = ", ".join(sorted(f"{PREFIX}{name}".upper() for name in settings.model_fields))
    return near(variable, sorted(names)) or f"; the first parts of those that exist: {firsts}"


def moved(settings: type[BaseModel], unknown: Place) -> Place | None:
    """
    The place of a setting of a run that was looked for at the top, as ("sampling", "seed") of
    ("seed",).
    """
    inner = ((table, *unknown) for table in ("sampling", "budget"))
    return next((place for place in inner if is_setting(settings, place)), None)


def is_setting(model: type[BaseModel], place: Place) -> bool:
    """
    Whether *place* leads to a field of *model*, or below one that takes any keys; case does not
    matter.
    """
    first, *rest = place
    found = next((info for name, info in _fields(model) if name.lower() == first.lower()), None)
    if found is None or not rest:
        return found is not None
    return _is_table(found.annotation) or any(
        is_setting(each, tuple(rest)) for each in models(found.annotation)
    )


def places(model: type[BaseModel], depth: int = 3) -> Iterator[Place]:
    """
    The places of all settings of *model* that have at most *depth* keys; a table before what stands
    in it.
    """
    for name, info in _fields(model):
        yield (name,)
        if depth > 1:
            for inner in models(info.annotation):
                yield from ((name, *rest) for rest in places(inner, depth - 1))


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """The fields of *model* with the names that users write; a role follows from the place."""
    yield from (
        (info.alias or name, info) for name, info in model.model_fields.items() if name != "role"
    )


def _is_table(annotation: object) -> bool:
    return get_origin(annotation) is dict or any(map(_is_table, get_args(annotation)))
