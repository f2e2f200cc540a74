"""The settings of an endpoint, and how its model samples. Frozen; no I/O."""

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
    if parts.scheme not in ("http", "https") or not _is_host(parts.hostname or ""):
        raise ValueError(f"{url!r} is not the URL of a server; write it like http://localhost:8000/v1")
    try:
        parts.port  # noqa: B018  # raises for a port that is no number from 0 to 65535
    except ValueError:
        raise ValueError(f"{url!r} has no valid port; write it like http://localhost:8000/v1") from None
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} has a query or a fragment; write it like http://localhost:8000/v1")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _is_host(name: str) -> bool:
    try:
        return bool(name.encode("idna")) and not any(character.isspace() for character in name)
    except UnicodeError:  # an empty part between two dots, or one of more than 63 characters
        return False


def _none_if_empty(key: object) -> object:
    """Read an empty key as None: a shell variable without a key is set to nothing."""
    return None if key == "" else key


class Deadlines(BaseModel):
    """
    The longest waits in seconds.

    They are for a connection (*connect*), for the *first* token, *between* two tokens, and for the whole request
    (*total*). *rest* is the time for which new runs avoid a replica that failed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    connect: PositiveFloat = 5.0
    first: PositiveFloat = 120.0
    between: PositiveFloat = 30.0
    total: PositiveFloat = 600.0
    rest: PositiveFloat = 30.0


class Address(BaseModel, frozen=True, extra="forbid"):
    """
    One served model: its address, and the limits of its requests.

    *url* may end in ``/v1``. *model* is the served name; None means the first that the server lists. *api_key* is the
    key that the server wants, if it wants one. At most *max_concurrency* requests are open at a time, and
    *requests_per_second* limits how many requests start. *retries* is the number of further attempts for a request that
    failed before its first token. *priorities* sends a priority with the requests of a run, for a vLLM that schedules
    by priority. *deadlines* are the longest waits. The *role* follows from the place in the settings.
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
    A model that writes. *template* holds variables of the chat template (``chat_template_kwargs``).

    *thinks*: the model thinks in a block of its own before it answers. None finds out, by the chat template or, if the
    template shows no block, by the first words of an answer. False makes a model that would think answer at once.

    *replicas* are the URLs of more servers of the same model; *url* may also be several URLs, separated by commas.

    *suffix_scoring* reads only a scored text, where otherwise the whole chain before it is read again. Switch it on
    only for a vLLM that was started with ``--enable-scale-out --enable-prompt-tokens-details``, on a CPU also with
    ``MALLOC_PERTURB_=255`` in its environment: it passes on sampling parameters that vLLM does not check, and an
    unknown version might crash.
    """

    role: Role
    replicas: tuple[Annotated[str, AfterValidator(_base_url)], ...] = ()
    template: dict[str, Any] = {}
    thinks: bool | None = None
    suffix_scoring: bool = False

    @model_validator(mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "," not in str(cast("dict[str, Any]", value).get("url")):
            return cast("Any", value)
        fields = cast("dict[str, Any]", value)
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
        """The settings of each server by itself."""
        return tuple([self.model_copy(update={"url": url, "replicas": ()}) for url in self.urls])

    def turned(self, places: int) -> Endpoint:
        """Return the same servers, rotated by *places*, so that several processes begin with different ones."""
        first, *others = (self.urls * 2)[places % len(self.urls) :][: len(self.urls)]
        return self.model_copy(update={"url": first, "replicas": tuple(others)})


class CriticEndpoint(Address, frozen=True):
    """
    A reward model.

    *delimiter* ends every step in the model's training data, and carries the reward: a blank line for most models,
    ``<extra_0>`` for Qwen2.5-Math-PRM. The *layout* is "plain" for a model that reads the problem as plain text (RSD's
    Skywork models), "chat" for one that reads it in its chat template (Qwen2.5-Math-PRM). *prefix* stands before the
    problem: in the plain layout the authors' BOS token, if the tokenizer adds none, and in the chat layout a system
    message that replaces the template's own.
    """

    role: Literal["critic"] = "critic"
    delimiter: str = Field(default=DELIMITER, min_length=1)
    layout: Literal["plain", "chat"] = "plain"
    prefix: str = ""


class Sampling(BaseModel):
    """
    How a model chooses its tokens. Every value is sent, so that none of the server's own defaults applies.

    The defaults are SpecReason's (section 5.1). A *temperature* of 0 is greedy. With a *seed* every request has a seed
    of its own, derived from this seed and the request's place in the chain: the same seed gives the same chain, if the
    server gives equal requests equal tokens. None draws a new seed for each run.

    *top_p*, *top_k* and *min_p* leave out unlikely tokens: those beyond a total probability, beyond a rank (0: none),
    and below a share of the likeliest token's probability.

    *repetition_penalty* holds for the whole chain, since vLLM counts the tokens of the prompt for it. For
    *presence_penalty* and *frequency_penalty* it counts only what the same request wrote, and a run makes many
    requests: they have to be 0. *logprobs* requests the log-probability of every written token and the ranks up to that
    number (0: log-probabilities only; None: neither). The *top* of a `Model.write` is requested in any case.
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
        """Return this sampling with at least the *top* likeliest tokens of every position; 0 changes nothing."""
        return self.model_copy(update={"logprobs": max(top, self.logprobs or 0)}) if top else self

    @property
    def repeats(self) -> bool:
        """Whether every request needs a seed of its own: the temperature is above 0, and there is a seed."""
        return self.temperature > 0 and self.seed is not None

    def with_seed(self, seed: int | None) -> Sampling:
        """Return this sampling with *seed*; None keeps its own. Raise `ConfigurationError` if it is no whole number."""
        if seed is not None and type(seed) is not int:
            raise ConfigurationError(f"seed: a whole number, not {seed!r}")
        return self if seed is None else self.model_copy(update={"seed": seed})

    def seeded(self) -> Sampling:
        """Return this sampling with a seed, drawn at random if there is none; greedy sampling needs none."""
        if self.temperature == 0 or self.seed is not None:
            return self
        return self.model_copy(update={"seed": random.getrandbits(31)})

    def within(self, role: Role) -> Sampling:
        """Return the sampling for the models of a nested pair in *role*, with other seeds than outside the pair."""
        if self.seed is None:
            return self
        return self.model_copy(update={"seed": _digest(self.seed, "within", role)})

    def seed_for(self, role: Role, verb: Verb, chain: Chain, opening: str = "") -> int | None:
        """
        Derive the seed of a request that continues *chain* and *opening*; None if the run has no seed.

        It depends on nothing else. A repeated request keeps its seed: whenever it is sent, as a bet or not, and to any
        replica.
        """
        if self.seed is None:
            return None
        turns = [(message.role, message.content) for message in chain.messages]
        totals = chain.totals
        return _digest(self.seed, role, verb, turns, totals.count, totals.tokens, totals.hashed.digest(), opening)


def _digest(*key: object) -> int:
    """Hash *key* to a number of 32 bits."""
    return int.from_bytes(blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=4).digest())
