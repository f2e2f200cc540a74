"""
Settings of a solver. One precedence: flags, arguments, ``STEPSPEC_*`` variables, a TOML file, the
defaults.

The file is the one that ``--config`` or ``STEPSPEC_CONFIG`` names, or ``stepspec.toml`` in the
working directory, if there is one. Unknown keys are errors everywhere. `setting_sources` reads and
merges them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints.settings import CriticEndpoint, Endpoint, Sampling
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.interfaces import answered_by, ended_by
from stepspec.orchestrator.nesting import TAGS, NestedPair, SmallModel, for_role
from stepspec.orchestrator.prior import Prior
from stepspec.orchestrator.run_options import Limits, RunOptions, RunOverrides, explain_error
from stepspec.orchestrator.service.settings import ServiceSettings
from stepspec.orchestrator.verifiers import (
    DecisionsVerifier,
    FunctionVerifier,
    HttpVerifier,
    VerifierFunction,
)

from . import policies, prompts
from .prompts import PromptFile
from .setting_sources import (
    DEFAULT_FILE,
    OUTSIDE,
    PREFIX,
    Layer,
    MergedSource,
    command_line,
    layers,
    moved,
    origin,
)

__all__ = [
    "DEFAULT_FILE",
    "Settings",
    "SettingsOverrides",
    "Small",
    "by_name",
    "conditions",
    "load",
    "named",
]

REWARD_MODEL = "reward-model"
# pydantic puts them into the locations of errors
CRITICS = frozenset({REWARD_MODEL, "http", "decisions", "function"})
HASH = 16  # characters of a prompt's hash in a policy file
_ABSENT = object()

log = logging.getLogger("stepspec")

Critic: TypeAlias = CriticEndpoint | HttpVerifier | DecisionsVerifier | FunctionVerifier
Small: TypeAlias = str | Endpoint | NestedPair | Mapping[str, Any]


def _for_role(role: Role) -> BeforeValidator:
    """Accept an endpoint as its URL alone, and set its role, which follows from its place."""
    return BeforeValidator(lambda value: for_role(value, role))


def _function(value: Any) -> Any:
    """Return a function as a verifier, and anything else as it is."""
    return FunctionVerifier.model_validate({"function": value}) if callable(value) else value


def _critic(value: Any) -> Any:
    """
    Accept a reward model as its URL alone, a verifier as its function, and a table without its
    kind.
    """
    table = for_role(_function(value), "critic")
    kind = "function" if isinstance(table, dict) and "function" in table else REWARD_MODEL
    return {"kind": kind, **cast("dict[str, Any]", table)} if isinstance(table, dict) else table


def _read_prompts(folder: Path) -> Path:
    """Check that the prompts of *folder* replace known ones, those of plugins included."""
    len(policies.METHODS)  # loads the plugins
    prompts.read_folder(folder)
    return folder


PromptsFolder: TypeAlias = Annotated[Path, AfterValidator(_read_prompts)]


class Calibration(BaseModel, frozen=True, extra="forbid"):
    """
    The guarantee of ``stepspec calibrate`` for a *value* of one *option* of a *policy*, as a
    settings file holds it.

    With *confidence*, the policy loses at most *max_loss* of the problems to the large model alone.
    That holds for all attempts with the same trials together.
    """

    policy: str
    """The calibrated method."""
    option: str
    """The option whose value was searched, such as ``threshold``."""
    value: float
    """The value that was found."""
    max_loss: float = Field(gt=0, lt=1)
    """The guarantee: at most this share of the problems is lost to the large model alone."""
    confidence: float = Field(gt=0, lt=1)
    """The confidence of the guarantee."""
    attempt: PositiveInt = 1
    """Which attempt with the same trials it was."""
    benchmark: str = ""
    """Where the problems are from."""
    problems: NonNegativeInt = 0
    """How many problems were measured."""
    lost: NonNegativeInt = 0
    """How many of them the large model solved and the method did not."""
    gained: NonNegativeInt = 0
    """How many of them the method solved and the large model did not."""
    date: str = ""
    """The day of the calibration."""
    models: dict[str, str] = {}
    """The models that the guarantee is for, by role; empty: not compared."""
    conditions: dict[str, Any] = {}
    """
    The options of the runs that the guarantee is for (see `Settings.conditions`); empty: not
    compared.
    """

    def differences(self, run: RunConditions) -> tuple[str, ...]:
        """The settings in which *run* differs from the runs that the calibration covers."""
        if run.policy != self.policy:
            return ("policy",)
        options = dict(run.values["options"])
        value = options.pop(self.option, _ABSENT)
        values = {**run.values, "options": options}
        return (
            *((f"options.{self.option}",) if value != self.value else ()),
            *_differences("models", self.models, run.models if self.models else {}),
            *_differences("", self.conditions, values if self.conditions else {}),
        )

    def warn_of_differences(self, run: RunConditions) -> None:
        """Log a warning if the calibration does not cover *run*."""
        if differences := self.differences(run):
            log.warning(
                "what %s was calibrated for is not what runs now (other: %s): its promise does not"
                " hold here; run `stepspec calibrate` again with these settings, or go back to"
                " those",
                self.policy,
                ", ".join(differences),
            )


@dataclass(frozen=True, slots=True)
class RunConditions:
    """
    What a calibration compares of a run: its *policy*, its *models* by role, and the *values* of
    its options.
    """

    policy: str
    models: Mapping[str, str]
    values: Mapping[str, Any]


def _differences(place: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """The paths at which *before* and *now* hold different values."""
    for name in dict.fromkeys((*before, *now)):
        path = f"{place}.{name}".lstrip(".")
        old, new = before.get(name, _ABSENT), now.get(name, _ABSENT)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(
                path, cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new)
            )
        elif old != new:
            yield path


class Settings(RunOptions, BaseSettings):
    """
    Everything a solver is configured with: the options of its runs, which a run may override, and
    what follows here.

    Each field's own text says what it is; the small model may itself be a pair (`NestedPair`).
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    small: Annotated[SmallModel | None, NoDecode, _for_role("small")] = None
    """The small model: a URL, a table, or a pair of models."""
    large: Annotated[Endpoint | None, NoDecode, _for_role("large")] = None
    """The large model: a URL or a table."""
    critic: Annotated[
        Annotated[Critic, Field(discriminator="kind")] | None, NoDecode, BeforeValidator(_critic)
    ] = None
    """
    What rates steps for the policies that need it, or judges the answer: a reward model, by its URL
    or a table, or a verifier, by a table with its kind; in Python also a function.
    """
    service: ServiceSettings = ServiceSettings()
    """For ``stepspec serve`` alone."""
    calibration: Calibration | None = None
    """
    The guarantee that the options come with; a warning says when the settings are not those of the
    calibration.
    """
    prior: Prior = Prior()
    """What ``stepspec tune`` measured of the method, by which ``auto`` begins; see `Prior`."""
    session_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{0,64}$")] = "X-Session-ID"
    """
    A header with one value per run, by which a gateway keeps a chain on one server; empty: none is
    sent.
    """
    prompts_dir: PromptsFolder | None = None
    """A folder of prompts that replace those of the same names."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        return (MergedSource(settings_cls, init_settings()),)

    @property
    def run(self) -> RunOptions:
        """The options of a run that overrides none."""
        return RunOptions.model_construct(
            set(), **{name: getattr(self, name) for name in RunOptions.model_fields}
        )

    @property
    def prompts(self) -> Mapping[str, PromptFile]:
        """The prompts of *prompts_dir*, by the names of those that they replace."""
        return prompts.read_folder(self.prompts_dir) if self.prompts_dir else {}

    @property
    def rates_steps(self) -> bool:
        """Whether there is a critic that rates steps, as some policies need."""
        critic = self.critic
        return isinstance(critic, CriticEndpoint) or (critic is not None and critic.rates("step"))

    def conditions(self) -> dict[str, Any]:
        """The values that a calibration of these settings depends on; see `conditions`."""
        with prompts.replacing(self.prompts):
            return conditions(self)

    def turned(self, places: int) -> Self:
        """
        The same, for one of several that begin at the same time: with other servers of each model
        first.
        """
        ends = {"small": self.small, "large": self.large}
        return self.model_copy(
            update={role: end and end.turned(places) for role, end in ends.items()}
        )


def conditions(run: RunOptions) -> dict[str, Any]:
    """
    The values of *run* that a calibration depends on, in addition to the policy and the models; as
    values of TOML.

    Defaults of the policy are filled in, so that a default that changes is noticed. The prompts
    that decide what the policy does are there by their hashes.
    """
    method = policies.METHODS.find(run.policy)
    roles = {
        "ending": run.ending or ended_by(method.source),
        "answer": run.answer or answered_by(method.source),
    }
    known = prompts.known()
    texts = (
        {"prompts": {name: known[name].sha256[:HASH] for name in sorted(method.prompts)}}
        if method.prompts
        else {}
    )
    options = {**policies.defaults(run.policy), **run.options}
    set_options = {name: value for name, value in options.items() if value is not None}
    return run.calibrated() | roles | {"options": set_options} | texts


class SettingsOverrides(RunOverrides, total=False):
    """
    The settings of a solver as keyword arguments, without its two models; *seed* is that of the
    sampling.
    """

    critic: str | Critic | VerifierFunction | Mapping[str, Any] | None
    sampling: Sampling | Mapping[str, Any] | None
    seed: int | None
    budget: Limits | Mapping[str, Any] | None
    prompts_dir: str | Path | None


def by_name(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return *overrides* with what is a class or a function in them as the names or settings to choose
    it by.
    """
    named = {"policy": policies.named, "critic": _function}
    return {
        name: named[name](value) if name in named and value else value
        for name, value in overrides.items()
    }


def load(*, seed: int | None = None, **overrides: Any) -> Settings:
    """
    Load the settings; *overrides* come first, and those that are None count as absent. *seed* is
    the sampling's.

    Raise `ConfigurationError`, which names the setting that is wrong.
    """
    arguments = {name: value for name, value in by_name(overrides).items() if value is not None}
    try:
        settings = Settings(**arguments)
    except ValidationError as exc:
        found = layers(Settings, arguments)
        each = ["", *(_explain_error(error, found) for error in exc.errors())]
        # named once for all of its keys
        file = f"{next((layer.path for layer in found if layer.path), None)}: "
        texts = (
            text.removeprefix(file) if before.startswith(file) else text
            for before, text in pairwise(each)
        )
        raise ConfigurationError("; ".join(texts)) from exc
    return settings.model_copy(update={"sampling": settings.sampling.with_seed(seed)})


def named(
    exc: ConfigurationError, settings: Settings, arguments: Mapping[str, Any]
) -> ConfigurationError:
    """
    Let the error of a policy or its options name the flag, the variable or the key of the file at
    fault.

    *settings* were loaded with these *arguments*.
    """
    place = ("options", exc.option) if exc.option else ("policy",)
    known = settings.policy in policies.METHODS
    found = origin(
        layers(Settings, {name: value for name, value in arguments.items() if value is not None}),
        place,
    )
    if found is None or found.source == "argument" or (known and not exc.option):
        return exc
    return ConfigurationError(f"{found.name(place)}: {exc}", option=exc.option)


SOMEWHERE = "http://HOST:PORT/v1"


def without_models(settings: Settings) -> ConfigurationError:
    """The error of *settings* that lack one of the models, or both: how to name what is missing."""
    missing = [role for role in ("small", "large") if getattr(settings, role) is None]
    models = " and ".join(f"no {role} model" for role in missing)
    in_command = command_line() is not OUTSIDE  # then messages name flags and not arguments
    ways = [f"--{role} {SOMEWHERE}" if in_command else f"{role}='{SOMEWHERE}'" for role in missing]
    tables = " and ".join(f"[{role}]" for role in missing)
    written = (
        f"a {tables} table with its url"
        if len(missing) == 1
        else f"the tables {tables} with their urls"
    )
    variables = " and ".join(f"{PREFIX}{role.upper()}" for role in missing)
    return ConfigurationError(
        f"{models}: pass {' and '.join(ways)}, set {variables}, or write {written} into"
        f" {DEFAULT_FILE}"
    )


def _explain_error(error: ErrorDetails, found: Sequence[Layer]) -> str:
    """Say what is wrong with which flag, variable, argument, or key of the file."""
    hidden = TAGS | CRITICS
    message = explain_error(Settings, error, hidden=hidden)
    place = tuple(part for part in error["loc"] if isinstance(part, str) and part not in hidden)
    if error["type"] == "extra_forbidden" and (meant := moved(Settings, place)):
        message = f"unknown setting {place[0]!r} (did you mean {'.'.join(meant)!r}?)"
    layer = origin(found, place)
    if layer is None or layer.source == "argument" or not place:
        return message
    if layer.source == "file":
        unstarted = error["type"] == "missing" and "model" in layer.values[place[0]]
        hint = " (the file of a pair is for `stepspec up`, which prints settings)" * unstarted
        return f"{layer.path}: {message}{hint}"
    reason = message.removeprefix(f"{'.'.join(place)}: ")
    value = f" {error['input']}" if error["type"].startswith(("greater_than", "less_than")) else ""
    return f"{layer.name(place)}{value}: {reason}"
