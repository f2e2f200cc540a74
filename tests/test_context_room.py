"""A budget is cut to the size of both contexts, and both servers count the problem concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

import pytest

from stepspec import Solver
from stepspec.orchestrator import Budget, Chain
from stepspec.orchestrator.chain import Message, Role, Tool
from stepspec.orchestrator.endpoints import Endpoint, ReplicatedEndpoint
from stepspec.orchestrator.errors import ContextTooLong, EndpointUnavailable
from stepspec.run_parts import JUDGING_TOKENS, MIN_ROOM, context_room

from .fakes import run
from .stand_in import FakeVllm

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

    async def call(self, verb: Callable[[Counting], Awaitable[int]]) -> int:
        return await verb(self)

    async def count(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> int:
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.fails:
            raise EndpointUnavailable("gone", role=self.role)
        return 100


def fit(small: Counting, large: Counting, tokens: int = 8192) -> tuple[Budget, float]:
    """Return what is left of a budget, and when that is known."""

    async def main() -> tuple[Budget, float]:
        room, lost = await context_room(
            CHAIN, cast("ReplicatedEndpoint", small), cast("ReplicatedEndpoint", large)
        )
        assert (lost is None) == (not small.fails)
        return Budget(tokens).fit(room), asyncio.get_running_loop().time()

    return run(main())[0]


def test_the_smaller_context_decides_without_waiting_for_the_other() -> None:
    left, at = fit(Counting("small", 900, 3.0), Counting("large", 2000, 2.0))
    assert (left.tokens, at) == (900 - 100 - JUDGING_TOKENS, 3.0)


def test_a_failure_ends_the_other_count_too() -> None:
    slow = Counting("small", seconds=600.0)
    with pytest.raises(EndpointUnavailable, match="gone"):
        fit(slow, Counting("large", fails=True))
    assert slow.cancelled


def test_without_the_small_model_the_room_is_the_large_ones_unless_the_run_needs_both() -> None:
    gone = Counting("small", 300, fails=True)
    large = Counting("large", 2000)
    assert fit(gone, large)[0].tokens == 2000 - 100 - JUDGING_TOKENS
    with pytest.raises(EndpointUnavailable, match="gone"):
        run(
            context_room(
                CHAIN,
                cast("ReplicatedEndpoint", gone),
                cast("ReplicatedEndpoint", large),
                needs_small=True,
            )
        )


def test_a_problem_that_leaves_too_little_room_is_refused() -> None:
    large = Counting("large")
    short = Counting("large", 100 + JUDGING_TOKENS + MIN_ROOM - 1)
    assert fit(Counting("small", 100 + JUDGING_TOKENS + MIN_ROOM), large)[0].tokens == MIN_ROOM
    with pytest.raises(ContextTooLong, match=": 100 tokens leave no room"):
        fit(Counting("small"), short)


async def test_a_run_whose_small_model_has_too_short_a_context_is_the_large_ones() -> None:
    script = ("So", " one", ".\n\n", "Done", "</think>", "\n\n", "It is 2.")
    large = FakeVllm(script)
    small = FakeVllm(script, room=60)
    async with (
        small.serve("small") as one,
        large.serve("large") as other,
        Solver(one, other) as solver,
    ):
        solution = await solver.solve("What is 1 + 1?" * 9)
        assert solution.text == "It is 2."
        assert [path for path, _ in small.requests if "completions" in path] == []
        with pytest.raises(
            ContextTooLong, match=r"the small model at .* leave no room to think; .* length is 60"
        ):
            await solver.solve("What is 1 + 1?" * 9, policy="small")


def test_a_problem_that_only_the_large_model_takes_is_left_to_it() -> None:
    small = Counting("small", 100)
    large = Counting("large", 2000)
    models = cast("ReplicatedEndpoint", small), cast("ReplicatedEndpoint", large)
    room, lost = run(context_room(CHAIN, *models))[0]
    assert room == 2000 - 100 - JUDGING_TOKENS
    assert isinstance(lost, ContextTooLong)
    assert lost.role == "small"
    with pytest.raises(ContextTooLong):
        run(context_room(CHAIN, *models, needs_small=True))
