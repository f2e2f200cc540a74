"""
A pair's file, as in ``recipes/``: two models, each a server to start or a server that runs already.

The small model may be a pair itself. `load` reads the file and explains its errors.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

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

METHODS_WITH_TRAINED_DRAFTER = frozenset({"eagle3", "dflash"})
DEFAULT_TOKENS: Mapping[str, int] = {"ngram": 4, "draft_model": 4, "eagle3": 3, "mtp": 1}
"""Tokens that a method drafts at a time. vLLM chooses the number for other methods."""
NGRAM_LOOKUP: Mapping[str, int] = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
"""The tokens that ngram matches. vLLM's default of exactly five rarely matches within a step."""
MODEL_FOLDER_STARTS = (".", "/")
"""A model whose name begins with one of these is a folder."""


def _resolve(model: str, info: ValidationInfo) -> str:
    """Make the path of a model's folder absolute. It is relative to the folder of the file."""
    folder: Path | None = info.context
    if folder is None or not model.startswith(MODEL_FOLDER_STARTS):
        return model
    return str((folder / model).resolve())


ModelName: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_resolve)]


class TokenSpeculation(BaseModel, frozen=True, extra="forbid"):
    """
    How a server drafts tokens for its own model, which verifies several of them in one pass.

    A text stands for a table with that method alone. vLLM refuses settings that do not fit
    together.
    """

    method: Method = "none"
    """The method that drafts."""
    tokens: PositiveInt | None = None
    """Tokens of a draft, for "suffix" the most tokens. None: the method's default."""
    model: ModelName | None = None
    """The model that drafts. None: for "draft_model" the pair's next smaller model."""
    more: dict[str, Any] = {}
    """Further keys of ``--speculative-config``."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"method": value}
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.model is None and self.method in METHODS_WITH_TRAINED_DRAFTER:
            raise ValueError(f"{self.method} needs a drafter trained for this model: name it")
        if self.method == "none" and (self.more or self.tokens or self.model):
            raise ValueError("the method is none: name one, or leave the other settings out")
        return self

    def configuration(
        self,
        drafter: str | None = None,
        revision: str | None = None,
    ) -> dict[str, Any] | None:
        """
        Return vLLM's ``--speculative-config``; None without speculation.

        *drafter* is the draft model for "draft_model" if the settings name none. *revision* is that
        of the model that drafts.
        """
        if self.method == "none":
            return None
        model = self.model
        if self.method == "draft_model":
            model = model or drafter
        config: dict[str, Any] = {
            "method": self.method,
            "num_speculative_tokens": self.tokens or DEFAULT_TOKENS.get(self.method),
            "model": model,
            "revision": revision if model else None,
        }
        if self.method == "ngram":
            config.update(NGRAM_LOOKUP)
        return {name: value for name, value in config.items() if value} | self.more


VISIBLE = "CUDA_VISIBLE_DEVICES"
# The tags of the two kinds of single models.
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
"""For a flag of vLLM, the setting of a `StartedServer` that replaces it."""

SECRET_FLAGS = {
    "api-key": (
        "start that server yourself with the variable VLLM_API_KEY, and name its url and api_key"
        " here"
    ),
    "hf-token": "set the variable HF_TOKEN",
}
"""
For a flag of vLLM whose text is secret, what to do instead.

Every user of a machine sees its command lines.
"""


class StartedServer(BaseModel, frozen=True, extra="forbid"):
    """A model to start a server for."""

    model: ModelName
    """A name on the hub, or a folder relative to the file if it begins with a dot or a slash."""
    revision: str | None = None
    """The revision on the hub; None: the newest."""
    name: str = ""
    """The served name; "": the model's own, of a folder its last part."""
    gpus: tuple[NonNegativeInt, ...] = (0,)
    """
    The cards that share the model, as indices into the cards that this program may use.

    Without any, the model runs on the CPU.
    """
    memory: float = Field(default=0.9, gt=0, le=1)
    """The model's share of the memory of each of its cards."""
    context: PositiveInt = 16384
    """The length of the context, in tokens."""
    dtype: Dtype = "auto"
    """The type of the weights."""
    prefix_caching: bool = True
    """Whether vLLM caches the prefixes of prompts."""
    suffix_scoring: bool = False
    """Whether the server scores the suffix of a prompt alone."""
    template: dict[str, Any] = {}
    """As in `Endpoint`: arguments of the chat template."""
    thinks: bool | None = None
    """As in `Endpoint`: whether the model thinks; None: as its chat template shows."""
    speculation: TokenSpeculation = TokenSpeculation()
    """How the server drafts tokens for its own model."""
    host: str = "127.0.0.1"
    """The address that the server listens at."""
    port: int = Field(default=0, ge=0, le=65535)
    """The port; 0: a free one."""
    flags: dict[str, bool | int | float | str | dict[str, Any] | list[Any]] = {}
    """vLLM's own flags, without dashes. True: the flag alone; false: nothing; a table: JSON."""
    environment: dict[str, str] = {}
    """Variables that are added to those of this program."""

    @property
    def served_name(self) -> str:
        if self.name:
            return self.name
        if self.model.startswith(MODEL_FOLDER_STARTS):
            return Path(self.model).name
        return self.model

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.gpus)) < len(self.gpus):
            raise ValueError(f"gpus: a card is repeated: {', '.join(map(str, self.gpus))}")
        for flag, value in self.flags.items():
            _check_flag(flag, value)
        if "VLLM_API_KEY" in self.environment:
            raise ValueError(f"environment: {SECRET_FLAGS['api-key']}")
        if VISIBLE in self.environment:
            raise ValueError(f"environment: {VISIBLE!r} has its own setting, gpus")
        return self


def _check_flag(flag: str, value: object) -> None:
    """Check the name of a *flag* of vLLM. "flag.key" sets one key of a flag that takes JSON."""
    name, dot, key = flag.partition(".")
    spelled = name.strip("-").replace("_", "-")
    if name != spelled:
        raise ValueError(f"flags: write {flag!r} as {spelled + dot + key!r}")
    if flag in SETTING_OF:
        raise ValueError(f"flags: {flag!r} has its own setting, {SETTING_OF[flag]}")
    if flag in SECRET_FLAGS and not isinstance(value, bool):
        raise ValueError(
            f"flags: {flag!r} would be seen in the list of processes: {SECRET_FLAGS[flag]}",
        )


def _tag(value: object) -> str:
    """Return the kind of a model. A model with a URL runs already. Only a pair has models in it."""
    if kind(value) == PAIR:
        return PAIR
    if isinstance(value, Endpoint | str) or (isinstance(value, dict) and "url" in value):
        return CONNECTED
    return STARTED


Single: TypeAlias = Annotated[
    Annotated[Endpoint, Tag(CONNECTED)] | Annotated[StartedServer, Tag(STARTED)],
    Discriminator(_tag),
]


class Roles(BaseModel, frozen=True, extra="forbid"):
    """Two models. A model with a ``url`` runs already, others are to be started."""

    large: Single
    """The large model."""
    small: Small
    """The small model, or a pair in its place."""

    @field_validator("large", "small", mode="before")
    @classmethod
    def _complete(cls, value: Any, info: ValidationInfo) -> Any:
        """Complete a server that runs: a URL becomes a table, and a table gets its role."""
        role = str(info.field_name)
        if role == "large" and kind(value) == PAIR:
            raise ValueError("only the small model may be a pair itself: describe one model here")
        described: object = value
        if not isinstance(described, str | dict | BaseModel):
            raise ValueError(
                f"write a table with a `model` to start, or the URL of a running server: {value!r}"
                " is neither",
            )
        if _tag(value) == CONNECTED:
            return for_role(value, role)
        return value

    def parts(self, path: str = "") -> Iterator[tuple[str, Part]]:
        """Yield every model and pair within, largest first. Paths begin with *path*."""
        yield f"{path}large", self.large
        yield f"{path}small", self.small
        if isinstance(self.small, PairWithin):
            yield from self.small.parts(f"{path}small.")


class PairWithin(Roles, Nesting, frozen=True):
    """A pair in place of the small model of another pair, as in the settings of a solver."""


Small: TypeAlias = Annotated[
    Annotated[Endpoint, Tag(CONNECTED)]
    | Annotated[StartedServer, Tag(STARTED)]
    | Annotated[PairWithin, Tag(PAIR)],
    Discriminator(_tag),
]
PairWithin.model_rebuild()
Part: TypeAlias = Endpoint | StartedServer | PairWithin
PartT = TypeVar("PartT", Endpoint, StartedServer, PairWithin)


class Pair(Roles, frozen=True):
    """The content of one file."""

    card: PositiveFloat | None = None
    """The memory of one GPU in GiB; None: `stepspec up` asks the driver."""
    sampling: Sampling | None = None
    """How both models sample. `stepspec up` prints it among the settings of a solver."""
    ready_seconds: PositiveFloat = 1800.0
    """
    Seconds that servers which start together may take to answer.

    A first start downloads the weights.
    """

    @property
    def models(self) -> Mapping[str, Endpoint | StartedServer]:
        """All models by path, such as ``small.large``, largest first."""
        return {path: part for path, part in self.parts() if not isinstance(part, PairWithin)}

    def _parts_of(self, kind: type[PartT]) -> Mapping[str, PartT]:
        return {path: part for path, part in self.parts() if isinstance(part, kind)}

    @property
    def started(self) -> Mapping[str, StartedServer]:
        """The servers to start."""
        return self._parts_of(StartedServer)

    @property
    def connected(self) -> Mapping[str, Endpoint]:
        """The servers that run already."""
        return self._parts_of(Endpoint)

    @property
    def nested(self) -> Mapping[str, PairWithin]:
        """The pairs within this one, by path."""
        return self._parts_of(PairWithin)

    def drafter(self, path: str) -> Drafter | None:
        """
        Return the model that drafts tokens for the server at *path*; None if no other model does.

        It is the model that the speculation names, or else the next smaller model, if the file has
        that started.
        """
        speculation = self.started[path].speculation
        if speculation.model is not None:
            return speculation.model, speculation.more.get("revision")
        if speculation.method != "draft_model":
            return None
        next_path = dict(pairwise(self.models)).get(path, "")
        smaller = self.started.get(next_path)
        if smaller is None:
            return None
        return smaller.model, smaller.revision


KINDS = frozenset({CONNECTED, STARTED, PAIR})
NESTING_SETTINGS = ("policy", "options")  # only a pair within has them


def load(path: Path) -> Pair:
    """Load the pair at *path*. Raise `ConfigurationError`, which names every wrong setting."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        return Pair.model_validate(content, context=path.parent)
    except OSError as exc:
        raise ConfigurationError(f"{path}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"{path} is not TOML: {exc}") from exc
    except ValidationError as exc:
        reasons = "; ".join(map(_explain, exc.errors()))
        raise ConfigurationError(f"{path}: {reasons}") from exc


def _explain(error: ErrorDetails) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden" and name in NESTING_SETTINGS:
        return (
            f"{name}: only a pair within has it in this file; for the outer pair, write it into"
            " stepspec.toml"
        )
    return explain_error(Pair, error, KINDS)
