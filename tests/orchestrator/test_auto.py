"""
A run steps aside where the method does not pay, and comes back: scripted models on the virtual
clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, replace

import pytest

from stepspec.orchestrator import (
    Accept,
    Budget,
    Chain,
    Ledger,
    Rival,
    Rollback,
    Step,
    Token,
    reason,
)
from stepspec.orchestrator.auto import (
    ASIDE,
    LEAST,
    MOST,
    SIGHT,
    SPAN,
    USUAL,
    Auto,
    AutoRun,
    Costs,
    Estimate,
    Mode,
    Prior,
    Record,
    decide,
)
from stepspec.orchestrator.budget import Budgeted
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.errors import EndpointUnavailable
from stepspec.orchestrator.events import (
    Called,
    Chosen,
    Committed,
    Decided,
    Degraded,
    Drafted,
    Event,
    Finished,
    Judged,
    Lost,
    Repaired,
    Shadowed,
    Started,
)
from stepspec.orchestrator.lookahead import LookaheadControl
from stepspec.orchestrator.solution import stretches
from stepspec.orchestrator.trace import Moment, Recorder, Stopwatch, dump, parse
from stepspec.policies import Led, Solo, SpecReason
from tests.fakes import replay

from ..fakes import Previous, ScriptedModel, counting, run
from .arms import ARMS, PROBLEM, Arm, arm, pair, taste

AHEAD = 2


@dataclass(frozen=True)
class World:
    """
    Seconds of a token of each model, of a verdict, and until a model's first token; a share of the
    drafts is *good*.

    A request of the large model waits for *queue* seconds more. Paragraphs begin with the
    *padding*. On a *shared* card each other open request adds this share to the seconds of a token,
    each other verdict a share *load* to a verdict's.
    """

    good: float = 0.9
    small: float = 0.1
    large: float = 0.5
    verdict: float = 0.5
    first: float = 0.1
    queue: float = 0.0
    steps: int = 20
    padding: str = ""
    shared: float = 0.0
    load: float = 0.0
    lead: int = 0

    def models(
        self, problem: int, log: list[str] | None = None
    ) -> tuple[ScriptedModel, ScriptedModel]:
        log = [] if log is None else log

        def grade(chain: Chain, question: str) -> Mapping[str, float]:
            return {"9" if taste(problem, len(chain.steps)) < self.good else "0": 1.0}

        def padded(role: Role) -> Callable[[Previous], str]:
            return lambda previous: self.padding + counting(role, self.steps)(previous)

        def others() -> int:
            """The verdicts under way, of which one has just begun."""
            lines = [line for line in log if line.startswith("large ask")]
            return 2 * sum(line[-1].isdigit() for line in lines) - len(lines) - 1

        large = ScriptedModel(
            "large", padded("large"), judge=grade, pace=self.large, sticky=True, log=log
        )
        large.latency = lambda chain: self.first + self.queue
        large.reading = lambda chain: (
            self.verdict * (1 + (self.load and self.load * others())) + self.queue
        )
        small = ScriptedModel("small", padded("small"), pace=self.small, sticky=True, log=log)
        small.latency = lambda chain: self.first
        small.slowdown = large.slowdown = lambda: 1 + self.shared * (small.open + large.open - 1)
        return small, large

    def solve(
        self,
        problem: int,
        arm: str = "auto",
        auto: Auto | None = None,
        budget: Budget | None = None,
    ) -> list[Moment]:
        """
        Run one problem: by the "method", the "large" model alone, or with *auto*; return the trace.
        """
        return run(self.begin(problem, arm, auto, budget))[0]

    async def begin(
        self,
        problem: int,
        arm: str,
        auto: Auto | None,
        budget: Budget | None = None,
        log: list[str] | None = None,
    ) -> list[Moment]:
        small, large = self.models(problem, log)
        budget = budget or Budget(100_000)
        aside = Solo(Budgeted(large, budget.left))
        deciding = auto.run("specreason", {}, AHEAD, aside, self.lead) if auto is not None else None
        drafting = Budgeted(small, budget.left, deciding.watch if deciding else None)
        method = Led(SpecReason(drafting, aside.author), aside.author, self.lead)

        recorder = Recorder(Stopwatch())

        def observe(event: object) -> None:
            # that of a scripted model has no token yet
            if isinstance(event, Called) and event.first is not None:
                event = replace(
                    event, first=event.first + (self.large if event.role == "large" else self.small)
                )
            recorder(event)  # type: ignore[arg-type]
            if deciding is not None:
                deciding.read(recorder.moments[-1])

        small.observe = large.observe = observe
        async with auto.place() if auto else nullcontext():
            observe(Started(PROBLEM.messages, "specreason"))
            control = LookaheadControl(AHEAD, auto=deciding)
            policy = aside if arm == "large" else method
            await reason(policy, PROBLEM, ahead=control, spent=budget.spent, observe=observe)
            observe(Finished("stop", "", recorder.moments[-1].at))
        assert (small.open, large.open) == (0, 0)
        return recorder.moments

    def together(self, problems: Iterable[int], auto: Auto) -> list[list[Moment]]:
        log = list[str]()

        async def main() -> list[list[Moment]]:
            return await asyncio.gather(
                *[self.begin(problem, "auto", auto, log=log) for problem in problems]
            )

        return run(main())[0]

    def seconds(self, arm: str, problems: Sequence[int], auto: Auto | None = None) -> float:
        return sum(self.solve(problem, arm, auto)[-1].at for problem in problems)


PROBLEMS = range(30)
GOOD = World()


def events(traces: Sequence[Sequence[Moment]]) -> list[object]:
    return [moment.event for trace in traces for moment in trace]


def decisions(traces: Sequence[Sequence[Moment]]) -> list[Decided]:
    return [event for event in events(traces) if isinstance(event, Decided)]


def share_alone(traces: Sequence[Sequence[Moment]]) -> float:
    """The share of the steps that the large model wrote alone."""
    found = [each for trace in traces for each in stretches([moment.event for moment in trace])]
    return sum(each.steps for each in found if each.choice == "large") / sum(
        each.steps for each in found
    )


@pytest.mark.parametrize(
    ("world", "aside"),
    [
        (GOOD, False),
        (replace(GOOD, good=0.5), False),
        (replace(GOOD, verdict=6.0), True),
        (replace(GOOD, queue=4.0, good=0.7), True),
        (replace(GOOD, small=0.5), True),
        (replace(GOOD, good=0.5, verdict=1.5), True),
        (replace(GOOD, good=0.0), True),
        (replace(GOOD, good=0.0, small=0.19, verdict=0.4, steps=10), True),
        (World(0.55, small=0.0096, large=0.0092, verdict=0.027, first=0.018, steps=8), True),
        (replace(GOOD, small=0.5, shared=0.75), True),
        (
            World(0.55, 0.0018, 0.002, 0.02, first=0.012, steps=8, padding="so " * 40, shared=0.75),
            True,
        ),
        (World(0.3, 0.066, 0.1, 1.5, first=0.45, steps=6, padding="so " * 30, shared=0.6), True),
    ],
    ids=[
        *(
            "good pair",
            "half",
            "slow judge",
            "waiting",
            "slow drafts",
            "even",
            "deaf",
            "short",
            "equals",
        ),
        *("slow drafts on one card", "equals on one card", "one CPU"),
    ],
)
def test_it_takes_at_most_a_twentieth_longer_than_the_better_of_both(
    world: World, aside: bool
) -> None:
    """And where the pair is bad, little from the first problem on."""
    large, method = (
        [world.seconds(arm, [problem]) for problem in PROBLEMS] for arm in ("large", "method")
    )
    auto = Auto()
    traces = [world.solve(problem, "auto", auto) for problem in PROBLEMS]
    taken = [trace[-1].at for trace in traces]
    assert sum(taken) <= 1.05 * min(sum(large), sum(method))
    assert (share_alone(traces) > 0.5) == aside
    if aside:
        first, second, *others = (ours / alone for ours, alone in zip(taken, large, strict=True))
        assert (first <= 1.25, second <= 1.1) == (True, True)
        assert sum(others) / len(others) <= (1.03 if not world.queue else 1.05)


@pytest.mark.parametrize(
    ("load", "first", "later"), [(0.0, 0.6, 0.4), (0.1, 0.75, 0.7), (1.0, 1.05, 1.05)]
)
def test_as_many_runs_use_the_method_as_their_verdicts_at_once_allow(
    load: float, first: float, later: float
) -> None:
    """Up to three times as many verdicts as runs are under way, and slow each other down."""
    world, auto = replace(GOOD, load=load), Auto()
    for most in (first, later, later):
        traces = world.together(range(32), auto)
        assert sum(trace[-1].at for trace in traces) <= most * world.seconds("large", range(32))
        assert (share_alone(traces) < 1, auto.record("specreason", {}).users) == (True, 0)


def shadows(traces: Sequence[Sequence[Moment]]) -> list[Shadowed]:
    return [event for event in events(traces) if isinstance(event, Shadowed)]


def test_a_method_drafts_in_the_shadow_while_the_large_model_writes_the_chain_in_one_request() -> (
    None
):
    world = replace(GOOD, good=0.0)
    auto, knowing = Auto(), Auto()
    trace, alone = world.solve(0, "auto", auto), world.solve(0, "large")
    made = shadows([trace])
    assert [event.index for event in made] == [4, 5]  # two rejections are enough
    assert [event.drafting for event in made] == pytest.approx([0.7] * 2)
    assert [event.judging for event in made] == pytest.approx([0.5] * 2)
    assert all(isinstance(event.verdict, Rollback) for event in made)
    writes = [
        event for event in events([trace]) if isinstance(event, Called) and event.verb == "write"
    ]
    assert [event.role for event in writes].count("large") == 1
    assert (
        replay(moment.event for moment in trace).text
        == replay(moment.event for moment in alone).text
    )
    assert trace[-1].at == pytest.approx(alone[-1].at)
    ledger = Ledger.of(moment.event for moment in trace)
    assert (ledger.drafts, ledger.small.kept, ledger.small.discarded) == (0, 0, 2 * 6)
    for problem in range(4):
        GOOD.solve(problem, "auto", knowing)
    assert len(shadows([GOOD.solve(9, "auto", knowing)])) == 0  # the method writes


def test_shadow_drafts_of_an_unknown_method_delay_a_run_by_a_seventh_at_most() -> None:
    """
    Half of their time counts. The first is expected to take as long as a step of 3 s, the others
    3.2 s as it did.
    """
    world = replace(GOOD, verdict=2.5)
    made = shadows([world.solve(0, "auto", Auto())])
    assert [event.index for event in made][:3] == [4, 8, 11]
    assert not shadows([replace(world, steps=4).solve(0, "auto", Auto())])
    # the run does not wait for the verdict of its last shadow draft
    endless = replace(GOOD, verdict=200.0)
    assert endless.solve(0, "auto", Auto())[-1].at == pytest.approx(
        endless.solve(0, "large")[-1].at
    )


def test_a_slow_judge_is_measured_as_long_as_the_method_may_pay_at_the_depth_of_the_run() -> None:
    """
    A step takes 3.05 s by the large model, 3.35 s at best one draft ahead, and 2.2 s two ahead.
    """
    auto, world = Auto(), replace(GOOD, good=1.0, verdict=6.0)
    traces = [world.solve(problem, "auto", auto) for problem in range(10)]
    assert {event.choice for event in decisions(traces[8:]) if not event.probe} == {"method"}


def test_runs_at_once_have_no_more_than_three_shadow_drafts() -> None:
    auto = Auto()
    runs = [auto.run("specreason", {}, AHEAD, Solo(GOOD.models(0)[1])) for _ in range(9)]
    auto.wrote_alone(0.5)
    made = list[bool]()
    for each in runs:
        event = each.decide(0)
        assert event is not None
        assert not event.shadow  # there is no time yet that it may take a share of
        each.read(Moment(30.0, Committed(3, Step("a\n\n", "large"))))
        event = each.decide(4)
        made.append(event is not None and event.shadow)
        if event is not None:
            each.read(Moment(30.0, event))
    assert made == [True] * LEAST + [False] * 6
    runs[0].close()  # the run ends, and with it its shadow draft
    event = runs[-1].decide(5)
    assert event is not None
    assert event.shadow


@pytest.mark.parametrize(
    "worlds",
    [
        (GOOD, replace(GOOD, verdict=8.0), GOOD),
        (replace(GOOD, good=0.05), replace(GOOD, good=0.95), replace(GOOD, good=0.05)),
        (replace(GOOD, large=0.05, small=0.04), GOOD, replace(GOOD, large=0.05, small=0.04)),
    ],
    ids=["the judge slows down", "drafts get better", "the large model slows down"],
)
def test_it_follows_what_changes_and_comes_back(worlds: Sequence[World]) -> None:
    auto, better = Auto(), list[str]()
    for place, world in enumerate(worlds):
        problems = range(80 * place, 80 * place + 80)
        traces = [world.solve(problem, "auto", auto) for problem in problems]
        large, method = (8 * world.seconds(arm, problems[::8]) for arm in ("large", "method"))
        assert sum(trace[-1].at for trace in traces) <= 1.07 * min(large, method)
        better.append("large" if large < method else "method")
        assert {event.choice for event in decisions(traces[-20:]) if not event.probe} == {
            better[-1]
        }
    assert better[0] == better[2] != better[1]


def test_the_same_traces_give_the_same_decisions() -> None:
    """Also from disk, and with a queue, whose length the decision holds."""
    auto, worlds = Auto(), (GOOD, replace(GOOD, verdict=8.0), replace(GOOD, good=0.3))
    traces = list[list[Moment]]()
    for problem in range(30):
        auto.queue(8, 5 if problem % 7 == 3 else 0)
        traces.append(worlds[problem // 10].solve(problem, "auto", auto))
    again, compared = Auto(), 0
    for trace in traces:
        reading = again.run("specreason", {}, AHEAD, Solo(GOOD.models(0)[1]))
        for moment in (parse(dump(each)) for each in trace):
            if isinstance(moment.event, Decided):
                again.queue(moment.event.running, moment.event.waiting)
                assert reading.decide(moment.event.index) == moment.event
                compared += 1
            reading.read(moment)
    assert compared > 30
    assert len({(event.choice, event.ahead) for event in decisions(traces)}) > 2


def test_the_chain_stands_in_the_trace_and_steps_written_alone_are_no_accepted_drafts() -> None:
    auto, world = Auto(), replace(GOOD, verdict=20.0)
    traces = [world.solve(0, "auto", auto), GOOD.solve(1, "auto", Auto())]
    assert share_alone(traces[:1]) == 1.0
    assert not auto.record("specreason", {}).tokens  # which are those of the method's own steps
    ledger = Ledger.of(moment.event for moment in traces[0])
    assert (ledger.drafts, ledger.accept_rate, ledger.share_large) == (0, None, 1.0)
    mixed = Ledger.of(moment.event for moment in traces[1])
    small = [
        event
        for event in events(traces[1:])
        if isinstance(event, Committed) and event.step.author == "small"
    ]
    assert 0 < len(small) == mixed.accepted < world.steps
    for trace in traces:
        chain = replay(moment.event for moment in trace)
        assert chain.finished
        assert len(chain.steps) == world.steps


def test_stepping_aside_costs_no_further_request_no_draft_of_the_small_model_and_no_token_of_the_budget() -> (
    None
):
    auto, world = Auto(), replace(GOOD, verdict=20.0)
    world.solve(0, "auto", auto)
    small, large = world.models(1)
    deciding = auto.run("specreason", {}, AHEAD, Solo(large))
    run(reason(SpecReason(small, large), PROBLEM, ahead=LookaheadControl(AHEAD, auto=deciding)))
    opened = [
        line
        for line in small.log
        if not line.endswith(("done", "cancelled")) and "goes on" not in line
    ]
    assert opened == ["large write 0"]
    for knowing in (Auto(), auto):
        chain = replay(
            moment.event for moment in world.solve(2, "auto", knowing, Budget(50, answer=10))
        )
        assert chain.tokens == 40


def test_a_draft_that_the_change_loses_is_counted_as_lost_and_nothing_is_left_open() -> None:
    """
    Verdicts take long all at once: the bets that were made are lost when the large model goes on
    alone.
    """
    auto = Auto()
    for problem in range(4):
        GOOD.solve(problem, "auto", auto)
    found = [
        replace(GOOD, verdict=15.0, good=1.0).solve(problem, "auto", auto)
        for problem in range(4, 8)
    ]
    lost = [event for event in events(found) if isinstance(event, Lost)]
    drafted = sum(isinstance(event, Drafted) for event in events(found))
    committed = sum(isinstance(event, Committed) for event in events(found))
    assert lost
    assert drafted == committed + len(lost)


KNOWN = Estimate(Costs(1.0, 1.0, 4.0, toll=0.0), 0.5, 4.0)


def test_a_mode_stays_unless_another_saves_more_than_the_margin() -> None:
    near = replace(KNOWN, large=3.45)  # the method takes 3.5 s one draft ahead
    assert KNOWN.method(1) == 3.5
    assert decide(near, Mode("method", 1), 2)[0] == Mode("method", 1)
    assert decide(near, ASIDE, 2)[0] == decide(near, None, 2)[0] == ASIDE
    assert decide(replace(near, large=3.3), Mode("method", 1), 2)[0] == ASIDE
    assert decide(replace(near, large=3.55), ASIDE, 2)[0] == ASIDE
    assert decide(replace(near, large=3.7), ASIDE, 2)[0] == Mode("method", 2)


def test_few_verdicts_have_to_promise_a_fifth_before_the_method_takes_over() -> None:
    few = replace(KNOWN, caution=0.2)
    for large, now, chosen in (
        (4.2, ASIDE, ASIDE),
        (4.5, ASIDE, Mode("method", 2)),
        (4.2, Mode("method", 1), None),
    ):
        mode, _, reason = decide(replace(few, large=large), now, 2)
        assert mode == (chosen or now)
        assert ("of which few are known" in reason) == (chosen == ASIDE)
    assert decide(replace(KNOWN, large=4.2), ASIDE, 2)[0] == Mode("method", 2)
    record = Record()
    found = list[float]()
    for step in range(8):
        record.accepted.add(step, True)
        found.append(record.estimate(None).caution)
    assert found == [1.0] * 2 + [0.2] * 5 + [0.0]
    assert Record(Prior(accept_rate=0.5)).estimate(None).caution == 0.0


def test_of_depths_as_good_as_equal_the_deepest_is_chosen() -> None:
    """
    The formula gives equal times where one draft ahead waits for every verdict that is late:
    measured, 1.15.
    """
    assert KNOWN.method(1) == KNOWN.method(2)
    assert decide(KNOWN, None, 2)[0] == Mode("method", 2)
    rejected = replace(KNOWN, costs=Costs(1.0, 3.0, 4.0, toll=0.5), accepted=0.2, large=10.0)
    assert [rejected.method(ahead) for ahead in range(3)] == pytest.approx(
        [7.2, 7.2, 7.467], abs=1e-3
    )
    assert decide(rejected, None, 2)[0] == Mode("method", 1)
    assert decide(rejected, Mode("method", 0), 2)[0] == Mode("method", 0)


def test_no_bets_are_made_while_the_large_model_has_a_queue() -> None:
    mode, seconds, reason = decide(replace(KNOWN, busy=True), Mode("method", 2), 2)
    assert mode == Mode("method", 0)
    assert list(seconds) == ["method 0 ahead", "large alone"]
    assert [Auto(running=9, waiting=waiting).busy for waiting in (1, 2, 3)] == [False, False, True]
    assert (
        reason
        == "method 0 ahead: 4 s a step, large alone: 4 s; 50% of drafts accepted, the large model"
        " has a queue"
    )


@pytest.mark.parametrize("known", [Estimate(), Estimate(large=0.1), replace(KNOWN, large=None)])
def test_without_evidence_the_large_model_writes_alone(known: Estimate) -> None:
    assert decide(known, None, 3)[0] == decide(known, Mode("method", 1), 3)[0] == ASIDE
    assert "not known yet" in decide(known, None, 3)[2]


def test_a_run_that_may_not_decide_only_teaches() -> None:
    auto = Auto()
    taught = auto.run("specreason", {}, AHEAD)
    for moment in GOOD.solve(0, "method"):
        taught.read(moment)
    assert (taught.decide(0), taught.policy(Solo(GOOD.models(0)[0])).answerer.role) == (
        None,
        "small",
    )
    assert auto.steps == GOOD.steps
    assert auto.repairing.entries
    first = auto.run("specreason", {}, AHEAD, Solo(GOOD.models(0)[1])).decide(0)
    assert first is not None
    assert [name for name, _ in first.seconds] == [
        *(f"method {ahead} ahead" for ahead in range(3)),
        "large alone",
    ]


def test_runs_that_decide_nothing_are_of_the_crowd_until_they_end_or_lose_the_small_model() -> None:
    auto = Auto()
    first, other = auto.run("specreason", {}, AHEAD), auto.run("specreason", {}, AHEAD)
    for each in (first, other):
        each.read(Moment(0, Started(PROBLEM.messages, "specreason")))
    assert first.record.users == 2
    first.read(Moment(1, Degraded("small", "gone")))
    other.close()
    assert first.record.users == 0
    for number in range(MOST):
        assert auto.record("specreason", {}) is first.record  # the one that is used stays
        auto.record("random", {"seed": number})


def test_runs_of_the_large_model_alone_are_of_the_crowd_whose_pace_they_show() -> None:
    auto, step = Auto(), Step("a\n\n", "large", tokens=(Token("a\n\n"),))
    names = [*["large"] * 6, "small", "random"]
    runs = [
        *[auto.run(name, {}, AHEAD) for name in names],
        auto.run("specreason", {}, AHEAD, Solo(GOOD.models(0)[1])),
    ]
    for name, each in zip([*names, "specreason"], runs, strict=True):
        each.read(Moment(0, Started(PROBLEM.messages, name)))
    for index in range(2):
        for event in (Drafted(index, step), Committed(index, step)):
            runs[0].read(Moment(index + 1, event))
    assert auto.pace == 1.0
    for each in runs[:6]:
        each.close()
    assert auto.pace is None  # of two runs


def test_steps_are_as_long_as_those_of_the_method_not_as_the_paragraphs_of_the_large_model() -> (
    None
):
    record = Record()
    for lengths in (record.alone, record.tokens):
        lengths.extend([60 if lengths is record.alone else 6] * SPAN)
        assert record.estimate(0.5).large == 0.5 * record.lengths[0]
    record.tokens.pop()
    assert len(record.lengths) == 2 * SPAN - 1  # fewer are too few


def test_steps_that_the_large_model_leads_with_are_no_shadow_drafts() -> None:
    world = replace(GOOD, lead=5, steps=40)
    assert world.seconds("auto", [0], Auto()) < 0.6 * world.seconds("large", [0])


def test_a_lost_bet_says_nothing_of_the_step_in_its_place() -> None:
    reading, wrong = AutoRun(Auto(), Record(), 0), Rollback(1, "doubt", 2.0)
    draft, repair = (
        Step("a b\n\n", "small", tokens=(Token("a b\n\n"),)),
        Step("c\n\n", "large", tokens=(Token("c\n\n"),)),
    )
    events: list[Event] = [
        Started(PROBLEM.messages, "bild"), Drafted(0, draft), Drafted(1, draft), Judged(1, draft, wrong),
        Judged(0, draft, Rollback()), Lost(1, draft), Repaired(0, repair, Rollback()), Committed(0, repair),
        Drafted(1, draft), Committed(1, draft),
    ]  # fmt: skip
    for at, event in enumerate(events):
        reading.read(Moment(at, event))
    assert (reading.auto.steps, *reading.record.tokens) == (2, 1, 1)


def test_two_rejections_in_a_row_weigh_more_than_what_is_assumed() -> None:
    record = Record()
    for step, accepted in enumerate((True, False, False)):
        record.accepted.add(step, accepted)
    assert record.estimate(None).accepted == (USUAL + 1) / 4
    for known in range(4, 33):
        record.accepted.add(known, True)
        assert record.estimate(None).accepted == ((8 - known // 8) * USUAL + known - 2) / (
            8 - known // 8 + known
        )


@pytest.mark.parametrize(
    ("accepted", "pace", "advice"),
    [
        (0.0, None, "drafts are rarely accepted, as measured before: run `stepspec tune`"),
        (
            1.0,
            1.03,
            (
                "a draft takes 3.1 s and its verdict 0.3 s, and the large model writes a step in 3"
                " s: run "
            ),
        ),
        (1.0, 0.4, ""),
    ],
)
def test_a_prior_decides_before_the_first_draft(
    accepted: float, pace: float | None, advice: str
) -> None:
    known = Auto(Prior(accept_rate=accepted, verdict_seconds=0.3, pace=pace))
    for step in range(4):
        known.repairing.add(step, 0.5)
    known.record("specreason", {}).tokens.append(6)
    first = known.run("specreason", {}, AHEAD, Solo(GOOD.models(0)[1])).decide(0)
    assert first is not None
    assert (first.choice, first.probe) == ("large" if advice else "method", False)
    assert (first.advice.startswith(advice), bool(first.advice)) == (True, bool(advice))


def test_the_advice_names_the_cause_and_the_cure() -> None:
    auto = Auto()
    traces = [replace(GOOD, good=0.0).solve(problem, "auto", auto) for problem in range(3)]
    said = [event.advice for event in decisions(traces) if event.advice]
    assert said[0] == "0 of 2 drafts accepted: run `stepspec tune`"
    slow = Auto()
    traces = [
        replace(GOOD, verdict=20.0, good=1.0).solve(problem, "auto", slow) for problem in range(3)
    ]
    said = [event.advice for event in decisions(traces) if event.advice]
    assert said[0].startswith(
        "a draft takes 0.7 s and its verdict 20 s, and the large model writes a step in 3"
    )
    assert said[0].endswith("run `stepspec tune`")


def test_a_full_cache_lets_the_large_model_write_alone_and_holds_runs_back() -> None:
    async def main() -> list[int]:
        auto, order = Auto(cache=1000), list[int]()
        auto.chains.add(0, 400)
        assert auto.fits == 2
        auto.queue(4, 0, 200)
        assert auto.fits == 1  # a chain that does not fit runs alone
        auto.queue(4, 0, 1000)

        async def one(number: int) -> None:
            async with auto.place():
                order.append(number)
                await asyncio.sleep(1)

        started = asyncio.get_running_loop().time()
        waiting = [asyncio.create_task(one(number)) for number in range(5)]
        await asyncio.sleep(0.5)
        assert order == [0, 1]
        waiting[2].cancel()
        await asyncio.wait(waiting)
        assert asyncio.get_running_loop().time() - started == 2.0
        run_ = auto.run("specreason", {}, AHEAD, Solo(GOOD.models(0)[1]))
        auto.resident[run_] = 900
        decided = run_.decide(0)
        assert decided is not None
        assert decided.choice == "large"
        assert decided.advice.startswith(
            "the chains of 1 runs fill the large model's cache: lower `max_running`"
        )
        return order

    assert run(main())[0] == [0, 1, 3, 4]


def test_more_runs_than_the_prior_knows_a_gain_with_are_the_large_models() -> None:
    async def main() -> list[tuple[str, str]]:
        auto = Auto(Prior(accept_rate=0.9, verdict_seconds=0.1, pace=0.1, runs=1))
        auto.repairing.entries.extend([(0, 0.1)] * LEAST)
        runs = [auto.run("specreason", {}, AHEAD, Solo(GOOD.models(0)[1])) for _ in range(2)]
        found = list[tuple[str, str]]()
        async with AsyncExitStack() as stack:
            for run_ in runs:
                run_.record.alone.append(20)
                await stack.enter_async_context(auto.place())
                run_.read(Moment(0, Started(PROBLEM.messages, "specreason")))
                decided = run_.decide(0)
                assert decided is not None
                found.append((decided.choice, decided.reason))
        return found

    (first, _), (second, reason) = run(main())[0]
    assert (first, second) == ("method", "large")
    assert reason == "the prior knows no gain with more than 1 runs at once"


# What is read of a run.


def measured(moments: Iterable[Moment]) -> dict[str, list[float]]:
    """The timings and verdicts that the events of one run leave in the record."""
    record = Record()
    reading = AutoRun(Auto(), record, 0)
    for moment in moments:
        reading.read(moment)
    recent = {"judged": record.judged[1]} | {
        kind: getattr(record, kind) for kind in ("drafts", "repairs", "accepted")
    }
    return {kind: [value for _, value in found.entries] for kind, found in recent.items()}


def of_run(
    *, wrong: tuple[int, ...], ahead: int, lead: int = 0, length: int = 5
) -> dict[str, list[float]]:
    """A draft takes 1 s, a grade 0.5 s, a repair 3 s."""

    async def main() -> list[Moment]:
        small, large = pair(length, wrong)
        large.reading, large.latency = (lambda chain: 0.5), (lambda chain: 3.0)
        recorder = Recorder(Stopwatch())
        recorder(Started(PROBLEM.messages, "specreason"))
        policy = Led(SpecReason(small, large), large, lead)
        await reason(policy, PROBLEM, ahead=ahead, observe=recorder)
        return recorder.moments

    return measured(run(main())[0])


def of_events(*events: tuple[float, Event]) -> dict[str, list[float]]:
    return measured(Moment(at, event) for at, event in events)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_the_seconds_and_verdicts_of_a_run_are_recorded(ahead: int) -> None:
    found = of_run(wrong=(2,), ahead=ahead)
    assert found["drafts"] == [1.0, 1.0]  # the first one, and the first one after the repair
    assert set(found["judged"]) == {0.5}
    assert found["repairs"] == [3.0]
    assert found["accepted"] == [True, True, False, True, True]


def test_lost_bets_are_timed_and_not_counted_and_leading_steps_are_no_drafts() -> None:
    found = of_run(wrong=(0,), ahead=3, length=2)
    assert (len(found["judged"]), found["accepted"]) == (2, [False, True])
    found = of_run(wrong=(3,), ahead=1, lead=2)
    assert (found["drafts"], found["accepted"]) == ([1.0], [True, False, True])


def test_a_repair_is_timed_from_when_it_could_begin() -> None:
    """Not from its own draft's verdict, if that comes before that of the draft before it."""
    first, second, repair = Step("a\n\n", "small"), Step("b\n\n", "small"), Step("c\n\n", "large")
    wrong = Rollback(reason="grade", score=1.0)
    found = of_events(
        (0, Started(PROBLEM.messages, "specreason")), (1, Drafted(0, first)), (2, Drafted(1, second)),
        (3, Judged(1, second, wrong)), (5, Judged(0, first, Accept(8.0))), (5, Committed(0, first, 8.0)),
        (9, Repaired(1, repair, wrong)), (9, Committed(1, repair)), (11, Drafted(2, second)),
    )  # fmt: skip
    assert found == {"drafts": [1, 2], "judged": [1, 4], "repairs": [4], "accepted": [True, False]}


def test_a_draft_that_is_kept_in_part_is_rejected_and_one_that_a_rival_replaces_is_not() -> None:
    draft, repair, wrong = (
        Step("a b\n\n", "small"),
        Step("c\n\n", "large"),
        Rollback(1, "doubt", 2.0),
    )
    found = of_events(
        (0, Started(PROBLEM.messages, "bild")), (1, Drafted(0, draft)), (2, Judged(0, draft, wrong)),
        (2, Committed(0, draft.cut(1), 2.0)), (5, Repaired(1, repair, wrong)), (5, Committed(1, repair)),
    )  # fmt: skip
    assert found == {"drafts": [1], "judged": [1], "repairs": [3], "accepted": [False]}
    other = Step("b\n\n", "small")
    verdict = Rollback(reason="grade", score=2.0, rivals=(Rival(other, 8.0),))
    found = of_events(
        (0, Started(PROBLEM.messages, "choose")), (1, Drafted(0, draft)), (2, Judged(0, draft, verdict)),
        (2, Chosen(0, other)), (2, Committed(0, other, 8.0)), (3, Drafted(1, draft)),
    )  # fmt: skip
    assert found == {"drafts": [1, 1], "judged": [1], "repairs": [], "accepted": [True]}


@pytest.mark.parametrize("name", ARMS)
def test_what_is_recorded_agrees_with_the_ledger(name: str) -> None:
    for seed in range(3):
        tried = arm(name, seed)

        async def main(tried: Arm = tried, seed: int = seed) -> list[Moment]:
            recorder = Recorder(Stopwatch())
            recorder(Started(PROBLEM.messages, name))
            await reason(
                tried.policy, PROBLEM, ahead=seed, spent=tried.budget.spent, observe=recorder
            )
            return recorder.moments

        moments, _ = run(main())
        found, ledger = measured(moments), Ledger.of(moment.event for moment in moments)
        led = any(isinstance(m.event, Drafted) and m.event.draft.author == "large" for m in moments)
        if not led and ledger.drafts <= SPAN:
            assert (len(found["accepted"]), sum(map(bool, found["accepted"]))) == (
                ledger.drafts,
                ledger.accepted,
            )


@pytest.mark.parametrize(
    ("small", "padding", "written"), [(0.6, "", 6), (2.0, "so " * 90, SIGHT + 1)]
)
def test_a_shadow_draft_that_is_no_faster_than_the_large_model_is_given_up(
    small: float, padding: str, written: int
) -> None:
    """It counts as neither accepted nor rejected, and the run stays aside for its pace."""
    world, auto = replace(GOOD, small=small, padding=padding), Auto()
    trace = world.solve(0, "auto", auto)
    (made,) = shadows([trace])
    assert (made.verdict is None, len(made.draft.tokens)) == (written > SIGHT, written)
    assert {event.choice for event in decisions([trace])} == {"large"}
    assert "and the large model writes a step in" in decisions([trace])[-1].advice
    assert trace[-1].at == pytest.approx(world.solve(0, "large")[-1].at)


def test_what_fails_a_shadow_draft_fails_the_run_as_the_method_would() -> None:
    small, large = GOOD.models(0)
    small.fails = lambda verb, chain: EndpointUnavailable("down", role="small", verb=verb)
    deciding = Auto().run("specreason", {}, AHEAD, Solo(large))

    async def main() -> None:
        recorder = Recorder(Stopwatch())

        def observe(event: Event) -> None:
            recorder(event)
            deciding.read(recorder.moments[-1])

        control = LookaheadControl(AHEAD, auto=deciding)
        await reason(SpecReason(small, large), PROBLEM, ahead=control, observe=observe)

    with pytest.raises(EndpointUnavailable, match="down"):
        run(main())
    assert (small.open, large.open) == (0, 0)
