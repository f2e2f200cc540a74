"""BiLD at a temperature above 0 sharpened every unsure place: {.4, .35, .25} became {.64, .21, .15}."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import log, sqrt
from typing import Any

import pytest

from stepspec import Sampling, Solver, policies
from stepspec.orchestrator import Accept, Chain, Policy, Rollback, reason
from stepspec.orchestrator.chain import Role, Step, Token
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.policies import BiLD

from ..fakes import run
from ..orchestrator.arms import PROBLEM
from ..policies.test_bild import TEXT, UNSURE, doubting, judged, pair
from .drawing import DrawingVllm

TRIALS = 4000
LARGE = {"A": 0.4, "B": 0.35, "C": 0.25}


@dataclass
class Dice:
    """A model whose every step is one token, drawn from *chances*; its log-probabilities are true."""

    role: Role
    chances: Mapping[str, float]
    rng: random.Random
    reads: int = 0

    def token(self, text: str) -> Token:
        best = sorted(self.chances, key=lambda one: self.chances[one], reverse=True)
        top = Token(best[0], log(self.chances[best[0]]), 1)
        return Token(text, log(self.chances[text]), best.index(text) + 1, top=(top,))

    async def write(self, chain: Chain, *, until: Any = None, **options: Any) -> Step:
        (text,) = self.rng.choices(list(self.chances), list(self.chances.values()))
        step = Step(text, self.role, "until", (self.token(text),))
        return step if until is not None and until(step) else Step(text, self.role, "delimiter", step.tokens)

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        self.reads += 1
        return [(self.token(span),) if span else () for span in spans]


def frequencies(policy: Policy, trials: int = TRIALS) -> Mapping[str, float]:
    """How often each text is the first step that the loop commits."""

    async def first() -> list[str]:
        chains = [await reason(policy, PROBLEM, spent=lambda chain: len(chain.steps) > 0) for _ in range(trials)]
        return [chain.steps[0].text for chain, _ in chains]

    counts = Counter(asyncio.run(first()))
    return {text: count / trials for text, count in counts.items()}


def dice(small: Mapping[str, float], large: Mapping[str, float]) -> tuple[Any, Any]:
    rng = random.Random(4)
    return Dice("small", small, rng), Dice("large", large, rng)


@pytest.mark.parametrize("scale", ["token", "step"])
@pytest.mark.parametrize("small", [LARGE, {"A": 0.2, "B": 0.3, "C": 0.5}], ids=["the same", "another"])
def test_an_unsure_place_has_the_large_models_own_distribution(scale: str, small: Mapping[str, float]) -> None:
    found = frequencies(policies.make("bild", *dice(small, LARGE), scale=scale, sampled=True))
    for text, chance in LARGE.items():
        assert abs(found[text] - chance) < 4 * sqrt(chance * (1 - chance) / TRIALS)


@pytest.mark.parametrize("scale", ["token", "step"])
def test_a_place_that_surprises_the_large_model_has_its_own_distribution_too(scale: str) -> None:
    small = {"A": 0.9, "B": 0.1}
    flat = {"A": 0.006, **{text: 0.994 / 200 for text in ["B", *map(str, range(199))]}}  # all of them above 5 nats
    found = frequencies(policies.make("bild", *dice(small, flat), scale=scale, sampled=True), 1000)
    assert found.get("A", 0.0) < 0.03


def test_a_greedy_large_model_is_spared_the_token_that_it_would_write_itself() -> None:
    small, large = dice(LARGE, LARGE)
    policy = BiLD(small, large)
    for text, stands in (("A", True), ("B", False)):
        draft = Step(text, "small", "until", (small.token(text),))
        verdict = asyncio.run(policy.verify(PROBLEM, draft))
        assert isinstance(verdict, Rollback) is not stands
    assert asyncio.run(BiLD(small, large, sampled=True).verify(PROBLEM, draft)) == Rollback(reason="fallback")
    assert large.reads == 2  # nothing is left to read where the first token is unsure


def test_an_unsure_token_after_sure_ones_is_dropped_though_the_large_model_would_write_it_first() -> None:
    small, large = pair(TEXT, TEXT)
    small.logprob = doubting(" four", logprob=UNSURE)
    assert judged(BiLD(small, large)) == (run(BiLD(small, large).draft(PROBLEM))[0], Accept(0.1))
    draft, verdict = judged(BiLD(small, large, sampled=True))
    assert draft.text == "one two three four"
    assert verdict == Rollback(len("one two three"), reason="fallback", score=0.1)


def spying(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the policies that are built from now on know that their models sample."""
    built: list[bool] = []
    make = policies.make

    def spied(name: str, *parts: Any, sampled: bool = False, **options: Any) -> Policy:
        built.append(sampled)
        return make(name, *parts, sampled=sampled, **options)

    monkeypatch.setattr(policies, "make", spied)
    return built


@pytest.mark.parametrize(("sampling", "sampled"), [(Sampling(seed=1), True), (GREEDY, False)])
async def test_policies_get_whether_the_models_sample(
    sampling: Sampling, sampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = DrawingVllm()
    async with server.serve("small") as small, server.serve("large") as large:
        built = spying(monkeypatch)
        nested = {"small": small, "large": large.model_copy(update={"role": "large"}), "policy": "bild"}
        async with Solver(nested, large, policy="bild") as solver:
            await solver.solve("What is 1 + 1?", sampling=sampling)
    assert built
    assert set(built) == {sampled}
