"""Admission and replicas under any order of events, against a simple model of what they promise."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lab.virtual_clock import JumpingLoop
from stepspec.orchestrator.errors import EndpointUnavailable
from stepspec.orchestrator.service.http.admission import Admission
from stepspec.orchestrator.service.http.errors import ApiError
from stepspec.orchestrator.service.settings import ServiceSettings

from ..fakes import ScriptedModel, counting
from .arms import PROBLEM
from .endpoints.mortal import NEVER, Mortal, replicated

LONGEST = 50.0  # seconds that a request waits for a slot
INDEX = st.integers(0, 99)


class OnOneLoop(RuleBasedStateMachine):
    """A machine whose rules run on one clock that jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = JumpingLoop()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.do(self.close())
        left = asyncio.all_tasks(self.loop)
        self.loop.close()
        assert not left

    async def close(self) -> None:
        """Leave no task."""


@dataclass(eq=False)
class Visit:
    """A request at the gate: *status* is how it has ended, or that it waits or runs."""

    number: int
    priority: int
    arrived: float
    go: asyncio.Event = field(default_factory=asyncio.Event)
    status: str = "waiting"


class Gate(OnOneLoop):
    """
    Requests that come, end, time out and are cancelled at an `Admission`.

    The model has a list of those that run and one of those that wait, and says who is next.
    """

    @initialize(running=st.integers(1, 3), waiting=st.integers(0, 4))
    def begin(self, running: int, waiting: int) -> None:
        self.slots, self.limit = running, running + waiting
        self.gate = Admission(ServiceSettings(max_running=running, max_waiting=waiting, max_wait=LONGEST))
        self.running, self.waiting, self.expected = list[Visit](), list[Visit](), dict[Visit, str]()
        self.tasks = dict[Visit, asyncio.Task[None]]()
        self.handed = 0

    @rule(priorities=st.lists(st.integers(-1, 1), min_size=1, max_size=5))
    def arrive(self, priorities: list[int]) -> None:
        for priority in priorities:
            visit = Visit(len(self.expected), priority, self.loop.time())
            self.tasks[visit] = self.loop.create_task(self.visit(visit))
            if self.gate.closed:
                self.expected[visit] = "draining"
            elif len(self.running) + len(self.waiting) >= self.limit:
                self.expected[visit] = "queue_full"
            elif len(self.running) < self.slots:
                self.admit(visit)
            else:
                self.waiting.append(visit)
                self.expected[visit] = "waiting"
        self.do(settle())

    @precondition(lambda self: self.running)
    @rule(index=INDEX, cancelled=st.lists(st.booleans(), min_size=1, max_size=4))
    def leave(self, index: int, cancelled: list[bool]) -> None:
        for each in cancelled[: len(self.running)]:
            visit = self.running[index % len(self.running)]
            self.do(self.end(visit, each))
            self.left(visit, "cancelled" if each else "done")

    @precondition(lambda self: self.waiting)
    @rule(index=INDEX)
    def give_up(self, index: int) -> None:
        visit = self.waiting.pop(index % len(self.waiting))
        self.tasks[visit].cancel()
        self.do(settle())
        self.expected[visit] = "cancelled"

    @precondition(lambda self: self.running and self.waiting)
    @rule(index=INDEX)
    def give_up_as_the_slot_comes(self, index: int) -> None:
        """It has the slot and does not know it yet: the slot goes on to the next."""
        visit = self.running[index % len(self.running)]
        self.left(visit, "done")
        chosen = self.running[-1]

        async def both() -> None:
            visit.go.set()
            await asyncio.sleep(0)  # The slot is handed on.
            self.tasks[chosen].cancel()
            await settle()

        self.do(both())
        self.left(chosen, "cancelled")

    @rule(seconds=st.sampled_from([1.0, LONGEST / 2 + 0.25, LONGEST + 1]))
    def wait(self, seconds: float) -> None:
        self.do(asyncio.sleep(seconds))
        for visit in [each for each in self.waiting if each.arrived + LONGEST <= self.loop.time()]:
            self.waiting.remove(visit)
            self.expected[visit] = "queue_timeout"

    @precondition(lambda self: len(self.expected) > 20)
    @rule()
    def shut(self) -> None:
        self.gate.close()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "gate"):
            return
        assert (self.gate.running, self.gate.waiting) == (len(self.running), len(self.waiting))
        assert {visit: visit.status for visit in self.expected} == self.expected
        assert len(self.running) == self.slots or not self.waiting

    def admit(self, visit: Visit) -> None:
        self.running.append(visit)
        self.expected[visit] = "running"

    def left(self, visit: Visit, how: str) -> None:
        """One that ran has left: the best of those that wait is next, and every fourth time the oldest."""
        self.running.remove(visit)
        self.expected[visit] = how
        if self.waiting:
            self.handed += 1
            oldest = self.handed % 4 == 0
            chosen = self.waiting[0] if oldest else min(self.waiting, key=lambda each: (each.priority, each.number))
            self.waiting.remove(chosen)
            self.admit(chosen)

    async def visit(self, visit: Visit) -> None:
        try:
            async with self.gate.enter(visit.priority):
                visit.status = "running"
                await visit.go.wait()
            visit.status = "done"
        except ApiError as exc:
            visit.status = str(exc.code)
        except asyncio.CancelledError:
            visit.status = "cancelled"

    async def end(self, visit: Visit, cancelled: bool) -> None:
        if cancelled:
            self.tasks[visit].cancel()
        visit.go.set()
        await settle()

    async def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values())
        await self.gate.idle()


async def settle() -> None:
    """Let every task run until it waits for something other than a task."""
    for _ in range(10):
        await asyncio.sleep(0)


class Servers(OnOneLoop):
    """Replicas that die, now or under a call, and come back: a call succeeds wherever a server could have answered."""

    @initialize(count=st.integers(1, 3), rest=st.sampled_from([1.0, 8.0, 30.0]))
    def begin(self, count: int, rest: float) -> None:
        self.rest = rest
        self.servers = [
            Mortal(f"http://{name}", ScriptedModel("large", counting("large", 4))) for name in "abc"[:count]
        ]
        self.endpoint = replicated(*self.servers, rest=rest)
        self.do(self.endpoint.__aenter__())
        self.text = self.do(self.endpoint.model().write(PROBLEM)).text

    @rule(index=INDEX, after=st.sampled_from([0.0, 0.5, 1.5, 40.0]), back=st.sampled_from([0.0, 0.5, 10.0, NEVER]))
    def die(self, index: int, after: float, back: float) -> None:
        server = self.servers[index % len(self.servers)]
        if server.dies == NEVER:
            server.dies = self.loop.time() + after
            server.revives = server.dies + back

    @rule(index=INDEX)
    def revive(self, index: int) -> None:
        self.servers[index % len(self.servers)].dies = NEVER

    @rule(count=st.integers(1, 4))
    def call(self, count: int) -> None:
        sure = [each for each in self.servers if each.dies == NEVER and each.url not in self.endpoint.down]
        outcomes = self.do(self.calls(count))
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, EndpointUnavailable)
                assert not sure
                assert all(each.url in str(outcome) for each in self.servers)
                now = self.loop.time()
                assert {each.url for each in self.servers if each.dies <= now < each.revives} <= {*self.endpoint.down}
            else:
                assert outcome.text == self.text
        assert set(self.endpoint.runs.values()) == {0}

    @rule(seconds=st.sampled_from([0.5, 3.0, 20.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.do(asyncio.sleep(seconds))

    @rule()
    def all_return(self) -> None:
        for server in self.servers:
            server.dies = NEVER
        self.do(asyncio.sleep(self.rest + 5))  # a pause and a probe
        assert not self.endpoint.down
        assert self.endpoint.usable

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "endpoint"):
            return
        assert all(1 <= each.entered <= 2 for each in self.servers)  # its own connection, and that of a probe
        assert not any(each.scripted.open > 1 for each in self.servers)  # a probe

    async def calls(self, count: int) -> list[Any]:
        models = [self.endpoint.model() for _ in range(count)]
        try:
            async with asyncio.timeout(60):
                return await asyncio.gather(*(model.write(PROBLEM) for model in models), return_exceptions=True)
        finally:
            for model in models:
                model.leave()

    async def close(self) -> None:
        await self.endpoint.__aexit__(None, None, None)
        assert [each.entered for each in self.servers] == [0] * len(self.servers)


TestGate, TestServers = Gate.TestCase, Servers.TestCase
TestGate.settings = TestServers.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
