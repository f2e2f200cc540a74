"""Every one of the mixed requests is accounted for, and what is not as it should be is reported."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from stepspec.evals.experiments.mixed_requests import (
    FREE_KIB,
    KIB_PER_REQUEST,
    Memory,
    Outcome,
    Report,
    Sent,
    judge,
    measure,
    mixed,
    refusal,
    service,
    stand_ins,
)
from stepspec.evals.experiments.request_kinds import CHAT, KINDS, MESSAGES, RESPONSES, Kind, ReplyError, Said, read
from stepspec.evals.sample import Task

CHAT_KIND = KINDS[0]
BAD = next(kind for kind in KINDS if kind.name == "bad: unknown model")
LEAVES = next(kind for kind in KINDS if kind.leaves)
TASK = Task("6 x 7?", "42")
GOOD = Report(
    3,
    [
        Outcome(Sent(0, CHAT_KIND, 0), "answered", 200, Said("42", 1)),
        Outcome(Sent(1, BAD, 0), "refused", 404),
        Outcome(Sent(2, LEAVES, 0), "left"),
    ],
    {0: "identical"},
    {200: 1, 404: 1, 499: 1},
    {"large": 0},
    [Memory(1, 1000), Memory(3, 1000)],
    1.0,
)


def test_a_run_in_which_all_is_well_has_no_failures() -> None:
    assert GOOD.failures() == []
    assert replace(GOOD, counted={200: 2, 404: 1}).failures() == []  # the client left after the end


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"outcomes": GOOD.outcomes[:2]}, "1 requests have no outcome, such as 2"),
        ({"outcomes": [*GOOD.outcomes, GOOD.outcomes[0]]}, "1 requests have more than one outcome, such as 0"),
        ({"outcomes": [*GOOD.outcomes[:2], Outcome(Sent(2, LEAVES, 0), "failed", note="HTTP 500")]}, "HTTP 500"),
        ({"counted": {200: 1, 404: 1}}, "has counted 2 requests, not 3"),
        ({"counted": {200: 1, 500: 1, 499: 1}}, "has counted 0 replies 404, clients 1"),
        ({"counted": {404: 1, 499: 2}}, "has counted 2 clients that left, and 1 have"),
        ({"verdicts": {0: "wrong"}}, "mixed-0 (chat) was answered wrongly: '42'"),
        ({"still_open": {"large": 2}}, "2 requests are still open at large"),
        ({"memory": [Memory(1, 0), Memory(3, FREE_KIB + 1)]}, f"grown by {FREE_KIB + 1} KiB"),
        ({"memory": [Memory(0, 0), Memory(2000, 2000 * KIB_PER_REQUEST + 1)]}, f"above {2000 * KIB_PER_REQUEST}"),
    ],
)
def test_what_is_not_as_it_should_be_is_a_failure(change: dict[str, Any], words: str) -> None:
    assert any(words in failure for failure in replace(GOOD, **change).failures())


def test_a_mix_has_every_kind_in_about_its_share() -> None:
    sent = mixed(KINDS, 500, 7, random.Random(1))
    counts = Counter(each.kind.name for each in sent)
    assert (len(sent), [each.number for each in sent]) == (500, list(range(500)))
    assert counts.keys() == {kind.name for kind in KINDS}
    assert counts["chat stream"] > counts["chat"] > counts["bad: no JSON"]
    assert {each.task for each in sent} == set(range(7))
    assert all((each.patience is None) == (each.kind.leaves is None) for each in sent)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("so \\boxed{41}", "identical"),
        ("\\boxed{41}", "right"),
        ("\\boxed{42}", "right"),
        ("\\boxed{43}", "wrong"),
        ("", "wrong"),
    ],
)
def test_an_answer_is_as_that_made_alone_or_right(text: str, verdict: str) -> None:
    assert judge(Said(text, 5), Said("so \\boxed{41}", 5), TASK) == verdict


def test_a_refusal_names_the_parameter() -> None:
    assert refusal(BAD, {"error": {"message": "no such model", "param": "model"}}) == "no such model"
    for reply in ({}, {"error": {"message": ""}}, {"error": {"message": "no", "param": "n"}}):
        with pytest.raises(ReplyError):
            refusal(BAD, reply)


def call(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"tool_calls": [{"index": 0, **fields}]}}]}


END: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 5}}
MESSAGE_END = ({"type": "message_delta", "usage": {"output_tokens": 5}}, {"type": "message_stop"})


@pytest.mark.parametrize(
    ("path", "events", "said"),
    [
        (CHAT, [{"choices": [{"delta": {"content": "4"}}]}, {"choices": [{"delta": {"content": "2"}}]}, END], "42"),
        (CHAT, [call(function={"name": "f", "arguments": ""}), call(function={"arguments": "{}"}), END], "\nf({})"),
        (
            MESSAGES,
            [
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}},
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "42"}},
                {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "name": "f"}},
                {"type": "content_block_delta", "index": 1, "delta": {"partial_json": "{}"}},
                *MESSAGE_END,
            ],
            "42\nf({})",
        ),
    ],
)
def test_a_stream_is_read_to_its_end(path: str, events: Sequence[dict[str, Any]], said: str) -> None:
    assert read(path, events) == Said(said, 5)
    error: dict[str, Any] = {"error": {"message": "x"}, "choices": [], "type": "error"}
    cut: tuple[Sequence[dict[str, Any]], ...] = (events[:-1], [*events[:-1], error], [])
    for broken in cut:
        with pytest.raises(ReplyError):
            read(path, broken)


def test_a_response_that_failed_is_not_read() -> None:
    with pytest.raises(ReplyError, match="failed"):
        read(RESPONSES, {"status": "failed", "output": []})


@pytest.mark.servers
async def test_a_small_mix_over_stand_ins() -> None:
    kinds: list[Kind] = [kind for kind in KINDS if not kind.real]
    async with stand_ins() as servers, service(servers) as program:
        report = await measure(program, servers, kinds, requests=80, concurrent=8, problems=1)
    assert report.failures() == []
    fates = Counter(outcome.fate for outcome in report.outcomes)
    assert min(fates["answered"], fates["refused"], fates["left"]) > 5
    assert set(report.verdicts.values()) <= {"identical", "right"}


@pytest.mark.parametrize(
    ("text", "verdict"),
    [("\nadd(2)", "identical"), ('\nadd({"n": 3})', "right"), ("\nadd({)", "wrong"), ("\nmove(3)", "wrong")],
)
def test_a_call_is_right_if_it_is_one_of_the_same_tool(text: str, verdict: str) -> None:
    assert judge(Said(text, 5), Said("\nadd(2)", 5), TASK) == verdict
