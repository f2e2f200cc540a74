"""Watches end the thinking at the same step whatever their pace, delay no drafting, and hurt nobody when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Chain, Step
from stepspec.orchestrator.chain import THINK_END, Role, Rollback, Stop, Token
from stepspec.orchestrator.early_stopping import (
    TRIAL,
    AnyStopRule,
    GiveUp,
    Halt,
    StopRule,
    TrialAnswer,
    accepted,
    checking_stop_rule,
)
from stepspec.orchestrator.errors import ConfigurationError, EndpointUnavailable
from stepspec.orchestrator.lookahead import LookaheadControl, run_ahead
from stepspec.policies import SpecReason

from ..fakes import ScriptedModel, run
from .arms import BOUNDED, PROBLEM, pair, quarters


@dataclass
class Waits:
    """Says *halt* about the chain with *at* steps, after so many *seconds* of looking at it."""

    at: int
    seconds: Callable[[Chain], float] = lambda chain: 0.0
    halt: Halt = "enough"
    asked: list[int] = field(default_factory=list[int])
    open: int = 0

    async def __call__(self, chain: Chain) -> Halt | None:
        self.asked.append(len(chain.steps))
        self.open += 1
        try:
            await asyncio.sleep(self.seconds(chain))
        finally:
            self.open -= 1
        return self.halt if len(chain.steps) == self.at else None


async def watched(watch: StopRule | None, *, ahead: int = 1, wrong: tuple[int, ...] = ()) -> tuple[Chain, Halt | None]:
    """The loop in small: where it waits for the watch, and where it asks."""
    chain = PROBLEM
    small, large = pair(10, wrong)
    policy = SpecReason(small, large)
    async with checking_stop_rule(watch) as asked:
        while not chain.finished:
            depth = LookaheadControl.of(ahead)
            async with run_ahead(policy, chain, ahead=depth, spent=lambda c: False, observe=lambda e: None) as looking:
                while not chain.finished:
                    draft, verdict = await looking.next()
                    if halt := await asked.told():
                        return chain, halt
                    if isinstance(verdict, Rollback):
                        repaired = await looking.repair(chain, draft, verdict)
                        if halt := await asked.told():
                            return chain, halt
                        chain = chain.extend(repaired)
                        asked.ask(chain)
                        break
                    chain = chain.extend(draft)
                    asked.ask(chain)
    return chain, None


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
    (whole, _), _ = run(watched(None, wrong=tuple(wrong)))
    assert chain.steps == whole.steps[: min(at, 10)]
    assert halt == ("enough" if at < 10 else None)  # The last step ends the thinking by itself.
    assert slow.asked == list(range(1, min(at, 9) + 1))
    assert slow.open == 0


def test_a_watch_that_is_as_fast_as_a_step_costs_no_time() -> None:
    unwatched = run(watched(None))[1]
    assert run(watched(Waits(99, seconds=lambda chain: 1.0)))[1] == unwatched == 11.0
    assert run(watched(Waits(99, seconds=lambda chain: 2.0)))[1] == 11.0 + 9.0


def test_a_watch_is_given_up_after_a_while_and_its_failures_say_nothing() -> None:
    async def broken(chain: Chain) -> Halt | None:
        raise EndpointUnavailable("gone", role="large")

    chain, halt = run(watched(broken))[0]
    assert (chain.finished, halt) == (True, None)

    async def one(watch: StopRule) -> Halt | None:
        async with checking_stop_rule(watch, patience=3.0) as asked:
            asked.ask(PROBLEM)
            return await asked.told()

    hangs = Waits(0, seconds=lambda chain: 1e9)
    assert run(one(hangs)) == (None, 3.0)
    assert hangs.open == 0

    async def times_out(chain: Chain) -> Halt | None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        run(one(times_out))


def test_leaving_cancels_what_is_being_asked() -> None:
    hangs = Waits(0, seconds=lambda chain: 1e9)

    async def leaves() -> None:
        async with checking_stop_rule(hangs, patience=1e12) as asked:
            asked.ask(PROBLEM)
            await asyncio.sleep(1)
            assert hangs.open == 1
        assert hangs.open == 0

    assert run(leaves())[1] == 1.0


def test_the_first_in_order_speaks_for_several() -> None:
    both = AnyStopRule((Waits(3, seconds=lambda chain: 5.0), Waits(3, halt="hopeless"), Waits(2, halt="hopeless")))
    three = Chain((), (Step("A\n\n", "small"),) * 3)
    assert run(both(three)) == ("enough", 5.0)
    assert run(both(Chain((), three.steps[:2])))[0] == "hopeless"
    assert run(both(Chain((), three.steps[:1])))[0] is None


def trials(*answers: str, logprob: float = -1.0) -> ScriptedModel:
    """A model whose trial answer after n steps is the n-th of *answers*."""
    model = ScriptedModel("large", lambda said: "", logprob=lambda before, token: logprob)
    said = model.next

    def answer(text: str) -> str | None:
        steps = text.partition(THINK_END)[0].count("\n\n")
        model.answer = f"\n\n\\boxed{{{answers[min(steps, len(answers)) - 1]}}}"
        return said(text)

    model.next = answer  # type: ignore[method-assign]
    return model


async def told(watch: StopRule, *openings: str, stop: Stop = "delimiter") -> list[Halt | None]:
    """What *watch* says of a chain after each of its steps."""
    chain, halts = PROBLEM, list[Halt | None]()
    for opening in openings:
        chain = chain.extend(Step(f"{opening} it is so.\n\n", "small", stop))
        halts.append(await watch(chain))
    return halts


def test_a_trial_answer_that_is_sure_is_enough() -> None:
    sure = TrialAnswer(trials("42", logprob=-0.01))
    assert run(told(sure, "First,", "Wait,"))[0] == [None, "enough"]
    assert run(told(TrialAnswer(trials("42", logprob=-0.06)), "Wait,", "Wait,"))[0] == [None, None]


def test_what_is_asked_for_to_be_sure_is_sure_enough_and_the_box_itself_does_not_count() -> None:
    model = trials("42")
    model.logprob = lambda before, token: -9.0 if token in TRIAL else 0.0
    assert run(told(TrialAnswer(model, sure=1.0), "Wait,"))[0] == ["enough"]


def test_a_trial_of_which_no_token_is_told_is_not_sure() -> None:
    class Silent(ScriptedModel):
        async def write(self, chain: Chain, **wanted: Any) -> Step:
            return replace(await super().write(chain, **wanted), tokens=())

    silent = Silent("large", lambda said: "", answer="\n\n\\boxed{42}")
    assert run(told(TrialAnswer(silent, sure=0.01), *("Wait,",) * 3))[0] == [None, None, "enough"]


def test_a_trial_may_be_one_token_long() -> None:
    assert run(told(TrialAnswer(trials("42"), limit=1), "Wait,"))[0] == [None]


def test_the_same_trial_answer_again_and_again_is_enough() -> None:
    steps = ("Wait,",) * 6
    assert run(told(TrialAnswer(trials("1", "2", "2", "3", "3", "3")), *steps))[0] == [None] * 5 + ["enough"]
    assert run(told(TrialAnswer(trials("1", "2", "2", "3"), times=2), *steps[:3]))[0] == [None, None, "enough"]


def test_a_trial_answer_without_an_end_is_none() -> None:
    endless = TrialAnswer(trials("1 " * 100, logprob=-0.001), limit=20)
    assert run(told(endless, *("Wait,",) * 5))[0] == [None] * 5
    assert run(told(TrialAnswer(trials(" ", logprob=-0.001)), *("Wait,",) * 5))[0] == [None] * 5


def test_braces_inside_an_answer_do_not_end_it() -> None:
    watch = TrialAnswer(trials("\\frac{1}{2}", logprob=-0.001))
    assert run(told(watch, "Wait,"))[0] == ["enough"]
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
def test_trials_come_after_paragraphs_that_a_cue_opens(opening: str, tried: bool) -> None:
    model = trials("42")
    run(told(TrialAnswer(model), opening))
    assert bool(model.log) is tried


def test_trials_may_also_come_every_so_many_steps_but_never_within_a_paragraph() -> None:
    model = trials("1", "2", "3", "4", "5")
    run(told(TrialAnswer(model, every=2), *("Then",) * 5))
    assert [line for line in model.log if "done" not in line] == ["large write 3", "large write 5"]
    model.log.clear()
    run(told(TrialAnswer(model, every=1), "Wait,", "Then", stop="length"))
    assert not model.log


@pytest.mark.parametrize(
    "wrong", [{"sure": 0.0}, {"sure": -0.5}, {"sure": 1.1}, {"times": 1}, {"every": -1}, {"limit": 0}]
)
def test_impossible_trials_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="trial answers: "):
        TrialAnswer(trials("42"), **wrong)  # type: ignore[arg-type]


def grown(*kinds: str) -> Chain:
    """A chain of steps: "s" a small one, "l" a large one, "r" a repair, "c" what was kept of a draft."""
    steps: list[Step] = []
    for kind in kinds:
        author: Role = "small" if kind in "sc" else "large"
        note = "grade" if kind == "r" else "repetition" if kind == "o" else ""
        steps.append(Step("Text.\n\n", author, "length" if kind == "c" else "delimiter", note=note))
    return Chain((), tuple(steps))


@pytest.mark.parametrize(
    ("kinds", "rate"),
    [("", None), ("lll", None), ("s", 1.0), ("r", 0.0), ("sssr", 0.75), ("lsr", 0.5), ("scrcrs", 0.5), ("sc", 1.0)],
)
def test_the_accept_rate_is_read_off_the_chain(kinds: str, rate: float | None) -> None:
    assert accepted(grown(*kinds)) == rate


@pytest.mark.parametrize(
    ("kinds", "spent", "halt"),
    [
        ("r" * 9 + "s", 0.5, None),  # one in ten stood, which is the floor
        ("r" * 10 + "s", 0.5, "hopeless"),
        ("r" * 10 + "s", 0.4, None),
        ("l" * 10, 1.0, None),
        ("so" * 3, 0.1, None),
        ("so" * 4, 0.1, "hopeless"),
        ("so" * 5, 0.1, "hopeless"),
    ],
)
def test_hopeless_is_what_costs_a_lot_and_gets_nowhere_or_goes_round(
    kinds: str, spent: float, halt: Halt | None
) -> None:
    chain = grown(*kinds)
    steps = tuple([Step(s.text, s.author, s.stop, tokens=(Token("x"),) * 10, note=s.note) for s in chain.steps])
    watch = GiveUp(tokens=int(10 * len(steps) / spent))
    assert run(watch(Chain((), steps)))[0] == halt
