"""What can be found wrong before anything is started: nobody should wait for servers, or for hours, to be told."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from stepspec import settings as configuration
from stepspec.models import check
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.run_options import Choices
from stepspec.settings import Settings

from .sample import Arm

M = TypeVar("M", bound=BaseModel)
TOLD = Choices.__annotations__.keys() & Arm.__dataclass_fields__.keys()


def of_pair() -> Settings:
    """The settings of the solver over the miniature pair, but for where its models are."""
    return configuration.load(sampling=GREEDY)


def possible(arm: Arm, settings: Settings) -> None:
    """Raise `ConfigurationError` if no solver with these *settings* could run *arm*."""
    own: Any = {name: getattr(arm, name) for name in TOLD}
    try:
        check(settings.told(own))
    except ConfigurationError as exc:
        raise ConfigurationError(f"{arm.name!r}: {exc}") from exc


def changed(settings: M, flags: Mapping[str, tuple[str, object]]) -> M:
    """
    Return *settings* with what the *flags* say: of each field the flag's name, and its value if it is not None.

    Raise `ConfigurationError`, which names the flag, for what cannot be.
    """
    given = {field: value for field, (_, value) in flags.items() if value is not None}
    for field, value in given.items():
        finite(flags[field][0], value)
    try:
        return type(settings).model_validate({**settings.model_dump(), **given})
    except ValidationError as exc:
        wrong = [(str(error["loc"][0]), error) for error in exc.errors()]
        said = (f"{flags[field][0] if field in flags else field} {e['input']}: {e['msg']}" for field, e in wrong)
        raise ConfigurationError("; ".join(said)) from exc


def finite(flag: str, *values: object) -> None:
    """Raise `ConfigurationError`, which names the *flag*, if any of its *values* is no number or infinite."""
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigurationError(f"{flag} {value}: a finite number is needed")


def writable(flag: str, path: Path) -> None:
    """Make the folder of the file at *path*. Raise `ConfigurationError` if that file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigurationError(f"{flag} {path}: {exc.filename}: {exc.strerror}") from exc
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"{flag} {path}: no file that can be written; name another")


def only_without_testbed(**urls: str | None) -> None:
    """Raise `ConfigurationError` if a server is named where the miniature pair is going to be started."""
    if given := [f"--{role}" for role, url in urls.items() if url is not None]:
        raise ConfigurationError(f"--testbed starts a pair of its own: leave out either it or {', '.join(given)}")
