"""
The time line: every request is there, its parts fill it, and they belong to the steps that they
made.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import pytest

from stepspec.orchestrator import Rollback, Step
from stepspec.orchestrator.events import (
    Called,
    Committed,
    Drafted,
    Event,
    Judged,
    Purpose,
    Repaired,
    Started,
)
from stepspec.orchestrator.ledger import Ledger
from stepspec.orchestrator.trace import Moment, dump

from ....orchestrator.arms import ARMS
from ....orchestrator.backends.streaming import streamed
from .made import drawn, made
from .script import script


def spans(trace: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = script("return spans.spansOf(seen(given))", trace.decode())
    return found


def test_every_part_of_a_run_belongs_to_its_step() -> None:
    owned = [
        (
            span["role"],
            span["verb"],
            part["what"],
            part["draft"],
            round(part["from"], 3),
            round(part["to"], 3),
        )
        for span in spans(made())
        for part in span["parts"]
    ]
    assert sorted(owned, key=lambda one: (one[4], one[0])) == [
        ("small", "write", "draft", 0, 0, 0.116),
        ("large", "ask", "verdict", 0, 0.116, 0.176),
        ("small", "write", "draft", 1, 0.116, 0.24),
        ("large", "ask", "verdict", 1, 0.24, 0.3),
        ("small", "write", None, None, 0.24, 0.3),
        ("large", "write", "repair", 1, 0.3, 0.74),
        ("small", "write", "draft", 2, 0.74, 0.84),
        ("large", "ask", "verdict", 2, 0.84, 0.9),
        ("small", "write", "draft", 3, 0.84, 0.94),
        ("large", "ask", "verdict", 3, 0.94, 1.0),
        ("large", "write", "answer", None, 1.0, 1.38),
    ]


def fills_its_rows(traces: list[str]) -> None:
    """
    Assert that the lanes show every request once, in parts that fill it, and none over another.
    """
    for text, lanes in zip(
        traces, script("return given.map((text) => spans.lanesOf(seen(text)))", traces), strict=True
    ):
        shown = [span for lane in lanes for row in lane["rows"] for span in row]
        assert len(shown) == text.count('"event":"Called"')
        for span in shown:
            edges = [span["started"], *(part["to"] for part in span["parts"])]
            assert edges == sorted(edges)
            assert [part["from"] for part in span["parts"]] == edges[:-1]
            assert edges[-1] == pytest.approx(span["ended"], abs=2e-3)
        for row in (row for lane in lanes for row in lane["rows"]):
            assert all(
                later["started"] >= earlier["ended"] - 1e-5 for earlier, later in pairwise(row)
            )


def test_the_parts_of_a_request_fill_it_and_its_row_has_room() -> None:
    traces = [
        drawn(
            name,
            seed,
            ahead,
        )
        for name, seed, ahead in product(ARMS, range(3), (0, 3))
    ]
    fills_its_rows([trace.decode() for trace in traces])


def test_a_stream_that_was_kept_open_is_cut_at_its_drafts() -> None:
    sticky = next(
        parts
        for seed in range(0, 20, 2)
        for span in spans(drawn("specreason", seed, 2))
        if len(parts := [part for part in span["parts"] if part["what"] == "draft"]) > 1
    )
    assert all(later["from"] == earlier["to"] for earlier, later in pairwise(sticky))
    assert len({part["draft"] for part in sticky}) == len(sticky)


@pytest.mark.parametrize("chunk", [1, 4, 12, 500])
def test_every_draft_is_drawn_in_the_stream_that_it_was_taken_from(chunk: int) -> None:
    moments = streamed(chunk, length=7, wrong=(3,))
    trace = b"".join(map(dump, moments))
    fills_its_rows([trace.decode()])
    writes = [span for span in spans(trace) if span["role"] == "small"]
    drafts = [part["draft"] for span in writes for part in span["parts"] if part["what"] == "draft"]
    shown = script("return seen(given)", trace.decode())["drafts"]
    assert sorted(drafts) == [draft["number"] for draft in shown]
    small = Ledger.of([moment.event for moment in moments]).small
    assert sum(span["written"] for span in writes) == small.written


@pytest.mark.parametrize(
    ("repaired", "shown"), [(False, "repair kept"), (True, "verdict discarded")]
)
def test_a_step_that_was_written_to_judge_is_the_repair_unless_that_has_a_request(
    repaired: bool, shown: str
) -> None:
    def called(purpose: Purpose, started: float) -> Called:
        return Called(
            "large", "write", "done", started, 1.0, written=1, purpose=purpose, step=0, last_step=0
        )

    draft = Step("a\n\n", "small")
    repair = Step("b\n\n", "large")
    rollback = Rollback(reason="other")
    events: list[tuple[float, Event]] = [
        (0.0, Started((), "own")),
        (1.0, Drafted(0, draft)),
        (2.0, called("verify", 1.0)),
        (2.0, Judged(0, draft, rollback)),
        *([(3.0, called("repair", 2.0))] if repaired else []),
        (3.0, Repaired(0, repair, rollback)),
        (3.0, Committed(0, repair)),
    ]
    first, *more = spans(b"".join(dump(Moment(at, event)) for at, event in events))
    assert [f"{part['what']} {part['fate']}" for part in first["parts"]] == [shown]
    assert [part["what"] for span in more for part in span["parts"]] == ["repair"] * repaired


def test_every_model_has_a_lane_also_before_it_is_called() -> None:
    body = "return given.map((text) => spans.lanesOf(seen(text)).map((lane) => lane.model))"
    begun = made().splitlines(keepends=True)[0]
    assert script(body, [trace.decode() for trace in (made(), begun)]) == [["small", "large"]] * 2
