"""Admission under any order of events, against a simple model of what it promises."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lab.virtual_clock import JumpingLoop
from stepspec.service.admission import Admission
from stepspec.service.errors import ApiError
from stepspec.service.settings import ServiceSettings

LONGEST = 50.0  # seconds that a request waits for a slot
INDEX = st.integers(0, 99)


@dataclass(eq=False)
class Visit:
    """A request at the gate: *status* is how it has ended, or that it waits or runs."""

    number: int
    priority: int
    arrived: float
    go: asyncio.Event = field(default_factory=asyncio.Event)
    status: str = "waiting"


class Gate(RuleBasedStateMachine):
    """
    Requests that come, end, time out and are cancelled at an `Admission`, on a clock that jumps.

    The model has a list of those that run and one of those that wait, and says who is next.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = JumpingLoop()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        self.do(asyncio.wait(self.tasks.values()) if self.tasks else settle())
        self.do(self.gate.idle())
        left = asyncio.all_tasks(self.loop)
        self.loop.close()
        assert not left

    @initialize(running=st.integers(1, 3), waiting=st.integers(0, 4))
    def begin(self, running: int, waiting: int) -> None:
        self.slots = running
        self.limit = running + waiting
        self.gate = Admission(
            ServiceSettings(max_running=running, max_waiting=waiting, max_wait=LONGEST)
        )
        self.running = list[Visit]()
        self.waiting = list[Visit]()
        self.expected = dict[Visit, str]()
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
        """
        It may take the slot and does not know it yet: the slot goes on to the next. A slot counts
        as handed over once it is taken.
        """
        visit = self.running[index % len(self.running)]
        self.left(visit, "done")
        chosen = self.running[-1]

        async def both() -> None:
            visit.go.set()
            await asyncio.sleep(0)  # The slot is handed on.
            self.tasks[chosen].cancel()
            await settle()

        self.do(both())
        self.handed -= 1
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
        self.gate.closed = True

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
        """
        One that ran has left: the best of those that wait is next, and every fourth time the
        oldest.
        """
        self.running.remove(visit)
        self.expected[visit] = how
        if self.waiting:
            self.handed += 1
            oldest = self.handed % 4 == 0
            chosen = (
                self.waiting[0]
                if oldest
                else min(self.waiting, key=lambda each: (each.priority, each.number))
            )
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


async def settle() -> None:
    """Let every task run until it waits for something other than a task."""
    for _ in range(10):
        await asyncio.sleep(0)


TestGate = Gate.TestCase
TestGate.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
