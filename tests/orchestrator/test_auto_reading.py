"""The statistics of a run are read from its trace, and are the same from a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from stepspec.orchestrator import Accept, Policy, Rollback, Step, reason
from stepspec.orchestrator.auto import Reading
from stepspec.orchestrator.chain import Rival
from stepspec.orchestrator.events import (
    Chosen,
    Committed,
    Drafted,
    Event,
    Judged,
    Repaired,
    Started,
)
from stepspec.orchestrator.ledger import Ledger
from stepspec.orchestrator.trace import Moment, Recorder, Stopwatch, read, write
from stepspec.policies import Led, SpecReason

from ..fakes import run
from .arms import ARMS, PROBLEM, arm, pair


def lesson(*, wrong: tuple[int, ...], ahead: int, lead: int = 0, length: int = 5) -> Reading:
    """A draft takes 1 s, a grade 0.5 s, a repair 3 s."""

    async def main() -> list[Moment]:
        small, large = pair(length, wrong)
        large.reading, large.latency = (lambda chain: 0.5), (lambda chain: 3.0)
        policy: Policy = SpecReason(small, large)
        recorder = Recorder(Stopwatch())
        recorder(Started(PROBLEM.messages, "specreason"))
        await reason(Led(policy, large, lead) if lead else policy, PROBLEM, ahead=ahead, observe=recorder)
        return recorder.moments

    return reading(run(main())[0])


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_the_stats_of_a_run_have_its_seconds_and_grades(ahead: int) -> None:
    found = lesson(wrong=(2,), ahead=ahead)
    assert found.drafts == [1.0, 1.0]  # the first one, and the first one after the repair
    assert set(found.judged) == {0.5}
    assert found.repairs == [3.0]
    assert found.decided == [(9.0, True), (9.0, True), (0.0, False), (9.0, True), (9.0, True)]


def test_bets_that_were_lost_are_timed_and_not_counted() -> None:
    found = lesson(wrong=(0,), ahead=3, length=2)
    assert found.decided == [(0.0, False), (9.0, True)]
    assert len(found.judged) == 2


def test_the_large_models_first_steps_are_no_drafts() -> None:
    found = lesson(wrong=(3,), ahead=1, lead=2)
    assert (found.drafts, [grade for grade, _ in found.decided]) == ([1.0], [9.0, 0.0, 9.0])


def test_a_repair_is_timed_from_when_it_could_begin() -> None:
    """Not from its own draft's verdict, if that comes before that of the draft before it."""
    first, second = Step("a\n\n", "small"), Step("b\n\n", "small")
    wrong = Rollback(reason="grade", score=1.0)
    found = stats_of(
        (0, Started(PROBLEM.messages, "specreason")), (1, Drafted(0, first)), (2, Drafted(1, second)),
        (3, Judged(1, second, wrong)), (5, Judged(0, first, Accept(8.0))), (5, Committed(0, first, 8.0)),
        (9, Repaired(1, Step("c\n\n", "large"), wrong)), (9, Committed(1, Step("c\n\n", "large"))),
        (11, Drafted(2, second)),
    )  # fmt: skip
    assert (found.drafts, found.judged, found.repairs) == ([1.0, 2.0], [1.0, 4.0], [4.0])
    assert found.decided == [(8.0, True), (1.0, False)]


def test_a_draft_that_is_kept_in_part_is_rejected() -> None:
    draft, repair, wrong = Step("a b\n\n", "small"), Step("c\n\n", "large"), Rollback(1, "doubt", 2.0)
    found = stats_of(
        (0, Started(PROBLEM.messages, "bild")), (1, Drafted(0, draft)), (2, Judged(0, draft, wrong)),
        (2, Committed(0, draft.cut(1), 2.0)), (5, Repaired(1, repair, wrong)), (5, Committed(1, repair)),
    )  # fmt: skip
    assert (found.repairs, found.decided) == ([3.0], [(2.0, False)])


def test_an_accepted_rival_has_its_own_grade() -> None:
    draft, other = Step("a\n\n", "small"), Step("b\n\n", "small")
    verdict = Rollback(reason="grade", score=2.0, rivals=(Rival(other, 8.0),))
    found = stats_of(
        (0, Started(PROBLEM.messages, "choose")), (1, Drafted(0, draft)), (2, Judged(0, draft, verdict)),
        (2, Chosen(0, other)), (2, Committed(0, other, 8.0)), (3, Drafted(1, draft)),
    )  # fmt: skip
    assert (found.drafts, found.decided) == ([1.0, 1.0], [(8.0, True)])


def stats_of(*moments: tuple[float, Event]) -> Reading:
    return reading(Moment(at, event) for at, event in moments)


def reading(moments: Iterable[Moment]) -> Reading:
    found = Reading()
    for moment in moments:
        found.read(round(moment.at, 6), moment)
    return found


@pytest.mark.parametrize("name", ARMS)
@pytest.mark.parametrize("seed", range(4))
def test_a_trace_on_disk_gives_the_same_stats_and_ledger(name: str, seed: int, tmp_path: Path) -> None:
    async def main() -> list[Moment]:
        tried, clock = arm(name, seed), Stopwatch()
        recorder = Recorder(lambda: clock() / 3)
        recorder(Started(PROBLEM.messages, name))
        await reason(tried.policy, PROBLEM, ahead=seed, spent=tried.budget.spent, observe=recorder)
        return recorder.moments

    moments, _ = run(main())
    write(tmp_path / "trace.jsonl", moments)
    found = reading(moments)
    assert vars(reading(read(tmp_path / "trace.jsonl"))) == vars(found)
    ledger = Ledger.of(moment.event for moment in moments)
    led = sum(isinstance(m.event, Drafted) and m.event.draft.author == "large" for m in moments)
    assert min((*found.drafts, *found.judged, *found.repairs), default=0) >= 0
    if not led:
        assert (len(found.decided), sum(good for _, good in found.decided)) == (ledger.drafts, ledger.accepted)
