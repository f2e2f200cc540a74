"""
Smaller modules of the page: the stream of the service, differences between texts, and folded rows.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepspec.orchestrator import Accept, Rollback, Step, Token
from stepspec.orchestrator.events import (
    Committed,
    Degraded,
    Drafted,
    Event,
    Finished,
    Judged,
    Repaired,
    Started,
)
from stepspec.orchestrator.trace import Moment, dump

from .script import script

# How the page reads the stream of the service and its refusals.

STREAM = (
    ': keep-alive\n\ndata: {"at":0}\n\ndata: a\r\ndata:b\r\n\r\nevent: solution\nid: 7\ndata: {"ü":'
    ' "🦊"}\n\n'
)
MESSAGES = [
    {"event": "message", "data": '{"at":0}'},
    {"event": "message", "data": "a\nb"},
    {"event": "solution", "data": '{"ü": "🦊"}'},
]


def test_a_stream_means_the_same_wherever_the_network_cut_it() -> None:
    body = """
    const read = (pieces) => { const split = live.splitter(); return pieces.flatMap(split); };
    const cut = [...given].map((_, at) => read([given.slice(0, at), given.slice(at)]));
    return cut.concat([read([...given])]);
    """
    assert all(messages == MESSAGES for messages in script(body, STREAM))


def test_a_message_that_was_cut_off_is_none() -> None:
    assert script("return live.splitter()(given)", STREAM.rstrip()) == MESSAGES[:-1]


REFUSALS: list[tuple[int, Any, str | None, tuple[str, str]]] = [
    (
        400,
        {"message": "too high", "type": "invalid_request_error", "param": "n"},
        None,
        ("too high", "“n”"),
    ),
    (401, {"message": "no key", "type": "authentication_error"}, None, ("no key", "key")),
    (429, {"message": "full", "type": "rate_limit_error"}, "2", ("full", "in 2 s")),
    (
        503,
        {"message": "draining", "type": "service_unavailable_error"},
        None,
        ("draining", "in a moment"),
    ),
    (
        200,
        {"message": "the large model died", "type": "server_error"},
        None,
        ("the large model died", "doctor"),
    ),
    (502, None, None, ("The service answered 502.", "doctor")),
]


def test_a_refusal_is_shown_with_its_cure_and_a_service_that_is_gone_as_such() -> None:
    body = """
    const refused = given.map(([status, error, wait]) => new live.Refused(status, error, wait));
    const advice = refused.map((one) => live.advice(one));
    return [...advice, live.advice(new TypeError("Failed to fetch"))];
    """
    *printed, gone = script(body, [refusal[:3] for refusal in REFUSALS])
    for (what, cure), (_, _, _, expected) in zip(printed, REFUSALS, strict=True):
        assert expected[0] in what
        assert expected[1] in cure
    assert "stepspec serve" in gone[1]


# What differs between a rejected draft and its repair: whole words, and only where both are alike.

BODY = "return given.map(([before, after]) => diff.difference(before, after))"
TEXTS = st.lists(
    st.sampled_from(["So", "9", " + ", "3.5", "\n\n", "é", "🦊", "_a", " "]), max_size=12
).map("".join)


def differences(*pairs: tuple[str, str]) -> Any:
    return script(BODY, pairs)


def marked(parts: list[dict[str, Any]]) -> str:
    return "".join(f"[{part['text']}]" if part["differs"] else part["text"] for part in parts)


@pytest.mark.parametrize(
    ("before", "after", "marks"),
    [
        ("So 61 + 9 = 60.", "So 61 + 9 = 70.", ("So 61 + 9 =[ 60].", "So 61 + 9 =[ 70].")),
        ("It is 5, I think.", "It is 5.", ("It is 5[, I think].", "It is 5.")),
        ("a b c d", "a c d e", ("a[ b] c d", "a c d[ e]")),
        ("same", "same", ("same", "same")),
        ("x\n = 1", "x = 1", ("x\n = 1", "x = 1")),
    ],
)
def test_words_that_differ_are_marked(before: str, after: str, marks: tuple[str, str]) -> None:
    (found,) = differences((before, after))
    assert (marked(found["before"]), marked(found["after"])) == marks


def test_texts_with_little_in_common_are_not_compared() -> None:
    unlike = ("Let me start over with another idea.", "The sum of all digits is nine")
    endless = ("a " * 1100 + "b", "c " * 1100 + "d")
    assert differences(unlike, endless, ("", "a"), ("a", "")) == [None] * 4


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=30, max_size=30))
@settings(max_examples=4, deadline=None)  # a browser answers
def test_both_sides_are_whole_and_share_what_is_not_marked(pairs: list[tuple[str, str]]) -> None:
    for (before, after), found in zip(pairs, differences(*pairs), strict=True):
        if found is None:
            continue
        assert "".join(part["text"] for part in found["before"]) == before
        assert "".join(part["text"] for part in found["after"]) == after
        common = [
            "".join("".join(part["text"].split()) for part in found[side] if not part["differs"])
            for side in ("before", "after")
        ]
        assert common[0] == common[1]


# Which rows a long chain has: runs of accepted steps are one row, until it is opened.

ROWS = """
const { onlyRejected = false, opened = [] } = given[1];
return folds.rowsOf(seen(given[0]), { onlyRejected, opened: new Set(opened) });"""


def rows(trace: bytes, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = script(ROWS, [trace.decode(), options])
    return found


def chain(fates: str, *, finished: bool = True) -> bytes:
    """
    A step a second for every letter: accepted (a) or rejected and repaired (r); n is a notice in
    between.
    """
    happened: list[Event] = [Started((), "specreason")]
    index = 0
    for fate in fates:
        draft, repair = (
            Step(f"{index} {author}", author, tokens=(Token("x"),) * 3)
            for author in ("small", "large")
        )
        rollback = Rollback(reason="grade", score=1.0)
        if fate == "n":
            happened.append(Degraded("small", "gone"))
            continue
        happened.append(Drafted(index, draft))
        if fate == "a":
            happened += [Judged(index, draft, Accept(9.0)), Committed(index, draft)]
        else:
            happened += [
                Judged(index, draft, rollback),
                Repaired(index, repair, rollback),
                Committed(index, repair),
            ]
        index += 1
    if finished:
        happened.append(Finished("stop", "", 1.0))
    places: list[float] = []
    for event in happened:
        places.append((places[-1] if places else 0) + isinstance(event, Committed))
    return b"".join(
        dump(Moment(at, event))
        for at, event in zip(
            places,
            happened,
            strict=True,
        )
    )


def kinds(found: list[dict[str, Any]]) -> list[str]:
    return [f"{row['count']} folded" if row["kind"] == "fold" else row["kind"] for row in found]


def test_runs_of_accepted_steps_are_one_row() -> None:
    found = rows(chain("r" + "a" * 20 + "r" + "aaa" + "r"))
    assert kinds(found) == ["draft", "20 folded", "draft", "draft", "draft", "draft", "draft"]
    fold = found[1]
    assert (fold["from"], fold["to"], fold["tokens"], fold["seconds"]) == (1, 20, 60, 20.0)
    assert (fold["authors"], fold["open"]) == (["small"], False)


@pytest.mark.parametrize(
    ("fates", "finished", "expected"),
    [
        ("a" * 23, True, ["draft"] * 23),  # a short chain
        ("a" * 24, True, ["24 folded"]),
        ("r" * 20 + "aaaa" + "r", True, [*["draft"] * 20, "4 folded", "draft"]),
        ("r" * 21 + "aaa" + "r", True, ["draft"] * 25),
        ("a" * 14 + "n" + "a" * 14, True, ["14 folded", "notice", "14 folded"]),
        ("a" * 30, False, ["27 folded", *["draft"] * 3]),  # the newest steps stay in sight
        ("a" * 30 + "r", False, ["30 folded", "draft"]),
    ],
)
def test_four_accepted_steps_of_a_long_chain_are_folded(
    fates: str, finished: bool, expected: list[str]
) -> None:
    assert kinds(rows(chain(fates, finished=finished))) == expected


def test_an_open_fold_is_followed_by_its_steps() -> None:
    trace = chain("r" + "a" * 30)
    assert kinds(rows(trace, opened=[1])) == ["draft", "30 folded", *["draft"] * 30]
    assert rows(trace, opened=[1])[1]["open"]
    assert kinds(rows(trace, opened=[2])) == ["draft", "30 folded"]


def test_only_what_was_rejected_is_left_by_the_filter() -> None:
    found = rows(chain("aarana" + "a" * 20), onlyRejected=True)
    assert [row["draft"]["index"] for row in found] == [2]
    assert rows(chain("a" * 30), onlyRejected=True) == []
