"""What the doctor learns from times: a server's pace, and what verdicts and scores cost."""

from __future__ import annotations

from dataclasses import replace
from random import randrange
from statistics import median

from ..chain import Chain, Step
from ..endpoints import VllmEndpoint
from ..endpoints.probe import LONG, Capabilities
from ..events import Called, Event
from .report import Pace, Reading

PROBLEM = Chain.of("What is 2 + 2?")
STEP = Step("2 + 2 is 4.\n\n", "small")
WRITTEN = 32  # tokens of one write to time
WRITES = 3  # the first may be slower than the others
VERDICTS = 3  # asked after a growing chain; the last one is what any further one costs


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
