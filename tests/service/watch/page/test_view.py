"""
What the page makes of a run's events: the same sums and the same chain as the library, whatever the
method.
"""

from __future__ import annotations

import json
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from stepspec.orchestrator import Accept, Rollback, Step
from stepspec.orchestrator.events import (
    AnswerJudged,
    Committed,
    Decided,
    Degraded,
    Drafted,
    Event,
    FellBack,
    Judged,
    Moved,
    Repaired,
    Started,
)
from stepspec.orchestrator.ledger import Account, Ledger
from stepspec.orchestrator.trace import parse
from tests.fakes import replay

from ....orchestrator.arms import ARMS
from .made import (
    ANSWER,
    PROBLEM,
    SLIP,
    STEPS,
    drawn,
    made,
    trace_of,
)
from .script import script

TRACES = sorted((Path(__file__).parent / "traces").glob("*.jsonl"))


def view(trace: bytes = b"") -> Any:
    return script("return seen(given)", (trace or made()).decode())


def events(trace: bytes) -> list[Any]:
    return [parse(line).event for line in trace.splitlines()]


def account(one: Account) -> dict[str, Any]:
    names = (
        "kept",
        "discarded",
        "judging",
        "prompt",
        "cached",
        "requests",
        "failed",
        "writing",
        "judged",
    )
    return {name: pytest.approx(getattr(one, name)) for name in names}


@pytest.fixture(scope="module")
def runs() -> list[bytes]:
    """Runs of every method, alone and ahead, with repairs, lost bets, and failures of all kinds."""
    scripted = [
        drawn(
            name,
            seed,
            ahead,
        )
        for name, seed, ahead in product(ARMS, range(4), (0, 2))
    ]
    return [made(), undrafted(), *scripted, *(path.read_bytes() for path in TRACES)]


def undrafted() -> bytes:
    """A chain with steps that nobody drafted."""
    happened: list[Event] = [
        Started((), "odd"),
        Committed(0, Step("One.\n\n", "large")),
        Drafted(1, Step("Two.\n\n", "small")),
        Committed(1, Step("Deux.\n\n", "large")),
    ]
    return trace_of(*happened)


def test_the_ledger_is_the_librarys(runs: list[bytes]) -> None:
    ledgers = script(
        "return given.map((text) => ledger.ledgerOf(seen(text)))",
        [trace.decode() for trace in runs],
    )
    for trace, found in zip(runs, ledgers, strict=True):
        expected = Ledger.of(events(trace))
        counts = (expected.drafts, expected.accepted)
        assert (found["drafts"], found["accepted"]) == counts
        assert (found["acceptRate"], found["shareLarge"]) == (
            expected.accept_rate,
            expected.share_large,
        )
        for name in ("small", "large", "critic"):
            assert found[name] == account(getattr(expected, name))


CHAIN = """
const pieces = ({ drafts }) => drafts.flatMap((one) => [
  one.kept && { index: one.index, text: one.text.slice(0, one.kept.characters) },
  one.repair?.kept != null && { index: one.repair.index, text: one.repair.text },
]).filter(Boolean);
const sorted = (text) => pieces(seen(text)).sort((a, b) => a.index - b.index);
return given.map((text) => sorted(text).map((one) => one.text));
"""


def test_what_is_shown_as_kept_is_the_chain(runs: list[bytes]) -> None:
    for trace, texts in zip(
        runs,
        script(CHAIN, [trace.decode() for trace in runs]),
        strict=True,
    ):
        steps = [step.text for step in replay(events(trace)).steps]
        assert texts == steps[: len(texts)]
        assert len(steps) - len(texts) == (b'"event":"Answered"' in trace)


def test_a_run_as_it_is_shown() -> None:
    shown = view()
    assert [(one["text"], one["fate"]) for one in shown["drafts"]] == [
        (STEPS[0], "kept"),
        (SLIP, "rejected"),
        (STEPS[2], "kept"),
        (STEPS[3], "kept"),
    ]
    rejected = shown["drafts"][1]
    verdict = {"kind": "rollback", "score": 2.25, "reason": "grade", "detail": "", "judged": True}
    assert rejected["verdict"] | {"at": 0} == {**verdict, "at": 0}
    assert (rejected["repair"]["text"], rejected["repair"]["author"]) == (STEPS[1], "large")
    assert (shown["answer"]["text"], shown["finished"]["answer"]) == (ANSWER.strip(), "16")
    assert (shown["models"], shown["messages"][0]["content"]) == (
        {"small": "tiny", "large": "huge"},
        PROBLEM,
    )


def test_a_draft_is_grey_until_it_is_committed() -> None:
    body = (
        "return given.map((line, place) => seen(given.slice(0, place +"
        " 1).join('\\n')).drafts[0]?.fate ?? '')"
    )
    fates = script(body, made().decode().splitlines())
    assert [fate for place, fate in enumerate(fates) if fate != ([None, *fates])[place]] == [
        "",
        "drafted",
        "accepted",
        "kept",
    ]


def test_a_bet_that_was_lost_and_what_was_left_over_say_so() -> None:
    lost = next(
        trace
        for seed in range(9)
        if b'"event":"Lost"'
        in (
            trace := drawn(
                "specreason",
                seed,
                3,
            )
        )
    )
    assert "lost" in [draft["fate"] for draft in view(lost)["drafts"]]
    left = b"".join(
        line + b"\n" for line in made().splitlines() if b'"event":"Committed"' not in line
    )
    assert [draft["fate"] for draft in view(left)["drafts"]] == [
        "unused",
        "rejected",
        "unused",
        "unused",
    ]


def test_the_kept_part_of_a_rejected_draft_is_known_in_any_alphabet() -> None:
    draft = Step("🦊 + 🦊 = 🦊\n\n", "small")
    rollback = Rollback(keep=8, reason="doubt")
    repair = Step("🦊\n\n", "large", note="doubt")
    happened: list[Event] = [
        Started((), "bild"),
        Drafted(0, draft),
        Judged(0, draft, rollback),
        Committed(0, draft.cut(8)),
        Repaired(1, repair, rollback),
        Committed(1, repair),
    ]
    (shown,) = view(trace_of(*happened))["drafts"]
    assert (shown["fate"], shown["repair"]["text"], shown["repair"]["kept"]) == (
        "rejected",
        "🦊\n\n",
        5,
    )
    assert (
        draft.text.encode("utf-16-le")[: 2 * shown["kept"]["characters"]].decode("utf-16-le")
        == "🦊 + 🦊 = "
    )


def test_failures_are_noticed_where_they_happened() -> None:
    happened: list[Event] = [
        Started((), "bild"),
        Moved("large", "http://a", "http://b", "it was cut"),
        Drafted(0, Step("So.\n\n", "small")),
        Degraded("small", "it is gone"),
    ]
    shown = view(trace_of(*happened))
    assert [(one["after"], one["at"], one["cause"]) for one in shown["notices"]] == [
        (0, 1, "it was cut"),
        (1, 3, "it is gone"),
    ]


def test_lines_say_what_a_verifier_said_about_the_answer() -> None:
    answer = Step("It is 41.", "large", "end")
    happened: list[Event] = [
        Started((), "large"),
        AnswerJudged(0, answer, False, 0.25, "off by one"),
        FellBack("answer", 0, "it is gone", "accept"),
        AnswerJudged(0, answer, None, final=True),
        AnswerJudged(0, answer, False, 0.25, "off by one", final=True),
        AnswerJudged(0, answer, True, 1.0, final=True),
    ]
    shown = view(trace_of(*happened))
    assert [(one["text"], one["cause"]) for one in shown["notices"]] == [
        (
            "The verifier rejected the answer, and the large model corrects it.",
            "off by one\n\nIt is 41.",
        ),
        ("The verifier failed; its fallback decided about the answer: accept.", "it is gone"),
        ("Nobody judged the answer.", "The verifier failed."),
        ("The verifier rejected the answer.", "off by one"),
        ("The verifier accepted the answer.", ""),
    ]


def test_a_rejected_draft_has_what_a_verifier_said_about_it() -> None:
    draft = Step("So.\n\n", "small")
    happened: list[Event] = [
        Started((), "reward"),
        Drafted(0, draft),
        Judged(0, draft, Rollback(reason="reward", score=0.25, detail="7 is no 8")),
    ]
    shown = view(trace_of(*happened))
    assert [(one["verdict"]["reason"], one["verdict"]["detail"]) for one in shown["drafts"]] == [
        ("reward", "7 is no 8")
    ]


def test_a_line_says_who_goes_on_and_steps_written_alone_are_no_accepted_drafts() -> None:
    step = Step("So.\n\n", "large")
    draft = Step("Then.\n\n", "small")
    happened: list[Event] = [
        Started((), "specreason"),
        Decided(0, "method", 2, reason="nothing is known"),
        Decided(0, "large", 1, reason="it is quicker"),
        Drafted(0, step),
        Judged(0, step, Accept()),
        Committed(0, step),
        Decided(1, "large", 1, reason="it still is"),
        Decided(1, "method", 1, reason="no longer"),
        Drafted(1, draft),
        Judged(1, draft, Accept(9.0)),
        Committed(1, draft),
    ]
    trace = trace_of(*happened)
    notices = [(one["at"], one["text"], one["cause"]) for one in view(trace)["notices"]]
    assert notices == [
        (2, "The large model goes on alone.", "it is quicker"),
        (7, "The method goes on.", "no longer"),
    ]
    sums = script("return ledger.ledgerOf(seen(given))", trace.decode())
    assert (sums["drafts"], sums["accepted"]) == (1, 1)
    assert (Ledger.of(happened).drafts, Ledger.of(happened).accepted) == (1, 1)


def test_the_answer_grows_and_is_not_taken_back() -> None:
    body = (
        "return given.map((line, place) => seen(given.slice(0, place + 1).join('\\n')).answer?.text"
        " ?? '')"
    )
    texts = script(body, made().decode().splitlines())
    assert texts[-1] == ANSWER.strip()
    assert len(set(texts)) > 5
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        ("# A page", "line 1 is no event of a run"),
        ("null", "line 1 is no event of a run"),
        (
            '{"at": 0, "event": "Started", "messages": [], "policy": "", "models": []}\n{"at": 1}',
            "line 2 is no event",
        ),
        ('{"at": 0, "event": "Finished"}', "does not begin with the event Started"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_reason(text: str, complaint: str) -> None:
    printed = script("try { trace.parseTrace(given) } catch (error) { return error.message }", text)
    assert complaint in printed


def test_a_saved_trace_is_the_one_that_was_opened() -> None:
    text = made().decode()
    saved = script("return trace.formatTrace(trace.parseTrace(given))", text)
    assert [json.loads(line) for line in saved.splitlines()] == [
        json.loads(line) for line in text.splitlines()
    ]
