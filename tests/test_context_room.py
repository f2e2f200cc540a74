"""A budget is cut to the size of both contexts, and both servers count the problem concurrently."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

import pytest

from stepspec.api import JUDGING_ROOM, LEAST_ROOM, context_room
from stepspec.orchestrator import Budget, Chain
from stepspec.orchestrator.chain import Message, Role, Tool
from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.endpoints.interfaces import ModelEndpoint
from stepspec.orchestrator.errors import ContextTooLong, EndpointUnavailable

from .fakes import run

CHAIN = Chain.of("What is 1 + 1?")


@dataclass
class Counting:
    """An endpoint that takes some *seconds* to count a prompt, and may fail then."""

    role: Role
    room: int = 1000
    seconds: float = 1.0
    fails: bool = False
    cancelled: bool = False

    @property
    def settings(self) -> Endpoint:
        return Endpoint(role=self.role, url="http://localhost:8001")

    async def count(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> int:
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.fails:
            raise EndpointUnavailable("gone", role=self.role)
        return 100


def fit(*endpoints: Counting, tokens: int = 8192) -> tuple[Budget, float]:
    """Return what is left of a budget, and when that is known."""

    async def main() -> tuple[Budget, float]:
        room = await context_room(CHAIN, [cast("ModelEndpoint", endpoint) for endpoint in endpoints])
        return Budget(tokens).fit(room), asyncio.get_running_loop().time()

    return run(main())[0]


def test_the_smaller_context_decides_without_waiting_for_the_other() -> None:
    left, at = fit(Counting("small", 900, 3.0), Counting("large", 2000, 2.0))
    assert (left.tokens, at) == (900 - 100 - JUDGING_ROOM, 3.0)


def test_a_failure_ends_the_other_count_too() -> None:
    slow = Counting("large", seconds=600.0)
    with pytest.raises(EndpointUnavailable, match="gone"):
        fit(Counting("small", fails=True), slow)
    assert slow.cancelled


def test_a_problem_that_leaves_too_little_room_is_refused() -> None:
    assert fit(Counting("small", 100 + JUDGING_ROOM + LEAST_ROOM))[0].tokens == LEAST_ROOM
    with pytest.raises(ContextTooLong, match="the problem has 100 tokens"):
        fit(Counting("small", 100 + JUDGING_ROOM + LEAST_ROOM - 1))
