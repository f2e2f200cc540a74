"""The time line: every request is there, its parts fill it, and they belong to the steps that they made."""

from __future__ import annotations

import re
from itertools import pairwise, product
from typing import Any

import pytest

from stepspec.orchestrator import Accept, Rival, Rollback, Step, Token
from stepspec.orchestrator.chain import Verdict
from stepspec.orchestrator.events import (
    Called,
    Committed,
    Drafted,
    Event,
    Fate,
    Finished,
    Judged,
    JudgedWithin,
    Purpose,
    Repaired,
    Started,
    Verb,
)
from stepspec.orchestrator.ledger import Ledger
from stepspec.orchestrator.trace import Moment, dump

from ....arms import ARMS
from ....endpoints.streaming import streamed
from .made import drawn, drawn_nested, made, nested
from .script import script
from .test_view import view


def spans(trace: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = script("return spans.spansOf(seen(given))", trace.decode())
    return found


def test_every_part_of_a_run_belongs_to_its_step() -> None:
    owned = [
        (span["role"], span["verb"], part["what"], part["draft"], round(part["from"], 3), round(part["to"], 3))
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
        ("large", "write", "answer", None, 0.94, 1.32),
    ]


def fills_its_rows(traces: list[str]) -> None:
    """Assert that the lanes show every request once, in parts that fill it, and none over another."""
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
            assert all(later["started"] >= earlier["ended"] - 1e-5 for earlier, later in pairwise(row))


def test_the_parts_of_a_request_fill_it_and_its_row_has_room() -> None:
    traces = [drawn(name, seed, ahead).decode() for name, seed, ahead in product(ARMS, range(3), (0, 3))]
    fills_its_rows(traces)


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


@pytest.mark.parametrize(("repaired", "shown"), [(False, "repair kept"), (True, "verdict discarded")])
def test_a_step_that_was_written_to_judge_is_the_repair_unless_that_has_a_request(repaired: bool, shown: str) -> None:
    def called(purpose: Purpose, started: float) -> Called:
        return Called("large", "write", "done", started, 1.0, written=1, purpose=purpose, step=0, last_step=0)

    draft, repair, rollback = Step("a\n\n", "small"), Step("b\n\n", "large"), Rollback(reason="other")
    events: list[tuple[float, Event]] = [
        (0.0, Started((), "own")),
        (1.0, Drafted(0, draft)),
        (2.0, called("verify", 1.0)),
        (2.0, Judged(0, draft, rollback)),
        *([(3.0, called("repair", 2.0))] if repaired else []),
        (3.0, Repaired(0, repair, rollback)),
        (3.0, Committed(0, repair)),
    ]
    (first, *more) = spans(b"".join(dump(Moment(at, event)) for at, event in events))
    assert [f"{part['what']} {part['fate']}" for part in first["parts"]] == [shown]
    assert [part["what"] for span in more for part in span["parts"]] == ["repair"] * repaired


def test_requests_of_traces_without_purposes_are_drawn_and_belong_to_no_step() -> None:
    new = made()
    old = re.sub(rb',"purpose":"\w+","step":-?\d+,"last_step":-?\d+', b"", new)
    assert b"last_step" not in old
    fills_its_rows([old.decode()])
    parts = [part for span in spans(old) for part in span["parts"]]
    assert {(part["what"], part["draft"]) for part in parts} == {(None, None)}
    assert len(parts) == len(spans(new))


# Nested pairs: a lane for each model, and what is known about whose steps its requests made.

DEEP = ("bild", "keeping")
DRAWN = [
    ("specreason", ("bild",)),
    ("bild", ("specreason",)),
    ("cascade", ("keeping",)),
    ("small", ("small",)),
    ("relay", ("glimpse",)),
    ("specreason", DEEP),
]


def test_every_model_has_a_lane_the_cheapest_first() -> None:
    body = "return given.map((text) => spans.lanesOf(seen(text)).map((lane) => lane.model))"
    deep, begun = drawn_nested("specreason", *DEEP, seed=1, ahead=0), nested().splitlines(keepends=True)[0]
    unnamed = begun.replace(b'["small.small","tiny"],["small.large","middle"],', b"")
    assert script(body, [trace.decode() for trace in (made(), nested(), deep, begun, unnamed)]) == [
        ["small", "large"],
        ["small.small", "small.large", "large"],
        ["small.small.small", "small.small.large", "small.large", "large"],
        ["small.small", "small.large", "large"],  # Nobody was called yet.
        ["small", "large"],
    ]


def test_every_part_of_a_run_of_a_pair_belongs_to_its_step() -> None:
    owned = [
        (span["model"], span["verb"], part["what"], part["draft"], part["fate"])
        for span in sorted(spans(nested()), key=lambda span: (span["started"], span["place"]))
        for part in span["parts"]
    ]
    assert owned == [
        ("small.small", "write", "draft", 0, "kept"),
        ("small.small", "write", "draft", 1, "rejected"),  # with the whole step, by the large model
        ("small.small", "write", "draft", 1, "rejected"),  # within, by the pair
        ("small.small", "write", None, None, "cancelled"),
        ("small.large", "score", "verdict", 0, "done"),
        ("large", "ask", "verdict", 0, "done"),
        ("small.large", "score", "verdict", 1, "done"),
        ("small.large", "score", None, None, "cancelled"),
        ("small.large", "write", "repair", 1, "rejected"),
        ("large", "ask", "verdict", 1, "done"),
        ("small.small", "write", None, None, "cancelled"),  # The large model refused what it went on from.
        ("small.large", "score", None, None, "unknown"),
        ("large", "write", "repair", 1, "kept"),
        ("small.small", "write", "draft", 2, "rejected"),
        ("small.small", "write", None, None, "cancelled"),
        ("small.large", "score", "verdict", 2, "done"),
        ("small.large", "write", "repair", 2, "kept"),
        ("small.small", "write", "draft", 3, "kept"),
        ("large", "ask", "verdict", 2, "done"),
        ("small.large", "score", "verdict", 3, "done"),
        ("large", "ask", "verdict", 3, "done"),
        ("large", "write", "answer", None, "kept"),
    ]


def test_a_stream_is_cut_where_the_tokens_of_its_drafts_end() -> None:
    (first, *_) = [span for span in spans(nested()) if span["model"] == "small.small"]
    # 12 tokens, and 13 of which 11 stood, one every 4 ms after the first 10; what came later was lost.
    assert [part["to"] for part in first["parts"]] == pytest.approx([0.058, 0.102, 0.110, 0.140], abs=0.003)


def test_the_parts_of_a_request_within_a_pair_fill_it_and_its_row_has_room() -> None:
    traces = [
        drawn_nested(outer, *inner, seed=seed, ahead=ahead).decode()
        for outer, inner in DRAWN
        for seed, ahead in ((0, 0), (1, 2), (2, 2), (3, 3))
    ]
    fills_its_rows(traces)


@pytest.mark.parametrize(("outer", "inner"), DRAWN)
def test_nothing_that_was_kept_is_without_its_request_and_nobody_kept_what_a_pair_refused(
    outer: str, inner: tuple[str, ...]
) -> None:
    body = """return given.map((text) => {
      const view = seen(text);
      const idle = ledger.ledgerOf(view).nested.filter((one) => one.kept === 0).map((one) => one.path);
      return [view.drafts.filter((one) => one.kept), spans.spansOf(view).filter((one) => one.kind === "write"), idle];
    })"""
    traces = [drawn_nested(outer, *inner, seed=seed, ahead=ahead).decode() for seed in range(5) for ahead in (0, 2)]
    pieces = 0
    for drafts, writes, idle in script(body, traces):
        owned = {(span["model"], part["draft"]) for span in writes for part in span["parts"]}
        kept = {(piece["path"], one["number"]) for one in drafts for piece in one["pieces"] if piece["tokens"]}
        assert kept <= owned
        assert not [span for span in writes if span["model"] in idle if "kept" in {p["fate"] for p in span["parts"]}]
        pieces += len(kept)
    assert pieces > 10


def test_a_draft_of_the_larger_model_is_its_own() -> None:
    alone = drawn_nested("specreason", "large", seed=3, ahead=0)
    owners = {(span["model"], part["what"]) for span in spans(alone) for part in span["parts"]}
    assert ("small.large", "draft") in owners
    assert "small.small" not in dict(owners)


def test_a_run_that_goes_on_shows_no_part_as_lost_before_it_is() -> None:
    lines = drawn_nested("specreason", "bild", seed=1, ahead=0).splitlines(keepends=True)
    cut = next(place for place, line in enumerate(lines) if b"JudgedWithin" in line) + 1

    def first(trace: bytes) -> str:
        owned = [part for span in spans(trace) if span["path"] for part in span["parts"]]
        return str(min(owned, key=lambda part: float(part["from"]))["fate"])

    assert (first(b"".join(lines[:cut])), first(b"".join(lines))) == ("drafted", "kept")


# Small cases, each written by hand.

TINY, SMALL = "small.small", "small.large"


def written(text: str, author: str = "small", note: str = "", pieces: tuple[Step, ...] = ()) -> Step:
    """A step of *text*, a token to a word."""
    tokens = tuple(Token(word) for word in text.split())
    return Step(text, "small" if author == "small" else "large", tokens=tokens, note=note, pieces=pieces)


def called(
    path: str,
    verb: Verb,
    started: float,
    ended: float,
    written: int = 0,
    fate: Fate = "done",
    purpose: Purpose | None = None,
) -> Called:
    """A request; unless its *purpose* is another, the tiny model drafts, and the other one judges or repairs."""
    own: Purpose = "draft" if path == TINY else "repair" if verb == "write" else "verify"
    seconds = ended - started
    return Called("small", verb, fate, started, seconds, written=written, path=path, purpose=purpose or own)


def trace(*happened: tuple[float, Event]) -> bytes:
    return b"".join(dump(Moment(at, event)) for at, event in [(0.0, Started((), "bild")), *happened])


def owned(text: bytes) -> list[tuple[str, float, str | None, int | None, str]]:
    return [
        (span["model"], span["started"], part["what"], part["draft"], part["fate"])
        for span in sorted(spans(text), key=lambda span: float(span["started"]))
        for part in span["parts"]
    ]


def test_a_bet_that_was_lost_within_is_not_taken_for_what_came_after_it() -> None:
    fell, stood, repair = written("one two three"), written("four five six"), written("1 2 3", "large", "rollback")
    full = written("1 2 3four five six", pieces=(repair, stood))
    found = owned(
        trace(
            (0.5, called(SMALL, "write", 0.1, 0.5, 3, purpose="verify")),
            (1.0, called(TINY, "write", 0.0, 1.0, 3)),
            (1.9, called(TINY, "write", 1.0, 1.9, 3)),
            (2.0, JudgedWithin("small", 0, fell, Rollback(0, "rollback"))),
            (3.0, called(SMALL, "write", 2.0, 3.0, 3)),
            (4.0, called(TINY, "write", 3.0, 4.0, 3)),
            (4.5, called(SMALL, "score", 4.0, 4.5)),
            (4.5, JudgedWithin("small", 0, stood, Accept())),
            (4.5, Drafted(0, full)),
            (4.9, called(SMALL, "score", 4.6, 4.9)),  # of a bet: the step is whole, and waits for its own verdict
            (5.0, Judged(0, full, Accept())),
            (5.0, Committed(0, full)),
        )
    )
    assert found == [
        (TINY, 0.0, "draft", 0, "rejected"),
        (SMALL, 0.1, None, None, "unknown"),
        (TINY, 1.0, None, None, "lost"),
        (SMALL, 2.0, "repair", 0, "kept"),
        (TINY, 3.0, "draft", 0, "kept"),
        (SMALL, 4.0, "verdict", 0, "done"),
        (SMALL, 4.6, None, None, "unknown"),
    ]


def test_a_bet_that_was_lost_with_an_outer_step_is_not_taken_for_what_came_after_it() -> None:
    first, lost, second = (written(text, pieces=(written(text),)) for text in ("one two", "three four", "five six"))
    rollback, repair = Rollback(reason="grade"), written("1 2", "large")
    found = owned(
        trace(
            (1.0, called(TINY, "write", 0.0, 1.0, 2)),
            (1.0, JudgedWithin("small", 0, first.pieces[0], Accept())),
            (1.0, Drafted(0, first)),
            (2.0, called(TINY, "write", 1.0, 2.0, 2)),
            (2.1, Judged(0, first, rollback)),
            (3.0, Repaired(0, repair, rollback)),
            (3.0, Committed(0, repair)),
            (4.0, called(TINY, "write", 3.0, 4.0, 2)),
            (4.0, JudgedWithin("small", 1, second.pieces[0], Accept())),
            (4.0, Drafted(1, second)),
            (5.0, called(TINY, "write", 4.0, 5.0, 2)),
            (5.0, JudgedWithin("small", 2, lost.pieces[0], Accept())),  # The run is over before the step is.
            (5.0, Finished("time", "", 5.0)),
        )
    )
    assert found == [
        (TINY, 0.0, "draft", 0, "rejected"),
        (TINY, 1.0, None, None, "lost"),
        (TINY, 3.0, "draft", 1, "unused"),
        (TINY, 4.0, "draft", None, "lost"),
    ]


@pytest.mark.parametrize(("fate", "rest"), [("done", "unknown"), ("cancelled", "cancelled")])
def test_a_stream_that_has_not_the_tokens_or_was_cut_off_wrote_no_more(fate: Fate, rest: str) -> None:
    first, second = (written(text, pieces=(written(text),)) for text in ("one two three", "four five six"))
    more = 5 if fate == "done" else 9
    found = owned(
        trace(
            (1.0, JudgedWithin("small", 0, first.pieces[0], Accept())),
            (1.0, Drafted(0, first)),
            (1.5, called(TINY, "write", 0.0, 1.5, more, fate)),
            (3.0, called(TINY, "write", 2.0, 3.0, 3)),
            (3.0, JudgedWithin("small", 1, second.pieces[0], Accept())),
            (3.0, Drafted(1, second)),
        )
    )
    assert found == [
        (TINY, 0.0, "draft", 0, "drafted"),
        (TINY, 0.0, None, None, rest),
        (TINY, 2.0, "draft", 1, "drafted"),
    ]


def test_a_rival_that_stands_within_a_pair_is_a_piece_and_its_draft_fell() -> None:
    draft, rival = written("one"), written("two")
    verdict = Rollback(0, "grade", 2.0, rivals=(Rival(written("three"), 1.0, "grade"), Rival(rival, 8.0)))
    full = written("two", pieces=(rival,))
    text = trace((1.0, JudgedWithin("small", 0, draft, verdict)), (1.0, Drafted(0, full)))
    (shown,) = view(text)["drafts"]
    assert [(one["text"], one["score"], one["reason"]) for one in shown["rejectedWithin"]] == [("one", 2, "grade")]
    assert script("return ledger.ledgerOf(seen(given)).sifted", text.decode()) == [
        {"path": "small", "drafts": 1, "accepted": 1}
    ]


def test_what_was_kept_of_a_fallen_draft_is_known_in_any_alphabet() -> None:
    draft = written("🦊 + 🦊 = 🦊")
    full = written("🦊 + 🐻", pieces=(written("🦊 + "), written("🐻", "large", "doubt")))
    text = trace((1.0, JudgedWithin("small", 0, draft, Rollback(4, "doubt"))), (1.0, Drafted(0, full)))
    (fallen,) = view(text)["drafts"][0]["rejectedWithin"]
    assert fallen["text"].encode("utf-16-le")[: 2 * fallen["kept"]].decode("utf-16-le") == "🦊 + "


def places(verdicts: list[tuple[str, Step, Verdict, int | None]], step: Step) -> list[dict[str, Any]]:
    """The verdicts that made *step*, of those that were told; the owner of each, if it has one, comes last."""
    text = trace(*[(1.0, JudgedWithin(path, 0, draft, verdict)) for path, draft, verdict, _ in verdicts])
    made = trace((1.0, Drafted(0, step)))
    body = """
    const told = seen(given[0]).verdicts.map((one, place) => ({ ...one, owner: given[2][place] }));
    return pieces.verdictsIn(told, trace.parseTrace(given[1])[1].draft);"""
    found: list[dict[str, Any]] = script(body, [text.decode(), made.decode(), [owner for *_, owner in verdicts]])
    return found


def test_verdicts_that_do_not_fit_are_of_another_step() -> None:
    one = written("one", pieces=(written("one", "large", "fallback"),))
    assert places([("small", written("two"), Accept(), None)], one) == []
    assert places([("small", written("two"), Rollback(0, "rollback"), None)], one) == []
    assert places([("small", written("two"), Rollback(0, "fallback"), 7)], one) == []
    assert places([("other", written("two"), Rollback(0, "fallback"), None)], one) == []
    assert places([("small", written("two"), Rollback(0, "fallback"), None)], one) == [{"place": 0, "part": None}]


def test_what_a_pair_in_a_pair_judged_ahead_is_of_a_later_draft() -> None:
    middle = written("one", pieces=(written("one"),))
    verdicts: list[tuple[str, Step, Verdict, int | None]] = [
        (TINY, written("one"), Accept(), None),
        ("small", middle, Accept(), None),
        (TINY, written("one"), Accept(), None),  # reported before the step is complete
    ]
    assert places(verdicts, written("one", pieces=(middle,))) == [{"place": 0, "part": 1}, {"place": 1, "part": None}]
