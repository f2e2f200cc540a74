from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

from stepspec.orchestrator.backends.vllm import VllmEndpoint, VllmModel
from stepspec.orchestrator.endpoints import GREEDY, Sampling
from stepspec.orchestrator.events import Called, Event

from ..stand_in import FakeVllm


@dataclass
class Met:
    """A model on a server of its own, and the requests that it has reported."""

    model: VllmModel
    endpoint: VllmEndpoint
    events: list[Event]

    @property
    def calls(self) -> list[Called]:
        return [event for event in self.events if isinstance(event, Called)]


Meet: TypeAlias = Callable[..., AbstractAsyncContextManager[Met]]


@asynccontextmanager
async def _meet(
    server: FakeVllm, sampling: Sampling | None = None, **settings: Any
) -> AsyncGenerator[Met]:
    events: list[Event] = []
    async with server.serve(**settings) as endpoint, VllmEndpoint(endpoint) as vllm:
        yield Met(vllm.model(sampling or GREEDY, observe=events.append), vllm, events)


async def eventually(condition: Callable[[], bool]) -> None:
    """
    Let everything else go on until *condition* holds; the test's time limit is the only clock.
    """
    while not condition():  # noqa: ASYNC110  # the servers and tasks under test set no events
        await asyncio.sleep(0)


@pytest.fixture
def meet() -> Meet:
    """Start *server* and connect a model to it."""
    return _meet
