"""What one run may be told otherwise than the settings of its solver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, with_config
from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

from .interfaces import AnsweredBy, EndedBy
from .step_ends import StepEnds

Adapting: TypeAlias = Literal["adapt", "ignore"]
Count: TypeAlias = Annotated[int, Field(ge=0)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Below1: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
Priority: TypeAlias = Annotated[int, Field(ge=-1000, le=1000)]


def _delimiter(value: str | list[str]) -> str | list[str]:
    StepEnds.of(value)
    return value


Delimiter: TypeAlias = Annotated[str | list[str], AfterValidator(_delimiter)]


@with_config(ConfigDict(extra="forbid"))
class Choices(TypedDict, total=False):
    """
    Which policy runs with which options, and how; each is told of in `Settings`.

    What is absent, or None, is as the settings say. The *options* of another policy than theirs are its defaults.
    """

    policy: str | None
    options: Mapping[str, Any] | None
    ahead: Count | None
    hedge: Share | None
    load: Adapting | None
    lead: Count | None
    ending: EndedBy | None
    answer: AnsweredBy | None
    early_exit: bool | None
    sure_bets: bool | None
    adapt: Below1 | None
    delimiter: Delimiter | None
    priority: Priority | None
