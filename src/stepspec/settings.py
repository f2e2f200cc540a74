"""
Settings of a solver. One precedence: arguments, then ``STEPSPEC_*`` variables, then a TOML file, then the defaults.

The file is the one that ``STEPSPEC_CONFIG`` names, or ``stepspec.toml`` in the working directory, if there is one.
Unknown keys are errors, in all three places.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias, cast

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from stepspec.orchestrator.chain import Party
from stepspec.orchestrator.endpoints.settings import CriticEndpoint, Endpoint, Sampling
from stepspec.orchestrator.errors import ConfigurationError, near
from stepspec.orchestrator.feedback.calibration_monitor import Calibration
from stepspec.orchestrator.interfaces import answered_by, ended_by
from stepspec.orchestrator.nesting.settings import TAGS, NestedPair, SmallModel, for_role
from stepspec.orchestrator.run_options import (
    RETIRED,
    Limits,
    RunOptions,
    RunOverrides,
    Share,
    explain,
    refuse_retired,
    run_options,
)
from stepspec.orchestrator.service.settings import ServiceSettings, listed

from . import policies

PREFIX = "STEPSPEC_"
CONFIG = f"{PREFIX}CONFIG"
DEFAULT_FILE = "stepspec.toml"

Small: TypeAlias = str | Endpoint | NestedPair | Mapping[str, Any]


def _for_role(role: Party) -> BeforeValidator:
    """Accept an endpoint as its URL alone, and set its role, which follows from its place."""
    return BeforeValidator(lambda value: for_role(value, role))


class Alternative(RunOptions):
    """Another calibrated method, as a policy file of ``stepspec calibrate`` holds it."""

    calibration: Calibration

    def of(self, run: RunOptions) -> RunOptions:
        """*run* by this method: the options that its calibration depends on are its own, as are those that it sets."""
        arms = {name: option.calibrated for name, option in run_options().items() if option.arms}
        own = {name for name, calibrated in arms.items() if calibrated or name in self.model_fields_set} - {"auto"}
        return run.model_copy(update={name: getattr(self, name) for name in ("policy", "options", *sorted(own))})


def _read_alternatives(value: Any) -> Any:
    """Read the policy files among *value*, a list or a text with commas."""
    items = listed(value)
    if not isinstance(items, Sequence):
        return items
    return tuple(_read_alternative(each) for each in cast("Sequence[object]", items))


def _read_alternative(value: object) -> object:
    if not isinstance(value, str | Path):
        return value
    try:
        content = tomllib.loads(Path(value).read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ValueError(f"{value} is not a policy file: {exc}") from exc
    if "calibration" not in content:
        raise ValueError(f"{value} has no table [calibration]: make a policy file with `stepspec calibrate`")
    try:
        return Alternative.model_validate(content)
    except ValidationError as exc:
        raise ValueError(f"{value}: {explain(exc, Alternative)}") from exc


Alternatives: TypeAlias = Annotated[tuple[Alternative, ...], NoDecode, BeforeValidator(_read_alternatives)]


class Settings(RunOptions, BaseSettings):
    """
    Everything a solver is configured with: the options of its runs, which a run may override, and what follows here.

    Each field's own text says what it is; the small model may itself be a pair (`NestedPair`).
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)

    small: Annotated[SmallModel | None, NoDecode, _for_role("small")] = None
    """The small model: a URL, a table, or a pair of models."""
    large: Annotated[Endpoint | None, NoDecode, _for_role("large")] = None
    """The large model: a URL or a table."""
    critic: Annotated[CriticEndpoint | None, NoDecode, _for_role("critic")] = None
    """The reward model that some policies need: a URL or a table."""
    service: ServiceSettings = ServiceSettings()
    """For ``stepspec serve`` alone."""
    calibration: Calibration | None = None
    """The guarantee that the options come with, so that a drift of the grades is noticed."""
    alternatives: Alternatives = ()
    """Policy files of further calibrated methods, among which runs with ``auto`` choose."""
    shadow: Share = 0.0
    """
    The share of the accepted steps that the large model checks once more, which measures the judge and delays no run.
    """
    session_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{0,64}$")] = "X-Session-ID"
    """A header with one value per run, by which a gateway keeps a chain on one server; empty: none is sent."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, _file())

    @property
    def run(self) -> RunOptions:
        """The options of a run that overrides none."""
        return RunOptions.model_construct(set(), **{name: getattr(self, name) for name in RunOptions.model_fields})

    def conditions(self) -> dict[str, Any]:
        """The values that a calibration of these settings depends on; see `conditions`."""
        return conditions(self)

    def turned(self, places: int) -> Self:
        """The same, for one of several that begin at the same time: with other servers of each model first."""
        ends = {"small": self.small, "large": self.large}
        return self.model_copy(update={role: end and end.turned(places) for role, end in ends.items()})


def conditions(run: RunOptions) -> dict[str, Any]:
    """
    The values of *run* that a calibration depends on, in addition to the policy and the models; as values of TOML.

    Defaults of the policy are filled in, so that a default that changes is noticed.
    """
    build = policies.METHODS[run.policy].build
    roles = {"ending": run.ending or ended_by(build), "answer": run.answer or answered_by(build)}
    options = {**policies.defaults(run.policy), **run.options}
    set_options = {name: value for name, value in options.items() if value is not None}
    return run.calibrated() | roles | {"options": set_options}


class SettingsOverrides(RunOverrides, total=False):
    """The settings of a solver as keyword arguments, without its two models; *seed* is that of the sampling."""

    critic: str | CriticEndpoint | None
    alternatives: Sequence[str | Path | Alternative] | None
    shadow: float | None
    sampling: Sampling | Mapping[str, Any] | None
    seed: int | None
    budget: Limits | Mapping[str, Any] | None


def load(*, seed: int | None = None, **overrides: Any) -> Settings:
    """
    Load the settings; *overrides* come first, and those that are None count as absent. *seed* is the sampling's.

    Raise `ConfigurationError`, which names the setting that is wrong.
    """
    _refuse_unknown_variables()
    try:
        settings = Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as exc:
        raise explain(exc, Settings, hidden=TAGS) from exc
    except (SettingsError, ValueError, OSError) as exc:  # a variable that is no JSON, a file that is no TOML
        raise ConfigurationError(str(exc)) from exc
    return settings.model_copy(update={"sampling": settings.sampling.with_seed(seed)})


def _file() -> Path | None:
    named = os.environ.get(CONFIG)
    if named is not None:
        if not Path(named).is_file():
            raise ConfigurationError(f"{CONFIG} names {named!r}, which is not a file")
        return Path(named)
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None


def _refuse_unknown_variables() -> None:
    known = {f"{PREFIX}{field}".upper() for field in Settings.model_fields} | {CONFIG}
    retired = {f"{PREFIX}{name}".upper() for name in RETIRED}
    for variable, value in os.environ.items():
        if variable.upper() in retired:
            refuse_retired(variable, value)
        elif variable.upper().startswith(PREFIX) and variable.upper().split("__")[0] not in known:
            meant = near(variable.upper(), known) or f"; known: {sorted(known)}"
            raise ConfigurationError(f"unknown setting {variable}{meant}")
