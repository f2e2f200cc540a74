"""
Settings of a solver. One precedence: arguments, then ``STEPSPEC_*`` variables, then a TOML file, then the defaults.

The file is the one that ``STEPSPEC_CONFIG`` names, or ``stepspec.toml`` in the working directory, if there is one.
Unknown keys are errors, in all three places.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Party
from stepspec.orchestrator.endpoints.settings import CriticEndpoint, Endpoint, Sampling
from stepspec.orchestrator.errors import ConfigurationError, near
from stepspec.orchestrator.feedback.drift import Histogram
from stepspec.orchestrator.interfaces import AnsweredBy, EndedBy, answered_by, ended_by
from stepspec.orchestrator.nesting.settings import TAGS, NestedPair, SmallModel, for_role
from stepspec.orchestrator.run_options import (
    Adapting,
    Below1,
    Choices,
    Count,
    Delimiter,
    Priority,
    Share,
)
from stepspec.orchestrator.service.settings import ServiceSettings
from stepspec.orchestrator.step_ends import BLANK_LINE

from . import policies

PREFIX = "STEPSPEC_"
CONFIG = f"{PREFIX}CONFIG"
DEFAULT_FILE = "stepspec.toml"

BEARING = ("lead", "ending", "answer", "early_exit", "delimiter", "sampling", "budget")
Small: TypeAlias = str | Endpoint | NestedPair | Mapping[str, Any]

_CHOICES = TypeAdapter(Choices)


def _for_role(role: Party) -> BeforeValidator:
    """Let an endpoint be given as its URL alone, and never ask for the role that its place already says."""
    return BeforeValidator(lambda given: for_role(given, role))


class Limits(BaseModel):
    """The budget of every run; see `Budget`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: PositiveInt = 8192
    steps: PositiveInt | None = None
    seconds: float | None = Field(default=None, gt=0)
    answer: PositiveInt | None = None

    def budget(self) -> Budget:
        return Budget(self.tokens, self.steps, self.seconds, self.answer)


class Calibration(BaseModel):
    """
    What ``stepspec calibrate`` promised about one *option* of a *policy*, and the grades that it saw.

    With *confidence*, the policy loses at most *max_loss* of the problems to the large model alone; that is so for all
    attempts with the same trials together, of which this was number *attempt*. Of *problems* it *lost* so many that the
    large model got right, and *gained* the others. *edges* and *counts* are the histogram of grades that live ones are
    compared with. The promise is of these *models*, by their roles, and of runs that are *told* so much besides (see
    `Settings.bearing`); what is absent there is not asked about.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str
    option: str
    value: float
    max_loss: float = Field(gt=0, lt=1)
    confidence: float = Field(gt=0, lt=1)
    attempt: PositiveInt = 1
    benchmark: str = ""
    problems: NonNegativeInt = 0
    lost: NonNegativeInt = 0
    gained: NonNegativeInt = 0
    date: str = ""
    models: dict[str, str] = {}
    told: dict[str, Any] = {}
    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)

    @field_validator("told")
    @classmethod
    def _without_retired(cls, told: dict[str, Any]) -> dict[str, Any]:
        """Leave out the options that no longer exist, where they were off: files from before name them."""
        return {name: value for name, value in told.items() if value or name not in ("plan", "give_up")}

    @model_validator(mode="after")
    def _histogram(self) -> Self:
        self.grades()
        return self

    def grades(self) -> Histogram:
        return Histogram(self.edges, self.counts)


class Settings(BaseSettings):
    """
    Everything a solver can be told, besides the problem.

    *critic* is the reward model that some policies need. The *small* model may be a pair in its turn (`NestedPair`).

    *ahead* is how many drafts may be made and judged beyond the one to be committed next (0: one after the other). A
    draft whose tokens had a mean probability of *hedge* at most is repaired while it is judged (0: none, 1: every one).
    With *load* "adapt" both shrink while the large model's server is busy; "ignore" keeps them as they are.

    *options* are the policy's own. Whatever the policy, but for the two baselines, the large model may write the first
    *lead* steps. With *early_exit* the thinking ends once a trial answer is sure. *sampling* is for writing; judging is
    always greedy. Without a seed of its own, each run draws one. *service* is for
    ``stepspec serve`` alone. *calibration* says where the options come from, so that a drift of the grades is noticed.
    A share of *shadow* of the accepted steps is checked once more: the large model says whether each is correct, beside
    a step of its own. That measures the judge and delays nothing. With *sure_bets* no bet is made beyond a draft that
    is less sure than a floor, which follows the verdicts. With *adapt* above 0, what makes the policy looser and the
    depth, up to *ahead*, follow what the runs before taught, for the least time with at most a share of *adapt* of the
    accepted steps bad (see `orchestrator.adaptation`).

    A step ends with a *delimiter*: a text, by default a blank line, or several; one that begins with ``regex:`` is a
    regular expression, and a step ends after a complete line in which it is found. A delimiter within fenced code, a
    LaTeX environment or a table ends none.

    The requests of a run with a lower *priority* go before those of others, on servers with ``--scheduling-policy
    priority``. The *session_header* holds one value per run, so that a gateway keeps a chain on one server; "" sends
    none.

    *ending* says who may end the thinking: the "large" model alone, the "small" one by a draft that stands, or that one
    where the "judge" finds the reasoning complete (see `policies.Ending`). *answer* says who writes the answer: one
    model, "large" or "small", or the "method", whose drafts and verdicts then go on to its end. Without them, both are
    as in the method's paper. Models without a thinking block answer as they reason, whatever *answer* says.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)

    small: Annotated[SmallModel | None, NoDecode, _for_role("small")] = None
    large: Annotated[Endpoint | None, NoDecode, _for_role("large")] = None
    critic: Annotated[CriticEndpoint | None, NoDecode, _for_role("critic")] = None
    policy: str = "specreason"
    options: dict[str, Any] = {}
    ahead: Count = 2
    hedge: Share = 0.0
    load: Adapting = "adapt"
    lead: Count = 0
    ending: EndedBy | None = None
    answer: AnsweredBy | None = None
    early_exit: bool = False
    sampling: Sampling = Sampling()
    budget: Limits = Limits()
    service: ServiceSettings = ServiceSettings()
    calibration: Calibration | None = None
    shadow: Share = 0.0
    sure_bets: bool = False
    delimiter: Delimiter = BLANK_LINE
    adapt: Below1 = 0.0
    priority: Priority = 0
    session_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{0,64}$")] = "X-Session-ID"

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:  # fmt: skip
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, _file())

    def told(self, choices: Choices) -> Self:
        """The same, but for the *choices* of one run. Raise `ConfigurationError` for what cannot be."""
        try:
            given = {key: value for key, value in _CHOICES.validate_python(choices).items() if value is not None}
        except ValidationError as exc:
            raise _explained(exc) from exc
        if given.get("policy", self.policy) != self.policy:
            given.setdefault("options", {})
        return self.model_copy(update=given)

    def bearing(self) -> dict[str, Any]:
        """What bears upon the steps and answers of a run, besides its policy and models; as values that TOML has."""
        plain = self.model_dump(mode="json", include=set(BEARING), exclude_none=True)
        plain["sampling"].pop("seed", None)
        own = {name: option.default for name, option in policies.options(self.policy).items()}
        built = policies.METHODS[self.policy].build
        plain |= {"ending": self.ending or ended_by(built), "answer": self.answer or answered_by(built)}
        return plain | {"options": {name: value for name, value in (own | self.options).items() if value is not None}}

    def turned(self, places: int) -> Self:
        """The same, for one of several that begin at the same time: with other servers of each model first."""
        ends = {"small": self.small, "large": self.large}
        return self.model_copy(update={role: end and end.turned(places) for role, end in ends.items()})


class Given(Choices, total=False):
    """The settings of a solver, as its arguments; all but its two models. *seed* is the sampling's."""

    critic: str | CriticEndpoint | None
    shadow: float | None
    sampling: Sampling | Mapping[str, Any] | None
    seed: int | None
    budget: Limits | Mapping[str, Any] | None


def load(*, seed: int | None = None, **given: Any) -> Settings:
    """
    Read the settings, *given* arguments first; those that are None count as not given. *seed* is the sampling's.

    Raise `ConfigurationError`, which says what is wrong with which setting.
    """
    _no_unknown_variables()
    try:
        settings = Settings(**{key: value for key, value in given.items() if value is not None})
    except ValidationError as exc:
        raise _explained(exc) from exc
    except (SettingsError, ValueError, OSError) as exc:  # a variable that is no JSON, a file that is no TOML
        raise ConfigurationError(str(exc)) from exc
    return settings.model_copy(update={"sampling": settings.sampling.with_seed(seed)})


def _explained(exc: ValidationError) -> ConfigurationError:
    return ConfigurationError("; ".join(_explain(e["type"], e["loc"], e["msg"]) for e in exc.errors()))


def _explain(kind: str, place: tuple[int | str, ...], message: str) -> str:
    name = ".".join(str(part) for part in place if part not in TAGS)
    if kind == "extra_forbidden":
        return f"unknown setting {name!r}{near(str(place[-1]), _model(place).model_fields)}"
    return f"{name}: {message.removeprefix('Value error, ')}"


def _model(place: tuple[int | str, ...]) -> type[BaseModel]:
    """Return the model that the setting at *place* would be part of; all settings where there may be several."""
    model: type[BaseModel] = Settings
    for name in place[:-1]:
        field = model.model_fields.get(str(name))
        if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
            return Settings
        model = field.annotation
    return model


def _file() -> Path | None:
    named = os.environ.get(CONFIG)
    if named is not None:
        if not Path(named).is_file():
            raise ConfigurationError(f"{CONFIG} names {named!r}, which is not a file")
        return Path(named)
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None


def _no_unknown_variables() -> None:
    known = {f"{PREFIX}{field}".upper() for field in Settings.model_fields} | {CONFIG}
    for variable in os.environ:
        if variable.upper().startswith(PREFIX) and variable.upper().split("__")[0] not in known:
            meant = near(variable.upper(), known) or f"; known: {sorted(known)}"
            raise ConfigurationError(f"unknown setting {variable}{meant}")
