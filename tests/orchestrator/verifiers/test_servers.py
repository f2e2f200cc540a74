"""
Verifiers on a server: the request, the reading of the reply, retries, the deadline, and failures.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import ValidationError

from stepspec.orchestrator import Chain, Message, Rating, Step
from stepspec.orchestrator.errors import (
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    MalformedReply,
)
from stepspec.orchestrator.verifiers import (
    Candidate,
    ConnectedVerifier,
    DecisionsVerifier,
)

TURNS = (Message("system", "Be brief."), Message("user", "What is 6 x 7?"))
STEPS = (
    Chain(TURNS)
    .extend(Step("Six sevens.\n\n", "small"))
    .extend(Step("That is 42.\n</think>", "large", "end"))
)
ANSWER = STEPS.extend(Step("\n\nIt is \\boxed{42}.", "large", "end"))
FINAL = Candidate.final(ANSWER, "It is \\boxed{42}.")


@dataclass
class Judge:
    """
    A server that replies what *reply* says to any POST; *refusals* befall the coming requests, one
    by one.
    """

    reply: Callable[[dict[str, Any]], Any] = lambda body: predicate(0.75)
    refusals: deque[int] = field(default_factory=deque[int])
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    paths: list[str] = field(default_factory=list[str])
    keys: list[str] = field(default_factory=list[str])
    names: list[str] = field(default_factory=list[str])
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def judge(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response({"data": [{"id": self.names.pop(0)}]})
        self.paths.append(request.path_qs)
        self.keys.append(request.headers.get("Authorization", ""))
        if self.refusals:
            return web.json_response({"error": "no"}, status=self.refusals.popleft())
        self.bodies.append(await request.json())
        try:
            found = self.reply(self.bodies[-1])
            return web.json_response(await found if asyncio.iscoroutine(found) else found)
        except asyncio.CancelledError:
            self.gone.set()
            raise

    @asynccontextmanager
    async def serve(self, path: str = "", **settings: Any) -> AsyncGenerator[ConnectedVerifier]:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.judge)
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(
                TestServer(application, handler_cancellation=True)
            )
            served = DecisionsVerifier(url=str(server.make_url(path)), **settings)
            yield await stack.enter_async_context(ConnectedVerifier(served))


async def test_a_temporary_refusal_is_repeated_and_limited() -> None:
    judge = Judge(refusals=deque([503, 429]))
    async with judge.serve(model="d1", retries=2) as verifier:
        assert (await verifier.rate(FINAL)).score == 0.75
    judge = Judge(refusals=deque([503, 503]))
    async with judge.serve(model="d1", retries=1) as verifier:
        with pytest.raises(EndpointUnavailable, match="HTTP 503"):
            await verifier.rate(FINAL)
    assert len(judge.paths) == 2


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (404, "does this server have the Decisions API"),
        (401, "api_key in \\[critic\\]"),
        (400, "HTTP 400"),
    ],
)
async def test_a_refusal_names_the_cure_and_is_not_repeated(status: int, words: str) -> None:
    judge = Judge(refusals=deque([status] * 3))
    async with judge.serve(model="d1") as verifier:
        with pytest.raises(EndpointRejected, match=words):
            await verifier.rate(FINAL)
    assert len(judge.paths) == 1


async def test_a_request_that_is_too_late_is_closed() -> None:
    judge = Judge(lambda body: asyncio.sleep(60, predicate(1)))
    async with judge.serve(model="d1", seconds=0.2) as verifier:
        with pytest.raises(EndpointUnavailable, match=r"no (rating within|answer after) 0\.2 s"):
            await verifier.rate(FINAL)
        await asyncio.wait_for(judge.gone.wait(), 10)


async def test_a_server_that_is_gone_is_a_failure() -> None:
    async with ConnectedVerifier(
        DecisionsVerifier(url="http://127.0.0.1:9", model="d1", retries=0)
    ) as verifier:
        with pytest.raises(EndpointError, match="nothing listens"):
            await verifier.rate(FINAL)


@pytest.mark.parametrize(
    "url", ["judge", "ftp://here", "http:///judge", "http://here:99999/", "http://h/#part"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="url"):
        DecisionsVerifier(url=url)


def predicate(probability: Any, **fields: Any) -> dict[str, Any]:
    answer = {"type": "predicate", "name": "candidate", "probability": probability, **fields}
    return {
        "answers": [answer],
        "model": "d1",
        "usage": {"input_tokens": 9, "output_tokens": 1, "total_tokens": 10},
    }


@pytest.mark.parametrize("probability", [0, 0.375, 1, 1.0000001])
async def test_the_decisions_api_is_asked_for_the_probability_of_a_statement(
    probability: float,
) -> None:
    other = {"type": "predicate", "name": "other", "probability": 0.5}
    judge = Judge(lambda body: {"answers": [other, *predicate(probability)["answers"]]})
    async with judge.serve(
        "/v1", model="d1", question="It is right.", api_key="secret"
    ) as verifier:
        assert await verifier.rate(FINAL) == Rating(min(probability, 1.0))
    [body] = judge.bodies
    assert (judge.paths, body["model"]) == (["/v1/decisions"], "d1")
    assert judge.keys == ["Bearer secret"]
    assert (
        body["input"]
        == "Problem:\nBe brief.\n\nWhat is 6 x 7?\n\nReasoning:\nSix sevens.\n\nThat is 42.\n\n"
        "Candidate:\nIt is \\boxed{42}."
    )
    assert body["questions"] == [
        {"type": "predicate", "name": "candidate", "instructions": "It is right."}
    ]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ({}, "no decision"),
        *[(dict[str, Any](answers=each), "no decision") for each in ((), {"candidate": 1}, None)],
        ({"answers": [{"type": "refusal", "name": "candidate"}]}, "declined to judge"),
        (predicate(0.9, name="other"), "no decision"),
        *[(predicate(0.9, type=kind), "no decision") for kind in ("choice", "score", None)],
        *[(predicate(wrong), "no decision") for wrong in (1.5, -0.1, "high", None)],
    ],
)
async def test_a_reply_without_a_probability_is_malformed(
    reply: dict[str, Any], words: str
) -> None:
    async with Judge(lambda body: reply).serve(model="d1") as verifier:
        with pytest.raises(MalformedReply, match=words):
            await verifier.rate(FINAL)


async def test_an_error_with_the_status_of_success_is_a_failure() -> None:
    error = {"error": {"message": "the engine is dead"}}
    async with Judge(lambda body: error).serve(model="d1", retries=0) as verifier:
        with pytest.raises(EndpointUnavailable, match="the engine is dead"):
            await verifier.rate(FINAL)


@pytest.mark.parametrize("status", [404, 501])
async def test_a_server_without_decisions_is_named_and_its_model_is_learnt_again(
    status: int,
) -> None:
    judge = Judge(lambda body: predicate(1), refusals=deque([status]), names=["d1", "d2"])
    async with judge.serve(retries=0) as verifier:
        with pytest.raises(EndpointError, match="does this server have the Decisions API"):
            await verifier.rate(FINAL)
        assert await verifier.rate(FINAL) == Rating(1.0)
    assert judge.bodies[0]["model"] == "d2"
