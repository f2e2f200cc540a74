"""Questions that are asked at the same moment share a request and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from math import log

import pytest

from stepspec.orchestrator.chain import Chain
from stepspec.orchestrator.endpoints import VllmModel
from stepspec.orchestrator.endpoints.client import Reply
from stepspec.orchestrator.endpoints.together import Answer, Together
from stepspec.orchestrator.errors import ContextTooLong, EndpointUnavailable
from stepspec.orchestrator.events import Called

from .conftest import Meet, Met, eventually
from .server import ROOM, FakeVllm, Refuse, Stall

PROBLEM = Chain.of("What is 1 + 1?")
QUESTIONS = ("First?", "Second?", "Third?")
GRADES = {question: {"7": log(0.1 * (at + 1)), "9": log(0.01)} for at, question in enumerate(QUESTIONS)}


def prompts(server: FakeVllm) -> list[int]:
    """How many prompts each completion had; 0 where it was not a list of them."""
    bodies = [body for path, body in server.requests if path == "/v1/completions"]
    return [len(body["prompt"]) if isinstance(body["prompt"][0], list) else 0 for body in bodies]


async def knowing(met: Met) -> VllmModel:
    """Find out that the server tells the probabilities of chosen tokens, and what all the words are."""
    for question in QUESTIONS:
        await met.model.ask(PROBLEM, question, "79")
    met.events.clear()
    return met.model


def asked(model: VllmModel, choices: str = "79") -> list[asyncio.Task[Mapping[str, float]]]:
    return [asyncio.create_task(model.ask(PROBLEM, question, choices)) for question in QUESTIONS]


async def test_each_gets_its_own_answer_from_one_request(meet: Meet) -> None:
    server = FakeVllm(asked=GRADES, block=4)
    async with meet(server) as met:
        model = await knowing(met)
        server.requests.clear()
        grades = await asyncio.gather(*asked(model))
    assert [round(each["7"], 6) for each in grades] == [0.1, 0.2, 0.3]
    assert prompts(server) == [3]


async def test_each_has_an_account_of_its_own(meet: Meet) -> None:
    server = FakeVllm(asked=GRADES, block=4)
    async with meet(server) as met:
        model = await knowing(met)
        server.requests.clear()
        others: list[object] = []
        other = met.endpoint.model(observe=others.append)
        await asyncio.gather(*asked(model), other.ask(PROBLEM, QUESTIONS[0], "79"))
    (body,) = [body for path, body in server.requests if path == "/v1/completions"]
    assert [call.prompt for call in met.calls] == [len(prompt) for prompt in body["prompt"][:3]]
    assert [(call.verb, call.fate, call.written) for call in met.calls] == [("ask", "done", 1)] * 3
    (theirs,) = [event for event in others if isinstance(event, Called)]
    assert 0 < theirs.cached < theirs.prompt
    assert met.calls[0].cached == theirs.cached  # the same prompt
    assert all(0 < call.cached <= theirs.cached for call in met.calls)


@pytest.mark.parametrize(
    ("ours", "cached"), [([1, 2, 3, 4, 9], 4), ([1, 2, 8, 4, 5], 2), ([1, 2], 2), ([7], 0), ([1, 2, 3, 4, 5, 6], 4)]
)
def test_what_was_cached_of_a_prompt_is_what_it_shares_with_the_last(ours: list[int], cached: int) -> None:
    reply = {"usage": {"prompt_tokens": 12, "prompt_tokens_details": {"cached_tokens": 4}}}
    answer = Answer(reply, [ours, [1, 2, 3, 4, 5, 6, 7]], 0)
    assert answer.cached == cached
    assert Answer(reply, [ours, [1, 2, 3, 4, 5, 6, 7]], 1).cached == 4


async def test_other_choices_and_other_moments_are_other_requests(meet: Meet) -> None:
    server = FakeVllm(asked=GRADES)
    async with meet(server) as met:
        model = await knowing(met)
        server.requests.clear()
        await asyncio.gather(*asked(model), *asked(model, "97"))
        await model.ask(PROBLEM, QUESTIONS[0], "79")
    assert prompts(server) == [3, 3, 0]


async def test_before_the_server_is_known_everybody_asks_alone(meet: Meet) -> None:
    server = FakeVllm(asked=GRADES, lacks=frozenset({"logprob_token_ids"}))
    async with meet(server) as met:
        for _ in range(2):
            await asyncio.gather(*asked(met.model, "789"))
            assert met.endpoint.by_id is False
    assert set(prompts(server)) == {0}


async def test_who_is_cancelled_leaves_the_others_alone(meet: Meet) -> None:
    server = FakeVllm(asked=GRADES)
    async with meet(server) as met:
        model = await knowing(met)
        server.requests.clear()
        first, second, third = asked(model)
        await eventually(lambda: bool(server.requests))
        first.cancel()
        await asyncio.gather(second, third)
        assert first.cancelled()
    assert [call.fate for call in met.calls] == ["cancelled", "done", "done"]


async def test_the_last_to_leave_aborts_the_request(meet: Meet) -> None:
    server = FakeVllm(asked=GRADES)
    async with meet(server) as met:
        model = await knowing(met)
        server.requests.clear()
        server.faults.append(Stall(after=0))
        tasks = asked(model)
        await eventually(lambda: bool(server.requests))
        for task in tasks:
            assert not server.left.is_set()
            task.cancel()
            await asyncio.wait([task])
        await server.left.wait()
        assert (await model.ask(PROBLEM, QUESTIONS[1], "79"))["7"] == pytest.approx(0.2)
    assert [call.fate for call in met.calls] == ["cancelled"] * 3 + ["done"]


async def test_a_failure_is_everybodys(meet: Meet) -> None:
    server = FakeVllm(asked=GRADES)
    async with meet(server, retries=0) as met:
        model = await knowing(met)
        server.faults.append(Refuse(500, "dead"))
        failures = await asyncio.gather(*asked(model), return_exceptions=True)
    assert [type(failure) for failure in failures] == [EndpointUnavailable] * 3
    assert [call.fate for call in met.calls] == ["failed"] * 3


async def test_a_failed_request_is_sent_again_for_all(meet: Meet) -> None:
    server = FakeVllm(asked=GRADES)
    async with meet(server) as met:
        model = await knowing(met)
        server.requests.clear()
        server.faults.append(Refuse(503))
        assert len(await asyncio.gather(*asked(model))) == 3
    assert prompts(server) == [3, 3]


async def test_a_prompt_without_room_spoils_nobody_elses(meet: Meet) -> None:
    server = FakeVllm(asked=GRADES)
    async with meet(server) as met:
        model = await knowing(met)
        long = Chain.of("x" * ROOM)
        with pytest.raises(ContextTooLong):
            await model.ask(long, QUESTIONS[0], "79")
        too_long, *grades = await asyncio.gather(
            model.ask(long, QUESTIONS[0], "79"), *asked(model), return_exceptions=True
        )
    assert isinstance(too_long, ContextTooLong)
    assert not any(isinstance(each, BaseException) for each in grades)


async def test_who_leaves_before_the_request_is_sent_leaves_no_request() -> None:
    sent: list[Sequence[Sequence[int]]] = []

    async def send(choices: Sequence[int], prompts: Sequence[Sequence[int]]) -> Reply:
        sent.append(list(prompts))
        return {}

    together = Together(send)
    leaving = asyncio.create_task(together.ask([1], [7]))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    answer = await together.ask([2], [7])
    assert (sent, answer.place) == ([[[2]]], 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
