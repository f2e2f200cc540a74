"""
A run steps aside where the method does not pay, and comes back: scripted models on the virtual
clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise

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
from stepspec.orchestrator.auto import MAX_METHODS, SHADOW_TIME_SHARE, Auto, AutoRun
from stepspec.orchestrator.budget import Budgeted
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.costs import MIN_STEPS
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
from stepspec.orchestrator.prior import Prior
from stepspec.orchestrator.solution import share_alone as share_of_events
from stepspec.orchestrator.trace import Moment, Recorder, Stopwatch, dump, parse
from stepspec.policies import Led, Solo, SpecReason
from tests.fakes import replay

from ..fakes import Previous, ScriptedModel, counting, run
from .arms import ARMS, PROBLEM, Arm, arm, taste

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
        deciding = auto.run("specreason", {}, AHEAD, aside) if auto is not None else None
        drafting = Budgeted(small, budget.left)
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
                deciding.read(recorder.last)

        small.observe = large.observe = observe
        async with auto.server_load.slot() if auto else nullcontext():
            observe(Started(PROBLEM.messages, "specreason"))
            control = LookaheadControl(AHEAD, auto=deciding)
            policy = aside if arm == "large" else method
            await reason(policy, PROBLEM, ahead=control, spent=budget.spent, observe=observe)
            observe(Finished("stop", "", recorder.last.at))
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
    share = share_of_events([moment.event for trace in traces for moment in trace])
    assert share is not None
    return share


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
        assert (first <= 1.3, second <= 1.1) == (True, True)
        assert sum(others) / len(others) <= (1.03 if not world.queue else 1.05)


@pytest.mark.parametrize(
    ("load", "first", "later"), [(0.0, 0.74, 0.45), (0.1, 0.82, 0.75), (1.0, 1.08, 1.05)]
)
def test_as_many_runs_use_the_method_as_their_verdicts_at_once_allow(
    load: float, first: float, later: float
) -> None:
    """Up to three times as many verdicts as runs are under way, and slow each other down."""
    world, auto = replace(GOOD, load=load), Auto()
    for most in (first, later, later):
        traces = world.together(range(32), auto)
        assert sum(trace[-1].at for trace in traces) <= most * world.seconds("large", range(32))
        assert (share_alone(traces) < 1, len(auto.method_runs)) == (True, 0)


def shadows(traces: Sequence[Sequence[Moment]]) -> list[Shadowed]:
    return [event for event in events(traces) if isinstance(event, Shadowed)]


def test_a_method_drafts_in_the_shadow_while_the_large_model_writes_the_chain_in_one_request() -> (
    None
):
    world = replace(GOOD, good=0.0)
    trace = world.solve(0, "auto", Auto())
    alone = world.solve(0, "large")
    made = shadows([trace])
    assert made[0].index == 2  # the large model's pace is known
    assert len(made) > 2
    assert [event.drafting for event in made[:-1]] == pytest.approx([0.7] * (len(made) - 1))
    assert [event.judging for event in made[:-1]] == pytest.approx([0.5] * (len(made) - 1))
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
    wasted = sum(len(event.draft.tokens) for event in made)
    assert (ledger.drafts, ledger.small.kept, ledger.small.discarded) == (0, 0, wasted)


def test_a_method_that_writes_drafts_nothing_in_the_shadow() -> None:
    auto = Auto()
    for problem in range(4):
        GOOD.solve(problem, "auto", auto)
    assert not shadows([GOOD.solve(9, "auto", auto)])


@pytest.mark.parametrize("world", [GOOD, replace(GOOD, verdict=2.5)])
def test_shadow_drafts_take_a_share_of_the_time_of_the_large_model(world: World) -> None:
    """
    The first two have no price, and the last one is paid for by the steps after it. Prices are
    whole steps.
    """
    bad = replace(world, good=0.0, steps=60)
    trace = bad.solve(0, "auto", Auto())
    prices = [event.drafting + event.judging for event in shadows([trace])]
    time = trace[-1].at
    assert 0.04 * time <= sum(prices[2:-1]) <= SHADOW_TIME_SHARE * time


def test_a_run_does_not_wait_for_its_shadow_draft_and_the_next_one_pays_for_it() -> None:
    endless = replace(GOOD, verdict=200.0)
    auto = Auto()
    alone = endless.solve(0, "large")[-1].at
    traces = [endless.solve(problem, "auto", auto) for problem in range(8)]
    assert [trace[-1].at for trace in traces] == pytest.approx([alone] * 8)
    asked = [event.index for event in decisions(traces) if event.shadow]
    assert len(asked) > 1  # each takes until its run ends


def test_runs_at_once_have_one_shadow_draft_at_a_time() -> None:
    traces = replace(GOOD, good=0.0).together(range(8), Auto())
    spans = list[tuple[float, float]]()
    for trace in traces:
        asked = [m.at for m in trace if isinstance(m.event, Decided) and m.event.shadow]
        made = [m.at for m in trace if isinstance(m.event, Shadowed)]
        spans += zip(asked, made, strict=False)
    spans.sort()
    assert len(spans) > 1
    assert all(ended <= began for (_, ended), (began, _) in pairwise(spans))


def test_a_slow_judge_pays_at_the_depth_of_the_run() -> None:
    """
    A step takes 3.05 s by the large model, 4.7 s one after the other, and 1.6 s two drafts ahead.
    """
    auto = Auto()
    world = replace(GOOD, good=1.0, verdict=4.0)
    traces = [world.solve(problem, "auto", auto) for problem in range(12)]
    assert share_alone(traces[8:]) == 0


@pytest.mark.parametrize(
    "worlds",
    [
        (GOOD, replace(GOOD, verdict=8.0), GOOD),
        (replace(GOOD, good=0.05), replace(GOOD, good=0.95), replace(GOOD, good=0.05)),
    ],
    ids=["the judge slows down", "drafts get better"],
)
def test_it_follows_what_changes_and_comes_back(worlds: Sequence[World]) -> None:
    auto, better = Auto(), list[str]()
    for place, world in enumerate(worlds):
        problems = range(80 * place, 80 * place + 80)
        traces = [world.solve(problem, "auto", auto) for problem in problems]
        large, method = (8 * world.seconds(arm, problems[::8]) for arm in ("large", "method"))
        assert sum(trace[-1].at for trace in traces) <= 1.1 * min(large, method)
        better.append("large" if large < method else "method")
        assert (share_alone(traces[-20:]) > 0.8) == (large < method)
    assert all(before != after for before, after in pairwise(better))


def test_the_same_traces_give_the_same_decisions() -> None:
    """Also from disk."""
    auto, worlds = Auto(), (GOOD, replace(GOOD, verdict=8.0), replace(GOOD, good=0.3))
    traces = list[list[Moment]]()
    for problem in range(30):
        traces.append(worlds[problem // 10].solve(problem, "auto", auto))
    again, compared = Auto(), 0
    for trace in traces:
        reading = again.run("specreason", {}, AHEAD, Solo(GOOD.models(0)[1]))
        for moment in (parse(dump(each)) for each in trace):
            if isinstance(moment.event, Decided):
                assert reading.decide(moment.event.index) == moment.event
                compared += 1
            reading.read(moment)
    assert compared > 30
    assert {event.choice for event in decisions(traces)} == {"large", "method"}


def test_the_chain_stands_in_the_trace_and_steps_written_alone_are_no_accepted_drafts() -> None:
    auto, world = Auto(), replace(GOOD, verdict=20.0)
    traces = [world.solve(0, "auto", auto), GOOD.solve(1, "auto", Auto())]
    assert share_alone(traces[:1]) == 1.0
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


def test_stepping_aside_costs_no_request_no_draft_and_no_token_of_the_budget() -> None:
    world = replace(GOOD, verdict=20.0)
    auto = Auto(Prior(accept_rate=0.9, verdict_seconds=20.0))
    small, large = world.models(1)
    deciding = auto.run("specreason", {}, AHEAD, Solo(large))
    control = LookaheadControl(AHEAD, auto=deciding)

    async def main() -> None:
        recorder = Recorder(Stopwatch())

        def observe(event: Event) -> None:
            recorder(event)
            deciding.read(recorder.last)

        await reason(SpecReason(small, large), PROBLEM, ahead=control, observe=observe)

    run(main())
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
        replace(GOOD, verdict=60.0, good=1.0).solve(problem, "auto", auto)
        for problem in range(4, 8)
    ]
    lost = [event for event in events(found) if isinstance(event, Lost)]
    drafted = sum(isinstance(event, Drafted) for event in events(found))
    committed = sum(isinstance(event, Committed) for event in events(found))
    assert lost
    assert drafted == committed + len(lost)


def deciding(method_seconds: float, using: bool, runs: int = 1) -> AutoRun:
    """A run where a step takes 1 s by the large model, and this long by the method."""
    auto = Auto()
    taught = auto.run("specreason", {}, AHEAD, Solo(GOOD.models(0)[1]))
    for number in range(runs):
        auto.server_load.grow(number, 1)
    for _ in range(MIN_STEPS):
        auto.timings.add("alone", runs, 1.0, 1)
        taught.record.timings.add("accepted", runs, method_seconds, 1)
        taught.record.timings.add("rejected", runs, method_seconds, 1)
    if using:
        taught.read(Moment(0.0, Decided(0, "method", AHEAD)))
    return taught


@pytest.mark.parametrize(
    ("seconds", "using", "changes"),
    [(0.98, False, False), (0.96, False, True), (1.02, True, False), (1.04, True, True)],
)
def test_a_change_has_to_save_more_than_the_margin(
    seconds: float, using: bool, changes: bool
) -> None:
    decided = deciding(seconds, using).decide(1)
    choice = "large" if decided is None or decided.choice == "large" else "method"
    if using:
        assert (decided is not None) == changes
    else:
        assert (choice == "method") == changes


@pytest.mark.parametrize(
    ("seconds", "against"),
    [(1.3, "the method slows other runs down"), (0.9, "")],
)
def test_runs_stay_aside_together_where_a_method_slows_the_others_by_more_than_it_gains(
    seconds: float, against: str
) -> None:
    """
    Beside runs that use it, the large model takes 1.4 s for a step, so that each run by itself
    would use a method that takes 1.3 s. Without the method a step takes 1 s.
    """
    run_ = deciding(seconds, using=False, runs=8)
    for _ in range(MIN_STEPS):
        run_.auto.timings.add("beside", 8, 1.4, 1)
    step = Step("a\n\n", "large", tokens=(Token("a\n\n"),))
    for index in range(30):
        run_.read(Moment(index + 1, Committed(index, step)))
    decided = run_.decide(30)
    assert decided is not None
    if seconds > 1:
        assert decided.choice == "large"
        assert decided.reason.startswith(against)
    else:
        assert decided.choice == "method"


def test_no_bets_are_made_while_the_large_model_has_a_queue() -> None:
    run_ = deciding(0.9, using=True)
    run_.auto.server_load.poll(9, 3)
    decided = run_.decide(1)
    assert decided is not None
    assert (decided.choice, decided.ahead) == ("method", 0)


def test_without_evidence_the_large_model_writes_alone() -> None:
    decided = Auto().run("specreason", {}, AHEAD, Solo(GOOD.models(0)[1])).decide(0)
    assert decided is not None
    assert (decided.choice, decided.ahead, decided.advice) == ("large", 1, "")
    assert decided.reason == "the method is not measured yet"


def test_a_run_that_may_not_decide_only_teaches() -> None:
    auto = Auto()
    taught = auto.run("specreason", {}, AHEAD)
    for moment in GOOD.solve(0, "method"):
        taught.read(moment)
    assert taught.decide(0) is None
    assert taught.policy(Solo(GOOD.models(0)[0])).answerer.role == "small"
    assert taught.record.timings.mean("accepted", 1, MIN_STEPS) is not None


def test_runs_use_the_method_until_they_end_or_lose_the_small_model() -> None:
    auto = Auto()
    first, other = (auto.run("specreason", {}, AHEAD) for _ in range(2))
    for each in (first, other):
        each.read(Moment(0, Started(PROBLEM.messages, "specreason")))
    assert len(auto.method_runs) == 2
    first.read(Moment(1, Degraded("small", "gone")))
    other.close()
    assert len(auto.method_runs) == 0


def test_the_method_that_was_not_used_longest_is_forgotten_first() -> None:
    auto = Auto()
    first = auto.run("specreason", {}, AHEAD)
    forgotten = auto.run("random", {"seed": 0}, AHEAD)
    for number in range(1, MAX_METHODS):
        assert auto.run("specreason", {}, AHEAD).record is first.record
        auto.run("random", {"seed": number}, AHEAD)
    assert auto.run("random", {"seed": 0}, AHEAD).record is not forgotten.record


def test_the_large_models_pace_is_that_of_as_many_runs_as_now() -> None:
    auto = Auto()
    step = Step("a\n\n", "large", tokens=(Token("a\n\n"),))
    names = [*["large"] * 6, "small"]
    runs = [auto.run(name, {}, AHEAD) for name in names]
    for name, each in zip(names, runs, strict=True):
        each.read(Moment(0, Started(PROBLEM.messages, name)))
    for index in range(2):  # the first one reads the problem, too
        runs[0].read(Moment(index + 1, Committed(index, step)))
    pace = auto.large("alone")
    assert pace is not None
    assert pace.seconds == 1.0
    for each in runs[:5]:
        each.close()
    assert auto.large("alone") is None  # of one run


def test_shadow_drafts_of_steps_that_the_large_model_leads_with_are_no_evidence() -> None:
    world = replace(GOOD, lead=5, steps=40)
    auto = Auto()
    trace = world.solve(0, "auto", auto)
    led = [event for event in shadows([trace]) if event.index < world.lead]
    assert {event.draft.author for event in led} == {"large"}
    assert trace[-1].at < 0.75 * world.seconds("large", [0])


@pytest.mark.parametrize(
    ("accepted", "pace", "choice"),
    [(0.0, 0.0, "large"), (1.0, 1.03, "large"), (1.0, 0.4, "method")],
)
def test_a_prior_decides_before_the_first_draft(accepted: float, pace: float, choice: str) -> None:
    auto = Auto(Prior(accept_rate=accepted, verdict_seconds=0.3, pace=pace))
    trace = replace(GOOD, good=accepted, steps=4).solve(0, "auto", auto)
    assert decisions([trace])[-1].choice == choice


@pytest.mark.parametrize(
    "world", [replace(GOOD, good=0.0), replace(GOOD, verdict=20.0, good=1.0, steps=40)]
)
def test_the_advice_names_the_cause_and_the_cure(world: World) -> None:
    auto = Auto()
    traces = [world.solve(problem, "auto", auto) for problem in range(6)]
    advice = [event.advice for event in decisions(traces) if event.advice]
    assert advice[0].startswith("the method is slower: method ")
    assert advice[0].endswith("% of drafts accepted: run `stepspec tune`")


@pytest.mark.parametrize(("author", "counts"), [("small", True), ("large", False)])
def test_a_shadow_draft_of_the_large_model_is_no_evidence(author: Role, counts: bool) -> None:
    run_ = deciding(0.5, using=False)
    before = run_.estimate()
    draft = Step("So", author, "delimiter", tokens=(Token("So"),))
    event = Shadowed(1, draft, Accept(judged=author == "small"), drafting=1.0, judging=1.0)
    run_.read(Moment(1.0, event))
    assert (run_.estimate() != before) == counts


def test_with_a_full_cache_the_large_model_writes_alone() -> None:
    run_ = deciding(0.5, using=False)
    run_.auto.server_load.poll(4, 0, 1000)
    run_.auto.server_load.grow(run_, 900)
    decided = run_.decide(1)
    assert decided is not None
    assert (decided.choice, decided.shadow) == ("large", False)
    assert decided.advice.startswith("the chains of 2 runs fill the large model's cache: lower")


def test_more_runs_than_the_prior_knows_a_gain_with_are_the_large_models() -> None:
    auto = Auto(Prior(runs=1))
    runs = [auto.run("specreason", {}, AHEAD, Solo(GOOD.models(0)[1])) for _ in range(2)]
    found = list[str]()
    for each in runs:
        each.read(Moment(0, Started(PROBLEM.messages, "specreason")))
        decided = each.decide(0)
        assert decided is not None
        found.append(decided.reason)
    assert found == [
        "the method is not measured yet",
        "by `prior.runs`, more than 1 runs at once save no time",
    ]


# What is read of a run.


def counts(moments: Iterable[Moment]) -> tuple[int, int]:
    """The accepted and the rejected steps that the events of one run leave in the record."""
    reading = Auto().run("specreason", {}, 0)
    for moment in moments:
        reading.read(moment)
    means = reading.record.timings.means
    return means["accepted", 1].count, means["rejected", 1].count


def of_events(*found: tuple[float, Event]) -> tuple[int, int]:
    begin = Moment(0, Started(PROBLEM.messages, "bild"))
    return counts([begin, *(Moment(at, event) for at, event in found)])


SMALL = Step("a b\n\n", "small", tokens=(Token("a b\n\n"),))
LARGE = Step("c\n\n", "large", tokens=(Token("c\n\n"),))


def test_a_lost_bet_says_nothing_of_the_step_in_its_place() -> None:
    wrong = Rollback()
    assert of_events(
        (1, Judged(1, SMALL, Accept())),
        (2, Judged(0, SMALL, wrong)),
        (2, Lost(1, SMALL)),
        (3, Repaired(0, LARGE, wrong)),
        (3, Committed(0, LARGE)),
        (4, Committed(1, LARGE)),
    ) == (0, 1)


def test_a_draft_that_is_kept_in_part_is_rejected_and_one_that_a_rival_replaces_is_not() -> None:
    wrong = Rollback(1, "doubt", 2.0)
    assert of_events(
        (2, Judged(0, SMALL, wrong)),
        (2, Committed(0, SMALL.cut(1), 2.0)),
        (5, Repaired(1, LARGE, wrong)),
        (5, Committed(1, LARGE)),
    ) == (0, 1)
    verdict = Rollback(reason="grade", score=2.0, rivals=(Rival(SMALL, 8.0),))
    assert of_events(
        (2, Judged(0, SMALL, verdict)), (2, Chosen(0, SMALL)), (2, Committed(0, SMALL, 8.0))
    ) == (1, 0)


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
        ledger = Ledger.of(moment.event for moment in moments)
        drafts = [m.event.draft for m in moments if isinstance(m.event, Drafted)]
        verdicts = [m.event.verdict for m in moments if isinstance(m.event, Judged)]
        judged = all(not isinstance(each, Accept) or each.judged for each in verdicts)
        if judged and all(draft.author == "small" for draft in drafts):
            accepted, rejected = counts(moments)
            assert (accepted + rejected, accepted) == (ledger.drafts, ledger.accepted)


def test_what_fails_a_shadow_draft_fails_the_run_as_the_method_would() -> None:
    small, large = GOOD.models(0)
    small.fails = lambda verb, chain: EndpointUnavailable("down", role="small", verb=verb)
    deciding = Auto().run("specreason", {}, AHEAD, Solo(large))

    async def main() -> None:
        recorder = Recorder(Stopwatch())

        def observe(event: Event) -> None:
            recorder(event)
            deciding.read(recorder.last)

        control = LookaheadControl(AHEAD, auto=deciding)
        await reason(SpecReason(small, large), PROBLEM, ahead=control, observe=observe)

    with pytest.raises(EndpointUnavailable, match="down"):
        run(main())
    assert (small.open, large.open) == (0, 0)
