"""
The readings of a judge: what each method makes of the large model's probabilities, as one number
per step.

Several readings may share one request. A higher value is better; the *options* say with which
settings a method accepts the steps whose value is at least a threshold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf, log
from statistics import fmean
from typing import Any, Literal, TypeAlias

from stepspec.orchestrator.chain import Chain, Step, Token
from stepspec.orchestrator.interfaces import Model
from stepspec.policies import Cascade, Reflective
from stepspec.policies.reading import Tokens, strictly
from stepspec.policies.specreason import DIGITS, expected, likeliest
from stepspec.policies.surprise import Measure, surprise
from stepspec.prompts import load

Request: TypeAlias = Literal["score", "grade", "check", "reflect", "reward"]
GRADE = load("specreason.grade")
TINY = 1e-9


@dataclass(frozen=True, slots=True)
class JudgeReading:
    """
    A number that a method compares with a threshold: made of the reply to a *request* by *value*.

    *options* are those with which *policy* accepts the steps whose number is at least a threshold,
    given also the gap that words may have, which only `reading` uses; None if no options of a
    method do that.
    """

    name: str
    request: Request
    value: Callable[[Any], float]
    policy: str
    options: Callable[[float, float], Mapping[str, Any]] | None = None


def least(which: Tokens, measure: Measure) -> Callable[[Sequence[Token]], float]:
    """Minus the largest surprise of the tokens that are *which*; 0 if there are none."""
    return lambda tokens: -max(_surprises(tokens, which, measure), default=0.0)


def mean(which: Tokens, measure: Measure) -> Callable[[Sequence[Token]], float]:
    """Minus the mean surprise of the tokens that are *which*; 0 if there are none."""
    return lambda tokens: -fmean(_surprises(tokens, which, measure) or [0.0])


def _surprises(tokens: Sequence[Token], which: Tokens, measure: Measure) -> list[float]:
    chosen = strictly(tokens, which)
    return [
        surprise(token, measure, sampled=True)
        for token, strict in zip(tokens, chosen, strict=True)
        if strict
    ]


def _down(value: float, digits: int) -> float:
    """Round a threshold down, so that the value that it comes from passes; of the negative, up."""
    return floor(round(value * 10.0**digits, 6)) / 10.0**digits


def _cut_by(which: Tokens) -> Callable[[float, float], Mapping[str, Any]]:
    return lambda value, words: {
        "threshold": -_down(value, 2),
        "tokens": which,
        "words": -_down(min(-words, value), 2),
    }


def _grade(read: Callable[[Mapping[str, float]], float]) -> Callable[[Mapping[str, float]], float]:
    return lambda grades: read(grades) if sum(grades.values()) > TINY else 0.0


def _margin(rule: Literal["match", "typical"]) -> Callable[[Any], float]:
    """
    By how many nats a step's weakest token, fused, is above what the *rule* of `reflective` needs.
    """

    def value(read: Sequence[tuple[Token, Mapping[int, float]]]) -> float:
        bar = Reflective(None, None, accept=rule).bar  # type: ignore[arg-type]
        margins = [
            log(max(chances[token.id], TINY)) - log(max(bar(chances), TINY))
            for token, chances in read
        ]
        return min(margins, default=inf)

    return value


TOKENS: tuple[Tokens, ...] = ("all", "digits", "formulas")
READINGS: tuple[JudgeReading, ...] = (
    JudgeReading(
        "grade, mean",
        "grade",
        _grade(expected),
        "specreason",
        lambda t, _: {"threshold": _down(t, 2)},
    ),
    JudgeReading(
        "grade, digit",
        "grade",
        _grade(likeliest),
        "specreason",
        lambda t, _: {"threshold": t, "read": "greedy"},
    ),
    JudgeReading(
        "yes or no", "check", float, "cascade", lambda t, _: {"sure": 1.0, "threshold": _down(t, 3)}
    ),
    JudgeReading("reflective, match", "reflect", _margin("match"), "reflective"),
    JudgeReading("reflective, typical", "reflect", _margin("typical"), "reflective"),
    *(
        JudgeReading(f"mean log-probability, {tokens}", "score", mean(tokens, "logprob"), "reading")
        for tokens in TOKENS
    ),
    *(
        JudgeReading(
            f"least log-probability, {tokens}", "score", least(tokens, "logprob"), "reading"
        )
        for tokens in TOKENS
    ),
    *(
        JudgeReading(
            f"largest gap, {tokens}", "score", least(tokens, "gap"), "reading", _cut_by(tokens)
        )
        for tokens in TOKENS
    ),
    JudgeReading("mean gap, all", "score", mean("all", "gap"), "reading"),
    JudgeReading(
        "reward model", "reward", float, "reward", lambda t, _: {"threshold": _down(t, 3)}
    ),
)


Reader: TypeAlias = Callable[[Chain, Step], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Judges:
    """
    What judges steps: a *large* model, and a reward model that can *rate* a step, if there is one.
    """

    large: Model
    rate: Reader | None = None

    @property
    def requests(self) -> Mapping[Request, Reader]:
        """How each request is made."""
        known: dict[Request, Reader] = {
            "score": self._score,
            "grade": self._grade,
            "check": self._check,
            "reflect": Reflective(self.large, self.large, accept="typical").read,
        }
        return known if self.rate is None else {**known, "reward": self.rate}

    async def _score(self, chain: Chain, step: Step) -> Sequence[Token]:
        (tokens,) = await self.large.score(chain, step.text, top=1)
        return tokens

    async def _grade(self, chain: Chain, step: Step) -> Mapping[str, float]:
        return await self.large.ask(chain.extend(step), GRADE.text, DIGITS, opening=GRADE.opening)

    async def _check(self, chain: Chain, step: Step) -> float:
        yes, _ = await Cascade(self.large, self.large).check(self.large, chain.extend(step))
        return yes

    async def read(
        self, chain: Chain, step: Step, skipped: Collection[Request] = ()
    ) -> tuple[Mapping[str, float], Mapping[Request, float]]:
        """
        Return every reading of *step*, by name, and the seconds of each request; leave out what is
        *skipped*.
        """
        values: dict[str, float] = {}
        seconds: dict[Request, float] = {}
        clock = asyncio.get_running_loop().time
        for name, request in self.requests.items():
            if name in skipped:
                continue
            began = clock()
            reply = await request(chain, step)
            seconds[name] = clock() - began
            values |= {
                reading.name: reading.value(reply)
                for reading in READINGS
                if reading.request == name
            }
        return values, seconds
