"""The models that need no real server keep the promises of `Model`."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Generator
from dataclasses import replace

import pytest

from stepspec.orchestrator.backends.vllm import VllmEndpoint, connect
from stepspec.orchestrator.chain import THINK_END, Chain
from stepspec.orchestrator.endpoints import GREEDY, Endpoint
from stepspec.orchestrator.events import Event

from ..fakes import ScriptedModel, counting
from ..stand_in import FakeVllm, stand_in_process
from .model import ModelContract, Subject

PROBLEM = Chain.of("What is 1 + 1?")
SCRIPT = (
    "So",
    " one",
    " plus",
    ".\n\n",
    "Then",
    " two",
    ".\n\nSo",
    " it",
    " is",
    ".",
    "\n",
    "\n",
    "Done",
    THINK_END,
    "2",
)


@pytest.mark.parametrize("sticky", [False, True])
class TestScriptedModel(ModelContract):
    @pytest.fixture
    def subject(self, sticky: bool) -> Subject:
        events: list[Event] = []
        model = ScriptedModel(
            "small",
            counting("small", 4),
            latency=lambda chain: 0.0,
            reading=lambda chain: 0.0,
            pace=1e-6,  # seconds; enough to be cancelled in
            judge=lambda chain, question: {"7": 0.5, "9": 0.25},
            sticky=sticky,
            observe=events.append,
        )
        return Subject(model, PROBLEM, events)


class TestVllmModel(ModelContract):
    @pytest.fixture
    async def subject(self) -> AsyncGenerator[Subject]:
        events: list[Event] = []
        server = FakeVllm(SCRIPT, chunk=3, digits={"7": -0.7, "9": -1.4})
        async with server.serve() as endpoint, VllmEndpoint(endpoint) as vllm:
            yield Subject(vllm.model(observe=events.append), PROBLEM, events)


class TestReplicatedModel(ModelContract):
    @pytest.fixture
    async def subject(self) -> AsyncGenerator[Subject]:
        events: list[Event] = []
        first = FakeVllm(SCRIPT, digits={"7": -0.7, "9": -1.4})
        second = replace(first, faults=deque(), requests=[])
        async with first.serve() as one, second.serve() as two:
            settings = one.model_copy(update={"url": f"{one.url},{two.url}"})
            async with connect(settings) as endpoint:
                yield Subject(endpoint.model(observe=events.append), PROBLEM, events)


class TestStandIn(ModelContract):
    @pytest.fixture(scope="class")
    @classmethod
    def stand_in_url(cls) -> Generator[str]:
        """One process for all tests."""
        with stand_in_process("--steps", "12", "--step-tokens", "20", "--scale-out") as url:
            yield url

    @pytest.fixture
    async def subject(self, stand_in_url: str) -> AsyncGenerator[Subject]:
        events: list[Event] = []
        endpoint = Endpoint(role="small", url=stand_in_url, suffix_scoring=True)
        async with VllmEndpoint(endpoint) as vllm:
            yield Subject(vllm.model(GREEDY, observe=events.append), PROBLEM, events)
