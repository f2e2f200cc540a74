"""
A server that is started again with other flags or another model while in use: on sockets, and
virtual clocks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from stepspec.orchestrator import Chain, Step
from stepspec.orchestrator.backends.vllm import VllmEndpoint, connect
from stepspec.orchestrator.endpoints import Endpoint, ReplicatedEndpoint
from stepspec.orchestrator.errors import (
    ContextTooLong,
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    MalformedReply,
)
from stepspec.orchestrator.http import client

from ...fakes import ScriptedModel, counting, jumping
from ...stand_in import FakeVllm, Refuse
from ..backends.test_judging import SPECULATES
from .mortal import Mortal, replicated

PROBLEM = Chain.of("What is 1 + 1?")
SCRIPT = ("So", " one", ".\n\n")
A = "http://a"
B = "http://b"
LACKING = {
    "lacks": frozenset({"logprob_token_ids"}),
    "metrics": b"process_start_time_seconds 1.8e9\n",
}


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENCE_SECONDS", 0.0)


@asynccontextmanager
async def started(
    first: FakeVllm, second: FakeVllm
) -> AsyncGenerator[tuple[ReplicatedEndpoint, asyncio.Event]]:
    """
    Yield an endpoint at *first*, and an event; once it is set and cleared again, *second* runs at
    the same port.
    """
    again = asyncio.Event()
    running = asyncio.Event()
    url = ""

    async def serve() -> None:
        nonlocal url
        async with first.listening() as url:
            running.set()
            await again.wait()
        async with second.listening(port=urlsplit(url).port or 0):
            again.clear()
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve())
    await running.wait()
    try:
        async with connect(Endpoint(role="large", url=url, retries=1)) as endpoint:
            yield endpoint, again
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def counted(endpoint: ReplicatedEndpoint, problem: str) -> int:
    return await endpoint.call(lambda server: server.count(Chain.of(problem).messages))


async def restart(again: asyncio.Event) -> None:
    again.set()
    while again.is_set():  # noqa: ASYNC110  # the port is bound by another task
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "other",
    [
        {"room": 300},
        {"metrics": SPECULATES},
        {"spelling": 1000},
        {"spelling": 7, "room": 300},
        LACKING,
    ],
)
async def test_what_was_learnt_is_learnt_again_before_the_next_run(other: dict[str, Any]) -> None:
    first = FakeVllm(SCRIPT)
    # They share their ids, except for the spelling.
    second = replace(first, faults=deque(), requests=[], **other)
    async with started(first, second) as (endpoint, again):
        before = endpoint.vocabulary
        model = endpoint.model()
        chain = PROBLEM.extend(await model.write(PROBLEM))
        (server,) = endpoint.up
        assert isinstance(server, VllmEndpoint)
        able = await server.capabilities()
        server.connection.priorities = False  # as the first one refused them
        await restart(again)
        for text in ("over a new connection", "and then over the same"):
            assert await counted(endpoint, text) > 0
        step = await endpoint.model().write(PROBLEM)
        (now,) = endpoint.up
        assert isinstance(now, VllmEndpoint)
        assert (now.room, step.text, now.speculates) == (
            second.room,
            "So one.\n\n",
            second.metrics == SPECULATES,
        )
        assert now.connection.priorities
        assert (endpoint.vocabulary != before) == ("spelling" in other)
        assert step.vocabulary == endpoint.vocabulary
        assert (await now.capabilities()).chosen_logprobs is (
            able.chosen_logprobs and not second.metrics
        )
        # a run that goes on across the restart sends its steps in the ids of the new one
        await model.write(chain)
        async with VllmEndpoint(endpoint.settings) as fresh:
            prompts = [body["prompt"] for _, body in second.requests if body.get("stream")]
            assert prompts[-1] == await fresh.tokenizer.encode_chain(chain)


async def test_a_context_that_became_smaller_is_learnt_from_the_first_refusal() -> None:
    first = FakeVllm(SCRIPT)
    second = FakeVllm(SCRIPT, room=40)
    async with started(first, second) as (endpoint, again):
        model = endpoint.model()
        long = Chain.of("1").extend(Step("one " * 60, "large"))
        await model.write(long)
        await restart(again)
        second.faults.append(Refuse(400, "This model's maximum context length is 40 tokens."))
        with pytest.raises(ContextTooLong, match="the model takes 40 in all"):
            await model.write(long)
        assert endpoint.room == 40
        assert (await model.write(PROBLEM)).text


@pytest.mark.parametrize("noticed", ["a check of health", "a refusal"])
async def test_another_vocabulary_is_learnt_before_a_run_or_from_its_first_refusal(
    noticed: str,
) -> None:
    first = FakeVllm(SCRIPT)
    second = replace(first, faults=deque(), requests=[], spelling=9)
    async with started(first, second) as (endpoint, again):
        await endpoint.model().write(PROBLEM)
        before = endpoint.vocabulary
        await restart(again)
        if noticed == "a refusal":
            second.faults.append(Refuse(400, "Token id 7 is out of vocabulary"))
        else:
            await endpoint.up[0].check_health()  # over a new connection
            await endpoint.call(lambda server: server.thinks(PROBLEM.messages))
            assert endpoint.vocabulary != before
        assert (await endpoint.model().write(PROBLEM)).text == "So one.\n\n"
        assert endpoint.vocabulary != before
        assert not endpoint.down


async def test_a_context_that_became_larger_is_used() -> None:
    async with started(FakeVllm(SCRIPT, room=40), FakeVllm(SCRIPT)) as (endpoint, again):
        model = endpoint.model()
        long = Chain.of("one " * 60)
        with pytest.raises(ContextTooLong):
            await model.write(long)
        await restart(again)
        assert (await model.write(long)).text == "So one.\n\n"


async def test_a_server_that_did_not_change_is_not_probed_for_a_chain_that_is_too_long() -> None:
    server = FakeVllm(SCRIPT, room=40)
    async with server.serve("large") as settings, connect(settings) as endpoint:
        with pytest.raises(ContextTooLong):
            await endpoint.model().write(Chain.of("one " * 60))
        assert not any(body.get("stream") for _, body in server.requests)
        assert not endpoint.down


async def test_a_new_model_of_the_same_name_is_refused_while_its_replica_serves_the_old_one() -> (
    None
):
    async with (
        FakeVllm(SCRIPT).listening() as url,
        started(FakeVllm(SCRIPT), FakeVllm(SCRIPT, spelling=9)) as (one, again),
    ):
        restarted = one.settings.url
        settings = one.settings.model_copy(update={"url": f"{restarted},{url}"})
        async with connect(settings) as endpoint:
            await restart(again)
            endpoint.report(restarted, EndpointUnavailable("reset"))
            assert (await endpoint.model().write(PROBLEM)).text

            def refused() -> bool:
                return "vocabulary" in endpoint.down.get(restarted, "")

            while endpoint.usable and not refused():  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert [each.settings.url for each in endpoint.up] == [url]


def server(url: str, **fields: Any) -> Mortal:
    return Mortal(url, ScriptedModel("large", counting("large", 4)), **fields)


def rejected(status: int, kind: type[EndpointRejected] = EndpointRejected) -> EndpointRejected:
    error = kind(f"HTTP {status}: no", role="large", url=A)
    error.status = status
    return error


@pytest.mark.parametrize(
    "error",
    [*map(rejected, (401, 403, 404, 405)), MalformedReply("<html>", role="large", url=A)],
    ids=str,
)
@jumping
async def test_a_replica_that_rejects_every_request_or_answers_with_garbage_is_left(
    error: EndpointError,
) -> None:
    first = server(A)
    second = server(B)
    first.scripted.fails = lambda verb, chain: error
    async with replicated(first, second) as endpoint:
        model = endpoint.model()
        assert (await model.write(PROBLEM)).text
        assert endpoint.runs == {A: 0, B: 1}
        await asyncio.sleep(0.5)
        assert endpoint.down == {A: error.cause}
    # It fails with the rejection, and then with the cause of the probe.
    async with replicated(first) as alone:
        for kind in (
            EndpointRejected if error.status else EndpointUnavailable,
            EndpointUnavailable,
        ):
            with pytest.raises(kind, match=error.cause):
                await alone.model().write(PROBLEM)


@pytest.mark.parametrize(
    ("kind", "status"), [(EndpointRejected, 422), (EndpointRejected, 413), (ContextTooLong, 400)]
)
@jumping
async def test_a_request_that_is_rejected_for_itself_moves_no_run(
    kind: type[EndpointRejected], status: int
) -> None:
    first = server(A)
    second = server(B)
    rejection = rejected(status, kind)
    first.scripted.fails = lambda verb, chain: rejection
    async with replicated(first, second) as endpoint:
        with pytest.raises(EndpointRejected):
            await endpoint.model().write(PROBLEM)
        assert (second.calls, endpoint.down) == (0, {})


@jumping
async def test_a_server_that_says_that_it_is_ill_stays_down_though_it_answers() -> None:
    ill = server(A)
    ill.unhealthy = EndpointUnavailable("HTTP 503: the engine is dead", role="large", url=A)
    async with replicated(ill, server(B)) as endpoint:
        endpoint.report(A, EndpointUnavailable("/health answers with HTTP 503"))
        await asyncio.sleep(3)
        assert endpoint.down == {A: "HTTP 503: the engine is dead"}
        ill.unhealthy = None
        await asyncio.sleep(10)
        assert not endpoint.down


@jumping
async def test_a_report_about_a_server_that_works_costs_one_probe() -> None:
    one = server(A)
    async with replicated(one) as endpoint:
        endpoint.report(A, EndpointUnavailable("reset"))
        endpoint.report("http://unknown", EndpointUnavailable("reset"))
        assert (await endpoint.model().write(PROBLEM)).text
        assert (one.looks, endpoint.down) == (2, {})


@jumping
async def test_a_forwarded_request_goes_to_the_next_server_and_counts_as_a_run_meanwhile() -> None:
    async with replicated(server(A), server(B)) as endpoint:
        tried: list[str] = []

        async def forward(one: Any) -> str:
            tried.append(one.settings.url)
            assert endpoint.runs[one.settings.url] == 1
            if one.settings.url == A:
                raise EndpointUnavailable("HTTP 500: the engine is dead", role="large", url=A)
            return "done"

        assert await endpoint.call(forward) == "done"
        assert (tried, dict(endpoint.runs)) == ([A, B], {A: 0, B: 0})


@pytest.mark.parametrize(("revives", "ends"), [(300.0, None), (609.0, None), (2000.0, 610.0)])
@jumping
async def test_a_patient_call_waits_for_a_server_that_is_down_and_ends_when_it_stays_down_for_long(
    revives: float, ends: float | None
) -> None:
    now = asyncio.get_running_loop().time
    async with replicated(server(A, dies=10, revives=revives)) as endpoint:
        endpoint.patience = 600.0
        model = endpoint.model()
        await asyncio.sleep(9.5)
        if ends is None:
            assert (await model.write(PROBLEM)).text
            assert now() < revives + 35
        else:
            with pytest.raises(EndpointUnavailable, match="dead"):
                await model.write(PROBLEM)
            assert now() == pytest.approx(ends, abs=1)


@jumping
async def test_a_slow_probe_costs_a_patient_run_nothing_but_time() -> None:
    slow = server(A)
    failing = iter([EndpointUnavailable("reset", role="large", url=A)])
    slow.scripted.fails = lambda verb, chain: next(failing, None)
    slow.scripted.latency = lambda chain: (
        60.0 if chain != PROBLEM and asyncio.get_running_loop().time() < 400 else 0.5
    )
    async with replicated(slow) as endpoint:
        endpoint.patience = 1800.0
        assert (await endpoint.model().write(PROBLEM)).text == "The large one says 0.\n\n"


@pytest.mark.parametrize(("silence", "looks"), [(0.0, 1), (60.0, 0)])
async def test_a_server_that_answered_a_moment_ago_is_not_looked_at(
    silence: float, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "SILENCE_SECONDS", silence)
    server = FakeVllm(SCRIPT)
    async with server.listening() as url, VllmEndpoint(Endpoint(role="large", url=url)) as endpoint:
        server.requests.clear()
        # two connections
        await asyncio.gather(*(endpoint.count(Chain.of(text).messages) for text in ("one", "two")))
        await endpoint.count(Chain.of("three").messages)
        assert [path for path, _ in server.requests].count("/tokenize") == 3 + looks
