"""The settings of a nested pair: two models and a policy that stand in for one model."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BaseModel, Discriminator, Tag, field_validator
from pydantic_settings import NoDecode

from .endpoints import Endpoint

SINGLE = "one model"
PAIR = "a nested pair"
TAGS = frozenset({SINGLE, PAIR})
"""What pydantic adds to the location of an error. No user expects it there."""


class Nesting(BaseModel, frozen=True, extra="forbid"):
    """The settings of a nested pair other than its models."""

    role: Literal["small"] = "small"
    """Always ``small``."""
    policy: str = "specreason"
    """The method of the pair."""
    options: dict[str, Any] = {}
    """Options of that method."""


def kind(value: object) -> str:
    """Return the tag of *value*. A pair has no URL, but a key that only pairs have."""
    if isinstance(value, Nesting):
        return PAIR
    if not isinstance(value, dict):
        return SINGLE
    keys = set(cast("dict[str, Any]", value))
    pair_keys = set(NestedPair.model_fields) - {"role"}
    if "url" not in keys and keys & pair_keys:
        return PAIR
    return SINGLE


def for_role(value: Any, role: str) -> Any:
    """Expand an endpoint that is only a URL, and add the *role* if *value* has none."""
    if isinstance(value, str):
        return {"role": role, "url": value}
    if isinstance(value, dict):
        return {"role": role, **cast("dict[str, Any]", value)}
    return value


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
        models = (*single_models(self.small), ("large", self.large))
        return tuple((f"{self.role}.{path}", model) for path, model in models)

    @property
    def nested(self) -> Mapping[str, NestedPair]:
        """This pair and the pairs in it, by path."""
        pairs: dict[str, NestedPair] = {self.role: self}
        if isinstance(self.small, NestedPair):
            pairs |= {f"{self.role}.{path}": pair for path, pair in self.small.nested.items()}
        return pairs

    def turned(self, places: int) -> NestedPair:
        """
        Return the same pair, where each model begins with another of its servers
        (`Endpoint.turned`).
        """
        small = self.small.turned(places)
        large = self.large.turned(places)
        return self.model_copy(update={"small": small, "large": large})


SmallModel: TypeAlias = Annotated[
    Annotated[Endpoint, Tag(SINGLE)] | Annotated[NestedPair, Tag(PAIR)], Discriminator(kind)
]
NestedPair.model_rebuild()


def single_models(small: Endpoint | NestedPair) -> tuple[tuple[str, Endpoint], ...]:
    """Return the single models in *small* with their paths, the cheapest first."""
    if isinstance(small, NestedPair):
        return small.models
    return (("small", small),)


def neighbours(
    small: Endpoint | NestedPair, large: Endpoint
) -> Mapping[str, tuple[Endpoint, Endpoint]]:
    """
    Return each model with the next larger one, which judges it.

    Both are endpoints, in the roles small and large. The key names their paths.
    """
    models = (*single_models(small), ("large", large))
    return {
        f"{path} with {judge_path}": (
            model.model_copy(update={"role": "small"}),
            judge.model_copy(update={"role": "large"}),
        )
        for (path, model), (judge_path, judge) in pairwise(models)
    }
