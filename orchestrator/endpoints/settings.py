"""What there is to know about an endpoint before talking to it, and how its model samples. Frozen; no I/O."""

from __future__ import annotations

import random
from hashlib import blake2b
from typing import Annotated, Any, Literal, Self, cast
from urllib.parse import urlsplit, urlunsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    field_validator,
    model_validator,
)

from ..chain import DELIMITER, Chain, Party, Role
from ..errors import ConfigurationError
from ..events import Verb

NO_PENALTY = (
    "vLLM counts for it only what one request wrote, and a run makes many requests: leave it at 0 and set "
    "repetition_penalty, which counts the whole chain, or send the request to the served model itself"
)


def _base_url(url: str) -> str:
    """Strip the trailing slash and ``/v1``, which vLLM's own routes (``/tokenize``, ``/metrics``) do not have."""
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not the URL of a server; write it like http://localhost:8000/v1")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} has a query or a fragment; write it like http://localhost:8000/v1")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _none_if_empty(key: object) -> object:
    """A variable that is set to nothing is how a shell says that there is no key."""
    return None if key == "" else key


class Deadlines(BaseModel):
    """
    How long to wait, in seconds: for a connection, the first token, the next token, and the whole request.

    *rest* is how long a replica that failed is left alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    connect: PositiveFloat = 5.0
    first: PositiveFloat = 120.0
    between: PositiveFloat = 30.0
    total: PositiveFloat = 600.0
    rest: PositiveFloat = 30.0


class Address(BaseModel, frozen=True, extra="forbid"):
    """
    One served model: where it is, and how hard it may be worked.

    *url* is given with or without ``/v1``. *model* is the served name; without one, the first that the server lists.
    *requests_per_second* limits how many requests are begun. *retries* is how often a request is repeated that failed
    before its first token. *priorities* are sent with the requests of a run, for a vLLM that schedules by priority.
    """

    role: Party
    url: Annotated[str, AfterValidator(_base_url)]
    model: str | None = Field(default=None, min_length=1)
    api_key: Annotated[SecretStr | None, BeforeValidator(_none_if_empty)] = None
    max_concurrency: PositiveInt = 64
    requests_per_second: PositiveFloat | None = None
    retries: int = Field(default=3, ge=0)
    priorities: bool = True
    deadlines: Deadlines = Deadlines()

    @property
    def v1(self) -> str:
        """The base URL of the OpenAI routes."""
        return f"{self.url}/v1"


class Endpoint(Address, frozen=True):
    """
    A model that writes. *template* is passed on to the chat template (``chat_template_kwargs``).

    *thinks* says whether the model thinks in a block of its own before it answers. None finds out, by the chat template
    or, where that shows no block, by the first words of an answer. False has a model that would think answer at once.

    *replicas* are the URLs of more servers of the same model; a *url* may also be several, with commas between them.

    *suffix_scoring* scores a text for the price of the text, where otherwise the whole chain before it is read again.
    Switch it on only for a vLLM that was started with ``--enable-scale-out --enable-prompt-tokens-details``, on a CPU
    with ``MALLOC_PERTURB_=255`` in its environment as well: it passes sampling parameters on that vLLM does not check,
    and an unknown version might not survive them.
    """

    role: Role
    replicas: tuple[Annotated[str, AfterValidator(_base_url)], ...] = ()
    template: dict[str, Any] = {}
    thinks: bool | None = None
    suffix_scoring: bool = False

    @model_validator(mode="before")
    @classmethod
    def _part(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "," not in str(cast("dict[str, Any]", given).get("url")):
            return cast("Any", given)
        fields = cast("dict[str, Any]", given)
        first, *others = str(fields["url"]).split(",")
        return {**fields, "url": first, "replicas": (*others, *fields.get("replicas", ()))}

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if len(set(self.urls)) < len(self.urls):
            raise ValueError(f"a URL is given twice: {', '.join(self.urls)}")
        return self

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url, *self.replicas)

    @property
    def each(self) -> tuple[Endpoint, ...]:
        """The servers one by one."""
        return tuple([self.model_copy(update={"url": url, "replicas": ()}) for url in self.urls])

    def turned(self, places: int) -> Endpoint:
        """The same servers, with another first: one who counts *places* differently begins elsewhere."""
        first, *others = (self.urls * 2)[places % len(self.urls) :][: len(self.urls)]
        return self.model_copy(update={"url": first, "replicas": tuple(others)})


class CriticEndpoint(Address, frozen=True):
    """
    A reward model.

    *delimiter* is what it was trained to see behind every step, and where it gives its reward: a blank line for most,
    ``<extra_0>`` for Qwen2.5-Math-PRM. The *layout* is "plain" for a model that reads the problem as it is (RSD's
    Skywork models), "chat" for one that reads it in its chat template (Qwen2.5-Math-PRM). *prefix* stands before the
    problem: in the plain layout what the authors call the BOS token, where the tokenizer adds none by itself, and in
    the chat layout a system message in place of the template's own.
    """

    role: Literal["critic"] = "critic"
    delimiter: str = Field(default=DELIMITER, min_length=1)
    layout: Literal["plain", "chat"] = "plain"
    prefix: str = ""


class Sampling(BaseModel):
    """
    How a model chooses its tokens. Every value is sent, so that none of the server's own defaults applies.

    The defaults are SpecReason's (section 5.1). A *temperature* of 0 is greedy. With a *seed* every request has a seed
    of its own, which follows from this one and from the request's place in the chain: the same seed gives the same
    chain, as far as the server gives equal requests equal tokens. None draws a fresh seed for each run.

    *repetition_penalty* holds for the whole chain, since vLLM counts the tokens of the prompt for it. For the presence
    and frequency penalties it counts only what the same request wrote, and a run makes many requests: they have to be
    0. *logprobs* asks for the log-probability of every written token and for the ranks up to that number (0:
    log-probabilities only; None: neither). What a policy asks for by `Model.write`'s *top* is told in any case.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(default=0.6, ge=0, le=2)
    top_p: float = Field(default=0.95, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, gt=0)
    seed: int | None = None
    logprobs: int | None = Field(default=0, ge=0, le=20)

    @field_validator("presence_penalty", "frequency_penalty")
    @classmethod
    def _whole_chain(cls, penalty: float) -> float:
        if penalty:
            raise ValueError(NO_PENALTY)
        return penalty

    def telling(self, top: int) -> Sampling:
        """Ask also for the *top* likeliest tokens of every place; 0 asks for nothing more."""
        return self.model_copy(update={"logprobs": max(top, self.logprobs or 0)}) if top else self

    @property
    def repeats(self) -> bool:
        """Whether every request has to have a seed of its own: the model samples, and by a seed."""
        return self.temperature > 0 and self.seed is not None

    def with_seed(self, seed: int | None) -> Sampling:
        """Return this sampling with another *seed*; with its own if that is None. Raise `ConfigurationError`."""
        if seed is not None and type(seed) is not int:
            raise ConfigurationError(f"seed: a whole number, not {seed!r}")
        return self if seed is None else self.model_copy(update={"seed": seed})

    def seeded(self) -> Sampling:
        """Return this sampling with a seed, drawn if there is none; a greedy one needs no seed."""
        if self.temperature == 0 or self.seed is not None:
            return self
        return self.model_copy(update={"seed": random.getrandbits(31)})

    def within(self, role: Role) -> Sampling:
        """Return the sampling of the models within a nested pair in *role*: its seeds are not those outside."""
        if self.seed is None:
            return self
        return self.model_copy(update={"seed": _digest(self.seed, "within", role)})

    def seed_for(self, role: Role, verb: Verb, chain: Chain, opening: str = "") -> int | None:
        """
        Derive the seed of a request that goes on after *chain* and *opening*; None without a seed of the run.

        It depends on nothing else, so that a request that is repeated keeps its seed: whenever it is sent, as a bet or
        not, to whichever replica.
        """
        if self.seed is None:
            return None
        turns = [(message.role, message.content) for message in chain.messages]
        return _digest(self.seed, role, verb, turns, len(chain.steps), chain.tokens, chain.text, opening)


def _digest(*key: object) -> int:
    """Return a number of 32 bits, the same for the same *key*."""
    return int.from_bytes(blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=4).digest())
