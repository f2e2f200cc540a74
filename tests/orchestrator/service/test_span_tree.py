"""From the events of a run to its stages, their times, and the requests of each stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepspec.orchestrator.chain import Accept, Rival, Role, Rollback, Step
from stepspec.orchestrator.events import (
    Answered,
    Called,
    Chosen,
    Committed,
    Drafted,
    Event,
    Fate,
    Judged,
    Lost,
    Purpose,
    Repaired,
    Verb,
)
from stepspec.orchestrator.service.span_tree import Stage, Stages
from stepspec.orchestrator.trace import Moment, read

from ..endpoints.streaming import streamed

TRACES = Path(__file__).parent / "page" / "traces"
DRAFT, REPAIR = Step("a\n\n", "small"), Step("b\n\n", "large")
YES, NO = Accept(9.0), Rollback(reason="grade", score=1.0)


def called(
    role: Role, verb: Verb, started: float, ended: float, purpose: Purpose, step: int, fate: Fate = "done"
) -> Moment:
    call = Called(role, verb, fate, started, ended - started, purpose=purpose, step=step, last_step=step)
    return Moment(ended, call)


def stages(*happened: Moment | tuple[float, Event]) -> tuple[dict[tuple[str, int], Stage], Stages]:
    moments = [each if isinstance(each, Moment) else Moment(*each) for each in happened]
    tree = Stages.of(moments)
    return {(stage.kind, stage.index): stage for stage in tree.stages}, tree


def spelt(stage: Stage) -> tuple[float, float, str, list[tuple[str, float]]]:
    calls: list[tuple[str, float]] = [(call.verb, round(call.started, 3)) for call in stage.calls]
    return round(stage.started, 3), round(stage.ended, 3), stage.fate, calls


def test_a_recorded_run() -> None:
    tree = Stages.of(read(TRACES / "specreason.jsonl"))
    assert [(stage.kind, stage.index, *spelt(stage)) for stage in tree.stages] == [
        ("draft", 0, 0.0, 0.119, "kept", []),
        ("judgement", 0, 0.119, 0.184, "accepted", [("ask", 0.119)]),
        ("draft", 1, 0.119, 0.223, "rejected", []),
        ("judgement", 1, 0.223, 0.273, "rejected", [("ask", 0.223)]),
        ("repair", 1, 0.273, 0.75, "kept", [("write", 0.273)]),
        ("draft", 2, 0.75, 0.895, "kept", []),
        ("judgement", 2, 0.895, 0.955, "accepted", [("ask", 0.896)]),
        ("draft", 3, 0.895, 0.984, "kept", []),
        ("judgement", 3, 0.984, 1.032, "accepted", [("ask", 0.986)]),
        ("answer", 4, 0.984, 1.321, "kept", [("write", 0.984)]),
    ]
    assert [(call.role, call.fate) for call in tree.rest] == [("small", "cancelled"), ("small", "done")]
    shared = [[round(call.started, 3) for call in stage.shared] for stage in tree.stages if stage.kind == "draft"]
    assert shared == [[0.001], [0.001], [0.75], [0.75]]
    assert [stage.grade and round(stage.grade) for stage in tree.stages[:5]] == [9, 9, 1, 1, None]
    assert [stage.reason for stage in tree.stages[2:5]] == ["grade"] * 3


def test_requests_within_a_pair_are_those_of_the_step_that_the_pair_wrote() -> None:
    tree = Stages.of(read(TRACES / "nested.jsonl"))
    drafts = [stage for stage in tree.stages if stage.kind == "draft"]
    paths = [[call.path for call in draft.calls] for draft in drafts]
    assert paths == [
        ["small.large"],
        ["small.large", "small.large"],
        ["small.small", "small.large", "small.large"],
        ["small.small", "small.large"],
    ]
    assert [len(stage.calls) for stage in tree.stages if stage.kind != "draft"] == [1] * 6
    assert [(call.path, call.fate) for call in tree.rest] == [("small.small", "cancelled")] * 2


def without_purpose(moment: Moment) -> Moment:
    """Make an event as it was before requests named their purposes."""
    if not isinstance(moment.event, Called):
        return moment
    return replace(moment, event=replace(moment.event, purpose="", step=-1, last_step=-1))


def test_in_traces_without_purposes_calls_belong_to_no_stage() -> None:
    moments = [without_purpose(moment) for moment in read(TRACES / "specreason.jsonl")]
    tree = Stages.of(moments)
    assert [stage.kind for stage in tree.stages] == ["draft", "judgement"] * 2 + ["repair"] + [
        *("draft", "judgement", "draft", "judgement", "answer")
    ]
    assert not [stage for stage in tree.stages if stage.calls or stage.shared]
    assert list(tree.rest) == [moment.event for moment in moments if isinstance(moment.event, Called)]


def test_bets_on_a_rejected_step_and_their_judgements_are_lost() -> None:
    found, tree = stages(
        called("small", "write", 0, 1, "draft", 0),
        (1, Drafted(0, DRAFT)),
        called("small", "write", 1, 2, "draft", 1),
        (2, Drafted(1, DRAFT)),
        called("large", "ask", 1, 3, "verify", 0),
        (3, Judged(0, DRAFT, NO)),
        called("large", "ask", 2, 3.1, "verify", 1, "cancelled"),
        called("small", "write", 2, 3.1, "draft", 2, "cancelled"),
        called("large", "write", 3, 5, "repair", 0),
        (5, Lost(1, DRAFT)),
        (5, Repaired(0, REPAIR, NO)),
        (5, Committed(0, REPAIR)),
        called("small", "write", 5, 6, "draft", 1),
        (6, Drafted(1, DRAFT)),
        (7, Judged(1, DRAFT, YES)),
    )
    spellings = [(stage.kind, stage.index, *spelt(stage)) for stage in tree.stages]
    assert spellings == [
        ("draft", 0, 0, 1, "rejected", [("write", 0)]),
        ("draft", 1, 1, 2, "lost", [("write", 1)]),
        ("judgement", 0, 1, 3, "rejected", [("ask", 1)]),
        ("judgement", 1, 2, 3, "lost", [("ask", 2)]),
        ("repair", 0, 3, 5, "kept", [("write", 3)]),
        ("draft", 1, 5, 6, "accepted", [("write", 5)]),
        ("judgement", 1, 6, 7, "accepted", []),
    ]
    assert [call.fate for call in tree.rest] == ["cancelled"]
    assert found["judgement", 1].grade == 9


def test_a_repair_waits_until_its_step_is_next_unless_it_is_a_bet() -> None:
    def run(begun: float, ended: float) -> Stage:
        found, _ = stages(
            (1, Drafted(0, DRAFT)),
            (2, Drafted(1, DRAFT)),
            (3, Judged(1, DRAFT, NO)),
            *([called("large", "write", begun, ended, "repair", 1)] if ended < 4 else []),
            (4, Judged(0, DRAFT, YES)),
            (4, Committed(0, DRAFT)),
            *([called("large", "write", begun, ended, "repair", 1)] if ended > 4 else []),
            (max(4, ended), Repaired(1, REPAIR, NO)),
        )
        return found["repair", 1]

    assert spelt(run(4, 6)) == (4, 6, "kept", [("write", 4)])
    assert spelt(run(2, 3.5)) == (2, 4, "kept", [("write", 2)])
    assert spelt(run(2, 6)) == (2, 6, "kept", [("write", 2)])


def test_a_step_that_is_kept_in_part_is_repaired_as_the_next_one() -> None:
    rollback = Rollback(keep=1, reason="unlikely")
    found, _ = stages(
        (1, Drafted(0, DRAFT)),
        (2, Judged(0, DRAFT, rollback)),
        (2, Committed(0, DRAFT.cut(1))),
        (4, Repaired(1, REPAIR, rollback)),
        (4, Committed(1, REPAIR)),
        (5, Answered(Step("x", "large"))),
    )
    assert spelt(found["draft", 0]) == (0, 1, "rejected", [])
    assert spelt(found["repair", 1]) == (2, 4, "kept", [])
    assert spelt(found["answer", 2]) == (4, 5, "kept", [])


def test_a_rival_in_a_drafts_place_ends_the_bets_on_it() -> None:
    rollback = Rollback(reason="grade", rivals=(Rival(DRAFT, 8.0),))
    found, _ = stages(
        (1, Drafted(0, DRAFT)),
        (2, Drafted(1, DRAFT)),
        (3, Judged(0, DRAFT, rollback)),
        (3, Chosen(0, DRAFT)),
        (3, Committed(0, DRAFT, 8.0)),
        (3.5, Lost(1, DRAFT)),
        (5, Drafted(1, DRAFT)),
    )
    assert spelt(found["judgement", 1]) == (2, 3, "lost", [])
    assert spelt(found["draft", 1]) == (3, 5, "lost", [])


def test_requests_that_began_late_belong_to_the_judgements_that_ended_with_them() -> None:
    """Those of both drafts waited for something else, and the second was over first."""
    found, _ = stages(
        (1, Drafted(0, DRAFT)),
        (1.1, Drafted(1, DRAFT)),
        called("large", "ask", 5.2, 6, "verify", 1),
        (6, Judged(1, DRAFT, YES)),
        called("large", "ask", 5, 6.4, "verify", 0),
        (6.4, Judged(0, DRAFT, YES)),
    )
    assert spelt(found["judgement", 0])[-1] == [("ask", 5)]
    assert spelt(found["judgement", 1])[-1] == [("ask", 5.2)]


def test_of_two_requests_for_one_judgement_both_belong_to_it() -> None:
    found, _ = stages(
        (1, Drafted(0, DRAFT)),
        called("large", "score", 1, 2, "verify", 0),
        (2.5, Drafted(1, DRAFT)),
        called("large", "score", 2.5, 3, "verify", 1),
        called("large", "score", 2, 4, "verify", 0),
        (4, Judged(0, DRAFT, YES)),
        called("large", "score", 3, 5, "verify", 1),
        (5, Judged(1, DRAFT, YES)),
    )
    assert spelt(found["judgement", 0])[-1] == [("score", 1), ("score", 2)]
    assert spelt(found["judgement", 1])[-1] == [("score", 2.5), ("score", 3)]


@pytest.mark.parametrize("chunk", [1, 4, 12, 500])
def test_every_draft_has_the_stream_that_it_was_taken_from(chunk: int) -> None:
    tree = Stages.of(streamed(chunk, length=5))
    drafts = [stage for stage in tree.stages if stage.kind == "draft"]
    for draft in drafts:
        (stream,) = [*draft.calls, *draft.shared]
        assert stream.purpose == "draft"
        assert stream.step <= draft.index <= stream.last_step
    assert {id(call) for call in tree.rest} <= {id(call) for draft in drafts for call in draft.shared}


def test_a_cancelled_run_has_spans_for_its_requests() -> None:
    assert Stages.of([]) == Stages([], [])
    found, tree = stages((1, Drafted(0, DRAFT)), called("small", "write", 0, 3, "draft", 0, "cancelled"))
    assert spelt(found["draft", 0]) == (0, 1, "lost", [])
    assert found["draft", 0].shared == tree.rest
