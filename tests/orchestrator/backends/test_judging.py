"""Scoring and asking over HTTP."""

from __future__ import annotations

import asyncio
from math import log

import pytest

from stepspec.orchestrator.chain import Chain, Step
from stepspec.orchestrator.endpoints.metrics import Acceptance
from stepspec.orchestrator.errors import (
    ConfigurationError,
    ContextTooLong,
    EndpointUnavailable,
    MalformedReply,
)

from ...stand_in import IM_END, IM_START, ROOM, THINK, THINK_END, FakeVllm, Refuse
from ..conftest import Meet, eventually

PROBLEM = Chain.of("What is 1 + 1?")
STEP = Step("So 2.\n\n", "small")
GRADES = {"7": log(0.5), "9": log(0.25), "x": log(0.2)}
SCRIPT = ("So", " one", ".\n\n")
SPECULATES = b"".join(
    b"vllm:spec_decode_num_%s_total 0.0\n" % name
    for name in (b"drafts", b"draft_tokens", b"accepted_tokens")
)


def last_prompt(server: FakeVllm) -> str:
    return server.decode(server.requests[-1][1]["prompt"])


async def test_a_question_is_a_turn_of_its_own_with_the_thinking_skipped(meet: Meet) -> None:
    server = FakeVllm(digits=GRADES)
    async with meet(server) as met:
        grades = await met.model.ask(
            PROBLEM.extend(STEP), "Right?", "0123456789", opening="Grade: "
        )
    question = f"{THINK}\nSo 2.\n\n{IM_END}\n{IM_START}user\nRight?{IM_END}\n"
    answered = f"{IM_START}assistant\n{THINK}\n\n{THINK_END}\n\nGrade: "
    assert last_prompt(server).endswith(question + answered)
    assert grades == pytest.approx({**dict.fromkeys("0123456789", 0.0), "7": 0.5, "9": 0.25})
    assert [(call.verb, call.fate, call.written) for call in met.calls] == [("ask", "done", 1)]


@pytest.mark.parametrize("refusals", [0, 1])
async def test_if_a_server_ignores_or_refuses_chosen_tokens_the_likeliest_are_requested(
    meet: Meet, refusals: int
) -> None:
    server = FakeVllm(digits=GRADES, lacks=frozenset({"logprob_token_ids"}))
    server.faults.extend(
        [Refuse(400, "Unrecognized request argument supplied: logprob_token_ids")] * refusals
    )
    async with meet(server) as met:
        for _ in range(2):
            grades = await met.model.ask(PROBLEM, "Right?", "789")
            assert grades == pytest.approx({"7": 0.5, "8": 0.0, "9": 0.25})
    # It is tried once.
    assert [call.fate for call in met.calls] == ["failed" if refusals else "done", "done", "done"]


async def test_questions_by_ids_and_requests_for_likeliest_tokens_are_kept_apart(
    meet: Meet,
) -> None:
    server = FakeVllm(SCRIPT, digits=GRADES, gate=asyncio.Semaphore(0))
    async with meet(server) as met:
        writing = asyncio.create_task(met.model.write(PROBLEM, top=2))
        await eventually(lambda: bool(server.requests) and "stream" in server.requests[-1][1])
        await met.model.ask(PROBLEM, "Right?", "79")
        assert "logprob_token_ids" not in server.requests[-1][1]
        server.permit(8)
        assert (await writing).text == "So one.\n\n"
        # Its own tokens' log-probabilities stay whole.
        plain = asyncio.create_task(met.model.write(PROBLEM))
        await eventually(lambda: "stream" in server.requests[-1][1])
        await met.model.ask(PROBLEM, "Right?", "79")
        assert server.requests[-1][1]["logprob_token_ids"]
        server.permit(8)
        await plain


async def test_a_request_for_likeliest_tokens_waits_for_the_questions_by_ids(meet: Meet) -> None:
    server = FakeVllm(SCRIPT, digits=GRADES)
    async with meet(server) as met:
        with met.endpoint.asking_by_id():
            writing = asyncio.create_task(met.model.write(PROBLEM, top=2))
            await asyncio.sleep(0.05)
            assert not any("stream" in body for _, body in server.requests)
            assert not met.endpoint.may_ask_by_id
        assert (await writing).text == "So one.\n\n"
        assert met.endpoint.may_ask_by_id


async def test_if_a_server_fails_on_chosen_tokens_the_likeliest_are_requested(meet: Meet) -> None:
    server = FakeVllm(digits=GRADES)
    async with meet(server) as met:
        server.faults.append(Refuse(500, "list index out of range"))
        assert (await met.model.ask(PROBLEM, "Right?", "79")) == pytest.approx(
            {"7": 0.5, "9": 0.25}
        )
        assert (await met.model.ask(PROBLEM, "Right?", "79")) == pytest.approx(
            {"7": 0.5, "9": 0.25}
        )
    assert [call.fate for call in met.calls] == ["failed", "done", "done"]


async def test_a_speculating_server_gets_no_chosen_tokens(meet: Meet) -> None:
    server = FakeVllm(SCRIPT, digits=GRADES, metrics=SPECULATES)
    async with meet(server) as met:
        assert (await met.model.ask(PROBLEM, "Right?", "79")) == pytest.approx(
            {"7": 0.5, "9": 0.25}
        )
        can = await met.endpoint.capabilities()
        assert (can.speculation, can.chosen_logprobs) == (True, False)
        assert (await met.model.ask(PROBLEM, "Right?", "79")) == pytest.approx(
            {"7": 0.5, "9": 0.25}
        )
        assert await met.endpoint.acceptance() == Acceptance()
    assert not any("logprob_token_ids" in body for _, body in server.requests)


async def test_a_busy_server_is_not_mistaken_for_one_without_the_feature(meet: Meet) -> None:
    server = FakeVllm(digits=GRADES)
    async with meet(server) as met:
        server.faults.append(Refuse(503))
        for _ in range(2):
            assert (await met.model.ask(PROBLEM, "Right?", "79")) == pytest.approx(
                {"7": 0.5, "9": 0.25}
            )
        assert met.endpoint.answers_by_id is True


async def test_a_question_without_room_is_not_sent(meet: Meet) -> None:
    server = FakeVllm(digits=GRADES)
    async with meet(server) as met:
        with pytest.raises(ContextTooLong):
            await met.model.ask(Chain.of("x" * ROOM), "Right?", "79")
    assert met.calls == []


async def test_a_failure_is_raised_once_chosen_tokens_have_worked(meet: Meet) -> None:
    server = FakeVllm(digits=GRADES)
    async with meet(server, retries=0) as met:
        await met.model.ask(PROBLEM, "Right?", "79")
        server.faults.append(Refuse(500))
        with pytest.raises(EndpointUnavailable):
            await met.model.ask(PROBLEM, "Right?", "79")


async def test_choices_have_to_be_single_tokens(meet: Meet) -> None:
    async with meet(FakeVllm()) as met:
        with pytest.raises(
            ConfigurationError, match="single tokens of the small model: 'yes', 'no'"
        ):
            await met.model.ask(PROBLEM, "Right?", ["yes", "7", "no"])
        with pytest.raises(ConfigurationError, match="there are none"):
            await met.model.ask(PROBLEM, "Right?", [])


async def test_spans_are_scored_each_by_itself(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server) as met:
        first, nothing, second = await met.model.score(PROBLEM.extend(STEP), "So é", "", THINK_END)
    assert ["".join(token.text for token in tokens) for tokens in (first, nothing, second)] == [
        "So é",
        "",
        THINK_END,
    ]
    assert [token.id for token in second] == [server.id(THINK_END.encode())]
    assert all(token.rank == 1 for token in first)
    assert last_prompt(server).endswith(f"So 2.\n\nSo é{THINK_END}")
    assert [(call.verb, call.fate) for call in met.calls] == [("score", "done")]


async def test_a_server_without_scoring_is_distinguished_from_vllm(meet: Meet) -> None:
    async with meet(FakeVllm(lacks=frozenset({"prompt_logprobs"}))) as met:
        with pytest.raises(MalformedReply, match="no log-probabilities of the prompt"):
            await met.model.score(PROBLEM, "So")
