"""
Reflective verification: two readings of a draft, blended as stated, and the first token that fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec import Sampling, Solver
from stepspec.orchestrator import Accept, Chain, Rollback, Step, Token, Verdict
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import MissingCapability
from stepspec.policies import make
from stepspec.policies.reflective import anchor, fuse
from stepspec.prompts import load

from ..fakes import ScriptedModel, counting, run, tokenise
from ..fidelity.drawing import DrawingVllm
from ..orchestrator.arms import BOUNDED, PROBLEM

DRAFT = Step("So it is.\n\n", "small")
PLACES = tokenise(DRAFT.text)  # So, it, is and the full stop with its blank line
Reading = Mapping[int, Mapping[str, float]]  # by place: the top tokens with their log-probabilities


def numbered(text: str) -> int:
    return sum(map(ord, text))


@dataclass
class Reader(ScriptedModel):
    """
    Reads a draft the first time as *first* says and the second time as *second* does; elsewhere it
    is sure.
    """

    first: Reading = field(default_factory=dict[int, Mapping[str, float]])
    second: Reading = field(default_factory=dict[int, Mapping[str, float]])
    calls: list[tuple[Chain, tuple[str, ...], int]] = field(
        default_factory=list[tuple[Chain, tuple[str, ...], int]]
    )

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        self.calls.append((chain, spans, top))
        return [
            self.tokens_for(span, reading)
            for span, reading in zip(spans, (self.first, {}, self.second), strict=True)
        ]

    def tokens_for(self, span: str, reading: Reading) -> tuple[Token, ...]:
        tokens: list[Token] = []
        for place, text in enumerate(tokenise(span)):
            known = reading.get(place, {text: -0.001})
            best = sorted(known, key=lambda piece: known[piece], reverse=True)
            rivals = tuple(
                Token(piece, known[piece], rank, numbered(piece))
                for rank, piece in enumerate(best, 1)
            )
            tokens.append(Token(text, known.get(text, -9.0), 0, numbered(text), rivals))
        return tuple(tokens)


def verdict(
    first: Reading, second: Reading, *, chain: Chain = PROBLEM, draft: Step = DRAFT, **options: Any
) -> tuple[Verdict, Reader]:
    small = ScriptedModel("small", counting("small", 3))
    large = Reader("large", counting("large", 3))
    large.first = first
    large.second = second
    policy = make("reflective", small, large, **options)
    return run(policy.verify(chain, draft))[0], large


def kept(ruling: Verdict) -> int | None:
    """How many characters are kept, None for all."""
    return ruling.keep if isinstance(ruling, Rollback) else None


def test_one_prefill_reads_the_draft_twice_with_the_prompt_and_the_anchor_between() -> None:
    chain = PROBLEM.extend(Step("One.\n\n", "small")).extend(Step("Two.\n\n", "large"))
    ruling, large = verdict({}, {}, chain=chain, top=7)
    bridge = load("reflective.reflect").text + "\n\nTwo.\n\n"
    assert large.calls == [(chain, (DRAFT.text, bridge, DRAFT.text), 7)]
    assert isinstance(ruling, Accept)


@pytest.mark.parametrize(
    ("text", "bridge"),
    [("Half a", "\n\nWait."), ("Whole.\n\n", "Wait."), ("All.\n</think>", "Wait.")],
)
def test_the_prompt_begins_a_paragraph_of_its_own(text: str, bridge: str) -> None:
    _, large = verdict({}, {}, draft=Step(text, "small", "length"))
    assert large.calls[0][1][1].startswith(bridge)


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ((), ""),
        (("One.\n\n",), "One.\n\n"),
        (("One.\n\n", "Two.\n\n"), "Two.\n\n"),
        (("One.\n\n", "Two"), "Two"),
        (("One.\n\n", "Two ", "and three.\n\n"), "Two and three.\n\n"),
        (("Half",), "Half"),
        (("Half ", "and half.\n\n"), "Half and half.\n\n"),
    ],
)
def test_the_anchor_is_the_last_paragraph_however_many_steps_wrote_it(
    texts: Sequence[str], found: str
) -> None:
    chain = PROBLEM
    for text in texts:
        chain = chain.extend(
            Step(text, "small", "delimiter" if text.endswith("\n\n") else "length")
        )
    assert anchor(chain) == found


def test_the_readings_are_blended_by_alpha() -> None:
    first = Token("a", -1.0, id=1, top=(Token("b", -0.5, id=2),))
    second = Token("a", -0.25, id=1)
    second = Token("a", -0.25, id=1, top=(Token("a", -0.25, id=1), Token("b", -2.0, id=2)))
    for alpha in (0.0, 0.3, 1.0):
        a = (1 - alpha) * -1.0 + alpha * -0.25
        b = (1 - alpha) * -0.5 + alpha * -2.0
        total = exp(a) + exp(b)
        assert fuse(first, second, alpha) == pytest.approx({1: exp(a) / total, 2: exp(b) / total})


def test_a_token_that_one_list_lacks_counts_there_as_the_last_of_it() -> None:
    first = Token("a", -1.0, id=1, top=(Token("b", -0.5, id=2), Token("c", -3.0, id=3)))
    second = Token("a", -0.5, id=1, top=(Token("d", -1.5, id=4),))
    fused = fuse(first, second, 0.5)
    expected = {1: -0.75, 2: (-0.5 - 1.5) / 2, 3: (-3.0 - 1.5) / 2, 4: (-3.0 - 1.5) / 2}
    total = sum(map(exp, expected.values()))
    assert fused == pytest.approx({id: exp(logit) / total for id, logit in expected.items()})


@given(
    readings=st.tuples(*[st.lists(st.floats(-20, 0), min_size=8, max_size=8)] * 2),
    token=st.integers(0, 7),
    top=st.integers(1, 8),
    alpha=st.floats(0, 1),
)
@BOUNDED
def test_a_match_is_the_likeliest_of_the_full_vocabulary_even_with_short_lists(
    readings: tuple[list[float], list[float]], token: int, top: int, alpha: float
) -> None:
    def token_with(logprobs: list[float]) -> Token:
        listed = sorted(range(8), key=lambda id: -logprobs[id])[:top]
        return Token(
            "",
            logprobs[token],
            id=token,
            top=tuple(Token("", logprobs[id], id=id) for id in listed),
        )

    first, second = readings
    chances = fuse(token_with(first), token_with(second), alpha)
    blend = [(1 - alpha) * one + alpha * other for one, other in zip(first, second, strict=True)]
    if chances[token] >= max(chances.values()):
        assert blend[token] >= max(blend) - 1e-6
    elif top == 8:
        assert blend[token] < max(blend)


def test_the_second_reading_turns_a_token_down_only_with_weight_enough() -> None:
    doubts: Reading = {2: {" is": -1.0, " was": -0.2}}
    liked: Reading = {2: {" is": -0.2, " was": -0.8}}
    assert kept(verdict(liked, doubts, alpha=0.0)[0]) is None
    assert kept(verdict(liked, doubts, alpha=0.3)[0]) is None
    assert kept(verdict(liked, doubts, alpha=0.5)[0]) == len("So it")
    assert kept(verdict(liked, doubts, alpha=1.0)[0]) == len("So it")


def test_the_tokens_before_the_first_failing_one_are_kept() -> None:
    for place in range(len(PLACES)):
        reading: Reading = {
            at: {PLACES[at]: -3.0, "else": -0.1} for at in range(place, len(PLACES))
        }
        ruling, _ = verdict(reading, reading)
        assert kept(ruling) == len("".join(PLACES[:place]))
        assert isinstance(ruling, Rollback)
        assert ruling.reason == "reflection"
        assert ruling.score == pytest.approx(exp(-3.0) / (exp(-3.0) + exp(-0.1)))


def test_the_score_of_a_draft_is_its_least_likely_token_and_1_without_any() -> None:
    even: Reading = {1: {" it": -0.5, "else": -1.0}}
    ruling, _ = verdict(even, even)
    assert isinstance(ruling, Accept)
    assert ruling.score == pytest.approx(exp(-0.5) / (exp(-0.5) + exp(-1.0)))
    # a model that ends its turn at once
    assert verdict({}, {}, draft=Step("", "small", "end"))[0] == Accept(1.0)


NINE = {str(number): log(0.92 / 9) for number in range(9)}  # exp(-entropy) is about a tenth


@pytest.mark.parametrize(
    ("reading", "options", "stands"),
    [
        ({" it": log(0.089), "else": log(0.911)}, {}, False),
        ({" it": log(0.091), "else": log(0.909)}, {}, True),
        ({" it": log(0.08), **NINE}, {"delta": 0.9}, False),
        ({" it": log(0.08), **NINE}, {"delta": 0.4}, True),
    ],
)
def test_typical_means_above_epsilon_if_the_model_is_sure_else_a_share_of_its_perplexity(
    reading: Mapping[str, float], options: dict[str, Any], stands: bool
) -> None:
    ruling, _ = verdict({1: reading}, {1: reading}, accept="typical", **options)
    assert (kept(ruling) is None) == stands


def test_an_endpoint_without_alternatives_cannot_be_used() -> None:
    with pytest.raises(MissingCapability, match="top tokens"):
        verdict({1: {}}, {1: {}})


# Sampled models: typical tokens are accepted, because a match rejects most sampled ones.


@pytest.mark.parametrize(("sampling", "top"), [(Sampling(seed=1), 20), (GREEDY, 2)])
async def test_typical_is_the_rule_of_a_run_above_temperature_0(
    sampling: Sampling, top: int
) -> None:
    server = DrawingVllm()
    async with (
        server.serve("small") as small,
        server.serve("large") as large,
        Solver(small, large, policy="reflective") as solver,
    ):
        await solver.solve("What is 1 + 1?", sampling=sampling)
    read = [body.get("sampling_params", body) for _, body in server.requests]
    assert {each["prompt_logprobs"] for each in read if "prompt_logprobs" in each} == {top}
