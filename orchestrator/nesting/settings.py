"""How a nested pair is described. Frozen; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BaseModel, Discriminator, NonNegativeInt, Tag, field_validator
from pydantic_settings import NoDecode

from ..endpoints import Endpoint

SINGLE, PAIR = "one model", "a nested pair"
TAGS = frozenset({SINGLE, PAIR})  # what pydantic puts into the places of errors, and no user has written


class Nesting(BaseModel, frozen=True, extra="forbid"):
    """What is set of a nested pair besides its models: a *policy* with its *options*, how far *ahead* it works."""

    role: Literal["small"] = "small"
    policy: str = "specreason"
    options: dict[str, Any] = {}
    ahead: NonNegativeInt = 2


def kind(given: object) -> str:
    """Say whether *given* describes a pair: it has no URL, but something that only a pair has."""
    if isinstance(given, Nesting):
        return PAIR
    keys = set(cast("dict[str, Any]", given)) if isinstance(given, dict) else set[str]()
    return PAIR if "url" not in keys and keys & (set(NestedPair.model_fields) - {"role"}) else SINGLE


def for_role(given: Any, role: str) -> Any:
    """Let an endpoint be given as its URL alone, and never ask for the role that its place already says."""
    if isinstance(given, str):
        return {"role": role, "url": given}
    return {"role": role, **cast("dict[str, Any]", given)} if isinstance(given, dict) else given


class NestedPair(Nesting, frozen=True):
    """
    Two models that stand in for one: a *policy* with *options* over a *small* and a *large* one.

    It works *ahead* by so many drafts of its own small model, beyond those that its caller asked for. The small one may
    be such a pair as well.
    """

    small: Annotated[SmallModel, NoDecode]
    large: Annotated[Endpoint, NoDecode]

    @field_validator("small", "large", mode="before")
    @classmethod
    def _role(cls, given: Any, about: Any) -> Any:
        return for_role(given, about.field_name)

    @property
    def models(self) -> tuple[tuple[str, Endpoint], ...]:
        """The single models in it with their paths, the cheapest first."""
        inner = self.small.models if isinstance(self.small, NestedPair) else (("small", self.small),)
        return tuple((f"{self.role}.{path}", one) for path, one in (*inner, ("large", self.large)))

    @property
    def nested(self) -> Mapping[str, NestedPair]:
        """This pair and those within it, by their paths."""
        found: dict[str, NestedPair] = {self.role: self}
        if isinstance(self.small, NestedPair):
            found |= {f"{self.role}.{path}": pair for path, pair in self.small.nested.items()}
        return found

    def turned(self, places: int) -> NestedPair:
        """The same models, each with another of its servers first."""
        return self.model_copy(update={"small": self.small.turned(places), "large": self.large.turned(places)})


SmallModel: TypeAlias = Annotated[
    Annotated[Endpoint, Tag(SINGLE)] | Annotated[NestedPair, Tag(PAIR)], Discriminator(kind)
]
NestedPair.model_rebuild()


def neighbours(small: Endpoint | NestedPair, large: Endpoint) -> Mapping[str, tuple[Endpoint, Endpoint]]:
    """Every model with the next dearer one, which judges it, as a pair of their own; named by their paths."""
    cheaper = small.models if isinstance(small, NestedPair) else (("small", small),)
    return {
        f"{path} with {judge}": (
            one.model_copy(update={"role": "small"}),
            other.model_copy(update={"role": "large"}),
        )
        for (path, one), (judge, other) in pairwise((*cheaper, ("large", large)))
    }
