"""A pair of models as one TOML file: what to serve, where and how, or where it is served already."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tag,
    field_validator,
    model_validator,
)

from ..endpoints.settings import Endpoint, Sampling
from ..nesting.settings import PAIR, Nesting, for_role, kind
from .cards import VISIBLE
from .speculation import Speculation

CONNECTED, STARTED = "a server that runs", "a server to start"
Number: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]

SET_BY: Mapping[str, str] = {
    "model": "model",
    "revision": "revision",
    "served-model-name": "name",
    "host": "host",
    "port": "port",
    "dtype": "dtype",
    "max-model-len": "context",
    "tensor-parallel-size": "gpus",
    "gpu-memory-utilization": "memory",
    "enable-prefix-caching": "prefix_caching",
    "speculative-config": "speculation",
    "enable-scale-out": "suffix_scoring",
}
"""Flags of vLLM, and the setting here that says each of them."""


class Started(BaseModel, frozen=True, extra="forbid"):
    """
    A model to start a server for.

    *model* is a name on the hub or, if it begins with a dot or a slash, a folder beside the file. *gpus* are the cards
    that share it, numbered among those that are ours (see `cards`), none for a CPU, and *memory* its share of each.
    *context* is in tokens. *flags* are vLLM's own, without their dashes: true stands alone, false is left out, a table
    becomes JSON. *environment* is added to ours. *port* 0 takes a free one. *name* is what it is served as: the model's
    own name unless it is set, of a folder the last part. *template* and *thinks* are those of `Endpoint`.
    """

    model: str = Field(min_length=1)
    revision: str | None = None
    name: str = ""
    gpus: tuple[NonNegativeInt, ...] = (0,)
    memory: float = Field(default=0.9, gt=0, le=1)
    context: PositiveInt = 16384
    dtype: Number = "auto"
    prefix_caching: bool = True
    suffix_scoring: bool = False
    template: dict[str, Any] = {}
    thinks: bool | None = None
    speculation: Speculation = Speculation()
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    flags: dict[str, bool | int | float | str | dict[str, Any] | list[Any]] = {}
    environment: dict[str, str] = {}

    @property
    def served_name(self) -> str:
        return self.name or (Path(self.model).name if self.model.startswith((".", "/")) else self.model)

    @model_validator(mode="after")
    def _once(self) -> Self:
        if len(set(self.gpus)) < len(self.gpus):
            raise ValueError(f"gpus: a card is named twice: {', '.join(map(str, self.gpus))}")
        for flag in self.flags:
            name, dot, key = flag.partition(".")  # of a flag that takes JSON, one key may be set
            if name != (spelled := name.strip("-").replace("_", "-")):
                raise ValueError(f"flags: write {flag!r} as {spelled + dot + key!r}")
            if flag in SET_BY:
                raise ValueError(f"flags: {flag!r} has a setting of its own, {SET_BY[flag]}")
        if VISIBLE in self.environment:
            raise ValueError(f"environment: {VISIBLE!r} has a setting of its own, gpus")
        return self


def _tag(given: object) -> str:
    """Say what is described: something with a URL runs already, and only a pair has models in it."""
    if kind(given) == PAIR:
        return PAIR
    known = isinstance(given, Endpoint | str) or (isinstance(given, dict) and "url" in given)
    return CONNECTED if known else STARTED


def _placed(given: object, role: str) -> object:
    """Let a server that runs be given as in the settings: as its URL alone, or without the role that its place says."""
    return for_role(given, role) if _tag(given) == CONNECTED and not isinstance(given, Endpoint) else given


def _describing(given: object, role: str) -> None:
    """Raise ValueError for what describes no model at all."""
    if not isinstance(given, str | dict | BaseModel):
        turn = ", or a table of a pair within, with `small` and `large`" if role == "small" else ""
        raise ValueError(
            f"write a table with a `model` to start, the URL of a server that runs{turn}: {given!r} is none"
        )


Single: TypeAlias = Annotated[
    Annotated[Endpoint, Tag(CONNECTED)] | Annotated[Started, Tag(STARTED)], Discriminator(_tag)
]


class Roles(BaseModel, frozen=True, extra="forbid"):
    """Two roles, each to be started or, where it has a *url*, connected to; the small one may be a pair in its turn."""

    large: Single
    small: Small

    @field_validator("large", "small", mode="before")
    @classmethod
    def _role(cls, given: Any, about: Any) -> Any:
        if about.field_name == "large" and kind(given) == PAIR:
            raise ValueError("only the small model may be a pair in its turn: describe one model here")
        _describing(given, about.field_name)
        return _placed(given, about.field_name)

    def under(self, path: str) -> Mapping[str, Endpoint | Started]:
        """Every model by its path, which begins with *path*, the dearest first."""
        inner = (
            self.small.under(f"{path}small.") if isinstance(self.small, PairWithin) else {f"{path}small": self.small}
        )
        return {f"{path}large": self.large, **inner}


class PairWithin(Roles, Nesting, frozen=True):
    """A pair that stands in for the small model of another one, as in the settings of a solver."""


Small: TypeAlias = Annotated[
    Annotated[Endpoint, Tag(CONNECTED)] | Annotated[Started, Tag(STARTED)] | Annotated[PairWithin, Tag(PAIR)],
    Discriminator(_tag),
]
PairWithin.model_rebuild()


class Pair(Roles, frozen=True):
    """
    What one file describes.

    *card* is the memory of one GPU in GiB; without it, the driver is asked. *ready_seconds* is how long servers that
    are started together may take to answer: a first start downloads the weights. *sampling* is how both models are to
    write, as their makers recommend; it is among the settings that are printed.
    """

    card: PositiveFloat | None = None
    sampling: Sampling | None = None
    ready_seconds: PositiveFloat = 1800.0

    @property
    def models(self) -> Mapping[str, Endpoint | Started]:
        """Every model by its path, such as ``small.large``, the dearest first."""
        return self.under("")

    @property
    def started(self) -> Mapping[str, Started]:
        return {path: one for path, one in self.models.items() if isinstance(one, Started)}

    @property
    def connected(self) -> Mapping[str, Endpoint]:
        return {path: one for path, one in self.models.items() if isinstance(one, Endpoint)}

    @property
    def nested(self) -> Mapping[str, PairWithin]:
        """The pairs within, by their paths."""
        found: dict[str, PairWithin] = {}
        path, one = "small", self.small
        while isinstance(one, PairWithin):
            found[path] = one
            path, one = f"{path}.small", one.small
        return found

    def drafter(self, path: str) -> tuple[str, str | None] | None:
        """
        Return the model that drafts tokens for the one at *path*, and its revision; None if no other model does.

        Unless one is named, it is the next cheaper one, if that is started here.
        """
        one = self.started.get(path)
        if one is None or (one.speculation.method != "draft_model" and one.speculation.model is None):
            return None
        if one.speculation.model is not None:
            return one.speculation.model, one.speculation.revision
        cheaper = self.started.get(dict(pairwise(self.models)).get(path, ""))
        return (cheaper.model, cheaper.revision) if cheaper else None
