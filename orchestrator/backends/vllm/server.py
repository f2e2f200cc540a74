"""A server of vLLM as the models of all runs on it share it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

from ...chain import Role
from ...endpoints.metrics import CacheConfig
from ...endpoints.settings import Endpoint
from ...errors import EndpointError
from ...http.client import ConnectedEndpoint
from .tokenizer import ModelTokenizer

SPELLING_SECONDS = 2.0
"""For which a stream waits to know how its tokens are spelt."""


class VllmServer(ConnectedEndpoint[Endpoint]):
    """What the models of all runs on one server know of it, and what keeps their requests apart."""

    tokenizer: ModelTokenizer
    """The tokenizer and the chat template, learnt on entering."""

    def __init__(self, settings: Endpoint) -> None:
        super().__init__(settings)
        self.speculates = False
        """Whether the server speculates on tokens. Most events of a stream then have several."""
        self.answers_by_id: bool | None = None
        """Whether the server returns log-probabilities of given token ids. None: not tried."""
        self.cache = CacheConfig()
        """The server's prefix cache."""
        self._reading = 0  # requests under way for the likeliest tokens of positions
        self._asking = 0  # questions by token ids under way
        self._answered = asyncio.Event()

    @property
    def role(self) -> Role:
        return self.settings.role

    @property
    def checkpoints(self) -> bool:
        """Whether a question has the chain as a second prompt: see `CacheConfig.checkpoints`."""
        return self.cache.checkpoints

    @asynccontextmanager
    async def without_questions(self) -> AsyncGenerator[None]:
        """
        Keep a request that reads the likeliest tokens of positions apart from questions by ids.

        If one batch of vLLM's V1 runner has both, vLLM loses the likeliest tokens. So the block
        first waits until the questions by ids are answered. Each of these questions writes only one
        token. A question that begins during the block reads the 20 likeliest tokens instead.
        """
        self._reading += 1
        try:
            while self._asking:
                self._answered.clear()
                await self._answered.wait()
            yield
        finally:
            self._reading -= 1

    @property
    def may_ask_by_id(self) -> bool:
        """Whether a question may ask for the log-probabilities of given token ids now."""
        return self.answers_by_id is not False and not self._reading

    @contextmanager
    def asking_by_id(self) -> Generator[None]:
        """Count a question by token ids for `without_questions`."""
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1
            self._answered.set()

    async def spell(self, ids: Sequence[int]) -> Mapping[int, str]:
        """Return the spellings of tokens; none of them if the server does not answer soon."""
        with suppress(EndpointError, TimeoutError):
            async with asyncio.timeout(SPELLING_SECONDS):
                return await self.tokenizer.pieces(ids)
        return {}
