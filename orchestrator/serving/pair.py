"""A pair of models as one TOML file: what to serve, where and how, or where it is served already."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tag,
    ValidationError,
    model_validator,
)

from ..chain import Role
from ..endpoints.settings import Endpoint
from ..errors import ConfigurationError
from .speculation import Speculation

ROLES: tuple[Role, ...] = ("large", "small")
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
    that share it, none for a CPU, and *memory* its share of each. *context* is in tokens. *kv_cache* is what a token's
    keys and values are kept in. *flags* are vLLM's own, without their dashes: true stands alone, false is left out, a
    table becomes JSON. *environment* is added to ours. *port* 0 takes a free one; *name* is what it is served as.
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
    speculation: Speculation = Speculation()
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    flags: dict[str, bool | int | float | str | dict[str, Any] | list[Any]] = {}
    environment: dict[str, str] = {}

    @model_validator(mode="after")
    def _once(self) -> Self:
        if len(set(self.gpus)) < len(self.gpus):
            raise ValueError(f"gpus: a card is named twice: {', '.join(map(str, self.gpus))}")
        for flag in self.flags:
            if flag.startswith("-") or "_" in flag:
                raise ValueError(f"flags: write {flag!r} as {flag.strip('-').replace('_', '-')!r}")
            if flag in SET_BY:
                raise ValueError(f"flags: {flag!r} has a setting of its own, {SET_BY[flag]}")
        return self


def _kind(given: Any) -> str:
    known = isinstance(given, Endpoint) or (isinstance(given, dict) and "url" in given)
    return "connected" if known else "started"


def _for_role(role: Role) -> BeforeValidator:
    """Never ask a connected endpoint for the role that its place already says."""

    def fill(given: object) -> object:
        if isinstance(given, Endpoint):
            return given
        return {"role": role, **cast("dict[str, Any]", given)} if _kind(given) == "connected" else given

    return BeforeValidator(fill)


Either: TypeAlias = Annotated[
    Annotated[Endpoint, Tag("connected")] | Annotated[Started, Tag("started")], Discriminator(_kind)
]


class Pair(BaseModel, frozen=True, extra="forbid"):
    """
    Two roles, each to be started or, where it has a *url*, connected to.

    *card* is the memory of one GPU in GiB; without it, the driver is asked. *ready_seconds* is how long both servers
    together may take to answer: a first start downloads the weights.
    """

    large: Annotated[Either, _for_role("large")]
    small: Annotated[Either, _for_role("small")]
    card: PositiveFloat | None = None
    ready_seconds: PositiveFloat = 1800.0

    @property
    def roles(self) -> Mapping[Role, Endpoint | Started]:
        return {"large": self.large, "small": self.small}

    @property
    def started(self) -> Mapping[Role, Started]:
        return {role: one for role, one in self.roles.items() if isinstance(one, Started)}

    @property
    def connected(self) -> Mapping[Role, Endpoint]:
        return {role: one for role, one in self.roles.items() if isinstance(one, Endpoint)}

    def drafter(self, role: Role) -> tuple[str, str | None] | None:
        """Return the model that drafts tokens for *role*, and its revision; None if no other model does."""
        one = self.started.get(role)
        if one is None or (one.speculation.method != "draft_model" and one.speculation.model is None):
            return None
        if one.speculation.model is not None:
            return one.speculation.model, one.speculation.revision
        small = self.started.get("small")
        return (small.model, small.revision) if small is not None and role == "large" else None


def load(path: Path) -> Pair:
    """Read the pair at *path*. Raise `ConfigurationError`, which says what is wrong with which setting."""
    try:
        pair = Pair.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as exc:
        raise ConfigurationError(f"{path}: {exc.strerror}") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigurationError(f"{path} is no TOML: {exc}") from exc
    except ValidationError as exc:
        wrong = "; ".join(_explain(error["type"], error["loc"], error["msg"]) for error in exc.errors())
        raise ConfigurationError(f"{path}: {wrong}") from exc
    return pair.model_copy(update={role: _beside(one, path.parent) for role, one in pair.started.items()})


def _explain(kind: str, place: tuple[int | str, ...], message: str) -> str:
    name = ".".join(str(part) for part in place if part not in ("connected", "started"))
    return (
        f"unknown setting {name!r}" if kind == "extra_forbidden" else f"{name}: {message.removeprefix('Value error, ')}"
    )


def _beside(one: Started, folder: Path) -> Started:
    """Resolve models that are folders: relative ones lie beside the file."""
    speculation = one.speculation.model_copy(update={"model": _resolved(one.speculation.model, folder)})
    return one.model_copy(update={"model": _resolved(one.model, folder), "speculation": speculation})


def _resolved(model: str | None, folder: Path) -> str | None:
    return str((folder / model).resolve()) if model and model.startswith((".", "/")) else model
