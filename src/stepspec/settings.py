"""
Settings of a solver. One precedence: flags, arguments, ``STEPSPEC_*`` variables, a TOML file, the defaults.

The file is the one that ``--config`` or ``STEPSPEC_CONFIG`` names, or ``stepspec.toml`` in the working directory, if
there is one. Unknown keys are errors everywhere. `setting_sources` reads and merges them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias, cast

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from stepspec.orchestrator.auto import Prior
from stepspec.orchestrator.calibration import PROMPTS, Calibration
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints.settings import CriticEndpoint, Endpoint, Sampling
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.interfaces import answered_by, ended_by
from stepspec.orchestrator.nesting.endpoint import TAGS, NestedPair, SmallModel, for_role
from stepspec.orchestrator.run_options import (
    Limits,
    RunOptions,
    RunOverrides,
    explain_error,
)
from stepspec.orchestrator.service.settings import ServiceSettings
from stepspec.orchestrator.verifiers import (
    DecisionsVerifier,
    FunctionVerifier,
    HttpVerifier,
    VerifierFunction,
)

from . import policies, prompts
from .prompts import PromptFile
from .setting_sources import DEFAULT_FILE, PREFIX, Layer, MergedSource, in_command, layers, origin

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
CRITICS = frozenset({REWARD_MODEL, "http", "decisions", "function"})  # pydantic puts them into the locations of errors
HASH = 16  # characters of a prompt's hash in a policy file

Critic: TypeAlias = CriticEndpoint | HttpVerifier | DecisionsVerifier | FunctionVerifier
Small: TypeAlias = str | Endpoint | NestedPair | Mapping[str, Any]


def _for_role(role: Role) -> BeforeValidator:
    """Accept an endpoint as its URL alone, and set its role, which follows from its place."""
    return BeforeValidator(lambda value: for_role(value, role))


def _function(value: Any) -> Any:
    """Return a function as a verifier, and anything else as it is."""
    return FunctionVerifier.model_validate({"function": value}) if callable(value) else value


def _critic(value: Any) -> Any:
    """Accept a reward model as its URL alone, a verifier as its function, and a table without its kind."""
    table = for_role(_function(value), "critic")
    return {"kind": REWARD_MODEL, **cast("dict[str, Any]", table)} if isinstance(table, dict) else table


def _read_prompts(folder: Path) -> Path:
    """Check that the prompts of *folder* replace known ones, those of plugins included."""
    len(policies.METHODS)  # loads the plugins
    prompts.read_folder(folder)
    return folder


PromptsFolder: TypeAlias = Annotated[Path, AfterValidator(_read_prompts)]


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
    critic: Annotated[Annotated[Critic, Field(discriminator="kind")] | None, NoDecode, BeforeValidator(_critic)] = None
    """
    What rates steps for the policies that need it, or judges the answer: a reward model, by its URL or a table, or a
    verifier, by a table with its kind; in Python also a function.
    """
    service: ServiceSettings = ServiceSettings()
    """For ``stepspec serve`` alone."""
    calibration: Calibration | None = None
    """The guarantee that the options come with; a warning says when the settings are not those of the calibration."""
    prior: Prior = Prior()
    """What ``stepspec judge`` measured of the method, by which ``auto`` begins; see `Prior`."""
    session_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{0,64}$")] = "X-Session-ID"
    """A header with one value per run, by which a gateway keeps a chain on one server; empty: none is sent."""
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
        return RunOptions.model_construct(set(), **{name: getattr(self, name) for name in RunOptions.model_fields})

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
        """The same, for one of several that begin at the same time: with other servers of each model first."""
        ends = {"small": self.small, "large": self.large}
        return self.model_copy(update={role: end and end.turned(places) for role, end in ends.items()})


def conditions(run: RunOptions) -> dict[str, Any]:
    """
    The values of *run* that a calibration depends on, in addition to the policy and the models; as values of TOML.

    Defaults of the policy are filled in, so that a default that changes is noticed. The prompts that decide what the
    policy does are there by their hashes.
    """
    method = policies.METHODS.find(run.policy)
    roles = {"ending": run.ending or ended_by(method.source), "answer": run.answer or answered_by(method.source)}
    known = prompts.known()
    texts = {PROMPTS: {name: known[name].sha256[:HASH] for name in sorted(method.prompts)}} if method.prompts else {}
    options = {**policies.defaults(run.policy), **run.options}
    set_options = {name: value for name, value in options.items() if value is not None}
    return run.calibrated() | roles | {"options": set_options} | texts


class SettingsOverrides(RunOverrides, total=False):
    """The settings of a solver as keyword arguments, without its two models; *seed* is that of the sampling."""

    critic: str | Critic | VerifierFunction | Mapping[str, Any] | None
    sampling: Sampling | Mapping[str, Any] | None
    seed: int | None
    budget: Limits | Mapping[str, Any] | None
    prompts_dir: str | Path | None


def by_name(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return *overrides* with what is a class or a function in them as the names or settings to choose it by."""
    named = {"policy": policies.named, "critic": _function}
    return {name: named[name](value) if name in named and value else value for name, value in overrides.items()}


def load(*, seed: int | None = None, **overrides: Any) -> Settings:
    """
    Load the settings; *overrides* come first, and those that are None count as absent. *seed* is the sampling's.

    Raise `ConfigurationError`, which names the setting that is wrong.
    """
    arguments = {name: value for name, value in by_name(overrides).items() if value is not None}
    try:
        settings = Settings(**arguments)
    except ValidationError as exc:
        raise _explain(exc, layers(Settings, arguments)) from exc
    return settings.model_copy(update={"sampling": settings.sampling.with_seed(seed)})


def named(exc: ConfigurationError, settings: Settings, arguments: Mapping[str, Any]) -> ConfigurationError:
    """
    Let the error of a policy or its options name the flag, the variable or the key of the file at fault.

    *settings* were loaded with these *arguments*.
    """
    place = ("options", exc.option) if exc.option else ("policy",)
    known = settings.policy in policies.METHODS
    found = origin(layers(Settings, {name: value for name, value in arguments.items() if value is not None}), place)
    if found is None or found.source == "argument" or (known and not exc.option):
        return exc
    return ConfigurationError(f"{found.name(place)}: {exc}", option=exc.option)


SOMEWHERE = "http://HOST:PORT/v1"


def without_models(settings: Settings) -> ConfigurationError:
    """The error of *settings* that lack one of the models, or both: how to name what is missing."""
    missing = [role for role in ("small", "large") if getattr(settings, role) is None]
    models = " and ".join(f"no {role} model" for role in missing)
    ways = [f"--{role} {SOMEWHERE}" if in_command() else f"{role}='{SOMEWHERE}'" for role in missing]
    tables = " and ".join(f"[{role}]" for role in missing)
    written = f"a {tables} table with its url" if len(missing) == 1 else f"the tables {tables} with their urls"
    variables = " and ".join(f"{PREFIX}{role.upper()}" for role in missing)
    return ConfigurationError(
        f"{models}: pass {' and '.join(ways)}, set {variables}, or write {written} into {DEFAULT_FILE}"
    )


def _explain(exc: ValidationError, found: Sequence[Layer]) -> ConfigurationError:
    """Say in one line what is wrong with which flag, variable, argument, or key of the file."""
    return ConfigurationError("; ".join(_explain_error(error, found) for error in exc.errors()))


def _explain_error(error: ErrorDetails, found: Sequence[Layer]) -> str:
    hidden = TAGS | CRITICS
    message = explain_error(Settings, error, hidden=hidden)
    place = tuple(part for part in error["loc"] if isinstance(part, str) and part not in hidden)
    layer = origin(found, place)
    if layer is None or layer.source == "argument" or not place:
        return message
    if layer.source == "file":
        return f"{layer.path}: {message}"
    reason = message.removeprefix(f"{'.'.join(place)}: ")
    value = f" {error['input']}" if error["type"].startswith(("greater_than", "less_than")) else ""
    return f"{layer.name(place)}{value}: {reason}"
