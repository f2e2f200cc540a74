"""The settings of the service. No other module of the service works without FastAPI. No I/O."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    model_validator,
)

from stepspec.orchestrator.run_options import Priority

Thinking: TypeAlias = Literal["both", "reasoning", "reasoning_content", "content", "none"]
"""
Where a reply has the thinking: in both fields, in one of them, in the content between <think> tags,
or nowhere.
"""


def listed(value: Any) -> Any:
    """Return a text split at its commas; any other value as it is."""
    if not isinstance(value, str):
        return value
    return [item.strip() for item in value.split(",") if item.strip()]


def without_slash(text: str) -> str:
    """Return *text* without slashes at its end."""
    return text.rstrip("/")


def _listed_keys(value: Any) -> Any:
    """
    Return a text split at its commas.

    Raise `ValueError` if it has no key, as a service without keys would admit every client.
    """
    keys = listed(value)
    if isinstance(value, str) and not keys:
        raise ValueError(
            "it is set, and has no key in it: write one or more, or unset it to admit every client"
        )
    return keys


Origin: TypeAlias = Annotated[
    str,
    Field(pattern=r"^(\*|null|[^/\s]+://[^/\s]+/?)$"),
    AfterValidator(without_slash),
]
"""What a browser sends as the origin of a page, such as https://example.com."""
ClientName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Client(BaseModel, frozen=True, extra="forbid"):
    """
    A client of the service, known by its *key* and called by its name in logs and metrics.

    The limit holds in each process of the service. A minute's worth may be used at once, and comes
    back continuously.
    """

    key: SecretStr
    """The client's API key."""
    requests_per_minute: PositiveInt | None = None
    """Requests to models; none: no limit."""
    priority: Priority = 0
    """
    The best priority of the client's runs, and that of requests without their own; lower is first.
    """


class Scaling(BaseModel, frozen=True, extra="forbid"):
    """
    How many replicas of the service Ray Serve runs; read by `stepspec.service.ray`
    alone.

    Their number is such that each has half of ``max_running`` requests on average.
    """

    min_replicas: PositiveInt = 1
    """The fewest replicas."""
    max_replicas: PositiveInt = 4
    """The most replicas."""
    cpus: PositiveFloat = 1.0
    """Processors of the cluster that each replica reserves."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas is {self.min_replicas}, more than max_replicas, {self.max_replicas}"
            )
        return self


class ServiceSettings(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """
    The service's own settings; those of solving are the solver's.

    Without *keys* and *clients* every client is admitted, and a public *host* is allowed only with
    *insecure*.
    """

    host: str = Field(default="127.0.0.1", min_length=1)
    """The address to listen at; default 127.0.0.1."""
    port: int = Field(default=8765, ge=0, le=65535)
    """The port; default 8765, 0 for any free one."""
    keys: Annotated[tuple[SecretStr, ...], BeforeValidator(_listed_keys)] = ()
    """
    API keys that clients must send; better set ``STEPSPEC_SERVICE__KEYS`` than a flag.

    Their clients have no limits. With neither *keys* nor *clients* every client is admitted.
    """
    clients: dict[ClientName, Client] = {}
    """Clients by their names, each with its own key, limits and priority."""
    insecure: bool = False
    """Without a key, serve a public address, and requests of any name and any web page."""
    cors_origins: Annotated[tuple[Origin, ...], BeforeValidator(listed)] = ()
    """
    Origins of web pages that may use the service; ``*``: all.

    An origin is written like https://example.com.
    """
    root_path: Annotated[str, Field(pattern="^(/.*)?$"), AfterValidator(without_slash)] = ""
    """The path under which a proxy serves the service, such as /api."""
    thinking: Thinking = "both"
    """
    Field of replies for the thinking: both, reasoning, reasoning_content, content, none.

    In the content it stands between <think> tags.
    """
    max_running: PositiveInt = 64
    """The most requests that run at the same time."""
    max_waiting: NonNegativeInt = 256
    """The most requests that wait; further ones are refused."""
    max_wait: PositiveFloat = 30.0
    """The longest wait of a request in seconds, for the service and for a slot of a model."""
    max_seconds: PositiveFloat = 600.0
    """
    Deadline of a request in seconds, its wait included; it is answered from the thinking so far.
    """
    drain_seconds: NonNegativeFloat = 60.0
    """Seconds that running requests have to finish on shutdown."""
    max_body_bytes: PositiveInt = 4 * 2**20
    """The largest body of a request, in bytes."""
    max_messages: int = Field(default=1024, ge=1, le=4096)
    """The most messages of a request."""
    max_choices: PositiveInt = 8
    """The most choices (``n``) of a request."""
    max_tokens: PositiveInt | None = None
    """The largest token budget of a request, which a larger one is reduced to; none: no limit."""
    keep_alive: PositiveFloat = 10.0
    """Seconds after which an idle stream sends a comment."""
    idle_seconds: PositiveInt = 75
    """
    Seconds that a connection stays open without the headers of a request; set more than a load
    balancer in front keeps its own.
    """
    send_seconds: PositiveFloat = 60.0
    """Seconds that a client has to send a body, and to take each part of an answer."""
    health_every: PositiveFloat = 5.0
    """Seconds between two checks of the servers' health."""
    log_format: Literal["console", "json"] = "console"
    """Form of the log: console, or json for machines."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe messages of the log: debug, info, warning or error."""
    ray: Scaling = Scaling()
    """The replicas of the Ray Serve application."""

    @property
    def locked(self) -> bool:
        """Whether clients need a key."""
        return bool(self.keys or self.clients)

    @model_validator(mode="after")
    def _locked(self) -> Self:
        keys = [
            key.get_secret_value().strip()
            for key in (*self.keys, *(client.key for client in self.clients.values()))
        ]
        if not all(key and key.isascii() for key in keys):
            raise ValueError(
                "a key is empty, or has letters beyond ASCII, which clients send in several"
                " encodings"
            )
        if len({*keys}) < len(keys):
            raise ValueError(
                "a key is there twice among keys and clients: give every client its own"
            )
        if not (keys or self.insecure or private(self.host)):
            raise ValueError(
                f"host {self.host!r} can be reached from outside and no key is set: set"
                " STEPSPEC_SERVICE__KEYS (or --key) or a table [service.clients.NAME], or add"
                " --insecure to admit every client"
            )
        return self


def private(host: str) -> bool:
    """Return whether only this machine can reach *host*."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
