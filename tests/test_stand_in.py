"""
The stand-in for a vLLM server: its text, its verdicts, its pace and its faults; tests/contracts
holds the rest.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.chain import Chain
from stepspec.orchestrator.endpoints import GREEDY, Endpoint
from stepspec.orchestrator.endpoints.settings import Deadlines
from stepspec.orchestrator.errors import ConfigurationError, EndpointError, MalformedReply

from .stand_in import Break, Refuse, Slow, Spoil, Stall, StandIn, parse_fault

PROBLEM = Chain.of("What is 6 x 7?")


@asynccontextmanager
async def entered(server: StandIn, **settings: object) -> AsyncGenerator[VllmEndpoint]:
    async with (
        server.listening() as url,
        VllmEndpoint(
            Endpoint.model_validate({"role": "small", "url": url, "retries": 0, **settings})
        ) as vllm,
    ):
        yield vllm


async def queue(vllm: VllmEndpoint, *faults: str) -> object:
    async with (
        aiohttp.ClientSession(vllm.settings.url) as http,
        http.post("/faults", json=faults) as reply,
    ):
        return await reply.json()


async def test_steps_have_the_set_length_and_the_thinking_the_set_number_of_steps() -> None:
    async with entered(StandIn(steps=3, step_tokens=7)) as vllm:
        model = vllm.model(GREEDY)
        chain = PROBLEM
        while not chain.finished:
            chain = chain.extend(await model.write(chain))
        answer = await model.write(chain, stop=())
    assert [len(step.tokens) for step in chain.steps] == [7, 7, 7]
    assert len({step.text for step in chain.steps}) == 3
    assert answer.text == "The answer is \\boxed{42}."


async def test_the_answer_fits_the_requested_json_schema() -> None:
    properties = {
        "count": {"type": "integer"},
        "names": {"type": "array", "items": {"type": "string"}},
    }
    schema = {"type": "object", "properties": properties | {"sure": {"type": "boolean"}}}
    async with entered(StandIn(steps=1)) as vllm:
        chain = PROBLEM.extend(await vllm.model(GREEDY).write(PROBLEM))
        answer = await vllm.model(GREEDY, format=schema).write(chain, stop=())
        anything = await vllm.model(GREEDY, format="json").write(chain, stop=())
    assert chain.closed
    assert json.loads(answer.text) == {"count": 42, "names": ["42"], "sure": True}
    assert json.loads(anything.text) == {"answer": 42}


@pytest.mark.parametrize(("accept", "digit"), [(1.0, "9"), (0.0, "1")])
async def test_a_question_gets_a_good_grade_for_the_set_share(accept: float, digit: str) -> None:
    async with entered(StandIn(accept=accept)) as vllm:
        grades = await vllm.model(GREEDY).ask(PROBLEM, "Is it right?", "19")
    assert max(grades, key=lambda choice: grades[choice]) == digit


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("503", "HTTP 503"),
        ("503:2", "HTTP 503"),
        ("memory", "out of memory"),
        ("reset:3", "broke off"),
        ("stall:3", "no token for 0.5 s"),
        ("garbage", "not a piece of a stream"),
        ("cut", "the stream broke off"),
    ],
)
async def test_a_queued_fault_befalls_one_completion(fault: str, reason: str) -> None:
    async with entered(StandIn(), deadlines=Deadlines(between=0.5)) as vllm:
        assert await queue(vllm, "none", fault) == {"queued": 2}
        full = await vllm.model(GREEDY).write(PROBLEM)
        with pytest.raises(EndpointError, match=reason):
            await vllm.model(GREEDY).write(PROBLEM)
        assert await vllm.model(GREEDY).write(PROBLEM) == full


def test_faults_are_read_from_their_text() -> None:
    read = [
        parse_fault(text) for text in ("reset:2", "stall:0", "slow:1.5", "none", "ids", "503:2")
    ]
    assert read[:5] == [Break(2), Stall(0), Slow(1.5), None, Spoil("ids")]
    assert isinstance(read[5], Refuse)
    assert (read[5].status, read[5].headers) == (503, (("Retry-After", "2"),))
    for wrong in ("", "200", "reset", "slow:fast", "crash"):
        with pytest.raises(ConfigurationError, match="no such fault"):
            parse_fault(wrong)


async def test_a_spoilt_score_has_null_for_its_numbers_or_none_at_all() -> None:
    async with entered(StandIn()) as vllm:
        await queue(vllm, "null", "bare")
        (span,) = await vllm.model(GREEDY).score(PROBLEM, "So it is")
        assert {token.logprob for token in span} == {-9999.0}  # as vLLM spells minus infinity
        with pytest.raises(MalformedReply, match="no log-probabilities"):
            await vllm.model(GREEDY).score(PROBLEM, "So it is")


async def test_empty_text_and_other_ids_are_what_a_server_may_send() -> None:
    async with entered(StandIn()) as vllm:
        step = await vllm.model(GREEDY).write(PROBLEM)
        await queue(vllm, "empty", "empty", "ids")
        assert (await vllm.model(GREEDY).write(PROBLEM)).text == ""
        other = await vllm.model(GREEDY).write(PROBLEM)
        assert other.text == step.text
        assert [token.id for token in other.tokens] == [token.id + 1 for token in step.tokens]
