"""Traces of nested pairs made by scripted models, on a clock that jumps: the same bytes every time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import cache, partial

from stepspec import policies
from stepspec.orchestrator import Budget, Chain
from stepspec.orchestrator.events import Started
from stepspec.orchestrator.nesting import Nested
from stepspec.orchestrator.nesting.model import observe_within
from stepspec.orchestrator.run import RunParts
from stepspec.orchestrator.run import run as run_to_answer
from stepspec.orchestrator.trace import Recorder, dump

from .....fakes import Previous, ScriptedModel, run
from ....nesting.families import family
from .made import ANSWER, PROBLEM, SLIP, STEPS, Told

MODELS = (
    ("small", "bild of tiny and middle"),
    ("small.small", "tiny"),
    ("small.large", "middle"),
    ("large", "huge"),
)
WRONG = STEPS[1].replace("16", "17")
DOUBTED = "So she has 16.\n\n"
KEPT = SLIP.partition(" 18")[0]


@cache
def nested(ahead: int = 2) -> bytes:
    """
    Run SpecReason over a pair that runs BiLD, whose tiny model errs twice.

    The pair keeps the beginning of its second step, and repairs it wrongly: the large model notices. Of the third it
    keeps nothing, and repairs it well.
    """
    tiny = ScriptedModel("small", _script((STEPS[0], WRONG, DOUBTED, STEPS[3])), pace=0.004, sticky=True)
    small = ScriptedModel("large", _script((STEPS[0], SLIP, *STEPS[2:])), pace=0.008)
    large = ScriptedModel("large", _script(STEPS), ANSWER, _judge, pace=0.03)
    tiny.latency, small.latency, large.latency = map(_always, (0.01, 0.02, 0.05))
    small.reading, large.reading = map(_always, (0.03, 0.06))
    small.logprob = lambda before, token: -0.1 if token == small.next(before) else -3.0

    async def main() -> bytes:
        recorder = Recorder(asyncio.get_running_loop().time)
        tiny.observe = small.observe = observe_within("small", recorder)
        large.observe = recorder
        step_by_step = partial(policies.make, "bild", scale="step", rollback=1.0)
        pair = Nested("small", tiny, small, step_by_step, 2, recorder)
        chain = Chain.of(PROBLEM)
        recorder(Started(chain.messages, "specreason", MODELS))
        policy = policies.make("specreason", pair, large)
        await run_to_answer(RunParts(policy, budget=Budget(), ahead=ahead), chain, recorder)
        return b"".join(map(dump, recorder.moments))

    return run(main())[0]


def _always(seconds: float) -> Callable[[Chain], float]:
    return lambda chain: seconds


def _script(steps: tuple[str, ...]) -> Callable[[Previous], str]:
    return lambda previous: steps[min(len(previous), len(steps) - 1)]


def _judge(chain: Chain, question: str) -> Mapping[str, float]:
    return {"2": 0.75, "3": 0.25} if chain.steps[-1].text == SLIP else {"9": 0.75, "8": 0.25}


@cache
def drawn_nested(outer: str, *inner: str, seed: int, ahead: int) -> bytes:
    """Run one of the families that are drawn from a *seed*; the loop alone, so that there is no answer."""

    async def main() -> bytes:
        recorder = Recorder(asyncio.get_running_loop().time)
        recorder(Started((), outer))
        made = family(outer, *inner, seed=seed, ahead=ahead, sticky=seed % 2 == 0, events=Told(recorder))
        await made.run(ahead)
        return b"".join(map(dump, recorder.moments))

    return run(main())[0]
