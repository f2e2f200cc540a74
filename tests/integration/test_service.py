"""The service as its users run it: a process of its own, in front of real servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from anyio.from_thread import start_blocking_portal

from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.servers.launcher import Served

from ..program import Program, serve
from .conftest import Pair, running_requests, split_thinking

pytestmark = pytest.mark.servers
CHAT = "/v1/chat/completions"
IDLE_WITHIN = 3.0  # seconds after a client has gone


def running(pair: Pair, log: Path) -> AbstractAsyncContextManager[Program]:
    """
    Run ``stepspec serve`` over the pair, whose small model may be no faster: it drafts in any case.
    """
    settings = {"STEPSPEC_SAMPLING__TEMPERATURE": "0", "STEPSPEC_AUTO": "false"}
    return serve(pair.small.base_url, pair.large.base_url, log, settings=settings)


@pytest.fixture(scope="module")
def service(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Generator[Program]:
    """A service in an event loop of its own, so that tests in any loop can use it."""
    starting = running(pair, tmp_path_factory.mktemp("service") / "service.log")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(starting) as program:
        yield program


@pytest.fixture
async def http(service: Program) -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(service.base, connector=aiohttp.TCPConnector(limit=0)) as http:
        yield http


def asking(problem: str, **more: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": problem}], **more}


async def answer(http: aiohttp.ClientSession, body: dict[str, Any]) -> dict[str, Any]:
    async with http.post(CHAT, json=body) as reply:
        assert reply.status == 200, await reply.text()
        completion: dict[str, Any] = await reply.json()
        return completion


async def chunks(
    http: aiohttp.ClientSession, path: str, body: dict[str, Any]
) -> list[dict[str, Any]]:
    async with http.post(path, json={**body, "stream": True}) as reply:
        assert reply.status == 200, await reply.text()
        lines = [line.decode().strip() async for line in reply.content]
    assert [line for line in lines if line][-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


async def test_it_solves_in_one_piece_and_in_a_stream(http: aiohttp.ClientSession) -> None:
    tasks = fresh_tasks(6, 41)
    completions = await asyncio.gather(*(answer(http, asking(task.problem)) for task in tasks))
    streams = await asyncio.gather(*(chunks(http, CHAT, asking(task.problem)) for task in tasks))
    right = [
        completion["stepspec"]["answer"] == str(task.gold)
        for completion, task in zip(completions, tasks, strict=True)
    ]
    assert sum(right) >= 5
    for completion, task, stream in zip(completions, tasks, streams, strict=True):
        message = completion["choices"][0]["message"]
        kept = [step["text"] for step in completion["steps"] if step["fate"] == "kept"]
        thoughts, answered = split_thinking(kept)
        assert (message["reasoning"], message["content"]) == ("".join(thoughts), answered)
        deltas = [choice["delta"] for chunk in stream for choice in chunk["choices"]]
        steps = [choice for chunk in stream for choice in chunk["choices"] if "stepspec" in choice]
        final = stream[-1]
        written = [step["text"] for step in final["steps"] if step["fate"] == "kept"]
        thoughts, answered = split_thinking(written)
        assert "".join(delta.get("content", "") for delta in deltas).strip() == answered != ""
        # the answer's steps, whose text comes as content
        silent = [None] * (len(written) - len(thoughts))
        assert [step["delta"].get("reasoning") for step in steps] == thoughts + silent
        assert final["choices"][0]["finish_reason"] == "stop", task.problem
    assert {step["author"] for completion in completions for step in completion["steps"]} == {
        "small",
        "large",
    }


async def test_json_output_ends(http: aiohttp.ClientSession) -> None:
    """No miniature model has learnt JSON: with white space allowed, it would write nothing else."""
    count = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
    wanted = {
        "type": "json_schema",
        "json_schema": {"name": "count", "schema": count | {"additionalProperties": False}},
    }
    for task in fresh_tasks(2, 46):
        typed = await answer(http, asking(task.problem, response_format=wanted))
        free = await answer(http, asking(task.problem, response_format={"type": "json_object"}))
        for completion in (typed, free):
            assert completion["choices"][0]["finish_reason"] == "stop"
            assert isinstance(json.loads(completion["choices"][0]["message"]["content"]), dict)
        assert isinstance(json.loads(typed["choices"][0]["message"]["content"])["count"], int)


async def test_a_conversation_goes_on(http: aiohttp.ClientSession) -> None:
    first, second = fresh_tasks(2, 42)
    completion = await answer(http, asking(first.problem))
    turns = [
        {"role": "user", "content": first.problem},
        completion["choices"][0]["message"],
        {"role": "user", "content": second.problem},
    ]
    again = await answer(http, {"model": "auto", "messages": turns})
    assert again["choices"][0]["message"]["content"]
    assert again["usage"]["prompt_tokens"] > completion["usage"]["prompt_tokens"]


async def test_a_served_model_answers_the_same_through_the_service(
    http: aiohttp.ClientSession, pair: Pair
) -> None:
    body = asking(
        fresh_tasks(1, 43)[0].problem,
        model=pair.large.served_name,
        temperature=0,
        max_tokens=40,
        logprobs=True,
    )
    text = {
        "model": pair.small.served_name,
        "prompt": "On Monday",
        "max_tokens": 9,
        "temperature": 0,
    }
    through = (
        await answer(http, body),
        await chunks(http, CHAT, body),
        await chunks(http, "/v1/completions", text),
    )
    async with aiohttp.ClientSession(pair.large.base_url.removesuffix("/v1")) as large:
        direct = await answer(large, body), await chunks(large, CHAT, body)
    async with aiohttp.ClientSession(pair.small.base_url.removesuffix("/v1")) as small:
        completed = await chunks(small, "/v1/completions", text)
    assert through[0]["choices"] == direct[0]["choices"]
    assert through[0]["usage"]["completion_tokens"] == direct[0]["usage"]["completion_tokens"]
    assert joined(through[1]) == joined(direct[1])
    assert joined(through[2]) == joined(completed)


def joined(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """
    What a stream says, however busy the server was: it puts tokens into one chunk that come while
    it sends.
    """
    choices = [choice for chunk in stream for choice in chunk["choices"]]
    return {
        "text": "".join(
            choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices
        ),
        "logprobs": [each for choice in choices for each in logprobs(choice)],
        "finish": [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
    }


def logprobs(choice: dict[str, Any]) -> list[Any]:
    found: dict[str, Any] = choice.get("logprobs") or {}
    return found.get("content") or []


async def test_clients_that_leave_leave_nothing_running(
    http: aiohttp.ClientSession, pair: Pair
) -> None:
    async def begin(task: str) -> None:
        async with http.post(CHAT, json=asking(task, stream=True)) as reply:
            assert reply.status == 200
            await asyncio.Event().wait()

    async def long() -> None:
        # 5 s
        body = {
            "model": pair.large.served_name,
            "prompt": "On",
            "max_tokens": 2000,
            "ignore_eos": True,
        }
        async with http.post("/v1/completions", json=body) as reply:
            await reply.read()

    clients = [asyncio.create_task(begin(task.problem)) for task in fresh_tasks(12, 44)] + [
        asyncio.create_task(long())
    ]
    await until(works(pair.large, busy=True), 10.0)
    for client in clients:
        client.cancel()
    await asyncio.wait(clients)
    await asyncio.gather(
        *(until(works(server, busy=False), IDLE_WITHIN) for server in (pair.small, pair.large))
    )


async def until(true: Callable[[], Awaitable[bool]], seconds: float) -> None:
    """Wait so many *seconds* at most until something is *true*."""
    async with asyncio.timeout(seconds):
        for _ in range(10_000):
            if await true():
                return
            await asyncio.sleep(0.02)


def works(server: Served, *, busy: bool) -> Callable[[], Awaitable[bool]]:
    """Ask the server's own gauges whether it is *busy*, or not."""

    async def condition() -> bool:
        return bool(await running_requests(server)) is busy

    return condition


def says(http: aiohttp.ClientSession, path: str, words: str) -> Callable[[], Awaitable[bool]]:
    """Ask whether what is at *path* has these *words*."""

    async def condition() -> bool:
        async with http.get(path) as reply:
            return words in await reply.text()

    return condition


async def test_the_metrics_counted_it(http: aiohttp.ClientSession) -> None:
    async with http.get("/metrics") as reply:
        lines = (await reply.text()).splitlines()
    counted = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if not line.startswith("#")
    }
    series = (
        'stepspec_requests_total{endpoint="/v1/chat/completions",model="specreason",status="200"}'
    )
    assert counted[series] >= 13
    assert counted['stepspec_tokens_total{fate="kept",model="specreason",role="small"}'] > 0
    assert counted['stepspec_tokens_total{fate="judging",model="specreason",role="large"}'] > 0
    assert counted["stepspec_requests_running"] == 0


async def test_twenty_running_solutions_finish_after_a_signal_to_stop(
    pair: Pair, tmp_path: Path
) -> None:
    tasks = fresh_tasks(20, 45)
    async with running(pair, tmp_path / "service.log") as service:
        async with aiohttp.ClientSession(
            service.base, connector=aiohttp.TCPConnector(limit=0)
        ) as http:
            pending = [asyncio.create_task(answer(http, asking(task.problem))) for task in tasks]
            await until(says(http, "/metrics", "stepspec_requests_running 20.0"), 30)
            service.terminate()
            await until(says(http, "/health/readiness", "draining"), 30)
            async with http.post(CHAT, json=asking("1 + 1")) as refused:
                assert refused.status == 503
            finished = await asyncio.gather(*pending)
        assert all(each["choices"][0]["message"]["content"] for each in finished)
        async with asyncio.timeout(30):
            assert await service.child.ended == 0
