"""Whose step a request within a pair made, and which verdicts made a step: small cases, each written by hand."""

from __future__ import annotations

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
from stepspec.orchestrator.trace import Moment, dump

from .script import script
from .test_spans import spans
from .test_view import view

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
