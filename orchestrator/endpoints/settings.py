"""The settings of an endpoint, and how its model samples. Frozen; no I/O."""

from __future__ import annotations

import random
import re
from hashlib import blake2b
from typing import Annotated, Any, Literal, Self, cast
from urllib.parse import urlsplit, urlunsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PositiveFloat,
    PositiveInt,
    SecretStr,
)

from ..chain import DELIMITER, Chain, Party, Role
from ..errors import ConfigurationError
from ..events import Verb


def base_url(url: str) -> str:
    """
    Return *url* without a trailing slash and ``/v1``. Raise `ValueError` if it is not a server's.

    vLLM's own routes (``/tokenize``, ``/metrics``) are not below ``/v1``.
    """
    parts = urlsplit(url.strip())
    if "@" in parts.netloc:
        raise ValueError(
            "no name and no password may stand in a URL, which messages show: set api_key"
        )
    try:
        host = (parts.hostname or "").encode("idna")
        _ = parts.port
    except ValueError:
        # A part between two dots is empty or longer than 63 characters. No port has such a number.
        host = b""
    is_http = parts.scheme in ("http", "https")
    if not is_http or not re.fullmatch(rb"\S+", host) or parts.query or parts.fragment:
        raise ValueError(
            f"{url!r} is not the URL of a server; write it like http://localhost:8000/v1"
        )
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def base_urls(urls: str) -> str:
    """Return *urls*, divided by commas, each as `base_url` does. Raise `ValueError`."""
    found = [base_url(url) for url in urls.split(",")]
    if len(set(found)) < len(found):
        raise ValueError(f"a URL is given twice: {', '.join(found)}")
    return ",".join(found)


def key_variable(table: str) -> str:
    """Return the variable of the environment that sets the ``api_key`` in *table*."""
    return f"STEPSPEC_{table.upper()}__API_KEY"


def for_role(value: Any, role: str) -> Any:
    """Add the *role* to *value*, if it is a table that has none."""
    if isinstance(value, dict):
        return {"role": role, **cast("dict[str, Any]", value)}
    return value


def none_if_empty(key: object) -> object:
    """
    Return *key* without white space around it: the file of a secret may end with a line break.

    An empty key, as of an unset variable, is None.
    """
    return (key.strip() or None) if isinstance(key, str) else key


NotEmpty = Annotated[str, Field(min_length=1)]


class Deadlines(BaseModel, frozen=True, extra="forbid"):
    """The longest waits of one request, in seconds."""

    connect: PositiveFloat = 5.0
    """Seconds until the connection stands."""
    first: PositiveFloat = 120.0
    """Seconds until the first token, and for a whole request that writes at most one."""
    between: PositiveFloat = 30.0
    """Seconds from one token to the next."""
    total: PositiveFloat = 3600.0
    """
    Seconds for the whole request: a busy server takes long for a chain of thousands of tokens.
    """
    rest: PositiveFloat = 30.0
    """
    The longest pause between two probes of a server that failed; the first pause is one second.
    """

    @property
    def unstreamed(self) -> float:
        """Seconds for a request that writes at most one token, and to any other's first token."""
        return min(self.first, self.total)


class Address(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """One served model: its address, and the limits of its requests."""

    role: Party
    """Which of the models it is. In a file it follows from the table and is left out."""
    url: Annotated[str, AfterValidator(base_url)]
    """Base URL of the server; it may end in ``/v1``."""
    model: str | None = Field(default=None, min_length=1)
    """The served name; none: the first that the server lists."""
    api_key: Annotated[SecretStr | None, BeforeValidator(none_if_empty)] = None
    """
    API key of the model's server. ``STEPSPEC_LARGE__API_KEY`` is safer than a flag, which others
    can see.

    The server expects it if it was started with ``--api-key``.
    """
    max_concurrency: PositiveInt | None = None
    """
    The most requests at a time; none: as many as the service's ``max_running`` runs may have, and
    64 at least.
    """
    requests_per_second: PositiveFloat | None = None
    """
    The most requests that start in a second, besides checks of health and metrics; none: no limit.
    """
    retries: int = Field(default=3, ge=0)
    """Further attempts for a request that failed before its first token."""
    priorities: bool = True
    """Send a priority with the requests of a run, for a vLLM that schedules by priority."""
    deadlines: Deadlines = Deadlines()
    """The longest waits of one request."""

    def with_default_concurrency(self, requests: int) -> Self:
        """Return the settings with so many *requests* at a time if they name no number."""
        return self.model_copy(update={"max_concurrency": self.max_concurrency or requests})

    @property
    def urls(self) -> tuple[str, ...]:
        """The base URLs of all servers of the model."""
        return (self.url,)

    @property
    def v1(self) -> str:
        """The base URL of the OpenAI routes."""
        return f"{self.url}/v1"


class Endpoint(Address, frozen=True):
    """A model that writes."""

    role: Role
    """``small`` or ``large``. In a file it follows from the table and is left out."""
    url: Annotated[str, AfterValidator(base_urls)]
    """
    Base URL of the model's server; several replicas are separated by commas.

    It may end in ``/v1``.
    """
    template: dict[str, Any] = {}
    """Variables of the chat template (vLLM's ``chat_template_kwargs``)."""
    thinks: bool | None = None
    """
    Whether the model thinks in a block of its own before it answers. None finds out, by the chat
    template or, if the template shows no block, by the first words of an answer. False makes a
    model that would think answer at once.
    """
    marks: Annotated[tuple[NotEmpty, ...], Field(min_length=2, max_length=4)] | None = None
    """
    The text that opens the model's thinking block and the text that closes it, such as ``["<mind>",
    "</mind>"]``; then, if the model marks its reply too, what opens and what closes that. None
    learns them from the chat template or from the first words of an answer, which takes marks that
    speak of thinking.
    """
    suffix_scoring: bool = False
    """
    Read only a scored text, where otherwise the whole chain before it is read again. Switch it on
    only for a vLLM that was started with ``--enable-scale-out --enable-prompt-tokens-details``, on
    a CPU also with ``MALLOC_PERTURB_=255`` in its environment: it passes on sampling parameters
    that vLLM does not check, and an unknown version might crash.
    """

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(self.url.split(","))

    @property
    def each(self) -> tuple[Endpoint, ...]:
        """The settings of each server by itself."""
        return tuple([self.model_copy(update={"url": url}) for url in self.urls])


class CriticEndpoint(Address, frozen=True):
    """A reward model."""

    role: Literal["critic"] = "critic"
    """Always ``critic``."""
    url: Annotated[str, AfterValidator(base_url)]
    """
    Base URL of the reward model's server, for methods that need one.

    It may end in ``/v1``.
    """
    kind: Literal["reward-model"] = "reward-model"
    """Always ``reward-model``; a verifier has another kind, and other fields."""
    delimiter: str = Field(default=DELIMITER, min_length=1)
    """
    What ends every step in the model's training data, and carries the reward: a blank line for most
    models, ``<extra_0>`` for Qwen2.5-Math-PRM.
    """
    layout: Literal["plain", "chat"] = "plain"
    """
    ``plain`` for a model that reads the problem as plain text (RSD's Skywork models), ``chat`` for
    one that reads it in its chat template (Qwen2.5-Math-PRM).
    """
    prefix: str = ""
    """
    What stands before the problem: in the plain layout the authors' BOS token, if the tokenizer
    adds none, and in the chat layout a system message that replaces the template's own.
    """


class Sampling(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """
    How a model chooses its tokens. Every value is sent, so that none of the server's own defaults
    applies.

    The defaults are SpecReason's (section 5.1).
    """

    temperature: float = Field(default=0.6, ge=0, le=2)
    """Sampling temperature; 0 is greedy."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Sample from the likeliest tokens of this total probability; 1: all."""
    top_k: int = Field(default=0, ge=0)
    """Sample from this number of likeliest tokens; 0: all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """
    Sample among tokens with at least this share of the likeliest token's probability; 0: among all.
    """
    repetition_penalty: float = Field(default=1.0, gt=0)
    """
    Holds for the whole chain, since vLLM counts the tokens of the prompt for it; 1: no penalty.
    """
    seed: int | None = None
    """
    Seed of the sampling; the same seed writes the same chain.

    Servers must give equal requests equal tokens. Every request has a seed of its own, derived from
    this seed and the request's place in the chain. None draws a new seed for each run, but for one
    that decides by the time who writes (`auto`), and one of a single model (`large`, `small`):
    these have none.
    """
    logprobs: int = Field(default=0, ge=0, le=20)
    """
    Request the log-probability of every written token and the ranks up to this number (0:
    log-probabilities only). What a method needs is requested in any case. With 0, a large model
    that writes alone reports none.
    """

    def with_likeliest(self, top: int) -> Sampling:
        """Return this sampling with at least the *top* likeliest tokens of every position."""
        return self.model_copy(update={"logprobs": max(top, self.logprobs)}) if top else self

    @property
    def samples_by_seed(self) -> bool:
        """Whether every request needs a seed of its own."""
        return self.temperature > 0 and self.seed is not None

    def with_seed(self, seed: int | None) -> Sampling:
        """
        Return this sampling with *seed*. None: with its own.

        Raise `ConfigurationError` if *seed* is no whole number.
        """
        if seed is not None and type(seed) is not int:
            raise ConfigurationError(f"seed: a whole number, not {seed!r}")
        return self if seed is None else self.model_copy(update={"seed": seed})

    def seeded(self) -> Sampling:
        """Return this sampling with a seed, random if it has none. Greedy sampling needs none."""
        if self.temperature == 0 or self.seed is not None:
            return self
        return self.model_copy(update={"seed": random.getrandbits(31)})

    def seed_for(
        self,
        role: Role,
        verb: Verb,
        chain: Chain,
        opening: str = "",
        *,
        again: bool = False,
    ) -> int | None:
        """
        Return the seed of a request that continues *chain* and *opening*. None: the run has none.

        The seed depends on nothing else. A repeated request keeps its seed: whenever it is sent, as
        a bet or not, and to any replica. A request that is made *again*, because its text was
        rejected for itself, has another seed.
        """
        if self.seed is None:
            return None
        turns = [(message.role, message.content) for message in chain.messages]
        totals = chain.totals
        key: list[object] = [
            self.seed,
            role,
            verb,
            turns,
            totals.count,
            totals.tokens,
            totals.hashed.digest(),
            opening,
        ]
        if again:
            key.append("again")
        text = repr(tuple(key)).encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(text, digest_size=4).digest())


GREEDY = Sampling(temperature=0.0, top_p=1.0)
