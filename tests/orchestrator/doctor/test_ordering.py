"""Whether a server orders requests by priority is measured, without false positives."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from stepspec.orchestrator.doctor import timing
from stepspec.orchestrator.doctor.advice import conclude
from stepspec.orchestrator.doctor.report import Ordering
from stepspec.orchestrator.doctor.timing import ordering

from ..endpoints.conftest import Meet
from ..endpoints.server import Break, FakeVllm, Refuse, Stall, event, prompts
from .test_doctor import FAST, GOOD

WORDS = ("So", " one", ".", " two")
SLOTS = 8


@dataclass
class QueueingVllm(FakeVllm):
    """
    Answers as many prompts of a crowd as it has slots, and waits for the two single requests.

    A request at an idle server takes *alone* seconds. Others join the queue, in the order of their priorities if
    *by_priority*. The last batch is answered in reverse. The
    first *late* crowds are over before their single requests join the queue.
    """

    by_priority: bool = True
    late: int = 0
    alone: float = 0.0
    busy: bool = False
    crowds: list[int] = field(default_factory=list[int])
    singles: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list[tuple[int, asyncio.Future[None]]])
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def stream(
        self, request: web.Request, body: dict[str, Any], fault: Break | Stall | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if (crowd := len(prompts(body))) > 1:
            self.crowds.append(crowd)
            self.busy = True
            await self.answer_crowd(response, crowd)
            self.busy = False
        elif not self.busy:
            await asyncio.sleep(self.alone)
            await self.finish(response, 0)
        else:
            turn = asyncio.get_running_loop().create_future()
            async with self.arrived:
                self.singles.append((body["priority"], turn))
                self.arrived.notify_all()
            await turn
            await self.finish(response, 0)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def answer_crowd(self, response: web.StreamResponse, crowd: int) -> None:
        waiting: list[tuple[int, int | asyncio.Future[None]]] = [(2, place) for place in range(crowd)]
        for _ in range(min(SLOTS, crowd)):
            await self.finish(response, waiting.pop(0)[1])
        if late := len(self.crowds) <= self.late:
            for _, place in waiting:
                await self.finish(response, place)
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.singles) == 2)
        waiting = [*([] if late else waiting), *self.singles]
        self.singles.clear()
        if self.by_priority:
            waiting.sort(key=lambda entry: entry[0])
        for _, entry in (*waiting[:-SLOTS], *reversed(waiting[-SLOTS:])):
            await self.finish(response, entry)

    async def finish(self, response: web.StreamResponse, entry: int | asyncio.Future[None]) -> None:
        """Answer the prompt at that place of the crowd, or let a single request be answered; wait for the client."""
        if isinstance(entry, int):
            choice = self.choice([("So", "So", self.id(b"So"))], {"logprobs": 1, "return_token_ids": True})
            choice |= {"index": entry, "finish_reason": "length"}
            await response.write(event({"choices": [choice]}))
        else:
            entry.set_result(None)
        await asyncio.sleep(0.0005 if isinstance(entry, int) else 0.01)  # the answers go over several connections


async def ordering_of(server: FakeVllm, meet: Meet) -> Ordering | None:
    async with meet(server) as met:
        tokens = await met.endpoint.encoder.encode("So one two")
        return await ordering(met.endpoint.connection, met.endpoint.name, tokens, 64)


async def test_a_server_that_orders_by_priority_is_recognised(meet: Meet) -> None:
    server = QueueingVllm(WORDS)
    assert await ordering_of(server, meet) == "kept"
    assert server.crowds == [8, 32]  # a crowd of eight is answered at once, and shows nothing


async def test_a_server_that_keeps_the_order_of_arrival_is_recognised(meet: Meet) -> None:
    server = QueueingVllm(WORDS, by_priority=False)
    assert await ordering_of(server, meet) == "not seen"


async def test_single_requests_that_come_late_are_sent_again_with_other_crowds(meet: Meet) -> None:
    server = QueueingVllm(WORDS, late=4)
    assert await ordering_of(server, meet) == "kept"
    assert server.crowds == [8, 32, 128, 512, 128]


async def test_of_a_server_that_is_never_busy_no_order_can_be_told(meet: Meet) -> None:
    assert await ordering_of(FakeVllm(WORDS), meet) == "could not tell"


async def test_one_race_is_no_proof_that_a_server_keeps_the_order_of_arrival(
    meet: Meet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "CROWDS", (8, 32))
    assert await ordering_of(QueueingVllm(WORDS, by_priority=False), meet) == "could not tell"


@pytest.mark.parametrize("by_priority", [True, False])
async def test_of_a_server_that_is_too_slow_for_a_crowd_no_order_can_be_told(
    meet: Meet, monkeypatch: pytest.MonkeyPatch, by_priority: bool
) -> None:
    monkeypatch.setattr(timing, "PATIENCE", 0.5)
    server = QueueingVllm(WORDS, by_priority=by_priority, alone=0.1)  # 3.2 seconds for the smallest crowd that counts
    assert await ordering_of(server, meet) == "could not tell"
    assert server.crowds == []


async def test_a_queue_that_the_server_does_not_have_is_no_proof(meet: Meet) -> None:
    idle = b"vllm:num_requests_running 32\nvllm:num_requests_waiting 0\n"
    assert await ordering_of(QueueingVllm(WORDS, by_priority=False, metrics=idle), meet) == "could not tell"


async def test_a_server_that_refuses_priorities_is_detected(meet: Meet) -> None:
    server = FakeVllm(WORDS)
    async with meet(server) as met:
        tokens = await met.endpoint.encoder.encode("So one two")
        server.faults.append(Refuse(400, "priority scheduling is not enabled"))
        assert await ordering(met.endpoint.connection, met.endpoint.name, tokens, 64) == "refused"


@pytest.mark.parametrize("fault", [Refuse(500, "busy"), Refuse(400, "no"), Break(after=0)])
async def test_a_request_that_fails_for_another_reason_shows_nothing(meet: Meet, fault: Refuse | Break) -> None:
    server = FakeVllm(WORDS)
    async with meet(server, retries=0) as met:
        tokens = await met.endpoint.encoder.encode("So one two")
        server.faults.extend([fault] * 3)
        assert await ordering(met.endpoint.connection, met.endpoint.name, tokens, 64) is None


@pytest.mark.parametrize(
    ("ordering", "note"),
    [
        ("kept", None),
        ("not seen", "large: it answers requests in the order of arrival: while it is busy, verdicts wait behind"),
        ("could not tell", "large: could not tell on this server whether it orders requests by priority"),
        (None, "large: it could not be found out whether it orders requests by priority"),
        ("refused", "large: it refuses priorities, and is sent none: while it is busy, verdicts wait behind bets"),
    ],
)
def test_the_cost_of_a_missing_order_is_reported(ordering: Ordering | None, note: str | None) -> None:
    notes = conclude(FAST, replace(GOOD, ordering=ordering)).notes
    assert len(notes) == (note is not None)
    assert (note or "") in "".join(notes)
