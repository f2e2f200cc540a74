"""Read a pair's file: what is wrong in it is named by its place, and folders lie beside it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from ..endpoints.settings import Endpoint
from ..errors import ConfigurationError
from ..near import near
from ..nesting.settings import PAIR
from .pair import CONNECTED, STARTED, Pair, PairWithin, Roles, Started

KINDS: Mapping[str, type[BaseModel]] = {CONNECTED: Endpoint, STARTED: Started, PAIR: PairWithin}
OF_THE_WHOLE = frozenset({"policy", "options", "ahead"})  # a pair within has them

Place = tuple[int | str, ...]
R = TypeVar("R", bound=Roles)


def load(path: Path) -> Pair:
    """Read the pair at *path*. Raise `ConfigurationError`, which says what is wrong with which setting."""
    try:
        pair = Pair.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as exc:
        raise ConfigurationError(f"{path}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"{path} is no TOML: {exc}") from exc
    except ValidationError as exc:
        wrong = "; ".join(_explain(error["type"], error["loc"], error["msg"]) for error in exc.errors())
        raise ConfigurationError(f"{path}: {wrong}") from exc
    return _beside(pair, path.parent)


def _explain(kind: str, place: Place, message: str) -> str:
    name = ".".join(str(part) for part in place if part not in KINDS)
    if kind != "extra_forbidden":
        return f"{name}: {message.removeprefix('Value error, ')}"
    if name in OF_THE_WHOLE:
        return f"{name}: this file has it for pairs within; for the whole, write it into stepspec.toml"
    return f"unknown setting {name!r}{near(str(place[-1]), _model(place).model_fields)}"


def _model(place: Place) -> type[BaseModel]:
    """Return the model that the setting at *place* would be part of."""
    model: type[BaseModel] = Pair
    for part in place[:-1]:
        field = model.model_fields.get(str(part))
        inner = KINDS.get(str(part)) or (field.annotation if field else None)
        model = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else model
    return model


def _beside(roles: R, folder: Path) -> R:
    """Resolve models that are folders: relative ones lie beside the file."""
    found = {"large": _found(roles.large, folder), "small": _found(roles.small, folder)}
    return roles.model_copy(update=found)


def _found(one: Endpoint | Started | PairWithin, folder: Path) -> Endpoint | Started | PairWithin:
    if isinstance(one, PairWithin):
        return _beside(one, folder)
    if isinstance(one, Endpoint):
        return one
    speculation = one.speculation.model_copy(update={"model": _resolved(one.speculation.model, folder)})
    return one.model_copy(update={"model": _resolved(one.model, folder), "speculation": speculation})


def _resolved(model: str | None, folder: Path) -> str | None:
    return str((folder / model).resolve()) if model and model.startswith((".", "/")) else model
