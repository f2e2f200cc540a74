"""
What the doctor learns from times: a server's pace, what verdicts and scores cost, and whether it orders by priority.

vLLM accepts a priority in any case, so `ordering` observes the effect. A crowd of prompts, in one request, fills the
queue; then follow a request of the lowest priority and one of the highest. If only the latter overtakes the crowd, the
server orders requests by priority. If neither does although both waited with the crowd, it does not. A machine that is
busy, or too fast or too slow for a queue, shows neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import choices, randrange
from statistics import median
from typing import Literal

from ..chain import Chain, Step
from ..concurrency import at_once, background
from ..endpoints import VllmEndpoint, vllm_protocol
from ..endpoints.client import Connection
from ..endpoints.metrics import read_queue
from ..endpoints.probe import LONG, Capabilities
from ..endpoints.vllm_protocol import METRICS, Body
from ..errors import EndpointError, EndpointRejected, EndpointUnreachable
from ..events import Called, Event
from .report import Ordering, Pace, Reading

PROBLEM = Chain.of("What is 2 + 2?")
STEP = Step("2 + 2 is 4.\n\n", "small")
WRITTEN = 32  # tokens of one write to time
WRITES = 3  # the first may be slower than the others
VERDICTS = 3  # asked after a growing chain; the last one is what any further one costs

CROWDS = (8, 32, 128, 512, 128)  # prompts; a crowd has to keep the server busy for longer than a request takes
PATIENCE = 15.0  # seconds; no race is begun that is expected to end later
LONGEST, SHORTEST = 400, 16  # tokens of each prompt, at random, so that no prompt is in the prefix cache
CROWD_TOKENS = 8  # after each prompt: with fewer, a very small model finishes a prompt before the next is accepted
AHEAD = 8  # prompts, and a quarter of the crowd: less may be chance
PROOFS = 2  # races that show the order of arrival: one may be chance
FIRST, CROWD, LAST = 1, 2, 3  # priorities; vLLM takes the lowest number first


async def pace(endpoint: VllmEndpoint) -> Pace:
    """Write a few tokens several times, one write after the other."""
    firsts, gaps = list[float](), list[float]()
    for _ in range(WRITES):
        events: list[Event] = []
        await endpoint.model(observe=events.append).write(PROBLEM, stop=(), limit=WRITTEN)
        called = next(event for event in events if isinstance(event, Called))
        first = called.first or 0.0
        firsts.append(first)
        gaps.append((called.seconds - first) / max(1, called.written - 1))
    middle = median(gaps)
    return Pace(median(firsts), middle, (max(gaps) - min(gaps)) / middle if middle else 0.0)


async def verdicts(endpoint: VllmEndpoint, can: Capabilities, question: str, opening: str) -> Reading:
    """Measure verdicts on a chain that grows step by step, longer than one and a half blocks of the prefix cache."""
    events: list[Event] = []
    model = endpoint.model(observe=events.append)
    step = len(await endpoint.encoder.encode(STEP.text))
    block = can.cache.block if can.cache and can.cache.block else 0
    length = min(max(LONG, block * 3 // 2), endpoint.room // 2)
    begun = replace(STEP, text=f"{randrange(10**9)} is a number.\n\n" + STEP.text * max(1, length // step))
    chain = PROBLEM.extend(begun)
    for _ in range(VERDICTS):
        chain = chain.extend(STEP)
        await model.ask(chain, question, "0123456789", opening=opening)
    calls = [event for event in events if isinstance(event, Called) and event.fate == "done"]
    first, last = calls[0], calls[-1]
    read = last.prompt - last.cached if can.cached_tokens else None
    return Reading(len(await endpoint.encoder.chain(chain)), read, last.seconds, first.seconds)


async def scoring(endpoint: VllmEndpoint) -> float:
    """Score a new step after a cached chain; return the seconds."""
    events: list[Event] = []
    model = endpoint.model(observe=events.append)
    step = len(await endpoint.encoder.encode(STEP.text))
    chain = PROBLEM.extend(replace(STEP, text=STEP.text * max(1, min(LONG, endpoint.room // 2) // step)))
    await model.score(chain, STEP.text)
    events.clear()
    await model.score(chain, f"{randrange(10**9)} is a number.\n\n")
    return sum(event.seconds for event in events if isinstance(event, Called))


async def ordering(connection: Connection, model: str, tokens: Sequence[int], room: int) -> Ordering | None:
    """
    Send crowds of prompts made of *tokens*, for about `PATIENCE` seconds, and compare the order of the answers.

    *room* is the context length in tokens. The crowds have 8 to 512 prompts, 808 in all, each of 400 tokens, or fewer
    where the server is slow. None: a request failed for another reason than its priority. Raise `EndpointUnreachable`
    if the server is gone.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + PATIENCE
    race = _Race(connection, model, tokens)
    longest = max(1, min(LONGEST, room - CROWD_TOKENS))
    proofs = 0
    try:
        seconds = await race.alone(min(longest, SHORTEST))
        per_token = seconds / min(longest, SHORTEST)  # the first estimate is too high: most of it is no reading
        for crowd in CROWDS:
            left = ends - loop.time()
            length = min(longest, int(left / (crowd * per_token)))
            if length < min(longest, SHORTEST):
                continue
            began = loop.time()
            outcome = await race.run(crowd, length)
            per_token = (loop.time() - began) / (crowd * length)
            if outcome == "overtaken":
                return "kept"
            proofs += outcome == "waited"
    except EndpointRejected as exc:
        return "refused" if "priority" in exc.cause.lower() else None
    except EndpointUnreachable:
        raise
    except EndpointError:
        return None
    return "not seen" if proofs >= PROOFS else "could not tell"


class _Race:
    def __init__(self, connection: Connection, model: str, tokens: Sequence[int]) -> None:
        self._connection, self._call = connection, connection.call("probe")
        self._model, self._tokens = model, tokens
        self._arrived, self._begun = 0, asyncio.Event()

    async def alone(self, length: int) -> float:
        """Return the seconds of one request by itself, the better of two: the first may compile something."""
        loop, seconds = asyncio.get_running_loop(), list[float]()
        for _ in range(2):
            began = loop.time()
            await self._single(CROWD, self._prompt(length), CROWD_TOKENS)
            seconds.append(loop.time() - began)
        return min(seconds)

    async def run(self, crowd: int, length: int) -> Literal["overtaken", "waited", "unclear"]:
        """
        Say whether the request of the highest priority overtook much more of the crowd than that of the lowest.

        Without an order by priority both are answered one right after the other. With it, the last of the crowd and the
        request of the lowest priority may be in the same batch, so that either may be answered first.
        """
        self._arrived, margin = 0, max(crowd // 4, AHEAD)
        self._begun.clear()
        async with background(self._crowd(crowd, length), self._begun.wait()) as tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            short = [self._prompt(min(length, 8)) for _ in range(2)]
            last, first, queued = await at_once(
                [self._single(LAST, short[0], 2), self._single(FIRST, short[1], 2), self._queued()]
            )
            await tasks[0]
        assert isinstance(last, tuple)
        assert isinstance(first, tuple)
        apart = abs(last[0] - first[0])  # A busy machine may have sent one much later than the other.
        if last[1] - first[1] - apart >= margin:
            return "overtaken"
        waited = all(done - accepted >= margin and accepted for accepted, done in (last, first))
        return "waited" if waited and queued is not False else "unclear"

    async def _crowd(self, crowd: int, length: int) -> None:
        prompts = [self._prompt(length) for _ in range(crowd)]
        async with self._connection.stream(self._call, self._body(prompts, CROWD_TOKENS, CROWD)) as events:
            while (event := await events.next()) is not None:
                chunk = vllm_protocol.parse_chunk(self._call, event, vllm_protocol.GREEDY.logprobs)
                self._arrived += chunk.ended is not None
                self._begun.set()

    async def _single(self, priority: int, prompt: Sequence[int], limit: int) -> tuple[int, int]:
        """Return how many of the crowd's answers had arrived when the server accepted this request, and at its end."""
        accepted = 0

        def accept() -> None:
            nonlocal accepted
            accepted = self._arrived

        body = self._body(prompt, limit, priority)
        async with self._connection.stream(self._call, body, accepted=accept) as events:
            while await events.next() is not None:
                pass
        return accepted, self._arrived

    async def _queued(self) -> bool | None:
        """Whether requests wait at the server now; None if it does not show its queue."""
        try:
            queue = read_queue(await self._connection.get_unqueued(self._call, METRICS))
        except EndpointError:
            return None
        return None if queue is None else queue.waiting > 0

    def _prompt(self, length: int) -> list[int]:
        return choices(self._tokens, k=length)

    def _body(self, prompt: Sequence[int] | Sequence[Sequence[int]], limit: int, priority: int) -> Body:
        body = vllm_protocol.stream_body(self._model, prompt, vllm_protocol.GREEDY, seed=0, limit=limit, stop=())
        return body | {"priority": priority, "min_tokens": limit}
