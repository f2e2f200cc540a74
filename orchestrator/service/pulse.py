"""Whether both servers are up, from a light look at them now and then; asking for it waits for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

import aiohttp

from ..chain import Role
from ..endpoints import AnyEndpoint

WITHIN = 5.0  # seconds for one look


class Pulse:
    """The last known state of each role's servers; *tell* hears of every look."""

    def __init__(
        self, http: aiohttp.ClientSession, endpoints: Mapping[Role, AnyEndpoint], tell: Callable[[Role, bool], None]
    ) -> None:
        self._http, self._endpoints, self._tell = http, endpoints, tell
        self.up: dict[Role, bool] = dict.fromkeys(endpoints, True)  # They answered when the engine was entered.

    @property
    def steady(self) -> bool:
        return all(self.up.values())

    @asynccontextmanager
    async def felt(self, every: float) -> AsyncGenerator[None]:
        """Look at every server *every* so many seconds while the block lasts."""

        async def feel() -> None:
            while True:
                await asyncio.gather(*map(self._look, self._endpoints))
                await asyncio.sleep(every)

        feeling = asyncio.create_task(feel())
        try:
            yield
        finally:
            feeling.cancel()
            await asyncio.wait([feeling])

    async def _look(self, role: Role) -> None:
        """A role is up if one of its servers is."""
        answers = await asyncio.gather(*map(self._healthy, self._endpoints[role].settings.urls))
        self.up[role] = any(answers)
        self._tell(role, self.up[role])

    async def _healthy(self, url: str) -> bool:
        try:
            async with self._http.get(f"{url}/health", timeout=aiohttp.ClientTimeout(total=WITHIN)) as response:
                return response.status < 500
        except (aiohttp.ClientError, TimeoutError):
            return False
