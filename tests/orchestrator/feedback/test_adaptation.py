"""Threshold and depth follow the statistics of runs, within the limit, and equally for equal traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Accept, Chain, Rollback, Step, reason
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import (
    Adapted,
    Committed,
    Drafted,
    Event,
    Judged,
    Repaired,
    Started,
)
from stepspec.orchestrator.feedback.adaptation import MARGIN, Adaptation, Choice, Costs, Evidence, Share, kept, needed
from stepspec.orchestrator.feedback.run_stats import RunStats, ShadowCheck
from stepspec.orchestrator.stats import wilson
from stepspec.orchestrator.trace import Moment, Recorder, Stopwatch, read, write
from stepspec.policies import THRESHOLDS, SpecReason

from ...fakes import ScriptedModel, counting, run
from ..arms import BOUNDED, PROBLEM, taste

GRID = THRESHOLDS["specreason"].values
GRADES = "9" * 10 + "8" * 4 + "7" * 2 + "4" * 2 + "1" * 2
SECONDS = st.floats(0.01, 100)
SHARES = st.floats(0, 1)


def adaptation(threshold: float = 7, ahead: int = 2, *, limit: float = 0.08, most: int = 4) -> Adaptation:
    return Adaptation(limit, most, Choice(threshold, ahead), GRID, top=9)


def moments(grades: Sequence[float | None], threshold: float, *, judge: float = 0.5) -> list[Moment]:
    """A run, one step after the other: a draft takes 1 s and a repair 3 s."""
    found, at = [Moment(0.0, Started(PROBLEM.messages, "specreason"))], 0.0

    def tell(seconds: float, event: Event) -> None:
        nonlocal at
        at += seconds
        found.append(Moment(at, event))

    for index, grade in enumerate(grades):
        draft, repair = Step("a.\n\n", "small"), Step("b.\n\n", "large")
        good = grade is not None and grade >= threshold
        verdict = Accept(grade) if good else Rollback(reason="grade", score=grade)
        tell(1, Drafted(index, draft))
        tell(judge, Judged(index, draft, verdict))
        if isinstance(verdict, Rollback):
            tell(3, Repaired(index, repair, verdict))
        tell(0, Committed(index, draft if good else repair))
    return found


# What a step costs.


class World:
    """Problems of so many *steps* whose drafts have grades drawn from `GRADES`; a draft takes 1 s."""

    def __init__(self, judge: float, repair: float = 4.0, steps: int = 12) -> None:
        self._judge, self._repair, self._steps = judge, repair, steps

    def models(self, problem: int) -> tuple[ScriptedModel, ScriptedModel]:
        def grade(chain: Chain, question: str) -> Mapping[str, float]:
            return {GRADES[int(taste(problem, len(chain.steps)) * len(GRADES))]: 1.0}

        large = ScriptedModel("large", counting("large", self._steps), judge=grade)
        large.reading, large.latency = (lambda chain: self._judge), (lambda chain: self._repair)
        return ScriptedModel("small", counting("small", self._steps), log=large.log), large

    def solve(self, problem: int, choice: Choice, begun: Adapted | None = None) -> list[Moment]:
        async def main() -> list[Moment]:
            recorder = Recorder(Stopwatch())
            recorder(Started(PROBLEM.messages, "specreason"))
            if begun is not None:
                recorder(begun)
            policy = SpecReason(*self.models(problem), threshold=choice.threshold or 0)
            await reason(policy, PROBLEM, ahead=choice.ahead, observe=recorder)
            return recorder.moments

        return run(main())[0]

    def fixed(self, choice: Choice, problems: range) -> tuple[float, float]:
        """Seconds a problem, and the share of bad steps among the accepted ones, as the grades tell."""
        traces = [self.solve(problem, choice) for problem in problems]
        lessons = list(map(RunStats.of, traces))
        kept = [
            1 - (grade or 0) / 9
            for one in lessons
            for grade, good in zip(one.grades, one.accepted, strict=True)
            if good
        ]
        return fmean(trace[-1].at for trace in traces), fmean(kept)

    def adapted(self, adapting: Adaptation, problems: range) -> tuple[list[float], list[list[Moment]]]:
        """Seconds of one problem after the other, and their traces."""
        traces = list[list[Moment]]()
        for problem in problems:
            begun = adapting.begin("threshold")
            traces.append(self.solve(problem, adapting.choice, begun))
            adapting.learn(traces[-1])
        return [trace[-1].at for trace in traces], traces


@pytest.mark.parametrize(("judge", "ahead"), [(0.5, 0), (0.5, 1), (1.5, 1), (3.0, 1), (3.0, 3), (0.25, 3)])
def test_the_time_that_is_expected_is_the_time_it_takes(judge: float, ahead: int) -> None:
    """But for the end of a chain, where the last verdicts come one after the other."""
    world, choice = World(judge, steps=60), Choice(7.0, ahead)
    traces = [world.solve(problem, choice) for problem in range(8)]
    rate = fmean(good for trace in traces for good in RunStats.of(trace).accepted)
    expected = 60 * Costs(1.0, judge, 4.0, toll=0).step(rate, ahead)
    assert fmean(trace[-1].at for trace in traces) == pytest.approx(expected, rel=0.04)


def test_the_cost_of_a_step_is_its_expected_time() -> None:
    costs = Costs(1.0, 2.0, 5.0)
    assert costs.step(1.0, 0) == 3.0
    assert [costs.step(1.0, ahead) for ahead in (1, 2, 3)] == [1.5, 1.0, 1.0]
    assert costs.step(0.0, 0) == 8.0
    assert costs.step(0.0, 2) == pytest.approx(8.2)
    assert costs.step(0.0, 9) == pytest.approx(8.2)  # no more than two bets are made until a verdict is known
    assert Costs(2.0, 4.0, 5.0).step(0.0, 9) == pytest.approx(11.4)
    assert costs.step(0.5, 1) == pytest.approx(0.5 * 1.5 + 0.5 * 8.1)


def depth(costs: Costs, accepted: float) -> int:
    return min(range(9), key=lambda ahead: costs.step(accepted, ahead))


@given(draft=SECONDS, judge=SECONDS, more=st.floats(1, 10), repair=SECONDS, accepted=SHARES, better=SHARES)
@BOUNDED
def test_a_slower_judge_and_better_drafts_never_make_it_shallower(
    draft: float, judge: float, more: float, repair: float, accepted: float, better: float
) -> None:
    costs, surer = Costs(draft, judge, repair), max(accepted, better)
    here, slower = depth(costs, accepted), Costs(draft, judge * more, repair)
    for other, rate in ((slower, accepted), (costs, surer)):
        assert depth(other, rate) >= here or other.step(rate, here) == pytest.approx(
            other.step(rate, depth(other, rate))
        )
    assert costs.step(surer, here) <= costs.step(accepted, here) * (1 + 1e-9)


# What the evidence says.


def test_a_bound_needs_its_stated_number_of_steps() -> None:
    for limit in (0.01, 0.02, 0.08, 0.5):
        assert wilson(0, needed(limit))[1] <= limit < wilson(0, needed(limit) - 1)[1]


def known(grades: Sequence[float], checks: Sequence[tuple[float, bool]] = ()) -> Evidence:
    evidence = Evidence(top=9, window=1024)
    moment = Moment(0.0, Adapted("threshold", 7.0, 2, 0, checks=tuple(checks), own=(True,) * len(checks)))
    evidence.add(RunStats.of([moment, *moments(grades, 7)]))
    return evidence


def test_a_grade_is_a_probability_and_the_bound_is_above_the_mean_doubt() -> None:
    evidence = known([9] * 90 + [8.1] * 10 + [4.5] * 100)
    assert evidence.rate(7) == 0.5
    assert evidence.bad(7, 0.02).mean == pytest.approx(0.01)
    assert evidence.bad(7, 0.02).most == pytest.approx(wilson(1.0, 100)[1])
    assert evidence.bad(4, 0.02).mean == pytest.approx(51 / 200)
    assert evidence.bad(9.5, 0.02) == Share(0.0, 0.0, 1.0)  # of nothing, nothing is known


def test_a_verdict_without_a_grade_is_accepted_by_no_threshold() -> None:
    evidence = Evidence(top=9, window=1024)
    evidence.add(RunStats.of(moments([None, 9, None, 9], 7)))
    assert (evidence.rate(0), evidence.rate(None)) == (0.5, 0.5)


@pytest.mark.parametrize(("disputed", "change"), [(0, -0.1), (10, 0.0), (40, 0.3)])
def test_shadows_correct_the_judges_opinion(disputed: int, change: float) -> None:
    """The judge doubts a tenth of what it accepts; of 100 such steps, the large model disputes some."""
    alone = known([8.1] * 500)
    least = needed(0.08)
    few, enough, many = (
        known([8.1] * 500, [(8.1, place >= disputed) for place in range(n)]) for n in (least - 1, least, 100)
    )
    assert few.bad(7, 0.08) == alone.bad(7, 0.08) != enough.bad(7, 0.08)
    assert many.bad(7, 0.08).mean - alone.bad(7, 0.08).mean == pytest.approx(change)
    assert many.bad(7, 0.08).least <= many.bad(7, 0.08).mean < many.bad(7, 0.08).most
    assert many.bad(7, 0.08).most > wilson(disputed, 100)[1] - 0.1


# What is decided.


def taught(adapting: Adaptation, *grades: Sequence[float | None], judge: float = 0.5) -> list[Choice]:
    choices = list[Choice]()
    for each in grades:
        adapting.learn(moments(each, adapting.choice.threshold or 0, judge=judge))
        choices.append(adapting.choice)
    return choices


GRADED = st.lists(st.lists(st.none() | st.floats(0, 9), max_size=30), max_size=12)


@given(grades=GRADED, doubtful=st.floats(0, 9), start=st.sampled_from(GRID), limit=st.floats(0.02, 0.5))
@BOUNDED
def test_the_limit_is_kept_on_the_evidence_and_nothing_jumps(
    grades: list[list[float | None]], doubtful: float, start: float, limit: float
) -> None:
    adapting, again = (adaptation(start, limit=limit) for _ in range(2))
    runs = [[9.0] * 20 + [doubtful]] * 4 + grades
    for each in runs:
        before = adapting.choice
        (now,) = taught(adapting, each)
        assert taught(again, each) == [now]
        assert before.threshold is not None
        assert now.threshold is not None
        assert abs(GRID.index(now.threshold) - GRID.index(before.threshold)) <= 1
        assert abs(now.ahead - before.ahead) <= 1
        evidence = adapting.evidence
        bad = {threshold: evidence.bad(threshold, limit) for threshold in GRID}
        loosest = min((one for one in GRID if bad[one].mean <= limit), default=9)
        surely = min((one for one in GRID if bad[one].most <= limit), default=start)
        if not evidence.enough(limit):
            assert now.threshold == before.threshold
        elif now.threshold < before.threshold:
            assert now.threshold >= (loosest if now.threshold >= start else surely)
        elif before.threshold < (loosest if before.threshold >= start else min(surely, start)):
            assert now.threshold > before.threshold
    assert adapting.begin() == again.begin()


def test_a_users_own_threshold_is_trusted_as_long_as_it_may_be() -> None:
    """Three of a hundred doubts are within the limit, and may well be more than it."""
    evidence = known([9.0] * 70 + [8.1] * 30)
    assert evidence.bad(7, 0.05).mean < 0.05 < evidence.bad(7, 0.05).most
    assert kept(evidence, GRID, 7, 0.05)[-1] == 7
    assert kept(evidence, GRID, 8.5, 0.05)[-1] == 8.5
    assert kept(evidence, GRID, 7, 0.01)[-1] == 8.5
    assert kept(known([8.0] * 100), GRID, 7, 0.05) == [9, 8.5]
    differing = [(9.0, False)] * 80
    assert kept(known([9.0] * 100, differing), GRID, 7, 0.05) == []


def test_too_little_evidence_changes_nothing() -> None:
    adapting = adaptation(7, 0)
    assert taught(adapting, [9.0] * 4) == [Choice(7, 0)]
    adapted = adapting.begin("threshold")
    assert adapted == Adapted("threshold", 7, 0, 1)


def test_if_no_threshold_keeps_the_limit_the_strictest_is_chosen_and_reported() -> None:
    adapting = adaptation(7.5, limit=0.05)
    choices = taught(adapting, *[[8.0] * 30] * 6)
    assert [choice.threshold for choice in choices] == [7.5, 7.5, 8, 8.5, 8.5, 8.5]
    assert adapting.hopeless
    assert adapting.begin().bad is None
    assert not adaptation().hopeless


def test_a_threshold_that_accepts_nothing_waits_for_proof_of_a_looser_one() -> None:
    adapting = adaptation(9, 2, limit=0.05)
    taught(adapting, *[[8.9] * 10 + [1.0]] * 7)
    assert adapting.choice.threshold == 9
    assert not adapting.hopeless
    taught(adapting, *[[8.9] * 10 + [1.0]] * 8)
    assert adapting.choice.threshold == 8.5
    assert not adapting.hopeless


def test_disputes_at_every_threshold_lead_to_the_strictest() -> None:
    adapting = adaptation(8, limit=0.08)
    for _ in range(60):
        adapting.checked(ShadowCheck(9.0, agreed=False))
    adapted = adapting.begin()
    assert (len(adapted.checks), adapting.begin().checks) == (60, ())
    choices = list[Choice]()
    for _ in range(4):
        adapting.learn([Moment(0.0, adapted), *moments([9.0] * 50, 8)])
        choices.append(adapting.choice)
    assert [choice.threshold for choice in choices] == [8.5, 9, 9, 9]
    assert adapting.hopeless


def test_a_slower_repair_never_makes_it_stricter() -> None:
    def end(repair: float) -> float:
        adapting = adaptation(8, limit=0.2)
        for _ in range(12):
            run_ = moments([9.0] * 26 + [6.5] * 2, adapting.choice.threshold or 0)
            adapting.learn([replace(m, at=m.at * (repair if isinstance(m.event, Repaired) else 1)) for m in run_])
        return adapting.choice.threshold or 0

    assert end(1.0) >= end(2.0) >= end(8.0)


def test_a_gain_that_is_too_small_changes_nothing() -> None:
    """One draft in a hundred would be accepted by a looser threshold, too: that saves less than a fiftieth."""
    few, many = adaptation(7, limit=0.3), adaptation(7, limit=0.3)
    assert {choice.threshold for choice in taught(few, *[[9.0] * 199 + [6.0]] * 3)} == {7}
    assert taught(many, *[[9.0] * 190 + [6.0] * 10] * 3)[-1].threshold == 6
    assert MARGIN == 0.02


def test_without_thresholds_the_depth_alone_moves() -> None:
    adapting = Adaptation(0.1, 4, Choice(None, 0))
    choices = taught(adapting, *[[1.0] * 10] * 8, judge=2.5)
    assert {choice.threshold for choice in choices} == {None}
    assert [choice.ahead for choice in choices] == sorted(choice.ahead for choice in choices)
    assert choices[-1].ahead == 3


@pytest.mark.parametrize(
    ("limit", "most", "threshold", "grid", "complaint"),
    [
        (0.0, 2, 7, GRID, "a limit between 0 and 1"),
        (1.0, 2, 7, GRID, "a limit between 0 and 1"),
        (-0.5, 2, 7, GRID, "a limit between 0 and 1"),
        (1.5, 2, 7, GRID, "a limit between 0 and 1"),
        (0.1, -1, 7, GRID, "and a depth"),
        (0.1, 2, 7, GRID[::-1], "strictest to the loosest"),
        (0.1, 2, 7.2, GRID, "7.2 is not among"),
    ],
)
def test_invalid_settings_of_adaptation_are_refused(
    limit: float, most: int, threshold: float, grid: tuple[float, ...], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        Adaptation(limit, most, Choice(threshold, 2), grid, top=9)


# What comes of it.


def test_it_reaches_the_best_of_the_grid_and_beats_a_bad_setting(tmp_path: Path) -> None:
    """Every threshold that differs, with every depth, is measured on the same problems; begun at the worst corner."""
    world, limit, worst = World(2.5), 0.1, Choice(9.0, 0)
    measured = {
        choice: world.fixed(choice, range(100, 112))
        for choice in (Choice(threshold, ahead) for threshold in (9.0, 8.0, 7.0, 4.0, 1.0) for ahead in (0, 1, 2, 3))
    }
    best = min((choice for choice in measured if measured[choice][1] <= limit), key=lambda one: measured[one][0])
    assert best == Choice(7.0, 3)  # looser ones are faster, and too bad
    assert measured[Choice(4.0, 3)][0] < measured[best][0]
    adapting = adaptation(worst.threshold or 0, worst.ahead, limit=limit, most=3)
    seconds, traces = world.adapted(adapting, range(36))
    assert measured[adapting.choice] == measured[best]
    assert fmean(seconds) < 0.75 * measured[worst][0]
    assert fmean(seconds[20:]) == pytest.approx(world.fixed(best, range(20, 36))[0], rel=0.02)
    again = adaptation(worst.threshold or 0, worst.ahead, limit=limit, most=3)
    for number, trace in enumerate(traces):
        write(tmp_path / f"{number}.jsonl", trace)
        recorded = read(tmp_path / f"{number}.jsonl")
        assert again.begin("threshold") in [moment.event for moment in recorded]
        again.learn(recorded)
    assert again.choice == adapting.choice


def test_recorded_traces_with_shadows_lead_to_the_same_decisions(tmp_path: Path) -> None:
    first, again, adapted = adaptation(7, limit=0.05), adaptation(7, limit=0.05), list[Adapted]()
    for number in range(8):
        for place in range(20):
            first.checked(ShadowCheck(9.0, agreed=place > 7))
        adapted.append(first.begin("threshold"))
        trace = [Moment(0.0, adapted[-1]), *moments([9.0] * 24, first.choice.threshold or 0)]
        first.learn(trace)
        write(tmp_path / f"{number}.jsonl", trace)
    assert len({one.value for one in adapted}) > 2  # two fifths are disputed: stricter, whatever the grades say
    for number, expected in enumerate(adapted):
        assert again.begin("threshold") == replace(expected, checks=(), own=())
        again.learn(read(tmp_path / f"{number}.jsonl"))
    assert again.choice == first.choice
