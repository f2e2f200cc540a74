"""Token-level speculation under one model: how it is asked for, and what vLLM is told then. Values only."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar, get_args

from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from ..endpoints.settings import Endpoint, Sampling
from ..errors import ConfigurationError, near
from ..nesting.settings import PAIR, Nesting, for_role, kind
from .machine import VISIBLE

Method: TypeAlias = Literal["none", "ngram", "suffix", "draft_model", "eagle3", "mtp", "medusa", "dflash"]

METHODS: tuple[str, ...] = get_args(Method)
TRAINED = frozenset({"eagle3", "medusa", "dflash"})  # for one large model each: nothing but its own drafter would do
DRAFTERS = TRAINED | {"draft_model", "mtp"}  # may name a model
TOKENS: Mapping[str, int] = {"ngram": 4, "draft_model": 4, "eagle3": 3, "mtp": 1}
SET_HERE = frozenset(
    {
        *("method", "num_speculative_tokens", "model", "revision", "use_heterogeneous_vocab"),
        *("prompt_lookup_min", "prompt_lookup_max"),
    }
)
LOOKUP = (2, 4)  # vLLM's own default, five tokens and no fewer, hardly ever finds anything within a step


class TokenSpeculation(BaseModel, frozen=True, extra="forbid"):
    """
    How a server drafts tokens for its own model, which then verifies several of them in one pass.

    A method alone may be given by its name. *tokens* are drafted at a time; *suffix* decides that itself, and takes
    them as the most. *model* drafts; with *draft_model* it is the pair's small model unless another one is named.
    *lookup* is for *ngram*: the fewest and the most tokens that have to be repeated. *heterogeneous* lets a
    *draft_model* have another vocabulary: vLLM then drafts only the tokens that both have. *more* are further keys of
    ``--speculative-config``.
    """

    method: Method = "none"
    tokens: PositiveInt | None = None
    model: str | None = Field(default=None, min_length=1)
    revision: str | None = None
    lookup: tuple[PositiveInt, PositiveInt] = LOOKUP
    heterogeneous: bool = False
    more: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {"method": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if wrong := next((said for is_wrong, said in self._rules() if is_wrong), None):
            raise ValueError(wrong)
        return self

    def _rules(self) -> tuple[tuple[bool, str], ...]:
        """What must not be, and what to change."""
        method, own = self.method, SET_HERE & set(self.more)
        return (
            (self.model is not None and method not in DRAFTERS, f"{method} drafts without a model: leave it out"),
            (self.model is None and method in TRAINED, f"{method} needs a drafter trained for this model: name it"),
            (self.tokens is None and method in ("medusa", "dflash"), f"say how many tokens {method} was trained for"),
            (self.revision is not None and self.model is None, "a revision is that of a model: name it"),
            (self.heterogeneous and method != "draft_model", "heterogeneous is for draft_model alone"),
            (self.lookup != LOOKUP and method != "ngram", "lookup is for ngram alone"),
            (self.lookup[0] > self.lookup[1], "lookup is the fewest tokens and then the most"),
            (
                method == "none" and bool(self.more or self.tokens),
                "there is no method: name one, or leave the rest out",
            ),
            (bool(own), f"more must not repeat what has a setting of its own: {', '.join(sorted(own))}"),
        )

    def configuration(self, drafter: str | None) -> dict[str, Any] | None:
        """Return vLLM's ``--speculative-config``; *drafter* drafts if no model is named. None for no speculation."""
        if self.method == "none":
            return None
        said: dict[str, Any] = {"method": self.method}
        tokens, model = self.tokens or TOKENS.get(self.method), self.model or drafter
        if tokens is not None:
            said["num_speculative_tokens"] = tokens
        if self.method == "ngram":
            said["prompt_lookup_min"], said["prompt_lookup_max"] = self.lookup
        if model is not None and (self.model or self.method == "draft_model"):
            said["model"] = model
        if self.revision is not None:
            said["revision"] = self.revision
        if self.heterogeneous:
            said["use_heterogeneous_vocab"] = True
        return {**said, **self.more}


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


class StartedServer(BaseModel, frozen=True, extra="forbid"):
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
    speculation: TokenSpeculation = TokenSpeculation()
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
    Annotated[Endpoint, Tag(CONNECTED)] | Annotated[StartedServer, Tag(STARTED)], Discriminator(_tag)
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

    def under(self, path: str) -> Mapping[str, Endpoint | StartedServer]:
        """Every model by its path, which begins with *path*, the dearest first."""
        inner = (
            self.small.under(f"{path}small.") if isinstance(self.small, PairWithin) else {f"{path}small": self.small}
        )
        return {f"{path}large": self.large, **inner}


class PairWithin(Roles, Nesting, frozen=True):
    """A pair that stands in for the small model of another one, as in the settings of a solver."""


Small: TypeAlias = Annotated[
    Annotated[Endpoint, Tag(CONNECTED)] | Annotated[StartedServer, Tag(STARTED)] | Annotated[PairWithin, Tag(PAIR)],
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
    def models(self) -> Mapping[str, Endpoint | StartedServer]:
        """Every model by its path, such as ``small.large``, the dearest first."""
        return self.under("")

    @property
    def started(self) -> Mapping[str, StartedServer]:
        return {path: one for path, one in self.models.items() if isinstance(one, StartedServer)}

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


KINDS: Mapping[str, type[BaseModel]] = {CONNECTED: Endpoint, STARTED: StartedServer, PAIR: PairWithin}
OF_THE_WHOLE = frozenset({"policy", "options", "ahead"})  # a pair within has them

Place = tuple[int | str, ...]
R = TypeVar("R", bound=Roles)


def load(path: Path) -> Pair:
    """Read the pair at *path*. Raise `ConfigurationError`, which says what is wrong with which setting."""
    try:
        pair = Pair.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as exc:
        raise ConfigurationError(f"{path}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"{path} is no TOML: {exc}") from exc
    except ValidationError as exc:
        wrong = "; ".join(_explain(error["type"], error["loc"], error["msg"]) for error in exc.errors())
        raise ConfigurationError(f"{path}: {wrong}") from exc
    return _beside(pair, path.parent)


def _explain(kind: str, place: Place, message: str) -> str:
    name = ".".join(str(part) for part in place if part not in KINDS)
    if kind != "extra_forbidden":
        return f"{name}: {message.removeprefix('Value error, ')}"
    if name in OF_THE_WHOLE:
        return f"{name}: this file has it for pairs within; for the whole, write it into stepspec.toml"
    return f"unknown setting {name!r}{near(str(place[-1]), _model(place).model_fields)}"


def _model(place: Place) -> type[BaseModel]:
    """Return the model that the setting at *place* would be part of."""
    model: type[BaseModel] = Pair
    for part in place[:-1]:
        field = model.model_fields.get(str(part))
        inner = KINDS.get(str(part)) or (field.annotation if field else None)
        model = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else model
    return model


def _beside(roles: R, folder: Path) -> R:
    """Resolve models that are folders: relative ones lie beside the file."""
    found = {"large": _found(roles.large, folder), "small": _found(roles.small, folder)}
    return roles.model_copy(update=found)


def _found(one: Endpoint | StartedServer | PairWithin, folder: Path) -> Endpoint | StartedServer | PairWithin:
    if isinstance(one, PairWithin):
        return _beside(one, folder)
    if isinstance(one, Endpoint):
        return one
    speculation = one.speculation.model_copy(update={"model": _resolved(one.speculation.model, folder)})
    return one.model_copy(update={"model": _resolved(one.model, folder), "speculation": speculation})


def _resolved(model: str | None, folder: Path) -> str | None:
    return str((folder / model).resolve()) if model and model.startswith((".", "/")) else model
