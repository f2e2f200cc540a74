"""A model served by vLLM: the connection that runs share, and what was learnt about the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from types import TracebackType
from typing import Self

from ..chain import Message, Role
from ..errors import EndpointError
from ..events import Observer
from . import acceptance, caching, wire
from .acceptance import Acceptance, Look
from .caching import CacheConfig
from .client import Connection
from .clock import or_now
from .encoder import Encoder
from .model import VllmModel
from .probe import Capabilities, probe
from .queue import Queue, read
from .settings import Endpoint, Sampling
from .template import Template
from .together import Together


class VllmEndpoint:
    """
    The connection to one served model and what was learnt about it on entering.

    Entering raises an `EndpointError` that names the cure if the server cannot be used, and `MissingCapability` if its
    chat template cannot be learnt.
    """

    def __init__(self, settings: Endpoint) -> None:
        self.settings = settings
        self.name = settings.model or ""
        self.by_id: bool | None = None  # whether it returns the log-probabilities of chosen ids; None: not tried yet
        self.asked = -inf  # when its metrics were last asked for, on the loop's clock
        self.seen: Look | None = None  # the last look at a server that speculates
        self.cache: CacheConfig | None = None  # how it caches prefixes; None where it does not tell
        self.together = Together(self._ask_all)
        self._can: Capabilities | None = None

    async def __aenter__(self) -> Self:
        self.connection = Connection(self.settings)
        try:
            self.name = await self.connection.chosen()
            self.encoder = Encoder(self.connection, self.name)
            await self.encoder.learn()
            # A question by ids is an error on a V1 runner that speculates, and beside drafted tokens the engine's end.
            self.by_id = False if await self.acceptance() is not None else None
        except BaseException:
            await self.connection.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.connection.close()

    @property
    def role(self) -> Role:
        return self.settings.role

    @property
    def template(self) -> Template:
        return self.encoder.template

    @property
    def vocabulary(self) -> str:
        """Equal for models that share their token ids."""
        return self.encoder.vocabulary

    @property
    def room(self) -> int:
        """The longest sequence that the model takes, in tokens."""
        return self.encoder.room

    @property
    def checkpoints(self) -> bool:
        """Whether a question is worth a second prompt, that of the chain alone: see `caching`."""
        return self.cache is not None and self.cache.checkpoints

    async def queue(self) -> Queue | None:
        """Look at the server's queue; None if it shows none, or cannot be reached."""
        metrics = await self._metrics("look at the queue")
        return read(metrics) if metrics is not None else None

    async def acceptance(self) -> Acceptance | None:
        """Count what became of the tokens drafted in the server, since its start; None if none are, or nobody tells."""
        metrics = await self._metrics("look at the acceptance")
        return acceptance.read(metrics) if metrics is not None else None

    async def count(self, messages: tuple[Message, ...]) -> int:
        """Count the tokens that a chain about *messages* begins with."""
        return len(await self.encoder.prefix(messages))

    def model(
        self,
        sampling: Sampling = wire.GREEDY,
        *,
        observe: Observer = lambda event: None,
        clock: Callable[[], float] | None = None,
        format: wire.Format | None = None,
    ) -> VllmModel:
        """
        Make the model of one run. *clock* returns the seconds since the run began; by default it begins now.

        With a *format*, everything that this model writes is JSON.
        """
        return VllmModel(self, sampling, observe, or_now(clock), format)

    async def capabilities(self) -> Capabilities:
        """Find out what the server can do, once."""
        if self._can is None:
            self._can = await probe(
                self.connection, self.name, self.encoder, suffix_scoring=self.settings.suffix_scoring
            )
            self.by_id = self._can.chosen_logprobs
        return self._can

    async def _metrics(self, verb: str) -> bytes | None:
        self.asked = asked = asyncio.get_running_loop().time()
        try:
            metrics = await self.connection.glance(self.connection.call(verb), "/metrics")
        except EndpointError:
            return None
        self.cache = caching.read(metrics) or self.cache
        if self.seen is None or self.seen.at <= asked:
            self.seen = acceptance.look(metrics, asked) or self.seen
        return metrics

    async def _ask_all(self, choices: Sequence[int], prompts: Sequence[Sequence[int]]) -> wire.Reply:
        """Send *prompts* in one request; each is answered by one of the *choices*."""
        body = wire.asking(self.name, prompts if len(prompts) > 1 else prompts[0], choices, by_id=True)
        return await self.connection.post(self.connection.call("ask"), "/v1/completions", body)
