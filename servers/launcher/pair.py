"""
A pair's file, as in ``recipes/``: two models to start servers for.

`load` reads the file and explains its errors.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from stepspec.orchestrator.endpoints.settings import Sampling
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.run_options import explain_error

MODEL_FOLDER_STARTS = (".", "/")
"""A model whose name begins with one of these is a folder."""


def _resolve(model: str, info: ValidationInfo) -> str:
    """Make the path of a model's folder absolute. It is relative to the folder of the file."""
    folder: Path | None = info.context
    if folder is None or not model.startswith(MODEL_FOLDER_STARTS):
        return model
    return str((folder / model).resolve())


ModelName: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_resolve)]


VISIBLE = "CUDA_VISIBLE_DEVICES"
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
    "api-key": "start that server yourself with the variable VLLM_API_KEY",
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
    speculation: dict[str, Any] = {}
    """
    vLLM's own ``--speculative-config``: how the server drafts tokens for its own model.

    Its ``model`` is a name on the hub or a folder, as the `model` above.
    """
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

    @field_validator("speculation")
    @classmethod
    def _with_drafter(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "model" in value:
            return {**value, "model": _resolve(str(value["model"]), info)}
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.gpus)) < len(self.gpus):
            raise ValueError("gpus: a card is repeated")
        for flag, value in self.flags.items():
            _check_flag(flag, value)
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


class Pair(BaseModel, frozen=True, extra="forbid"):
    """The content of one file."""

    large: StartedServer
    """The large model."""
    small: StartedServer
    """The small model."""
    sampling: Sampling | None = None
    """How both models sample. `stepspec up` prints it among the settings of a solver."""
    ready_seconds: PositiveFloat = 1800.0
    """
    Seconds that servers which start together may take to answer.

    A first start downloads the weights.
    """

    @property
    def models(self) -> Mapping[str, StartedServer]:
        """Both models by role, the large one first."""
        return {"large": self.large, "small": self.small}

    @property
    def share_cards(self) -> bool:
        """Whether both models use the same card."""
        return not set(self.large.gpus).isdisjoint(self.small.gpus)


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
        reasons = "; ".join(explain_error(Pair, error) for error in exc.errors())
        raise ConfigurationError(f"{path}: {reasons}") from exc
