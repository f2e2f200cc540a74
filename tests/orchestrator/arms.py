"""
Policies over scripted models whose texts are drawn from a seed, for the property tests of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from typing import Literal

from hypothesis import settings

from stepspec import policies
from stepspec.orchestrator import (
    Accept,
    Budget,
    Chain,
    Model,
    Policy,
    Rollback,
    Step,
    Token,
    Verdict,
    reason,
)
from stepspec.orchestrator.budget import Budgeted
from stepspec.orchestrator.chain import DELIMITER, THINK_END, Rating, Role
from stepspec.orchestrator.events import Event
from stepspec.orchestrator.lookahead import LookaheadControl
from stepspec.orchestrator.reason import End
from stepspec.policies.method import Drafting

from ..fakes import Previous, ScriptedModel, counting

PROBLEM = Chain.of("What is 6 x 7?")
ARMS = (*policies.METHODS, "keeping")
CUES = ("So", "Wait:", "Yes:", "Let me check:")

settings.register_profile(
    "bounded", max_examples=20, deadline=None, derandomize=True, database=None
)
BOUNDED = settings.get_profile("bounded")


@dataclass(frozen=True)
class Keeping(Drafting):
    """
    Keeps a draft up to the first token that the large model doubts, and *ragged* characters less.
    """

    ragged: int = 0

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        (tokens,) = await self.large.score(chain, draft.text)
        doubted = next((place for place, token in enumerate(tokens) if token.logprob < -1), None)
        if doubted is None:
            return Accept()
        keep = sum(len(token.text) for token in tokens[:doubted]) - self.ragged
        return Rollback(max(0, keep), reason="doubt")


@dataclass(frozen=True)
class ScriptedCritic:
    """Rates what *reward* says, after so many seconds of *latency*."""

    reward: Callable[[Chain], float]
    latency: Callable[[Chain], float] = lambda chain: 1.0

    async def rate(self, chain: Chain) -> Rating:
        await asyncio.sleep(self.latency(chain))
        return Rating(self.reward(chain))


@dataclass
class Arm:
    """A policy, the models under it, and what happened."""

    policy: Policy
    small: ScriptedModel
    large: ScriptedModel
    budget: Budget
    events: list[Event] = field(default_factory=lambda: list[Event]())

    async def run(
        self, ahead: int | LookaheadControl = 0, deadline: float | None = None
    ) -> tuple[Chain, End]:
        """Run the loop; nothing may be open after it, however it ends."""
        observe = self.events.append
        self.small.observe = self.large.observe = observe
        try:
            return await reason(
                self.policy,
                PROBLEM,
                ahead=ahead,
                spent=self.budget.spent,
                deadline=deadline,
                observe=observe,
            )
        finally:
            assert self.small.open == self.large.open == 0, "requests left open"

    @property
    def log(self) -> list[str]:
        return self.small.log


def working(depth: int, hedge: float = 0.0) -> LookaheadControl:
    return LookaheadControl(depth, hedge)


def taste(*key: object) -> float:
    """Draw a number from 0 to 1, the same for the same *key*."""
    return int.from_bytes(blake2b(repr(key).encode(), digest_size=7).digest()) / 2**56


def quarters(*key: object) -> float:
    """Draw a time: binary fractions of seconds, so that sums are exact."""
    return (1 + int(taste(*key) * 8)) / 4


def moody(
    seed: int, role: Role, length: int, trouble: float, openings: Sequence[str] = ("So",)
) -> Callable[[Previous], str]:
    """
    Script paragraphs that both models often agree on; the small one's sometimes are empty, old, or
    end too soon.
    """

    @cache
    def script(previous: Previous) -> str:
        author = role if taste(seed, "differs", role, previous) < 0.5 else "any"
        opening = openings[int(taste(seed, "opening", author, previous) * len(openings))]
        sentence = (
            f"{opening} {len(previous)} is {int(taste(seed, author, previous) * 100)}, as {author}"
            " one says."
        )
        ending = DELIMITER if len(previous) + 1 < length else f"\n{THINK_END}"
        if role == "large" or taste(seed, "trouble", previous) >= trouble:
            return sentence + ending
        odd = (
            DELIMITER,
            (previous or (sentence,))[-1] + DELIMITER,
            (previous or (sentence,))[0] + DELIMITER,
            THINK_END,
            sentence,
        )
        return odd[int(taste(seed, "odd", previous) * len(odd))]

    return script


def arm(
    name: str,
    seed: int = 0,
    *,
    budget: Budget | None = None,
    sticky: bool = False,
    trouble: float = 0.2,
) -> Arm:
    """Make the arm called *name*; scripts, grades and times are those of *seed*."""
    budget = budget or Budget()
    length = 2 + int(taste(seed, "length") * 5)
    doubt = taste(seed, "doubt")
    log: list[str] = []

    def model(role: Role) -> ScriptedModel:
        def judge(chain: Chain, question: str) -> Mapping[str, float]:
            key = (seed, "grade", role, chain.text, question)
            bad, good = ("No", "Yes") if question.endswith("Yes or No.") else ("2", "8")
            return {
                bad if taste(key) < doubt else good: taste(key, "sure"),
                "?": 1 - taste(key, "sure"),
            }

        def logprob(before: str, token: str) -> float:
            return -3.0 if taste(seed, "logprob", role, before, token) < doubt / 4 else -0.25

        def rivals(before: str, token: str) -> list[Token]:
            if name == "glimpse":
                return [
                    Token(token, logprob(before, token)),
                    *[Token(f" {number}", -3.0) for number in range(5)],
                ]
            others = [
                Token(f" {number}", -6 * taste(seed, "rival", before, number))
                for number in range(3)
            ]
            return sorted([Token(token, -0.25), *others], key=lambda one: one.logprob, reverse=True)

        return ScriptedModel(
            role,
            moody(
                seed, role, length, trouble, CUES if name == "speculative-thinking" else CUES[:1]
            ),
            judge=judge,
            logprob=logprob,
            rivals=rivals if name in ("glimpse", "choose") else lambda before, token: (),
            latency=lambda chain: quarters(seed, role, chain.text),
            reading=lambda chain: quarters(seed, role, "reading", chain.text),
            closing=quarters(seed, "closing") if seed % 3 == 0 else 0.0,
            sticky=sticky,
            log=log,
        )

    small = model("small")
    large = model("large")
    return Arm(
        build(name, Budgeted(small, budget.left), Budgeted(large, budget.left), seed),
        small,
        large,
        budget,
    )


def build(name: str, small: Model, large: Model, seed: int = 0) -> Policy:
    """
    Build a policy of these tests, or any method; its options are drawn by *seed* where that reaches
    more of it.
    """
    critic = ScriptedCritic(
        lambda chain: taste(seed, "reward", chain.text),
        lambda chain: quarters(seed, "critic", chain.text),
    )
    match name:
        case "keeping":
            return Keeping(small, large, ragged=seed % 3)
        case "specreason":
            read = "greedy" if seed % 2 else "expected"
            policy = policies.make(name, small, large, read=read)
            return policies.Led(policy, large, first=seed % 4)
        case "reflective":
            return policies.make(
                name,
                small,
                large,
                alpha=(0.0, 0.3, 1.0)[seed % 3],
                accept=("match", "typical")[seed % 2],
            )
        case "reward":
            return policies.make(name, small, large, critic=critic, threshold=taste(seed, "doubt"))
        case "speculative-thinking":
            return policies.make(
                name, small, large, n1=4, n2=6, n3=5, limit=1, begin=3, reasoning=seed % 3 > 0
            )
        case "bild":
            return policies.make(
                name, small, large, rollback=2, scale="step" if seed % 2 else "token"
            )
        case "reading":
            measure: Literal["gap", "logprob"] = "logprob" if seed % 2 else "gap"
            return policies.make(
                name,
                small,
                large,
                tokens="digits",
                words=2,
                measure=measure,
                draft_tokens=(None, 4)[seed % 2],
                repair_tokens=(None, 1, 6)[seed % 3],
            )
        case "choose":
            return policies.Choose(small, large, 1 + seed % 4, 0.01)
        case "random":
            return policies.make(name, small, large, seed=seed)
        case "relay":
            return policies.make(name, small, large, cues=("So 1 is", " as", "any one"))
        case _:
            return policies.make(name, small, large, critic=critic)


def pair(length: int = 10, wrong: tuple[int, ...] = ()) -> tuple[ScriptedModel, ScriptedModel]:
    """
    Make two models of equal pace that share a log; the small one's steps at *wrong* are judged
    wrong.
    """

    def judge(chain: Chain, question: str) -> Mapping[str, float]:
        return {"0": 1.0} if len(chain.steps) - 1 in wrong else {"9": 1.0}

    small = ScriptedModel("small", counting("small", length))
    return small, ScriptedModel("large", counting("large", length), judge=judge, log=small.log)
