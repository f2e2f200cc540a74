"""
A pair's file: two models, each a server to start or one that runs already, as in ``recipes/``.

The small model may be a pair itself. Values only; `load` reads the file and explains its errors.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from stepspec.orchestrator.endpoints.settings import Endpoint, Sampling
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.nested_settings import PAIR, Nesting, for_role, kind
from stepspec.orchestrator.run_options import explain_error

Method: TypeAlias = Literal["none", "ngram", "suffix", "draft_model", "eagle3", "mtp", "dflash"]

Drafter: TypeAlias = tuple[str, str | None]
"""A model that drafts tokens, and its revision."""

TRAINED = frozenset({"eagle3", "dflash"})  # need a drafter that was trained for the large model
DEFAULT_TOKENS: Mapping[str, int] = {"ngram": 4, "draft_model": 4, "eagle3": 3, "mtp": 1}
LOOKUP: Mapping[str, int] = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
"""
The words that ngram matches: vLLM's own default, exactly five tokens, rarely matches within a step.
"""


def _resolve(model: str, info: ValidationInfo) -> str:
    """Make the path of a model's folder, which is relative to that of the file, absolute."""
    folder: Path | None = info.context
    return str((folder / model).resolve()) if folder and model.startswith((".", "/")) else model


ModelName: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_resolve)]


class TokenSpeculation(BaseModel, frozen=True, extra="forbid"):
    """
    How a server drafts tokens for its own model, which then verifies several of them in one pass.

    A string is short for a table with that *method* alone. *tokens* are drafted at a time; *suffix*
    decides on the number itself, up to *tokens*. *model* drafts; for *draft_model*, None means the
    pair's next smaller model. *more* are further keys of ``--speculative-config``. vLLM itself
    refuses what does not fit together.
    """

    method: Method = "none"
    tokens: PositiveInt | None = None
    model: ModelName | None = None
    more: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"method": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.model is None and self.method in TRAINED:
            raise ValueError(f"{self.method} needs a drafter trained for this model: name it")
        if self.method == "none" and (self.more or self.tokens or self.model):
            raise ValueError("the method is none: name one, or leave the other settings out")
        return self

    def configuration(
        self, drafter: str | None = None, revision: str | None = None
    ) -> dict[str, Any] | None:
        """
        Return vLLM's ``--speculative-config``; None without speculation.

        *drafter* is the default draft model; *revision* is that of the model that drafts.
        """
        if self.method == "none":
            return None
        config: dict[str, Any] = {"method": self.method}
        if tokens := self.tokens or DEFAULT_TOKENS.get(self.method):
            config["num_speculative_tokens"] = tokens
        if model := self.model or (drafter if self.method == "draft_model" else None):
            config |= {"model": model, "revision": revision} if revision else {"model": model}
        return {**config, **(LOOKUP if self.method == "ngram" else {}), **self.more}


VISIBLE = "CUDA_VISIBLE_DEVICES"
# tags of the two kinds of models
CONNECTED = "a server that runs"
STARTED = "a server to start"
Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]

SETTING_OF: Mapping[str, str] = {
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
"""The setting of a `StartedServer` that stands for a flag of vLLM, by the flag."""

SECRETS = {
    "api-key": (
        "start that server yourself with the variable VLLM_API_KEY, and name its url and api_key"
        " here"
    ),
    "hf-token": "set the variable HF_TOKEN",
}
"""
Flags of vLLM whose text is secret, and what to do instead: every user of a machine sees its command
lines.
"""


class StartedServer(BaseModel, frozen=True, extra="forbid"):
    """
    A model to start a server for.

    *model* is a name on the hub or, if it begins with a dot or a slash, a folder relative to the
    file. *gpus* are the cards that share the model, as indices into the cards that this program may
    use, empty for a CPU; *memory* is its share of each. *context* is in tokens. *flags* are vLLM's
    own, without dashes: true becomes the flag alone, false nothing, a table JSON. *environment* is
    added to that of this program. *port* 0 takes a free one. *name* is the served name, by default
    the model's own, of a folder the last part. *template* and *thinks* are those of `Endpoint`.
    """

    model: ModelName
    revision: str | None = None
    name: str = ""
    gpus: tuple[NonNegativeInt, ...] = (0,)
    memory: float = Field(default=0.9, gt=0, le=1)
    context: PositiveInt = 16384
    dtype: Dtype = "auto"
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
        return self.name or (
            Path(self.model).name if self.model.startswith((".", "/")) else self.model
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.gpus)) < len(self.gpus):
            raise ValueError(f"gpus: a card is repeated: {', '.join(map(str, self.gpus))}")
        for flag in self.flags:
            # "flag.key" sets one key of a flag that takes JSON
            name, dot, key = flag.partition(".")
            if name != (spelled := name.strip("-").replace("_", "-")):
                raise ValueError(f"flags: write {flag!r} as {spelled + dot + key!r}")
            if flag in SETTING_OF:
                raise ValueError(f"flags: {flag!r} has its own setting, {SETTING_OF[flag]}")
            if flag in SECRETS and not isinstance(self.flags[flag], bool):
                raise ValueError(
                    f"flags: {flag!r} would be seen in the list of processes: {SECRETS[flag]}"
                )
        if "VLLM_API_KEY" in self.environment:
            raise ValueError(f"environment: {SECRETS['api-key']}")
        if VISIBLE in self.environment:
            raise ValueError(f"environment: {VISIBLE!r} has its own setting, gpus")
        return self


def _tag(value: object) -> str:
    """Return the kind of a model: one with a URL runs already, and only a pair contains models."""
    if kind(value) == PAIR:
        return PAIR
    connected = isinstance(value, Endpoint | str) or (isinstance(value, dict) and "url" in value)
    return CONNECTED if connected else STARTED


Single: TypeAlias = Annotated[
    Annotated[Endpoint, Tag(CONNECTED)] | Annotated[StartedServer, Tag(STARTED)],
    Discriminator(_tag),
]


class Roles(BaseModel, frozen=True, extra="forbid"):
    """
    Two models, each to be started or, if it has a *url*, running already; the small one may be a
    pair itself.
    """

    large: Single
    small: Small

    @field_validator("large", "small", mode="before")
    @classmethod
    def _complete(cls, value: Any, info: ValidationInfo) -> Any:
        """
        Complete a server that runs as in a solver's settings: a URL alone becomes a table, and the
        role is added.
        """
        role = str(info.field_name)
        if role == "large" and kind(value) == PAIR:
            raise ValueError("only the small model may be a pair itself: describe one model here")
        complete = (
            for_role(value, role)
            if _tag(value) == CONNECTED and not isinstance(value, Endpoint)
            else value
        )
        if not isinstance(value, str | dict | BaseModel):
            raise ValueError(
                f"write a table with a `model` to start, or the URL of a running server: {value!r}"
                " is neither"
            )
        return complete

    def under(self, path: str) -> Mapping[str, Endpoint | StartedServer]:
        """Return every model by its path, which begins with *path*, largest first."""
        inner = (
            self.small.under(f"{path}small.")
            if isinstance(self.small, PairWithin)
            else {f"{path}small": self.small}
        )
        return {f"{path}large": self.large, **inner}


class PairWithin(Roles, Nesting, frozen=True):
    """
    A pair that takes the place of the small model of another pair, as in the settings of a solver.
    """


Small: TypeAlias = Annotated[
    Annotated[Endpoint, Tag(CONNECTED)]
    | Annotated[StartedServer, Tag(STARTED)]
    | Annotated[PairWithin, Tag(PAIR)],
    Discriminator(_tag),
]
PairWithin.model_rebuild()


class Pair(Roles, frozen=True):
    """
    The content of one file.

    *card* is the memory of one GPU in GiB; None asks the driver. *ready_seconds* is how long
    servers that are started together may take to answer: a first start downloads the weights.
    *sampling* is for both models, as their makers recommend; `stepspec up` prints it among the
    settings of a solver.
    """

    card: PositiveFloat | None = None
    sampling: Sampling | None = None
    ready_seconds: PositiveFloat = 1800.0

    @property
    def models(self) -> Mapping[str, Endpoint | StartedServer]:
        """All models by path, such as ``small.large``, largest first."""
        return self.under("")

    @property
    def started(self) -> Mapping[str, StartedServer]:
        """The servers to start."""
        return {
            path: model for path, model in self.models.items() if isinstance(model, StartedServer)
        }

    @property
    def connected(self) -> Mapping[str, Endpoint]:
        """The servers that run already."""
        return {path: model for path, model in self.models.items() if isinstance(model, Endpoint)}

    @property
    def nested(self) -> Mapping[str, PairWithin]:
        """The pairs within this one, by path."""
        pairs: dict[str, PairWithin] = {}
        path = "small"
        model = self.small
        while isinstance(model, PairWithin):
            pairs[path] = model
            path = f"{path}.small"
            model = model.small
        return pairs

    def drafter(self, path: str) -> Drafter | None:
        """
        Return the model that drafts tokens for the server at *path*; None if no other model does.

        Unless the speculation names a model, it is the next smaller one, if that is started here.
        """
        speculation = self.started[path].speculation
        if speculation.model is not None:
            return speculation.model, speculation.more.get("revision")
        if speculation.method != "draft_model":
            return None
        smaller = self.started.get(dict(pairwise(self.models)).get(path, ""))
        return (smaller.model, smaller.revision) if smaller else None


KINDS = frozenset({CONNECTED, STARTED, PAIR})
NESTING_SETTINGS = ("policy", "options")  # only a pair within has them


def load(path: Path) -> Pair:
    """
    Load the pair at *path*. Raise `ConfigurationError` that names every wrong setting and its
    error.
    """
    try:
        return Pair.model_validate(
            tomllib.loads(path.read_text(encoding="utf-8-sig")), context=path.parent
        )
    except OSError as exc:
        raise ConfigurationError(f"{path}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"{path} is not TOML: {exc}") from exc
    except ValidationError as exc:
        raise ConfigurationError(f"{path}: {'; '.join(map(_explain, exc.errors()))}") from exc


def _explain(error: ErrorDetails) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden" and name in NESTING_SETTINGS:
        return (
            f"{name}: only a pair within has it in this file; for the outer pair, write it into"
            " stepspec.toml"
        )
    return explain_error(Pair, error, KINDS)
