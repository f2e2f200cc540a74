"""Lookahead by hand-written examples: exact times, the order of events, and the fate of bets."""

import asyncio
import gc
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from stepspec.orchestrator import Chain, Ledger, Step, Token, reason
from stepspec.orchestrator.auto import Auto, AutoRun, Record
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.errors import EndpointUnavailable
from stepspec.orchestrator.events import Committed, Decided, Drafted, Event, Lost, Repaired
from stepspec.orchestrator.lookahead import LookaheadControl, confidence
from stepspec.policies import Led, LookaheadReasoning, SpecReason

from ..fakes import ScriptedModel, run
from .arms import PROBLEM, pair, working


@pytest.mark.parametrize(
    ("ahead", "judging", "seconds"),
    [
        (0, 1.0, 20.0),  # ten drafts, each then judged
        (1, 1.0, 11.0),  # one draft, then ten judgements, with the other drafts behind them
        (5, 1.0, 11.0),
        (0, 3.0, 40.0),
        # two drafts at a time: those of 1 s and 2 s are judged by 4 s and 5 s, and so on
        (1, 3.0, 21.0),
        # four at a time hide the judges whole: ten drafts, and the last one's judgement
        (3, 3.0, 13.0),
        (9, 0.25, 10.25),
    ],
)
def test_drafting_and_judging_overlap_to_the_second(
    ahead: int, judging: float, seconds: float
) -> None:
    small, large = pair()
    large.reading = lambda chain: judging
    assert run(reason(SpecReason(small, large), PROBLEM, ahead=ahead))[1] == seconds


@pytest.mark.parametrize("committed", [0, 2])
@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_the_number_of_drafts_ahead_of_the_committed_steps_is_limited(
    ahead: int, committed: int
) -> None:
    small, large = pair()
    large.reading = lambda chain: 100.0
    chain = Chain(
        PROBLEM.messages, tuple(Step(f"Step {place}.\n\n", "large") for place in range(committed))
    )
    run(reason(SpecReason(small, large), chain, ahead=ahead, deadline=50.0))
    assert [line for line in small.log if line.startswith("small write")] == [
        f"small write {committed + index}{fate}"
        for index in range(ahead + 1)
        for fate in ("", " done")
    ]


def test_a_hedge_of_one_doubts_every_draft_of_the_small_model_and_no_step_of_the_large() -> None:
    certain = Step("So.", "small", tokens=(Token("So.", 0.0),))
    ahead = LookaheadControl(hedge=1.0)
    assert (confidence(certain), confidence(replace(certain, tokens=()))) == (1.0, 0.0)
    assert ahead.should_hedge(certain)
    assert not ahead.should_hedge(replace(certain, tokens=()))
    assert not ahead.should_hedge(replace(certain, author="large"))


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_judge_that_writes_and_fails_for_good_ends_the_run(ahead: int) -> None:
    small, large = pair(length=3)
    gone = EndpointUnavailable("no answer", role="large", url="http://there", verb="write")
    large.fails = lambda verb, chain: gone
    with pytest.raises(EndpointUnavailable, match="no answer"):
        run(reason(LookaheadReasoning(small, large), PROBLEM, ahead=ahead))


def test_bets_go_away_while_the_repair_is_written_and_are_gone_before_drafting_begins_again() -> (
    None
):
    small, large = pair(length=2, wrong=(0,))
    small.latency = lambda chain: 1.0 + 4 * len(chain.steps)
    small.closing = 1.5
    _, seconds = run(reason(SpecReason(small, large), PROBLEM, ahead=1))
    assert small.log[:9] == [
        "small write 0",
        "small write 0 done",
        "small write 1",
        "large ask 1",
        "large ask 1 done",
        "large write 0",
        "large write 0 done",
        "small write 1 cancelled",
        "small write 1",
    ]
    assert seconds == 1 + 1 + 1.5 + 5 + 1  # draft, judge, close during the repair; draft, judge


@pytest.mark.parametrize(
    ("hedge", "seconds"),
    [
        (0.0, 1 + 1 + 2 + 1 + 1),  # draft, judge, repair; draft, judge
        (0.95, 1 + 2 + 1 + 1),  # the repair began with the judgement
        (1.0, 2 + 1 + 1),  # the repair began with the draft
    ],
)
def test_a_doubtful_draft_is_repaired_while_it_is_judged(hedge: float, seconds: float) -> None:
    small, large = pair(length=2, wrong=(0,))
    large.latency = lambda chain: 2.0
    assert run(reason(SpecReason(small, large), PROBLEM, ahead=working(0, hedge)))[1] == seconds


def test_a_hedge_on_an_accepted_draft_is_cancelled_and_counted() -> None:
    small, large = pair(length=3)
    large.latency = lambda chain: 0.25
    large.pace = 0.25
    events: list[Event] = []
    large.observe = events.append
    (chain, _), seconds = run(
        reason(SpecReason(small, large), PROBLEM, ahead=working(0, 0.99), observe=events.append)
    )
    assert {step.author for step in chain.steps} == {"small"}
    assert seconds == 6
    assert [line for line in small.log if "large write" in line and "cancelled" in line]
    # three tokens in the second that a judgement takes
    assert Ledger.of(events).large.discarded == 3 * 3


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_judge_that_fails_for_good_approves_of_nothing(ahead: int) -> None:
    small, large = pair(length=3)
    gone = EndpointUnavailable("no answer", role="large", url="http://there", verb="ask")
    large.fails = lambda verb, chain: gone if verb == "ask" and len(chain.steps) == 2 else None
    events: list[Event] = []
    (chain, _), _ = run(
        reason(SpecReason(small, large), PROBLEM, ahead=ahead, observe=events.append)
    )
    assert [(step.author, step.note) for step in chain.steps] == [
        ("small", ""),
        ("large", "no verdict"),
        ("small", ""),
    ]


@pytest.mark.parametrize("hedge", [0.0, 0.5])
def test_a_confident_draft_is_not_hedged(hedge: float) -> None:
    small, large = pair(length=3, wrong=(1,))
    run(reason(SpecReason(small, large), PROBLEM, ahead=working(1, hedge)))
    assert [line for line in small.log if line.startswith("large write")] == [
        "large write 1",
        "large write 1 done",
    ]


def test_auto_has_drafts_hedged_where_no_other_run_uses_the_large_model() -> None:
    run_ = Auto().run("specreason", {}, 0)
    control = LookaheadControl(hedge=1.0, auto=run_)
    assert control.hedge_limit == 1
    server = run_.auto.server_load
    server.poll(0, 2)  # requests wait
    assert control.hedge_limit == 0
    server.poll(0, 0)
    for each in (run_, "another run"):
        server.grow(each, 9)
    assert control.hedge_limit == 0


@pytest.mark.parametrize("then", [0, 1])
def test_the_depth_may_change_on_the_way(then: int) -> None:
    small, large = pair()
    large.reading = lambda chain: 100.0
    depths = iter([4, 4, 4, 4])  # each of the first two drafts asks twice

    class Changing(AutoRun):
        @property
        def ahead(self) -> int:
            return next(depths, then)

    auto = Changing(Auto(), Record(), 4, Decided(-1, "large", 4))
    run(
        reason(
            SpecReason(small, large), PROBLEM, ahead=LookaheadControl(4, auto=auto), deadline=50.0
        )
    )
    assert sum(line.startswith("small write") and "done" in line for line in small.log) == 2


def test_lost_bets_are_reported_with_their_steps_and_their_judges_are_cancelled() -> None:
    small, large = pair(length=4, wrong=(1,))
    large.reading = lambda chain: 2.5
    events: list[Event] = []
    run(reason(SpecReason(small, large), PROBLEM, ahead=2, observe=events.append))
    assert "large ask 3 cancelled" in small.log[: small.log.index("large write 1 done")]
    lost = [event for event in events if isinstance(event, Lost)]
    assert [(event.index, event.draft.text) for event in lost] == [
        (2, "The small one says 2.\n\n"),
        (3, f"The small one says 3.\n{THINK_END}"),
    ]
    place = events.index(lost[-1])
    assert [type(event) for event in events[place + 1 : place + 4]] == [
        Repaired,
        Committed,
        Drafted,
    ]


def test_errors_of_cancelled_bets_are_ignored() -> None:
    class Breaking(ScriptedModel):
        async def ask(
            self, chain: Chain, question: str, choices: Sequence[str], *, opening: str = ""
        ) -> Mapping[str, float]:
            try:
                return await super().ask(chain, question, choices, opening=opening)
            except asyncio.CancelledError:
                raise ConnectionError("broken while closing") from None

    small, large = pair(length=4, wrong=(1,))
    large = Breaking(
        "large", large.script, judge=large.judge, log=small.log, reading=lambda chain: 3.0
    )
    heard: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: heard.append(context)
        )
        await reason(SpecReason(small, large), PROBLEM, ahead=3)
        gc.collect()

    run(main())
    assert "large ask 3 cancelled" in small.log
    assert heard == []


# or is judged at once
@pytest.mark.parametrize(("length", "closing", "again"), [(3, 3.0, 2.0), (2, 3.05, 0.0)])
def test_a_bet_that_is_lost_just_as_its_own_deadline_passes_does_not_go_on(
    length: int, closing: float, again: float
) -> None:
    class Hasty(ScriptedModel):
        async def write(self, chain: Chain, **options: Any) -> Step:
            with suppress(TimeoutError):
                async with asyncio.timeout(1.5):
                    return await super().write(chain, **options)
            return await super().write(chain, **options)  # as by the next replica

    small, large = pair(length, wrong=(0,))
    small = Hasty("small", small.script, closing=closing, log=small.log)
    small.latency = lambda chain: (
        again if small.log.count("small write 1") > 1 else 1.0 + len(chain.steps)
    )
    # so that the verdict comes while the second draft is being closed
    large.reading = lambda chain: 1.75
    assert run(reason(SpecReason(small, large), PROBLEM, ahead=1))[0][1] == "finished"


def test_an_error_of_an_observer_ends_the_run_even_for_a_lost_bet() -> None:
    def observe(event: Event) -> None:
        if isinstance(event, Lost):
            raise ValueError("no more of this")

    small, large = pair(wrong=(0,))
    with pytest.raises(ValueError, match="no more of this"):
        run(reason(SpecReason(small, large), PROBLEM, ahead=2, observe=observe))


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("verb", ["write", "ask"])
def test_a_request_cancelled_from_outside_ends_the_run_instead_of_hanging_it(
    ahead: int, verb: str
) -> None:
    def cancelled(called: str, chain: Chain) -> None:
        if called == verb and len(chain.steps) == 2:
            raise asyncio.CancelledError

    small, large = pair()
    small.fails = large.fails = cancelled
    with pytest.raises(asyncio.CancelledError):
        run(reason(SpecReason(small, large), PROBLEM, ahead=ahead))


# The deadline of the loop: the steps that it keeps, the requests that it awaits, and invalid ones.


@pytest.mark.parametrize(("ahead", "steps"), [(0, 3), (1, 6)])
def test_the_deadline_is_a_time_on_the_loops_clock_and_keeps_the_steps_committed_by_then(
    ahead: int, steps: int
) -> None:
    async def main() -> None:
        await asyncio.sleep(100)
        chain, end = await reason(SpecReason(*pair()), PROBLEM, ahead=ahead, deadline=107.5)
        assert (len(chain.steps), end) == (steps, "time")

    assert run(main())[1] == 107.5


def test_a_timeout_that_a_model_raises_is_a_failure_and_not_the_deadline() -> None:
    small, large = pair()
    large.fails = lambda verb, chain: TimeoutError("slow") if len(chain.steps) == 3 else None
    with pytest.raises(TimeoutError, match="slow"):
        run(reason(SpecReason(small, large), PROBLEM, ahead=1, deadline=100.0))


def test_a_deadline_or_a_cancellation_waits_until_lost_bets_are_closed() -> None:
    def closing() -> tuple[ScriptedModel, ScriptedModel]:
        small, large = pair(wrong=tuple(range(10)))
        small.closing = 5.0
        small.latency = lambda chain: 1.0 + len(chain.steps)
        return small, large

    small, large = closing()
    # The draft is refused at 2 s, and the bet on it takes until 7 s to go away.
    (chain, end), seconds = run(reason(SpecReason(small, large), PROBLEM, ahead=1, deadline=3.0))
    assert (chain, end, seconds) == (PROBLEM, "time", 7.0)
    assert small.log[-1] == "small write 1 cancelled"

    async def main() -> None:
        small, large = closing()
        running = asyncio.create_task(reason(SpecReason(small, large), PROBLEM, ahead=1))
        for _ in range(3):
            await asyncio.sleep(1.5)
            running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        assert small.open == large.open == 0

    assert run(main())[1] == 6.5  # cancelled at 1.5 s, and gone 5 s later


def test_a_run_that_finished_before_the_deadline_is_finished_though_closing_takes_longer() -> None:
    small, large = pair(length=2)
    # The first step is the large model's, whose request is left open.
    large.sticky, large.closing = True, 5.0
    (chain, end), seconds = run(
        reason(Led(SpecReason(small, large), large, first=1), PROBLEM, ahead=1, deadline=4.0)
    )
    assert (end, seconds) == ("finished", 8.0)
    assert chain.finished
