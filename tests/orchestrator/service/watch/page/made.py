"""Traces made by scripted models, on a clock that jumps: the same bytes every time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from stepspec import policies
from stepspec.orchestrator import Budget, Chain
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.events import Event, Observer, Started
from stepspec.orchestrator.run import RunParts
from stepspec.orchestrator.run import run as run_to_answer
from stepspec.orchestrator.trace import Recorder, dump

from .....fakes import Previous, ScriptedModel, run
from ....arms import arm

PROBLEM = "Maya has 12 shells. On Monday she finds 9. On Tuesday she gives away 5. How many shells does Maya have now?"
STEPS = (
    "On Monday she finds 9: 12 + 9 = 21.\n\n",
    "On Tuesday she gives away 5: 21 - 5 = 16.\n\n",
    "Let me check: 16 + 5 = 21.\n\n",
    "Yes, that is all: 16.\n</think>",
)
SLIP = "On Tuesday she gives away 5: 21 - 5 = 18.\n\n"
ANSWER = "\n\nMaya has \\boxed{16} shells."


@cache
def made(
    problem: str = PROBLEM, steps: Sequence[str] = STEPS, slip: str = SLIP, answer: str = ANSWER, ahead: int = 2
) -> bytes:
    """Run SpecReason with a small model that says *slip* for the second of the *steps*, which is noticed."""

    def script(role: Role) -> Callable[[Previous], str]:
        return lambda previous: (
            slip if role == "small" and len(previous) == 1 else steps[min(len(previous), len(steps) - 1)]
        )

    def judge(chain: Chain, question: str) -> Mapping[str, float]:
        return {"2": 0.75, "3": 0.25} if chain.steps[-1].text == slip else {"9": 0.75, "8": 0.25}

    async def main() -> bytes:
        recorder = Recorder(asyncio.get_running_loop().time)
        small = ScriptedModel("small", script("small"), latency=lambda chain: 0.02, pace=0.008)
        large = ScriptedModel(
            "large", script("large"), answer, judge, latency=lambda chain: 0.05, reading=lambda chain: 0.06, pace=0.03
        )
        small.observe = large.observe = recorder
        policy = policies.make("specreason", small, large)
        chain = Chain.of(problem)
        models = (("small", "tiny"), ("large", "huge"))
        recorder(Started(chain.messages, "specreason", models, threshold=("threshold", 7.0)))
        await run_to_answer(RunParts(policy, budget=Budget(), ahead=ahead), chain, recorder)
        return b"".join(map(dump, recorder.moments))

    return run(main())[0]


class Told(list[Event]):
    """A list of events that tells of each at once."""

    def __init__(self, observe: Observer) -> None:
        super().__init__()
        self._observe = observe

    def append(self, event: Event) -> None:
        super().append(event)
        self._observe(event)


@cache
def drawn(name: str, seed: int, ahead: int) -> bytes:
    """Run one of the arms that are drawn from a *seed*; the trace has no answer, for the loop alone ran."""

    async def main() -> bytes:
        running = arm(name, seed, sticky=seed % 2 == 0)
        recorder = Recorder(asyncio.get_running_loop().time)
        recorder(Started((), name))
        running.events = Told(recorder)
        await running.run(ahead)
        return b"".join(map(dump, recorder.moments))

    return run(main())[0]
