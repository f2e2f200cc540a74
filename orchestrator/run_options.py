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
from functools import cache
from typing import Annotated, Any, Self, TypeAlias, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

from .budget import Budget
from .endpoints.settings import Sampling
from .errors import ConfigurationError, near
from .interfaces import AnsweredBy, EndedBy, PolicyFactory
from .step_ends import BLANK_LINE, StepEnds

Place: TypeAlias = tuple[str, ...]
"""The keys that lead to a setting, such as ("large", "api_key")."""
Count: TypeAlias = Annotated[int, Field(ge=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Priority: TypeAlias = Annotated[int, Field(ge=-1000, le=1000)]


def _check_delimiter(value: str | list[str]) -> str | list[str]:
    StepEnds.of(value)
    return value


Delimiter: TypeAlias = Annotated[str | list[str], AfterValidator(_check_delimiter)]


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

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    policy: str = "specreason"
    """The method; `stepspec policies` lists them."""
    options: dict[str, Any] = {}
    """An option of the method; may be repeated."""
    ahead: Count = 2
    """Drafts made beyond the one to be committed next; 0: one after the other."""
    hedge: Share = 0.0
    """
    Repair drafts of at most this confidence while they are judged; 1: all, from the start of the
    draft on.
    """
    auto: bool | None = None
    """
    Let the large model write alone where the method does not pay; by default on, but for runs with
    a seed and methods that a request to the service names.
    """
    lead: Count = 0
    """First steps that the large model writes."""
    ending: EndedBy | None = None
    """Who may end the thinking: large, or small (either model); by default as in the paper."""
    answer: AnsweredBy | None = None
    """
    Who writes the answer: large, small or method (drafts and verdicts go on); by default as in the
    paper.
    """
    stop_loops: bool | None = None
    """
    Reject a draft in a loop, and end a run that stays in it; by default, unless one model is alone.
    """
    delimiter: Delimiter = BLANK_LINE
    r"""What ends a step, by default \n\n; may be repeated."""
    priority: Priority = 0
    """
    Priority among runs at a server that schedules by priority, -1000 to 1000; lower is first.
    """
    system: str | None = None
    """System message before the problem, unless the conversation begins with one."""
    sampling: Sampling = Sampling()
    """How the models sample when they write; judging is always greedy."""
    budget: Budget = Budget()
    """Limits of the run: tokens, steps, seconds, and tokens kept for the answer."""

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
        names = RunOptions.model_fields.keys() - NOT_CALIBRATED
        values = self.model_dump(mode="json", include=names, exclude_none=True)
        values["sampling"].pop("seed", None)
        return values


class RunOverrides(TypedDict, total=False):
    """
    The fields of `RunOptions` as keyword arguments, for type checkers. A test compares both.

    An option that is absent, or None, keeps its value. A table of `sampling` or `budget` has the
    defaults for the fields that it lacks, unless it is one of the settings.
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
    sampling: Sampling | Mapping[str, Any] | None
    budget: Budget | Mapping[str, Any] | None


NOT_CALIBRATED = {"policy", "options", "ahead", "hedge", "auto", "priority"}
"""
The options that a calibration does not depend on.

It names the policy itself, and compares the options of the policy with their defaults filled in.
The large model alone (`auto`) is at least as strict.
"""
NOT_IN_ARMS = {"policy", "options", "priority", "sampling", "budget"}
"""
The options that no arm of an evaluation, and no policy file, sets as an option.

An arm has fields for policy, options and sampling. All arms have the same budget.
"""
NOT_IN_REQUESTS = {"policy", "system", "sampling", "budget"}
"""
The options that a request to the service cannot set in ``stepspec``.

It names the policy as its ``model``, brings its own messages, and has OpenAI's fields of sampling.
"""
ARM_OPTIONS = tuple(name for name in RunOptions.model_fields if name not in NOT_IN_ARMS)
"""The options that an arm of an evaluation, and so a policy file, may set."""


UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""The errors of a name that a model, or a dataclass, does not have."""


def explain_error(model: type[BaseModel], error: ErrorDetails, hidden: Collection[str] = ()) -> str:
    """
    Return which field of *model* is wrong, and why.

    *hidden* parts of the field's place are left out.
    """
    place = tuple(str(part) for part in error["loc"] if part not in hidden)
    name = ".".join(place)
    if error["type"] in UNKNOWN:
        return f"unknown setting {name!r}{_meant(model, place)}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{name}: {message}" if name else message


def _meant(model: type[BaseModel], unknown: Place) -> str:
    """Say which setting of *model* an *unknown* one may stand for."""
    found = moved(model, unknown)
    if found:
        return f" (did you mean {'.'.join(found)!r}?)"
    beside = {place[-1] for place in places(model) if place[:-1] == unknown[:-1]}
    return near(unknown[-1], beside - {unknown[-1]})


def moved(model: type[BaseModel], unknown: Place) -> Place | None:
    """Return the place of a setting without its table: ("sampling", "seed") for ("seed",)."""
    for table in ("sampling", "budget"):
        if (table, *unknown) in places(model):
            return (table, *unknown)
    return None


@cache
def places(model: type[BaseModel]) -> Sequence[Place]:
    """Return the places of all settings of *model* as users write them. No user writes a role."""
    found: list[Place] = []
    for name, field in model.__pydantic_fields__.items():
        inner = [place for kind in models(field.annotation) for place in places(kind)]
        if name != "role":
            found += [(name,), *((name, *rest) for rest in inner)]
    return found


def models(annotation: Any) -> list[Any]:
    """
    Return the models, and dataclasses of pydantic, among the alternatives of *annotation*.

    Their fields are settings, too.
    """
    if hasattr(annotation, "__pydantic_fields__"):
        return [annotation]
    if get_origin(annotation) in (dict, list, tuple):
        return []
    return [model for part in get_args(annotation) for model in models(part)]
