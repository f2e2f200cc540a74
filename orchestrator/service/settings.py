"""The settings of the service. Frozen; no I/O; the only module of the service that needs no FastAPI."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    model_validator,
)
from pydantic_settings import NoDecode

Thinking: TypeAlias = Literal["both", "reasoning", "reasoning_content", "content", "none"]
"""Where a reply has the thinking: in both fields, in one of them, in the content between <think> tags, or nowhere."""


def listed(value: Any) -> Any:
    """Split a text at its commas."""
    return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


def _rooted(path: str) -> str:
    if path and not path.startswith("/"):
        raise ValueError(f"{path!r} is not a path; write it like /api")
    return path.rstrip("/")


Secrets: TypeAlias = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(listed)]
Words: TypeAlias = Annotated[tuple[str, ...], NoDecode, BeforeValidator(listed)]


class Scaling(BaseModel):
    """
    How many replicas of the service Ray Serve runs; read by `stepspec.orchestrator.service.ray` alone.

    Their number is between *min_replicas* and *max_replicas*, such that each has *target* requests; None is half of
    `max_running`. Replicas are added after *up_after* seconds of need, and removed after *down_after* seconds without.
    Each reserves *cpus* processors of the cluster.

    *fronts* is the number of processes that hold the clients' connections. A request whose replica dies before any of
    its answer was sent is sent to another one, up to *attempts* times in all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_replicas: PositiveInt = 1
    max_replicas: PositiveInt = 4
    target: PositiveFloat | None = None
    up_after: NonNegativeFloat = 10.0
    down_after: NonNegativeFloat = 300.0
    cpus: PositiveFloat = 1.0
    fronts: PositiveInt = 2
    attempts: PositiveInt = 3

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas is {self.min_replicas}, more than max_replicas, {self.max_replicas}")
        return self


class ServiceSettings(BaseModel):
    """
    The service's own settings; those of solving are the solver's.

    It listens at *host* and *port*; *root_path* is where a proxy serves it. *keys* are the accepted API keys. Without
    any, every client is admitted, and a public *host* is allowed only with *insecure*. *cors_origins* are the origins
    of web pages that may use the service, ``*`` for all.

    *max_running* requests run at once and *max_waiting* more wait, each for *max_wait* seconds at most; further
    requests are refused. *max_seconds* is the deadline of a request, which ends in the best answer so far. On shutdown,
    running requests have *drain_seconds* to finish.

    *max_body_bytes*, *max_messages*, *max_choices* (of ``n``) and *max_tokens* limit a single request; *max_tokens* is
    None for no limit. A stream sends at least a comment every *keep_alive* seconds. A client has *send_seconds* to send
    a body, and to take each part of an answer. The servers' health is checked every *health_every* seconds. Logs
    contain no text of problems and answers unless *log_prompts* is set; *log_format* is their form, and *log_level* the
    least important records. *tracing* exports spans over OTLP. *thinking* is where a reply has the thinking; see
    `Thinking`. *ray* is for the Ray Serve application.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8765, ge=0, le=65535)
    keys: Secrets = ()
    insecure: bool = False
    cors_origins: Words = ()
    root_path: Annotated[str, AfterValidator(_rooted)] = ""
    thinking: Thinking = "both"
    max_running: PositiveInt = 64
    max_waiting: NonNegativeInt = 256
    max_wait: PositiveFloat = 30.0
    max_seconds: PositiveFloat = 600.0
    drain_seconds: NonNegativeFloat = 60.0
    max_body_bytes: PositiveInt = 4 * 2**20
    max_messages: PositiveInt = 256
    max_choices: PositiveInt = 8
    max_tokens: PositiveInt | None = None
    keep_alive: PositiveFloat = 10.0
    send_seconds: PositiveFloat = 60.0
    health_every: PositiveFloat = 5.0
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_prompts: bool = False
    tracing: bool = False
    ray: Scaling = Scaling()

    @model_validator(mode="after")
    def _locked(self) -> Self:
        if any(not key.get_secret_value() for key in self.keys):
            raise ValueError("a key is empty")
        if not (self.keys or self.insecure or private(self.host)):
            raise ValueError(
                f"host {self.host!r} can be reached from outside and no key is set: set STEPSPEC_SERVICE__KEYS (or "
                "--key), or add --insecure to admit every client"
            )
        return self

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.ray.target is not None and self.ray.target > self.max_running:
            raise ValueError(f"ray.target is {self.ray.target:g}, and a replica never has more than {self.max_running}")
        return self


def private(host: str) -> bool:
    """Whether only this machine can reach *host*."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
