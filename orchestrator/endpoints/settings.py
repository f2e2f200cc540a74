"""What there is to know about an endpoint before talking to it, and how its model samples. Frozen; no I/O."""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, SecretStr

from ..chain import Role
from ..events import Verb


def _base_url(url: str) -> str:
    """Strip the trailing slash and ``/v1``, which vLLM's own routes (``/tokenize``, ``/metrics``) do not have."""
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not the URL of a server; write it like http://localhost:8000/v1")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} has a query or a fragment; write it like http://localhost:8000/v1")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


class Deadlines(BaseModel):
    """How long to wait, in seconds: for a connection, the first token, the next token, and the whole request."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    connect: PositiveFloat = 5.0
    first: PositiveFloat = 120.0
    between: PositiveFloat = 30.0
    total: PositiveFloat = 600.0


class Endpoint(BaseModel):
    """
    One served model: where it is, and how hard it may be worked.

    *url* is given with or without ``/v1``. *model* is the served name; without one, the first that the server lists.
    *requests_per_second* limits how many requests are begun. *retries* is how often a request is repeated that failed
    before its first token. *template* is passed on to the chat template (``chat_template_kwargs``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Role
    url: Annotated[str, AfterValidator(_base_url)]
    model: str | None = Field(default=None, min_length=1)
    api_key: SecretStr | None = None
    max_concurrency: PositiveInt = 64
    requests_per_second: PositiveFloat | None = None
    retries: int = Field(default=3, ge=0)
    deadlines: Deadlines = Deadlines()
    template: dict[str, Any] = {}

    @property
    def v1(self) -> str:
        """The base URL of the OpenAI routes."""
        return f"{self.url}/v1"


class Sampling(BaseModel):
    """
    How a model chooses its tokens. Every value is sent, so that none of the server's own defaults applies.

    A *temperature* of 0 is greedy. *logprobs* asks for the log-probability of every written token and for the ranks up
    to that number (0: log-probabilities only; None: neither).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(default=0.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, gt=0)
    seed: int = 0
    logprobs: int | None = Field(default=0, ge=0, le=20)

    def seed_for(self, role: Role, verb: Verb, steps: int, tokens: int) -> int:
        """Derive a request's seed: requests at different places of a chain differ, and runs repeat."""
        place = f"{self.seed} {role} {verb} {steps} {tokens}".encode()
        return int.from_bytes(blake2b(place, digest_size=4).digest())
