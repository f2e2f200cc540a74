"""Reading: a step stands up to its first token that is too improbable; computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from stepspec.orchestrator import Accept, Chain, Rollback, Step, Token, Verdict, reason
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.errors import ConfigurationError, MissingCapability
from stepspec.policies import StepReading, check
from stepspec.policies.reading import Tokens, strictly
from stepspec.policies.surprise import Measure

from ..fakes import ScriptedModel, run, tokenise
from ..orchestrator.arms import PROBLEM
from .test_bild import dice, frequencies, pair

STEP = "It costs 3 * 4 = 12 euros."


class Reader(ScriptedModel):
    """
    Reads the tokens of a step with the gaps and log-probabilities that the table *read* has for
    their texts.
    """

    read_as: dict[str, tuple[float, float]]
    tops: list[int]

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        self.tops.append(top)
        return [
            tuple(self._read(token, top) for token in self.read(chain.text, span)) for span in spans
        ]

    def _read(self, token: Token, top: int) -> Token:
        behind, logprob = self.read_as.get(token.text, (0.0, -0.25))
        best = (Token("other", logprob + behind, 1),) if top else ()
        return replace(token, logprob=logprob, rank=2 if behind else 1, top=best)


def reader(table: dict[str, tuple[float, float]]) -> Any:
    large = Reader("large", lambda previous: STEP)
    large.read_as = table
    large.tops = []
    return large


def judged(table: dict[str, tuple[float, float]], **options: Any) -> tuple[str, Verdict]:
    large = reader(table)
    policy = StepReading(large, large, **cast("dict[str, Any]", {"tokens": "digits", **options}))
    verdict = run(policy.verify(PROBLEM, Step(STEP, "small")))[0]
    assert large.tops == [1 if policy.measure == "gap" else 0]
    return STEP[: verdict.keep] if isinstance(verdict, Rollback) else STEP, verdict


@pytest.mark.parametrize(
    ("table", "kept", "verdict"),
    [
        ({}, STEP, Accept(0.0)),
        # both as far as their thresholds allow
        ({" 12": (2.0, -2.25), " euros": (5.0, -5.5)}, STEP, Accept(2.0)),
        ({" 12": (2.125, -2.25)}, "It costs 3 * 4 =", Rollback(16, "digits", 2.125)),
        ({" euros": (5.125, -5.5)}, "It costs 3 * 4 = 12", Rollback(19, "words", 0.0)),
        # the first, not the worst
        ({" costs": (6.0, -6.5), " 12": (9.0, -9.5)}, "It", Rollback(2, "words", 0.0)),
        ({"It": (6.0, -6.5)}, "", Rollback(0, "words", 0.0)),
    ],
)
def test_a_step_is_cut_before_the_first_token_above_its_threshold(
    table: dict[str, tuple[float, float]], kept: str, verdict: Verdict
) -> None:
    assert judged(table, threshold=2, words=5) == (kept, verdict)


@pytest.mark.parametrize(
    ("tokens", "strict"),
    [
        ("digits", ["3", "4", "12"]),
        # a unit stands where a missing digit would
        ("formulas", ["3", "*", "4", "=", "12", "euros"]),
        ("all", [*STEP.removesuffix(".").split(), "."]),
    ],
)
def test_the_tokens_that_are_read_strictly(tokens: Tokens, strict: list[str]) -> None:
    read = [Token(piece) for piece in tokenise(STEP)]
    chosen = strictly(read, tokens)
    assert [token.text.strip() for token, yes in zip(read, chosen, strict=True) if yes] == strict


def test_a_first_choice_surprises_only_a_sampling_model_and_is_read_by_its_log_probability() -> (
    None
):
    table = {" 12": (0.0, -3.0)}
    assert (
        judged(table, threshold=2)[1] == judged(table, threshold=2, sampled=True)[1] == Accept(0.0)
    )
    assert judged(table, threshold=2, measure="logprob")[1] == Accept(0.0)
    assert judged(table, threshold=2, measure="logprob", sampled=True)[1] == Rollback(
        16, "digits", 3.0
    )


def test_the_end_of_the_thinking_is_read_as_strictly_as_a_number() -> None:
    small, large = pair(f"one.{THINK_END}", f"one. two.\n{THINK_END}")
    large.logprob = lambda before, token: -4.0 if token == THINK_END else -0.1
    policy = StepReading(small, large, threshold=3, tokens="digits", measure="logprob")
    draft = run(policy.draft(PROBLEM))[0]
    assert run(policy.verify(PROBLEM, draft))[0] == Rollback(4, "digits", 4.0)


@pytest.mark.parametrize("ahead", [0, 2])
def test_the_large_model_goes_on_from_the_good_beginning(ahead: int) -> None:
    small, large = pair(
        f"two and three are 6, I say.\n\n|so it is.\n{THINK_END}",
        f"two and three are 5.\n\n|so it is.\n{THINK_END}",
    )
    small.logprob = large.logprob = lambda before, token: -4.0 if token == " 6" else -0.1
    large.rivals = lambda before, token: [Token(" 5", -0.1, 1)]
    policy = StepReading(small, large, draft_tokens=None, repair_tokens=None)
    (chain, end), _ = run(reason(policy, PROBLEM, ahead=ahead))
    assert [(step.author, step.text, step.note) for step in chain.steps] == [
        ("small", "two and three are", ""),
        ("large", " 5.\n\n", "all"),
        ("small", f"so it is.\n{THINK_END}", ""),
    ]
    assert end == "finished"


def test_with_a_number_of_tokens_drafts_and_repairs_cross_the_ends_of_steps() -> None:
    small, large = pair(
        f"one.\n\n|two drei four five six.\n{THINK_END}",
        f"one.\n\n|two three four five six.\n{THINK_END}",
    )
    large.logprob = lambda before, token: -4.0 if token == " drei" else -0.1
    policy = StepReading(
        small,
        large,
        threshold=1,
        tokens="all",
        measure="logprob",
        draft_tokens=4,
        repair_tokens=2,
    )
    (chain, end), _ = run(reason(policy, PROBLEM))
    assert [(step.author, step.text, step.note) for step in chain.steps] == [
        ("small", "one.\n\ntwo", ""),
        ("large", " three four", "all"),
        ("small", " five six.\n", ""),
        ("small", THINK_END, ""),
    ]
    assert end == "finished"


@pytest.mark.parametrize("option", ["draft_tokens", "repair_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "many"])
def test_a_number_of_tokens_is_a_whole_number_of_at_least_1(option: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"'{option}': a whole number of 1 or more or"):
        check("reading", {option: value})
    assert check("reading", {option: None}) == {option: None}


def test_an_endpoint_without_top_tokens_cannot_read_gaps() -> None:
    class Plain(Reader):
        async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
            return await super().score(chain, *spans, top=0)

    large = Plain("large", lambda previous: STEP)
    large.read_as = {" 12": (1.0, -1.0)}
    large.tops = []
    with pytest.raises(MissingCapability, match="top tokens"):
        run(StepReading(large, large).verify(PROBLEM, Step(STEP, "small")))
    by_logprob = StepReading(large, large, threshold=2, measure="logprob")
    assert isinstance(run(by_logprob.verify(PROBLEM, Step(STEP, "small")))[0], Accept)


SAMPLED = {"A": 0.4, "B": 0.35, "C": 0.25}
"""Each of them is within a gap of log(0.4 / 0.25) = 0.47 nats of the likeliest."""


@pytest.mark.parametrize(
    ("measure", "sampled", "first"),
    [("gap", True, 0.4), ("logprob", True, 0.4), ("logprob", False, 0.64)],
)
def test_equally_likely_tokens_stay_so_unless_log_probabilities_spare_the_first_choice(
    measure: Measure, sampled: bool, first: float
) -> None:
    found = frequencies(
        StepReading(*dice(SAMPLED, SAMPLED), words=0.5, measure=measure, sampled=sampled)
    )
    # 0.64: A is accepted, B and C are drawn again: 0.4 + 0.6 * 0.4
    assert found["A"] == pytest.approx(first, abs=0.04)
