"""A trace of hundreds of steps made by scripted models, on a clock that jumps: the same bytes every time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import cache
from random import Random

from stepspec import policies
from stepspec.orchestrator import Budget, Chain
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.events import Started
from stepspec.orchestrator.run import RunParts
from stepspec.orchestrator.run import run as run_to_answer
from stepspec.orchestrator.trace import Recorder, dump

from .....fakes import Previous, ScriptedModel, run

PROBLEM = (
    "A number begins at 3. In every round it is doubled, then 7 is added, then it is taken modulo 1,000. What is it?"
)
LOOKS = ("So", "Next,", "Now", "Then", "On to")
SLIP_EVERY = 11  # steps, about
THRESHOLD = 7.0


@cache
def long_run(steps: int = 300) -> bytes:
    """Run SpecReason for so many *steps*; the small model slips in about a tenth of them, and is noticed."""
    random = Random(7)
    right, wrong = _texts(steps, random)
    slips = {place for place in range(1, steps - 1) if not random.randrange(SLIP_EVERY)}
    grades = [random.choice(("7", "8", "8", "9")) for _ in range(steps)]

    def script(role: Role) -> Callable[[Previous], str]:
        def write(previous: Previous) -> str:
            place = min(len(previous), steps - 1)
            return wrong[place] if role == "small" and place in slips else right[place]

        return write

    def judge(chain: Chain, question: str) -> Mapping[str, float]:
        place = len(chain.steps) - 1
        return {"2": 0.5, "4": 0.5} if chain.steps[-1].text == wrong[place] else {grades[place]: 0.8, "9": 0.2}

    async def main() -> bytes:
        recorder = Recorder(asyncio.get_running_loop().time)
        small = ScriptedModel("small", script("small"), latency=lambda chain: 0.02, pace=0.006)
        large = ScriptedModel(
            "large", script("large"), "\n\n\\boxed{1}", judge, latency=lambda chain: 0.05, reading=lambda chain: 0.05
        )
        large.pace = 0.025
        small.observe = large.observe = recorder
        chain = Chain.of(PROBLEM)
        models = (("small", "tiny"), ("large", "huge"))
        recorder(Started(chain.messages, "specreason", models, threshold=("threshold", THRESHOLD)))
        policy = policies.make("specreason", small, large, threshold=THRESHOLD)
        await run_to_answer(RunParts(policy, budget=Budget(tokens=10**6, steps=2 * steps), ahead=2), chain, recorder)
        return b"".join(map(dump, recorder.moments))

    return run(main())[0]


def _texts(steps: int, random: Random) -> tuple[list[str], list[str]]:
    """Every step as it is right, and as the small model writes it where it slips."""
    right: list[str] = []
    wrong: list[str] = []
    value = 3
    for place in range(steps):
        doubled, added = 2 * value, 2 * value + 7
        look = random.choice(LOOKS)
        ending = "\n</think>" if place == steps - 1 else "\n\n"
        sums = f"Doubled it is {doubled}, and with 7 it is {added}."
        text = f"{look} round {place + 1}: the number is {value}. {sums} Modulo 1,000 that is "
        value = added % 1000
        right.append(f"{text}{value}.{ending}")
        wrong.append(f"{text}{(value + random.choice((1, 10, 100))) % 1000}, I think.{ending}")
    return right, wrong
