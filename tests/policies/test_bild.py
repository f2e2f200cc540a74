"""BiLD: fallbacks, rollbacks, and the accepted part of a run; computed by hand."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from typing import Any, Literal

import pytest

from stepspec import policies
from stepspec.orchestrator import Accept, Chain, Policy, Rollback, Step, Token, Verdict, reason
from stepspec.orchestrator.chain import THINK_END, Role
from stepspec.policies import BiLD

from ..fakes import ScriptedModel, run, saying
from ..orchestrator.arms import PROBLEM

TEXT = f"one two three four five six seven eight nine ten eleven twelve.\n{THINK_END}"
SURE = log(0.61)
UNSURE = log(0.59)


def pair(small: str, large: str) -> tuple[ScriptedModel, ScriptedModel]:
    writer = ScriptedModel("small", saying(*small.split("|")))
    return writer, ScriptedModel("large", saying(*large.split("|")), log=writer.log)


def doubting(*tokens: str, logprob: float) -> Callable[[str, str], float]:
    return lambda before, token: logprob if token in tokens else -0.1


def think(policy: BiLD, ahead: int = 0) -> tuple[list[tuple[str, str, str]], str]:
    (chain, end), _ = run(reason(policy, PROBLEM, ahead=ahead))
    return [(step.author, step.text, step.note) for step in chain.steps], end


def judged(policy: BiLD, chain: Chain = PROBLEM) -> tuple[Step, Verdict]:
    draft = run(policy.draft(chain))[0]
    return draft, run(policy.verify(chain, draft))[0]


def test_a_token_of_unknown_rank_is_not_the_large_models_own_choice() -> None:
    small, large = pair(TEXT, TEXT)
    large.logprob = doubting(" three", logprob=-6.0)
    assert isinstance(judged(BiLD(small, large))[1], Accept)  # It is: rank 1.

    class Forgetful(ScriptedModel):
        async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
            read = await super().score(chain, *spans, top=top)
            return [tuple(replace(token, rank=0) for token in span) for span in read]

    forgetful = Forgetful("large", large.script, logprob=large.logprob)
    verdict = judged(BiLD(small, forgetful))[1]
    assert verdict == Rollback(len("one two"), reason="rollback", score=6.0)


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_sure_run_is_accepted_after_scoring_and_the_large_model_writes_nothing(
    ahead: int,
) -> None:
    small, large = pair(TEXT, TEXT)
    steps, end = think(BiLD(small, large), ahead)
    assert [text for _, text, _ in steps] == [
        "one two three four five six seven eight nine ten",
        f" eleven twelve.\n{THINK_END}",
    ]
    assert {author for author, _, _ in steps} == {"small"}
    assert end == "finished"
    assert [line for line in small.log if line.startswith("large") and line.endswith("done")] == [
        "large score 0 done",
        "large score 1 done",
    ]


@pytest.mark.parametrize(
    ("logprob", "drafted"),
    [(SURE, "one two three four five six seven eight nine ten"), (UNSURE, "one two three four")],
)
def test_the_small_model_falls_back_below_the_threshold(logprob: float, drafted: str) -> None:
    small, large = pair(TEXT, TEXT)
    small.logprob = doubting(" four", logprob=logprob)
    draft, verdict = judged(BiLD(small, large))
    assert draft.text == drafted
    assert verdict == Accept(0.0)  # It is the large model's first choice too.
    # at the threshold: sure
    assert judged(BiLD(small, large, fallback=exp(logprob)))[0].text != "one two three four"


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_unsure_token_that_the_large_model_would_not_write_is_replaced_by_one_of_its_own(
    ahead: int,
) -> None:
    small, large = pair(TEXT, TEXT.replace("four", "vier"))
    small.logprob = doubting(" four", logprob=UNSURE)
    steps, _ = think(BiLD(small, large), ahead)
    assert steps[:3] == [
        ("small", "one two three", ""),
        ("large", " vier", "fallback"),
        ("small", " five six seven eight nine ten eleven twelve.\n", ""),
    ]
    small, large = pair(TEXT, TEXT.replace("one", "eins"))
    small.logprob = doubting("one", logprob=UNSURE)
    steps, end = think(BiLD(small, large), ahead)
    assert steps[0] == ("large", "eins", "fallback")  # no empty draft before it
    assert steps[1][1].startswith(" two")
    assert end == "finished"
    both = Step(
        "one two three", "small", "until", (Token("one", SURE), Token(" two three", UNSURE))
    )
    # one token of the small model, and two of the large one
    refused = run(BiLD(*pair(TEXT, "one two drei.")).verify(PROBLEM, both))[0]
    assert refused == Rollback(len("one two"), reason="fallback", score=0.0)


@pytest.mark.parametrize("scale", ["token", "step"])
def test_the_best_tokens_probability_counts_and_not_the_sampled_ones(
    scale: Literal["token", "step"],
) -> None:
    small, large = pair(TEXT, TEXT)
    small.logprob = doubting(" two", " four", logprob=log(0.1))
    small.rivals = lambda before, token: (
        [Token(" deux", log(0.8)), Token(token, log(0.1))] if token == " two" else []
    )
    assert judged(BiLD(small, large, scale=scale))[0].text == "one two three four"


@pytest.mark.parametrize(
    ("logprob", "kept", "score"), [(-5.0, None, None), (-5.125, "one two three four five", 5.125)]
)
def test_a_draft_is_rolled_back_to_before_the_first_token_that_surprises_the_large_model(
    logprob: float, kept: str | None, score: float | None
) -> None:
    small, large = pair(TEXT, TEXT.replace("six", "sechs").replace("eight", "acht"))
    large.logprob = doubting(" six", " eight", logprob=logprob)
    draft, verdict = judged(BiLD(small, large))
    if kept is None:
        assert verdict == Accept(5.0)
    else:
        assert isinstance(verdict, Rollback)
        assert (draft.text[: verdict.keep], verdict.reason, verdict.score) == (
            kept,
            "rollback",
            score,
        )


def test_a_rollback_precedes_the_fallback() -> None:
    small, large = pair(TEXT, TEXT.replace("two", "zwei").replace("four", "vier"))
    small.logprob = doubting(" four", logprob=UNSURE)
    large.logprob = doubting(" two", logprob=-6.0)
    assert judged(BiLD(small, large))[1] == Rollback(len("one"), reason="rollback", score=6.0)
    large.logprob = doubting(" two", logprob=-4.0)
    assert judged(BiLD(small, large))[1] == Rollback(
        len("one two three"), reason="fallback", score=4.0
    )


def test_a_repair_or_a_turn_that_ends_without_text_ends_the_run() -> None:
    small, large = pair(TEXT, "one two")
    large.logprob = doubting(" three", logprob=-6.0)
    steps, end = think(BiLD(small, large))
    assert (steps, end) == ([("small", "one two", ""), ("large", "", "rollback")], "finished")
    assert small.log.count("large write 1") == 1
    steps, end = think(BiLD(*pair("one", "one two three"), run=1))
    assert (steps, end) == ([("small", "one", ""), ("small", "", "")], "finished")


def test_the_end_of_thinking_is_read_like_any_token() -> None:
    small, large = pair(f"one.{THINK_END}", f"one. two.\n{THINK_END}")
    large.logprob = doubting(THINK_END, logprob=-6.0)
    assert think(BiLD(small, large))[0][:2] == [
        ("small", "one.", ""),
        ("large", " two", "rollback"),
    ]
    small.logprob = doubting(THINK_END, logprob=UNSURE)
    large.logprob = doubting(logprob=-0.1)
    assert think(BiLD(small, large))[0][:2] == [
        ("small", "one.", ""),
        ("large", " two", "fallback"),
    ]


@pytest.mark.parametrize("ahead", [0, 2])
def test_at_the_scale_of_steps_drafts_and_repairs_go_on_to_the_delimiter(ahead: int) -> None:
    small, large = pair(
        f"one two three.\n\n|four five six.\n\n|seven eight nine.\n{THINK_END}",
        f"one two drei.\n\n|four fuenf sechs.\n\n|seven eight nine.\n{THINK_END}",
    )
    small.logprob = doubting(" five", logprob=UNSURE)
    large.logprob = doubting(" three", logprob=-6.0)
    steps, end = think(BiLD(small, large, scale="step"), ahead)
    assert steps == [
        ("small", "one two", ""),
        ("large", " drei.\n\n", "rollback"),
        ("small", "four", ""),
        ("large", " fuenf sechs.\n\n", "fallback"),
        ("small", f"seven eight nine.\n{THINK_END}", ""),
    ]
    assert end == "finished"


@pytest.mark.parametrize(
    ("tokens", "verdict"),
    [
        ((), Rollback(0, reason="fallback", score=0.0)),
        ((Token("one", SURE),), Rollback(3, reason="fallback", score=0.0)),
    ],
)
def test_an_unsure_token_without_text_has_the_large_model_go_on(
    tokens: Sequence[Token], verdict: Verdict
) -> None:
    small, large = pair(TEXT, TEXT)
    draft = Step("".join(token.text for token in tokens), "small", "until", tuple(tokens))
    assert run(BiLD(small, large).verify(PROBLEM, draft))[0] == verdict


# Sampled models: an unsure place keeps the large model's distribution: {.4, .35, .25}, not {.64,
# .21, .15}.

TRIALS = 2000
LARGE = {"A": 0.4, "B": 0.35, "C": 0.25}


@dataclass
class Dice:
    """
    A model whose every step is one token, drawn from *chances*; its log-probabilities are true.
    """

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
        return (
            step
            if until is not None and until(step)
            else Step(text, self.role, "delimiter", step.tokens)
        )

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        self.reads += 1
        return [(self.token(span),) if span else () for span in spans]


def frequencies(policy: Policy, trials: int = TRIALS) -> Mapping[str, float]:
    """How often each text is the first step that the loop commits."""

    async def first() -> list[str]:
        chains = [
            await reason(policy, PROBLEM, spent=lambda chain: len(chain.steps) > 0)
            for _ in range(trials)
        ]
        return [chain.steps[0].text for chain, _ in chains]

    counts = Counter(asyncio.run(first()))
    return {text: count / trials for text, count in counts.items()}


def dice(small: Mapping[str, float], large: Mapping[str, float]) -> tuple[Any, Any]:
    rng = random.Random(4)
    return Dice("small", small, rng), Dice("large", large, rng)


@pytest.mark.parametrize(
    "small", [LARGE, {"A": 0.2, "B": 0.3, "C": 0.5}], ids=["the same", "another"]
)
def test_an_unsure_place_has_the_large_models_own_distribution(small: Mapping[str, float]) -> None:
    found = frequencies(policies.make("bild", *dice(small, LARGE), sampled=True))
    for text, chance in LARGE.items():
        assert abs(found[text] - chance) < 4 * sqrt(chance * (1 - chance) / TRIALS)


def test_an_unsure_token_after_sure_ones_is_dropped_though_it_is_the_large_models_first() -> None:
    small, large = pair(TEXT, TEXT)
    small.logprob = doubting(" four", logprob=UNSURE)
    assert judged(BiLD(small, large)) == (run(BiLD(small, large).draft(PROBLEM))[0], Accept(0.0))
    draft, verdict = judged(BiLD(small, large, sampled=True))
    assert draft.text == "one two three four"
    assert verdict == Rollback(len("one two three"), reason="fallback", score=0.1)
    small.logprob = doubting("one", logprob=UNSURE)
    assert judged(BiLD(small, large, sampled=True))[1] == Rollback(reason="fallback")
    # nothing is left to read where the first token is unsure
    assert small.log.count("large score 0") == 2
    assert judged(BiLD(small, large))[1] == Accept(0.0)
    assert (
        judged(BiLD(*pair("one.\n\n|two.\n\n|three.", "")))[0].text == "one.\n\ntwo.\n\nthree."
    )  # a run has no delimiter
