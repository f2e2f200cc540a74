"""A pair of scripted models on a clock that jumps, in the place of a solver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from zlib import crc32

from stepspec import policies
from stepspec.evals.sample import Arm
from stepspec.evals.tune.measuring import Measured, Measuring
from stepspec.evals.tune.paces import PairPaces, ServerPace
from stepspec.evals.tune.rounds import Round
from stepspec.orchestrator.chain import THINK_END, Chain
from stepspec.orchestrator.events import Observer
from stepspec.orchestrator.reason import reason
from stepspec.orchestrator.run_options import RunOptions

from ...fakes import ScriptedModel

PROBLEMS = [f"What is {number} + {number}?" for number in range(20)]
SPECREASON = Arm.of("specreason", "specreason", ending="small")
READING = Arm.of("reading", "reading")
SHORT = Arm.of("short", "reading", {"tokens": "all", "draft_tokens": 3, "repair_tokens": 1})
PACES = PairPaces(
    small=ServerPace((0.01,), 0.02), large=ServerPace((0.1,), 0.2), loaded=0.15, users=8, ahead=2
)
GOOD = Round(10, accepted=True, tokens=10, verdict_seconds=0.3)
BAD = Round(10, accepted=False, tokens=10, written=10, verdict_seconds=0.3)


def steps(length: int, words: int = 24) -> Callable[[tuple[str, ...]], str]:
    """Script *length* steps of so many words."""

    def script(previous: tuple[str, ...]) -> str:
        text = " ".join(f"w{len(previous)}x{word}" for word in range(words))
        return text + ("\n\n" if len(previous) + 1 < length else THINK_END)

    return script


def drawn(problem: str, step: int) -> float:
    """A number from 0 to 1 for each step of each problem, evenly spread."""
    return (crc32(problem.encode()) * 0.7548 + step * 0.618) % 1


@dataclass
class World:
    """A pair of scripted models; the judge grades by `drawn`."""

    length: int = 12
    words: int = 24
    accepted: float = 0.7
    small_pace: float = 0.01
    large_pace: float = 0.1
    waiting: float = 0.2
    settings: Any = field(default_factory=lambda: SimpleNamespace(run=RunOptions()))
    critic: Any = None

    def __post_init__(self) -> None:
        self.small, self.large = (
            SimpleNamespace(
                role=role,
                name=role,
                settings=SimpleNamespace(url=f"http://{role}"),
                call=on_server,
                model=partial(self._opened, role),
            )
            for role in ("small", "large")
        )

    def _opened(self, role: str, sampling: Any = None) -> ScriptedModel:
        return self.model(role)

    def model(self, role: Any) -> ScriptedModel:
        def judge(chain: Chain, question: str) -> Mapping[str, float]:
            good = drawn(chain.messages[0].content, len(chain.steps)) < self.accepted
            return {"9" if good else "1": 1.0}

        large = role == "large"
        return ScriptedModel(
            role,
            steps(self.length, self.words),
            judge=judge,
            sticky=True,
            pace=self.large_pace if large else self.small_pace,
            latency=lambda chain: self.waiting if large else self.waiting / 4,
            reading=lambda chain: 1.25 * self.waiting,
        )

    async def solve(self, problem: str, run: RunOptions, *, observe: Observer) -> None:
        assert not run.auto
        policy = policies.make(run.policy, self.model("small"), self.model("large"), **run.options)
        await reason(policy, Chain.of(problem), ahead=run.ahead, observe=observe)

    async def warm_up(self) -> None:
        await asyncio.sleep(1)

    async def measured(self, *arms: Arm, minutes: float = 10.0, problems: int = 20) -> Measured:
        """Measure this pair, with four users."""
        solver: Any = self
        measuring = Measuring(solver, arms, PROBLEMS[:problems], 4)
        found = await measuring.measure(minutes)
        clock = asyncio.get_running_loop().time()
        assert clock <= 60 * minutes + 1e-6, "the limit is a hard one"
        return found


async def on_server(verb: Callable[[Any], Awaitable[bool]]) -> bool:
    """Call *verb* on a server of a model that thinks."""
    return await verb(SimpleNamespace(thinks=thinks))


async def thinks(*_: Any) -> bool:
    return True
