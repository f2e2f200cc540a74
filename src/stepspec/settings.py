"""
The settings of a solver.

They come from flags, arguments, ``STEPSPEC_*`` variables, a TOML file and the defaults, in this
order. The file is the one that ``--config`` or ``STEPSPEC_CONFIG`` names, or ``stepspec.toml`` in
the working directory. Unknown keys are errors everywhere. `setting_sources` reads and merges the
sources.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    NonNegativeInt,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints.settings import CriticEndpoint, Endpoint, for_role
from stepspec.orchestrator.errors import ConfigurationError, near
from stepspec.orchestrator.interfaces import answered_by, ended_by
from stepspec.orchestrator.prior import Prior
from stepspec.orchestrator.run_options import (
    UNKNOWN,
    Place,
    RunOptions,
    RunOverrides,
    explain_error,
    moved,
    places,
)
from stepspec.orchestrator.verifiers import (
    FunctionVerifier,
    VerifierFunction,
)
from stepspec.service.settings import ServiceSettings

from . import policies, prompts
from .prompts import PromptFile
from .setting_sources import (
    DEFAULT_FILE,
    PREFIX,
    Layer,
    layers,
    origin,
    variable_name,
)

__all__ = [
    "DEFAULT_FILE",
    "Settings",
    "SettingsOverrides",
    "conditions",
    "flat",
    "load",
    "with_policy_name",
]

REWARD_MODEL = "reward-model"
CRITIC_KINDS = frozenset({REWARD_MODEL, "function"})
"""The kinds of a critic. pydantic puts them into the locations of errors."""
HASH_CHARACTERS = 16  # of a prompt's hash in a policy file
_ABSENT = object()

log = logging.getLogger("stepspec")

Critic: TypeAlias = CriticEndpoint | FunctionVerifier


def _for_role(role: Role) -> BeforeValidator:
    """Set the role of an endpoint, which follows from its place."""
    return BeforeValidator(lambda value: for_role(value, role))


def _function(value: Any) -> Any:
    """Return a function as a verifier, and other values as they are."""
    if callable(value):
        return FunctionVerifier.model_validate({"function": value})
    return value


def _critic(value: Any) -> Any:
    """Accept a function as a verifier, and a table without its kind, as of a URL."""
    value = for_role(_function(value), "critic")
    if not isinstance(value, dict):
        return value
    table = cast("dict[str, Any]", value)
    kind = "function" if "function" in table else REWARD_MODEL
    return {"kind": kind, **table}


def _read_prompts(folder: Path) -> Path:
    """Check that the prompts of *folder* replace known ones, those of plugins included."""
    len(policies.METHODS)  # loads the plugins
    prompts.read_folder(folder)
    return folder


PromptsFolder: TypeAlias = Annotated[Path, AfterValidator(_read_prompts)]


class Calibration(BaseModel, frozen=True, extra="forbid"):
    """
    The guarantee of ``stepspec calibrate`` for a value of one option of a policy.

    The policy loses at most a share of the problems to the large model alone, with a confidence.
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

    def differences(self, run: Mapping[str, Any]) -> tuple[str, ...]:
        """
        Return the settings in which *run* differs from the runs that the calibration covers.

        *run* has the name of its policy, the names of its models, and what `conditions` returns.
        """
        if run["policy"] != self.policy:
            return ("policy",)
        models = self.models or run["models"]
        promised = flat({**self.conditions, "policy": self.policy, "models": models})
        promised[f"options.{self.option}"] = self.value
        found = flat(run)
        paths = {**promised, **found} if self.conditions else promised
        return tuple(
            path for path in paths if promised.get(path, _ABSENT) != found.get(path, _ABSENT)
        )

    def warn_of_differences(self, run: Mapping[str, Any]) -> None:
        """Log a warning if the calibration does not cover *run*."""
        differences = self.differences(run)
        if differences:
            log.warning(
                "what %s was calibrated for is not what runs now (other: %s): its promise does not"
                " hold here; run `stepspec calibrate` again with these settings, or go back to"
                " those",
                self.policy,
                ", ".join(differences),
            )


def flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a nested *table* by their paths, such as "sampling.top_p"."""
    values: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            inner = flat(cast("Mapping[str, Any]", value))
            values.update({f"{name}.{path}": leaf for path, leaf in inner.items()})
        else:
            values[name] = value
    return values


class Settings(RunOptions, BaseSettings):
    """The settings of a solver. They include the options of its runs, which a run may override."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
    )

    small: Annotated[Endpoint | None, _for_role("small")] = None
    """The small model: a URL or a table."""
    large: Annotated[Endpoint | None, _for_role("large")] = None
    """The large model: a URL or a table."""
    critic: Annotated[
        Annotated[Critic, Field(discriminator="kind")] | None,
        BeforeValidator(_critic),
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

    @field_validator("policy")
    @classmethod
    def _check_policy(cls, policy: str) -> str:
        policies.METHODS.find(policy)
        return policy

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "policy" in info.data:
            policies.check(info.data["policy"], options)
        return options

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        found = layers(init_settings())
        return tuple(InitSettingsSource(settings_cls, layer.values) for layer in found)

    @property
    def run(self) -> RunOptions:
        """The options of a run that overrides none."""
        options = {name: getattr(self, name) for name in RunOptions.model_fields}
        return RunOptions.model_construct(set(), **options)

    @property
    def prompts(self) -> Mapping[str, PromptFile]:
        """The prompts of ``prompts_dir``, by the names of the prompts that they replace."""
        if self.prompts_dir is None:
            return {}
        return prompts.read_folder(self.prompts_dir)

    @property
    def rates_steps(self) -> bool:
        """Whether there is a critic that rates steps, as some policies need."""
        critic = self.critic
        return isinstance(critic, CriticEndpoint) or (critic is not None and critic.rates("step"))

    def conditions(self) -> dict[str, Any]:
        """The values that a calibration of these settings depends on; see `conditions`."""
        with prompts.replacing(self.prompts):
            return conditions(self)


def conditions(run: RunOptions) -> dict[str, Any]:
    """
    Return the values of *run* that a calibration depends on besides policy and models, as TOML.

    Defaults of the policy are filled in, so that a default that changes is noticed. The prompts of
    the policy are represented by their hashes.
    """
    method = policies.METHODS.find(run.policy)
    options = {**policies.defaults(run.policy), **run.options}
    values: dict[str, Any] = {
        **run.calibrated(),
        "ending": run.ending or ended_by(method.source),
        "answer": run.answer or answered_by(method.source),
        "options": {name: value for name, value in options.items() if value is not None},
    }
    if method.prompts:
        names = sorted(method.prompts)
        values["prompts"] = {name: prompts.known()[name].sha256[:HASH_CHARACTERS] for name in names}
    return values


class SettingsOverrides(RunOverrides, total=False):
    """The settings of a solver as keyword arguments, without its two models."""

    critic: str | Critic | VerifierFunction | Mapping[str, Any] | None
    seed: int | None
    prompts_dir: str | Path | None


def with_policy_name(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return *overrides* with the name of the policy in place of its class or function."""
    policy = overrides.get("policy")
    return {**overrides, "policy": policies.named(policy)} if policy else {**overrides}


def load(*, seed: int | None = None, **overrides: Any) -> Settings:
    """
    Load the settings. *overrides* come first. None counts as absent.

    *seed* is the seed of the sampling. Raise `ConfigurationError`, which names every wrong setting.
    """
    arguments = _without_none(with_policy_name(overrides))
    try:
        settings = Settings(**arguments)
    except ValidationError as exc:
        found = layers(arguments)
        messages = [_explain_error(error, found) for error in exc.errors()]
        raise ConfigurationError("; ".join(messages)) from exc
    return settings.model_copy(update={"sampling": settings.sampling.with_seed(seed)})


def _without_none(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def missing_models_error(settings: Settings) -> ConfigurationError:
    """Return the error of *settings* that lack a model, which says how to name the model."""
    missing = [f"no {role} model" for role in ("small", "large") if getattr(settings, role) is None]
    return ConfigurationError(
        f"{' and '.join(missing)}: pass --small URL and --large URL (in Python small='URL' and"
        f" large='URL'), set {PREFIX}SMALL and {PREFIX}LARGE, or write tables [small] and [large]"
        f" with a url such as http://HOST:PORT/v1 into {DEFAULT_FILE}"
    )


def _explain_error(error: ErrorDetails, found: Sequence[Layer]) -> str:
    """Say what is wrong with which flag, variable, argument, or key of the file."""
    message = explain_error(Settings, error, hidden=CRITIC_KINDS)
    place = tuple(
        part for part in error["loc"] if isinstance(part, str) and part not in CRITIC_KINDS
    )
    reason = message.removeprefix(f"{'.'.join(place)}: ")
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, ConfigurationError) and cause.option:
        place = (*place, cause.option)
    layer = origin(found, place)
    if layer is None or layer.source == "argument":
        return message
    kind = error["type"]
    name = layer.name(place)
    if layer.source == "file":
        if kind in UNKNOWN:
            return f"{layer.path}: {message}"
        if kind == "missing" and "model" in layer.values[place[0]]:
            reason += " (the file of a pair is for `stepspec up`, which prints settings)"
        return f"{name}: {reason}"
    if kind in UNKNOWN:
        return f"unknown setting {name}{_meant(name.upper(), place)}"
    if kind.startswith(("greater_than", "less_than")):
        name += f" {error['input']}"
    if kind in NO_TABLE:
        reason += "; the value has to be JSON"
    return f"{name}: {reason}"


NO_TABLE = ("dict_type", "model_type", "dataclass_type")
"""The errors of a text where a table has to be."""


def _meant(variable: str, place: Place) -> str:
    """Say which variable the unknown *variable*, which sets *place*, may stand for."""
    found = moved(Settings, place)
    names = {variable_name(known) for known in ([found] if found else places(Settings))}
    names.add(variable.replace("OPTIONS_", "OPTIONS__"))
    return near(variable, names - {variable}) or "; `stepspec config show` lists the settings"
