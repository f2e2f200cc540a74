"""Traces made by scripted models, on a clock that jumps: the same bytes every time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from random import Random

from stepspec import policies
from stepspec.orchestrator import Budget, Chain
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.events import Event, Observer, Started
from stepspec.orchestrator.run import RunParts
from stepspec.orchestrator.run import run as run_to_answer
from stepspec.orchestrator.trace import Moment, Recorder, dump

from ....fakes import Previous, ScriptedModel, run
from ....orchestrator.arms import arm

PROBLEM = (
    "Maya has 12 shells. On Monday she finds 9. On Tuesday she gives away 5. How many shells does"
    " Maya have now?"
)
STEPS = (
    "On Monday she finds 9: 12 + 9 = 21.\n\n",
    "On Tuesday she gives away 5: 21 - 5 = 16.\n\n",
    "Let me check: 16 + 5 = 21.\n\n",
    "Yes, that is all: 16.\n</think>",
)
SLIP = "On Tuesday she gives away 5: 21 - 5 = 18.\n\n"
ANSWER = "\n\nMaya has \\boxed{16} shells."
LONG_PROBLEM = (
    "A number begins at 3. In every round it is doubled, then 7 is added, then it is taken modulo"
    " 1,000. What is it?"
)
LOOKS = ("So", "Next,", "Now", "Then", "On to")
SLIP_EVERY = 11  # steps, about


def trace_of(*events: Event) -> bytes:
    """The trace of *events* that happen a second after the other."""
    return b"".join(dump(Moment(at, event)) for at, event in enumerate(events))


def record(play: Callable[[Recorder], Awaitable[object]]) -> bytes:
    """Return the trace of what *play* does."""

    async def main() -> bytes:
        recorder = Recorder(asyncio.get_running_loop().time)
        await play(recorder)
        return b"".join(map(dump, recorder.moments))

    with ThreadPoolExecutor(1) as own:  # its loop cannot run in a thread that has one
        return own.submit(run, main()).result()[0]


@cache
def made(
    problem: str = PROBLEM,
    steps: Sequence[str] = STEPS,
    slip: str = SLIP,
    answer: str = ANSWER,
    ahead: int = 2,
) -> bytes:
    """
    Run SpecReason with a small model that says *slip* for the second of the *steps*, which is
    noticed.
    """
    return judged(problem, steps, {1: slip}, answer, ahead)


def judged(
    problem: str,
    right: Sequence[str],
    wrong: Mapping[int, str],
    answer: str,
    ahead: int = 2,
    budget: Budget = Budget(),  # noqa: B008  # frozen
) -> bytes:
    """
    Run SpecReason with a small model that says something *wrong* at some places, which is noticed.
    """

    def script(role: Role) -> Callable[[Previous], str]:
        def write(previous: Previous) -> str:
            place = min(len(previous), len(right) - 1)
            return wrong.get(place, right[place]) if role == "small" else right[place]

        return write

    def judge(chain: Chain, question: str) -> Mapping[str, float]:
        slipped = chain.steps[-1].text == wrong.get(len(chain.steps) - 1)
        return {"2": 0.75, "3": 0.25} if slipped else {"9": 0.75, "8": 0.25}

    async def play(recorder: Recorder) -> None:
        small = ScriptedModel(
            "small",
            script("small"),
            latency=lambda chain: 0.02,
            pace=0.008,
        )
        large = ScriptedModel(
            "large",
            script("large"),
            answer,
            judge,
            latency=lambda chain: 0.05,
            reading=lambda chain: 0.06,
            pace=0.03,
        )
        small.observe = large.observe = recorder
        policy = policies.make("specreason", small, large)
        chain = Chain.of(problem)
        models = (("small", "tiny"), ("large", "huge"))
        recorder(
            Started(
                chain.messages,
                "specreason",
                models,
                threshold=("threshold", 7.0),
            )
        )
        await run_to_answer(RunParts(policy, budget=budget, ahead=ahead), chain, recorder)

    return record(play)


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
    """
    Run one of the arms that are drawn from a *seed*; the trace has no answer, for the loop alone
    ran.
    """

    async def play(recorder: Recorder) -> None:
        running = arm(name, seed, sticky=seed % 2 == 0)
        recorder(Started((), name))
        running.events = Told(recorder)
        await running.run(ahead)

    return record(play)


@cache
def long_run(steps: int = 300) -> bytes:
    """
    Run SpecReason for so many *steps*; the small model slips in about a tenth of them, and is
    noticed.
    """
    random = Random(7)
    right = list[str]()
    wrong = dict[int, str]()
    value = 3
    for place in range(steps):
        sums = f"Doubled it is {2 * value}, and with 7 it is {2 * value + 7}."
        text = (
            f"{random.choice(LOOKS)} round {place + 1}: the number is {value}. {sums} Modulo 1,000"
            " that is "
        )
        value = (2 * value + 7) % 1000
        right.append(f"{text}{value}." + ("\n</think>" if place == steps - 1 else "\n\n"))
        wrong[place] = f"{text}{(value + random.choice((1, 10, 100))) % 1000}, I think.\n\n"
    slips = {
        place: wrong[place] for place in range(1, steps - 1) if not random.randrange(SLIP_EVERY)
    }
    return judged(
        LONG_PROBLEM, right, slips, "\n\n\\boxed{1}", budget=Budget(tokens=10**6, steps=2 * steps)
    )
