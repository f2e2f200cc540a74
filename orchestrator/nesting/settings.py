"""The settings of a nested pair. Frozen; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BaseModel, Discriminator, NonNegativeInt, Tag, field_validator
from pydantic_settings import NoDecode

from ..endpoints import Endpoint

SINGLE, PAIR = "one model", "a nested pair"
TAGS = frozenset({SINGLE, PAIR})  # pydantic puts them into the locations of errors, where no user expects them


class Nesting(BaseModel, frozen=True, extra="forbid"):
    """The settings of a nested pair other than its models."""

    role: Literal["small"] = "small"
    """Always ``small``."""
    policy: str = "specreason"
    """The method of the pair."""
    options: dict[str, Any] = {}
    """Options of that method."""
    ahead: NonNegativeInt = 2
    """Drafts that the pair works ahead beyond the step that its caller waits for."""


def kind(value: object) -> str:
    """Return the tag of *value*: a pair has no URL, but a key that only pairs have."""
    if isinstance(value, Nesting):
        return PAIR
    keys = set(cast("dict[str, Any]", value)) if isinstance(value, dict) else set[str]()
    return PAIR if "url" not in keys and keys & (set(NestedPair.model_fields) - {"role"}) else SINGLE


def for_role(value: Any, role: str) -> Any:
    """Expand an endpoint that is only a URL, and add the *role* if *value* has none."""
    if isinstance(value, str):
        return {"role": role, "url": value}
    return {"role": role, **cast("dict[str, Any]", value)} if isinstance(value, dict) else value


class NestedPair(Nesting, frozen=True):
    """
    Two models that stand in for one: a *policy* with *options* over a *small* and a *large* model.

    The small model may be a nested pair too.
    """

    small: Annotated[SmallModel, NoDecode]
    """The small model of the pair: an endpoint, or a pair again."""
    large: Annotated[Endpoint, NoDecode]
    """The large model of the pair."""

    @field_validator("small", "large", mode="before")
    @classmethod
    def _role(cls, value: Any, info: Any) -> Any:
        return for_role(value, info.field_name)

    @property
    def models(self) -> tuple[tuple[str, Endpoint], ...]:
        """The single models in the pair with their paths, the cheapest first."""
        inner = self.small.models if isinstance(self.small, NestedPair) else (("small", self.small),)
        return tuple((f"{self.role}.{path}", one) for path, one in (*inner, ("large", self.large)))

    @property
    def nested(self) -> Mapping[str, NestedPair]:
        """This pair and the pairs in it, by path."""
        pairs: dict[str, NestedPair] = {self.role: self}
        if isinstance(self.small, NestedPair):
            pairs |= {f"{self.role}.{path}": pair for path, pair in self.small.nested.items()}
        return pairs

    def turned(self, places: int) -> NestedPair:
        """Return the same pair, where each model begins with another of its servers; see `Endpoint.turned`."""
        return self.model_copy(update={"small": self.small.turned(places), "large": self.large.turned(places)})


SmallModel: TypeAlias = Annotated[
    Annotated[Endpoint, Tag(SINGLE)] | Annotated[NestedPair, Tag(PAIR)], Discriminator(kind)
]
NestedPair.model_rebuild()


def neighbours(small: Endpoint | NestedPair, large: Endpoint) -> Mapping[str, tuple[Endpoint, Endpoint]]:
    """Return each model with the next larger one, which judges it, as a pair of endpoints, named by their paths."""
    cheaper = small.models if isinstance(small, NestedPair) else (("small", small),)
    return {
        f"{path} with {judge}": (
            one.model_copy(update={"role": "small"}),
            other.model_copy(update={"role": "large"}),
        )
        for (path, one), (judge, other) in pairwise((*cheaper, ("large", large)))
    }
