"""The service under a verifier of answers: the answer is held back, and the reply says what became of it."""

from __future__ import annotations

import pytest

from stepspec import Candidate, Rating
from stepspec.orchestrator.events import Answering, AnswerJudged

from ..served import ANSWER, THINKING, serving


def strict(candidate: Candidate) -> Rating:
    return Rating(0.0, "not good enough")


def easy(candidate: Candidate) -> float:
    return 1.0


def broken(candidate: Candidate) -> float:
    raise RuntimeError("out of order")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_accepted_answer_comes_in_one_piece(stream: bool) -> None:
    async with serving(critic=easy) as served:
        reply = await served.chat(method="specreason", stream=stream)
        events = served.recorded.events
        metrics = (await served.get("/metrics")).body.decode()
    last = reply.chunks[-1] if stream else reply.json
    assert (last["stepspec"]["verified"], last["stepspec"]["rejection"]) == (True, None)
    text = reply.joined("content") if stream else reply.message["content"]
    assert text == ANSWER
    if stream:
        assert reply.joined("reasoning").strip() == THINKING
        assert [
            c["choices"][0]["delta"]["content"] for c in reply.chunks if c["choices"][0]["delta"].get("content")
        ] == [ANSWER]
    kinds = [type(event) for event in events if isinstance(event, Answering | AnswerJudged)]
    assert kinds == [AnswerJudged, Answering]
    assert 'stepspec_judged_answers_total{model="specreason",outcome="accepted"} 1.0' in metrics


async def test_a_rejected_answer_is_marked_with_the_reason() -> None:
    async with serving(critic={"kind": "function", "function": strict, "repairs": 0}) as served:
        reply = await served.chat(method="specreason")
        metrics = (await served.get("/metrics")).body.decode()
    assert reply.message["content"] == ANSWER
    about = reply.json["stepspec"]
    assert (about["verified"], about["rejection"], about["degraded"]) == (False, "not good enough", [])
    assert 'stepspec_judged_answers_total{model="specreason",outcome="rejected"} 1.0' in metrics


async def test_a_failure_of_the_verifier_is_counted_and_named() -> None:
    async with serving(critic={"kind": "function", "function": broken, "fallback": "accept"}) as served:
        reply = await served.chat()
        metrics = (await served.get("/metrics")).body.decode()
    assert (reply.json["stepspec"]["verified"], reply.json["stepspec"]["degraded"]) == (None, ["critic"])
    assert 'stepspec_verifier_failures_total{fallback="accept",stage="answer"} 1.0' in metrics
    assert 'stepspec_upstream_errors_total{role="critic",verb="rate"} 1.0' in metrics


async def test_a_run_that_fails_with_its_verifier_is_a_503() -> None:
    async with serving(critic={"kind": "function", "function": broken, "fallback": "fail"}) as served:
        reply = await served.chat()
    assert (reply.status, reply.error["code"]) == (503, "upstream_unavailable")
    assert "verifier broken" in reply.error["message"]
    assert "out of order" in reply.error["message"]
