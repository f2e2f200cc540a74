"""A server of vLLM as the models of all runs on it share it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ...chain import Role
from ...endpoints.metrics import CacheConfig
from ...endpoints.settings import Endpoint
from ...errors import EndpointError
from ...http.client import ConnectedEndpoint
from .tokenizer import ModelTokenizer

SPELLING_SECONDS = 2.0
"""For which a stream waits to know how its tokens are spelt."""


class VllmServer(ConnectedEndpoint[Endpoint]):
    """What the models of all runs on one server know of it."""

    tokenizer: ModelTokenizer
    """The tokenizer and the chat template, learnt on entering."""

    def __init__(self, settings: Endpoint) -> None:
        super().__init__(settings)
        self.speculates = False
        """Whether the server speculates on tokens. Most events of a stream then have several."""
        self.cache = CacheConfig()
        """The server's prefix cache."""

    @property
    def role(self) -> Role:
        return self.settings.role

    @property
    def checkpoints(self) -> bool:
        """Whether a question has the chain as a second prompt: see `CacheConfig.checkpoints`."""
        return self.cache.checkpoints

    async def spell(self, ids: Sequence[int]) -> Mapping[int, str]:
        """Return the spellings of tokens; none of them if the server does not answer soon."""
        with suppress(EndpointError, TimeoutError):
            async with asyncio.timeout(SPELLING_SECONDS):
                return await self.tokenizer.pieces(ids)
        return {}
