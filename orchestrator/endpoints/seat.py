"""Where a run sits among the replicas of a model, and how it moves when that one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from weakref import WeakSet

from ..chain import Role
from ..errors import EndpointError, EndpointUnavailable, StepspecError
from ..events import Moved, Observer
from .interfaces import AnyEndpoint
from .settings import Endpoint

T = TypeVar("T")


@dataclass(eq=False)
class Replica:
    """
    One server. *endpoint* is None until it was up for the first time.

    *cause* tells why it failed, "" if it works; until the second *rests* of the loop's clock new runs leave it alone.
    """

    settings: Endpoint
    endpoint: AnyEndpoint | None = None
    cause: str = ""
    rests: float = 0.0
    runs: WeakSet[Seat] = field(default_factory=lambda: WeakSet[Seat]())
    entering: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def url(self) -> str:
        return self.settings.url

    @property
    def rested(self) -> bool:
        return not self.cause or asyncio.get_running_loop().time() >= self.rests

    def failed(self, exc: StepspecError) -> str:
        """Begin to rest; return why."""
        self.cause = (exc.cause if isinstance(exc, EndpointError) else str(exc)) or "failed"
        self.rest()
        return self.cause

    def rest(self) -> None:
        self.rests = asyncio.get_running_loop().time() + self.settings.deadlines.rest

    def worked(self) -> None:
        self.cause = ""


class Replicas(Protocol):
    """All servers of one model, as those see them who look for a place."""

    @property
    def role(self) -> Role: ...

    def choose(self, failed: Mapping[str, str]) -> Replica:
        """Choose a replica that has not *failed*. Raise `EndpointUnavailable` if all have."""
        ...

    async def reach(self, replica: Replica) -> AnyEndpoint:
        """Return the endpoint of *replica*. Raise a `StepspecError` if it is down."""
        ...


class Seat:
    """Where one run sits. Its verbs may be called at the same time; a replica's failure moves all of them, once."""

    def __init__(self, replicas: Replicas, observe: Observer) -> None:
        self._replicas, self._observe = replicas, observe
        self._at: Replica | None = None
        self._moving = asyncio.Lock()

    @property
    def role(self) -> Role:
        return self._replicas.role

    async def call(self, verb: Callable[[AnyEndpoint], Awaitable[T]]) -> T:
        """Do *verb* where the run sits, or at the next replica. Raise `EndpointUnavailable` if it fails at all."""
        failed: dict[str, str] = {}
        while True:
            replica, endpoint = await self._sit(failed)
            try:
                result = await verb(endpoint)
            except EndpointUnavailable as exc:
                failed[replica.url] = replica.failed(exc)
            else:
                replica.worked()
                return result

    def leave(self) -> None:
        if self._at is not None:
            self._at.runs.discard(self)
        self._at = None

    async def _sit(self, failed: dict[str, str]) -> tuple[Replica, AnyEndpoint]:
        """Stay where the run sits unless that has *failed*; otherwise move, and note there what fails on the way."""
        async with self._moving:
            while self._at is None or self._at.url in failed or self._at.endpoint is None:
                chosen = self._replicas.choose(failed)
                try:
                    await self._replicas.reach(chosen)
                except StepspecError as exc:
                    failed[chosen.url] = chosen.failed(exc)
                else:
                    self._move(chosen, failed)
            return self._at, self._at.endpoint

    def _move(self, to: Replica, failed: Mapping[str, str]) -> None:
        left = self._at
        self.leave()
        self._at = to
        to.runs.add(self)
        if left is not None:
            self._observe(Moved(self.role, left.url, to.url, failed[left.url]))
