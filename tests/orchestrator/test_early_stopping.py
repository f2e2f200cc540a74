"""Stop rules end the thinking at the same step at any pace, delay no draft, and do no harm when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Chain, Step
from stepspec.orchestrator.chain import THINK_END, Rollback, Stop
from stepspec.orchestrator.early_stopping import (
    TRIAL,
    StopRule,
    TrialAnswer,
    running_stop_rule,
)
from stepspec.orchestrator.errors import ConfigurationError, EndpointUnavailable
from stepspec.orchestrator.lookahead import LookaheadControl, run_ahead
from stepspec.policies import SpecReason

from ..fakes import ScriptedModel, run
from .arms import BOUNDED, PROBLEM, pair, quarters


@dataclass
class Waits:
    """Ends the thinking at the chain with *at* steps; a check takes *seconds*."""

    at: int
    seconds: Callable[[Chain], float] = lambda chain: 0.0
    checked: list[int] = field(default_factory=list[int])
    open: int = 0

    async def __call__(self, chain: Chain) -> bool:
        self.checked.append(len(chain.steps))
        self.open += 1
        try:
            await asyncio.sleep(self.seconds(chain))
        finally:
            self.open -= 1
        return len(chain.steps) == self.at


async def watched(rule: StopRule | None, *, ahead: int = 1, wrong: tuple[int, ...] = ()) -> tuple[Chain, bool]:
    """The loop in small: where it waits for the watch, and where it asks."""
    chain = PROBLEM
    small, large = pair(10, wrong)
    policy = SpecReason(small, large)
    async with running_stop_rule(rule) as running:
        while not chain.finished:
            control = LookaheadControl(ahead)
            async with run_ahead(
                policy, chain, control=control, spent=lambda c: False, observe=lambda e: None
            ) as looking:
                while not chain.finished:
                    draft, verdict = await looking.next()
                    if await running.stops():
                        return chain, True
                    if isinstance(verdict, Rollback):
                        repaired = await looking.repair(chain, draft, verdict)
                        if await running.stops():
                            return chain, True
                        chain = chain.extend(repaired)
                        running.start(chain)
                        break
                    chain = chain.extend(draft)
                    running.start(chain)
    return chain, False


@given(
    seed=st.integers(0, 10_000),
    ahead=st.sampled_from([0, 1, 3]),
    at=st.integers(1, 10),
    wrong=st.sets(st.integers(0, 8), max_size=3),
)
@BOUNDED
def test_the_thinking_ends_at_the_same_step_at_any_pace_and_any_depth(
    seed: int, ahead: int, at: int, wrong: set[int]
) -> None:
    slow = Waits(at, seconds=lambda chain: 4 * quarters(seed, chain.text))
    (chain, halt), _ = run(watched(slow, ahead=ahead, wrong=tuple(wrong)))
    (full, _), _ = run(watched(None, wrong=tuple(wrong)))
    assert chain.steps == full.steps[: min(at, 10)]
    assert halt == (at < 10)  # The last step ends the thinking by itself.
    assert slow.checked == list(range(1, min(at, 9) + 1))
    assert slow.open == 0


def test_a_watch_that_is_as_fast_as_a_step_costs_no_time() -> None:
    unwatched = run(watched(None))[1]
    assert run(watched(Waits(99, seconds=lambda chain: 1.0)))[1] == unwatched == 11.0
    assert run(watched(Waits(99, seconds=lambda chain: 2.0)))[1] == 11.0 + 9.0


def test_a_slow_rule_is_cancelled_and_its_failures_are_ignored() -> None:
    async def broken(chain: Chain) -> bool:
        raise EndpointUnavailable("gone", role="large")

    chain, halt = run(watched(broken))[0]
    assert (chain.finished, halt) == (True, False)

    async def one(rule: StopRule, **limits: float) -> bool:
        async with running_stop_rule(rule, **limits) as running:
            running.start(PROBLEM)
            return await running.stops()

    hangs = Waits(0, seconds=lambda chain: 1e9)
    assert run(one(hangs, patience=3.0)) == (False, 3.0)
    assert run(one(hangs)) == (False, 10.0)
    assert hangs.open == 0

    async def times_out(chain: Chain) -> bool:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        run(one(times_out))


@pytest.mark.parametrize(
    "steps",
    [
        (Step("So it is 42.", "small", "end"),),  # a model without a thinking block has ended its turn
        (Step(f"So.\n{THINK_END}", "small", "end"), Step("It is 42.\n\n", "small")),
    ],
)
def test_no_check_begins_once_the_thinking_is_over(steps: tuple[Step, ...]) -> None:
    rule = Waits(len(steps))

    async def checked() -> bool:
        async with running_stop_rule(rule) as running:
            running.start(replace(PROBLEM, steps=steps))
            return await running.stops()

    assert run(checked()) == (False, 0.0)
    assert rule.checked == []


def test_leaving_the_block_cancels_an_open_check() -> None:
    hangs = Waits(0, seconds=lambda chain: 1e9)

    async def leaves() -> None:
        async with running_stop_rule(hangs, patience=1e12) as running:
            running.start(PROBLEM)
            await asyncio.sleep(1)
            assert hangs.open == 1
        assert hangs.open == 0

    assert run(leaves())[1] == 1.0


def trials(*answers: str, logprob: float = -1.0) -> ScriptedModel:
    """A model whose trial answer after n steps is the n-th of *answers*."""
    model = ScriptedModel("large", lambda original: "", logprob=lambda before, token: logprob)
    original = model.next

    def answer(text: str) -> str | None:
        steps = text.partition(THINK_END)[0].count("\n\n")
        model.answer = f"\n\n\\boxed{{{answers[min(steps, len(answers)) - 1]}}}"
        return original(text)

    model.next = answer  # type: ignore[method-assign]
    return model


async def decisions(rule: StopRule, *openings: str, stop: Stop = "delimiter") -> list[bool]:
    """What *rule* returns of a chain after each of its steps."""
    chain, halts = PROBLEM, list[bool]()
    for opening in openings:
        chain = chain.extend(Step(f"{opening} it is so.\n\n", "small", stop))
        halts.append(await rule(chain))
    return halts


def test_a_trial_answer_that_is_sure_is_enough() -> None:
    sure = TrialAnswer(trials("42", logprob=-0.01))
    assert run(decisions(sure, "First,", "Wait,"))[0] == [False, True]
    assert run(decisions(TrialAnswer(trials("42", logprob=-0.06)), "Wait,", "Wait,"))[0] == [False, False]


def test_the_tokens_of_the_box_do_not_count_for_the_confidence() -> None:
    model = trials("42")
    model.logprob = lambda before, token: -9.0 if token in TRIAL else 0.0
    assert run(decisions(TrialAnswer(model, sure=1.0), "Wait,"))[0] == [True]


def test_a_trial_without_tokens_is_not_sure() -> None:
    class Silent(ScriptedModel):
        async def write(self, chain: Chain, **wanted: Any) -> Step:
            return replace(await super().write(chain, **wanted), tokens=())

    silent = Silent("large", lambda previous: "", answer="\n\n\\boxed{42}")
    assert run(decisions(TrialAnswer(silent, sure=0.01), *("Wait,",) * 3))[0] == [False, False, True]


def test_a_trial_may_be_one_token_long() -> None:
    assert run(decisions(TrialAnswer(trials("42"), limit=1), "Wait,"))[0] == [False]


def test_the_same_trial_answer_again_and_again_is_enough() -> None:
    steps = ("Wait,",) * 6
    assert run(decisions(TrialAnswer(trials("1", "2", "2", "3", "3", "3")), *steps))[0] == [False] * 5 + [True]
    assert run(decisions(TrialAnswer(trials("1", "2", "2", "3"), times=2), *steps[:3]))[0] == [False, False, True]
    assert run(decisions(TrialAnswer(trials("9", "8", "7", "6")), *steps[:4]))[0] == [False] * 4


def test_a_trial_answer_without_an_end_is_none() -> None:
    endless = TrialAnswer(trials("1 " * 100, logprob=-0.001), limit=20)
    assert run(decisions(endless, *("Wait,",) * 5))[0] == [False] * 5
    assert run(decisions(TrialAnswer(trials(" ", logprob=-0.001)), *("Wait,",) * 5))[0] == [False] * 5


def test_braces_inside_an_answer_do_not_end_it() -> None:
    watch = TrialAnswer(trials("\\frac{1}{2}", logprob=-0.001))
    assert run(decisions(watch, "Wait,"))[0] == [True]
    assert watch._answers == ["\\frac{1}{2}"]  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("opening", "tried"),
    [
        ("Wait,", True),
        ("  hmm.", True),
        ("So", True),
        ("Let me check:", True),
        ("Let me double-check that", True),
        ("Alternatively,", True),
        ("Waiting", False),
        ("Sober", False),
        ("I wait", False),
        ("Then", False),
    ],
)
def test_trials_follow_paragraphs_that_begin_with_a_cue(opening: str, tried: bool) -> None:
    model = trials("42")
    run(decisions(TrialAnswer(model), opening))
    assert bool(model.log) is tried


def test_trials_may_also_have_an_interval_but_never_interrupt_a_paragraph() -> None:
    model = trials("1", "2", "3", "4", "5")
    run(decisions(TrialAnswer(model, every=2), *("Then",) * 5))
    assert [line for line in model.log if "done" not in line] == ["large write 3", "large write 5"]
    model.log.clear()
    run(decisions(TrialAnswer(model, every=1), "Wait,", "Then", stop="length"))
    assert not model.log


@pytest.mark.parametrize(
    "wrong", [{"sure": 0.0}, {"sure": -0.5}, {"sure": 1.1}, {"times": 1}, {"every": -1}, {"limit": 0}]
)
def test_impossible_trials_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="trial answers: "):
        TrialAnswer(trials("42"), **wrong)  # type: ignore[arg-type]
