"""
The options of one run. Each is declared once, as a field of `RunOptions`.

The type of a field may be a bounded type or ``X | None``. A calibrated option has the default None,
so that older policy files hold. The rest follows from the fields: the settings and their variables,
the keyword arguments of `Solver` and `Solver.solve`, the flags of the command line, the object
``stepspec`` of a request to the service, the options of an evaluation's arms, the conditions of a
calibration, and the table in ``docs/python.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Self, TypeAlias, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt, ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

from .budget import Budget
from .endpoints.settings import Sampling
from .errors import ConfigurationError, near
from .interfaces import AnsweredBy, EndedBy, PolicyFactory
from .step_ends import BLANK_LINE, StepEnds

Count: TypeAlias = Annotated[int, Field(ge=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Priority: TypeAlias = Annotated[int, Field(ge=-1000, le=1000)]


def _check_delimiter(value: str | list[str]) -> str | list[str]:
    StepEnds.of(value)
    return value


Delimiter: TypeAlias = Annotated[str | list[str], AfterValidator(_check_delimiter)]


class Limits(BaseModel, frozen=True, extra="forbid"):
    """The budget of every run; see `Budget`."""

    tokens: PositiveInt = 32_768
    """
    Tokens of the thinking and the answer together. The model that wrote a token counts it in its
    own vocabulary.
    """
    steps: PositiveInt | None = None
    """Steps of the thinking; none: no limit."""
    seconds: float | None = Field(default=None, gt=0)
    """Seconds of the run, of which a quarter is kept for the answer; none: no limit."""
    answer: PositiveInt | None = None
    """Tokens that are kept for the answer; none: 512 or a quarter of all, whichever is less."""

    @classmethod
    def of(cls, budget: Budget) -> Self:
        return cls(
            tokens=budget.tokens,
            steps=budget.steps,
            seconds=budget.seconds,
            answer=budget.answer,
        )

    def to_budget(self) -> Budget:
        return Budget(self.tokens, self.steps, self.seconds, self.answer)


@dataclass(frozen=True, slots=True)
class RunOption:
    """
    What the program knows about an option of a run, besides its name, type and default.

    The type bounds the values of the option everywhere. The bounds of a request to the service may
    be narrower: `_run_options` in ``service/formats/schemas.py`` has them.
    """

    help: str
    """One sentence for ``--help`` and for the table of options."""
    commands: tuple[str, ...] = ("solve",)
    """The commands with a flag for the option."""
    flags: tuple[str, ...] = ()
    """The names of the flag; empty: ``--NAME``."""
    service: bool = True
    """Whether a request to the service may set the option."""
    arms: bool = True
    """Whether an arm of an evaluation may set the option."""
    calibrated: bool = True
    """Whether a calibration holds only for runs with the same value."""


class RunOptions(BaseModel):
    """
    Everything that a run may be configured with. Frozen.

    A request is resolved into one such value and validated once, where it comes in: by
    `Solver.resolve` for keyword arguments, by `Settings` for files, variables and flags, by the
    service's `Resolver` for a request over HTTP, and by `Arm` for an evaluation. `Solver.solve`
    runs the value as it is.

    What belongs to a single request is no field: its problem, its stop strings, its format, its
    session, its observer and the file of its trace. The seed belongs to the sampling. An option of
    one method, such as ``threshold`` of specreason, stands in `options`, which
    `stepspec.policies.check` checks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: Annotated[
        str,
        RunOption(
            "The method; `stepspec policies` lists them.",
            commands=("solve", "serve", "calibrate"),
            flags=("--policy", "-p"),
            service=False,  # which names it as its `model`
            arms=False,  # which have a field for it
            calibrated=False,  # the calibration names it
        ),
    ] = "specreason"
    options: Annotated[
        dict[str, Any],
        RunOption(
            "An option of the method; may be repeated.",
            commands=("solve", "serve", "calibrate"),
            flags=("--option", "-O"),
            arms=False,  # which have a field for them
            calibrated=False,  # the calibration compares them with their defaults filled in
        ),
    ] = {}
    ahead: Annotated[
        Count,
        RunOption(
            "Drafts made beyond the one to be committed next; 0: one after the other.",
            commands=("solve", "serve"),
            calibrated=False,
        ),
    ] = 2
    hedge: Annotated[
        Share,
        RunOption(
            "Repair drafts of at most this confidence while they are judged; 1: all, from the start"
            " of the draft on.",
            calibrated=False,
        ),
    ] = 0.0
    auto: Annotated[
        bool | None,
        RunOption(
            "Let the large model write alone where the method does not pay; by default on, but for"
            " runs with a seed and methods that a request to the service names.",
            commands=("solve", "serve"),
            calibrated=False,  # the large model alone is at least as strict
        ),
    ] = None
    lead: Annotated[Count, RunOption("First steps that the large model writes.")] = 0
    ending: Annotated[
        EndedBy | None,
        RunOption(
            "Who may end the thinking: large, or small (either model); by default as in the paper."
        ),
    ] = None
    answer: Annotated[
        AnsweredBy | None,
        RunOption(
            "Who writes the answer: large, small or method (drafts and verdicts go on); by default"
            " as in the paper."
        ),
    ] = None
    stop_loops: Annotated[
        bool | None,
        RunOption(
            "Reject a draft in a loop, and end a run that stays in it; by default, unless one model"
            " is alone."
        ),
    ] = None
    delimiter: Annotated[
        Delimiter, RunOption(r"What ends a step, by default \n\n; may be repeated.")
    ] = BLANK_LINE
    priority: Annotated[
        Priority,
        RunOption(
            "Priority among runs at a server that schedules by priority, -1000 to 1000; lower is"
            " first.",
            arms=False,
            calibrated=False,
        ),
    ] = 0
    system: Annotated[
        str | None,
        RunOption(
            "System message before the problem, unless the conversation begins with one.",
            commands=("solve", "serve", "eval", "calibrate", "tune"),
            service=False,  # whose requests bring their own messages
        ),
    ] = None
    sampling: Annotated[
        Sampling,
        RunOption(
            "How the models sample when they write; judging is always greedy.",
            commands=(),  # which have --temperature, --top-p, --top-k and --seed
            service=False,  # which has OpenAI's fields
            arms=False,  # which have a field for it
        ),
    ] = Sampling()
    budget: Annotated[
        Limits,
        RunOption(
            "Limits of the run: tokens, steps, seconds, and tokens kept for the answer.",
            commands=(),  # which have --max-tokens, --max-steps and --max-seconds
            service=False,  # which has a field of its own
            arms=False,  # all arms have the same
        ),
    ] = Limits()

    def with_overrides(self, overrides: RunOverrides) -> Self:
        """
        Copy these options with *overrides*. An override that is None changes nothing.

        Another policy has its default options, unless *overrides* has some. Raise
        `ConfigurationError` for a wrong value.
        """
        changed = {name: value for name, value in overrides.items() if value is not None}
        try:
            checked = RunOptions.model_validate(changed)
        except ValidationError as exc:
            raise ConfigurationError(
                "; ".join(explain_error(RunOptions, error) for error in exc.errors())
            ) from exc
        update = {name: getattr(checked, name) for name in checked.model_fields_set}
        if checked.policy != self.policy and "policy" in update:
            update.setdefault("options", {})
        return self.model_copy(update=update)

    def calibrated(self) -> dict[str, Any]:
        """Return the values that a calibration depends on, without the seed, for TOML."""
        names = {name for name, option in run_options().items() if option.calibrated}
        values = self.model_dump(mode="json", include=names, exclude_none=True)
        values["sampling"].pop("seed", None)
        return values


class RunOverrides(TypedDict, total=False):
    """
    The fields of `RunOptions` as keyword arguments, for type checkers. A test compares both.

    An option that is absent, or None, keeps its value.
    """

    policy: str | PolicyFactory | None
    options: Mapping[str, Any] | None
    ahead: int | None
    hedge: float | None
    auto: bool | None
    lead: int | None
    ending: EndedBy | None
    answer: AnsweredBy | None
    stop_loops: bool | None
    delimiter: Delimiter | None
    priority: int | None
    system: str | None


@cache
def run_options() -> Mapping[str, RunOption]:
    """Return what is declared about each option, by its name."""
    return {
        name: next(entry for entry in field.metadata if isinstance(entry, RunOption))
        for name, field in RunOptions.model_fields.items()
    }


def option_types() -> dict[str, Any]:
    """Return the type of each option with its constraints, by the option's name."""
    hints = get_type_hints(RunOptions, include_extras=True)
    return {name: hints[name] for name in run_options()}


def arm_options() -> tuple[str, ...]:
    """Return the options that an arm of an evaluation, and so a policy file, may set."""
    return tuple(name for name, option in run_options().items() if option.arms)


def service_options() -> tuple[str, ...]:
    """Return the options that a request to the service may set."""
    return tuple(name for name, option in run_options().items() if option.service)


def explain_error(model: type[BaseModel], error: ErrorDetails, hidden: Collection[str] = ()) -> str:
    """
    Return which field of *model* is wrong, and why.

    *hidden* parts of the field's place are left out.
    """
    place = [part for part in error["loc"] if part not in hidden]
    name = ".".join(map(str, place))
    if error["type"] == "extra_forbidden":
        suggestion = near(str(place[-1]), known_fields(model, place) - {place[-1]})
        return f"unknown setting {name!r}{suggestion}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{name}: {message}" if name else message


def known_fields(root: type[BaseModel], place: Sequence[int | str]) -> set[str]:
    """Return the names of the fields that may stand where the last part of *place* does."""
    found = [root]
    for name in place[:-1]:
        fields = [model.model_fields.get(str(name)) for model in found]
        found = [inner for field in fields if field for inner in models(field.annotation)]
    return {name for model in found for name in model.model_fields} - {"role"}


def models(annotation: object) -> list[type[BaseModel]]:
    """Return the models among the alternatives of *annotation*. Their fields are settings, too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (dict, list, tuple):
        return []
    return [model for part in get_args(annotation) for model in models(part)]
