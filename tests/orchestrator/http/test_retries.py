"""
What becomes of a request that fails: its error, its retries, and what is said while it is retried.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from types import SimpleNamespace
from typing import ClassVar

import orjson
import pytest
from asyncio_throttle import Throttler  # type: ignore[attr-defined]

from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.chain import Chain, Step
from stepspec.orchestrator.endpoints import Deadlines, Endpoint
from stepspec.orchestrator.errors import (
    WAITING,
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    MalformedReply,
)
from stepspec.orchestrator.http import client as module
from stepspec.orchestrator.http import slots
from stepspec.orchestrator.http.client import Connection
from stepspec.orchestrator.http.sse import Events

from ...fakes import jumping, run
from ...stand_in import Break, FakeVllm, Refuse, Stall
from ..conftest import Meet, eventually

PROBLEM = Chain.of("What is 1 + 1?")
SCRIPT = ("So", " one", ".\n\n")


async def test_the_right_key_and_never_the_environments(
    meet: Meet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    async with meet(FakeVllm(SCRIPT, key="right"), api_key="right") as met:
        assert (await met.model.write(PROBLEM)).text == "So one.\n\n"
    with pytest.raises(EndpointRejected):
        async with meet(FakeVllm(SCRIPT, key="right")):
            raise AssertionError("connected with a key that is not ours")


async def test_without_a_name_the_first_model_is_meant(meet: Meet) -> None:
    async with meet(FakeVllm(SCRIPT, names=("one", "two"))) as met:
        assert met.endpoint.name == "one"
        assert (await met.model.write(PROBLEM)).text == "So one.\n\n"
    async with meet(FakeVllm(SCRIPT, names=("one", "two")), model="two") as met:
        assert met.endpoint.name == "two"


async def test_a_refusal_is_not_repeated(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server) as met:
        server.faults.append(Refuse(400, "top_p must be in (0, 1]"))
        with pytest.raises(EndpointRejected, match="HTTP 400: top_p must"):
            await met.model.write(PROBLEM)
    assert [call.fate for call in met.calls] == ["failed"]


@pytest.mark.parametrize(
    "fault",
    [Refuse(429, headers=(("Retry-After", "0.01"),)), Refuse(503), Refuse(500), Break(after=0)],
    ids=["429", "503", "500", "cut off"],
)
async def test_a_request_without_a_response_is_repeated(meet: Meet, fault: Refuse | Break) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server) as met:
        server.faults.extend([fault, fault])
        assert (await met.model.write(PROBLEM)).text == "So one.\n\n"
    assert [call.fate for call in met.calls] == ["done"]


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b"<html><title>Sign in</title></html>", MalformedReply, "a web page .'Sign in'"),
        (b"", EndpointUnavailable, "an empty answer"),
        (b": ping\n\n", EndpointUnavailable, "broke off"),
        (b'data: {"error": "overloaded"}\n\n', EndpointUnavailable, "overloaded"),
    ],
)
async def test_an_answer_that_is_no_stream_fails_in_the_servers_words(
    meet: Meet, body: bytes, kind: type[EndpointError], words: str
) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server, retries=0) as met:
        server.faults.append(Refuse(200, body=body))
        with pytest.raises(kind, match=words):
            await met.model.write(PROBLEM)


async def test_an_error_with_the_status_of_success_fails_any_request(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server, retries=0) as met:
        server.faults.append(Refuse(200, body=b'{"error": {"message": "no room", "code": 503}}'))
        with pytest.raises(EndpointUnavailable, match="HTTP 503: no room"):
            await met.model.score(PROBLEM, "So")


@pytest.mark.parametrize(("written", "counted"), [(-4, 0), (10**18, 1)])
async def test_a_usage_counts_no_more_than_was_sent_and_asked_for(
    meet: Meet, written: int, counted: int
) -> None:
    usage = {
        "prompt_tokens": 10**18,
        "completion_tokens": written,
        "prompt_tokens_details": {"cached_tokens": 10**18},
    }
    row = {"1": {"logprob": -1.0, "rank": 1, "decoded_token": "So"}}
    server = FakeVllm(SCRIPT)
    async with meet(server) as met:
        reply = {"choices": [{"prompt_logprobs": [row] * 500}], "usage": usage}
        server.faults.append(Refuse(200, body=orjson.dumps(reply)))
        with pytest.raises(MalformedReply):
            await met.model.score(PROBLEM, "So")
    [called] = met.calls
    [(_, body)] = [request for request in server.requests if "prompt_logprobs" in request[1]]
    assert (called.prompt, called.cached, called.written) == (
        len(body["prompt"]),
        len(body["prompt"]),
        counted,
    )


async def test_the_seconds_up_to_a_date_are_kept_and_are_in_the_error(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    dated = (
        ("Date", "Wed, 21 Oct 2026 07:28:00 GMT"),
        ("Retry-After", "Wed, 21 Oct 2026 08:28:00 GMT"),
    )
    async with meet(server, deadlines=Deadlines(first=60)) as met:
        server.faults.append(Refuse(503, headers=dated))
        with pytest.raises(EndpointUnavailable, match="HTTP 503") as caught:
            await met.model.write(PROBLEM)
        assert caught.value.retry_after == 3600


async def test_a_proxy_that_leaves_out_an_unknown_field_is_named(meet: Meet) -> None:
    async with meet(FakeVllm(SCRIPT, lacks=frozenset({"return_token_ids"}))) as met:
        with pytest.raises(
            MalformedReply, match="no token ids, which the field return_token_ids requests"
        ):
            await met.model.write(PROBLEM)


async def test_it_gives_up_at_last(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server, retries=2) as met:
        server.faults.extend([Refuse(500, "EngineCore encountered an issue")] * 9)
        with pytest.raises(
            EndpointUnavailable, match=r"the small model at http.*: HTTP 500: EngineCore"
        ):
            await met.model.write(PROBLEM)
    assert len(server.faults) == 6


async def test_a_request_is_not_repeated_after_a_partial_response(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server) as met:
        server.faults.append(Break(after=2))
        with pytest.raises(EndpointUnavailable, match="did the server die"):
            await met.model.write(PROBLEM)
    assert [(call.fate, call.written) for call in met.calls] == [("failed", 2)]


@pytest.mark.parametrize(
    ("stall", "deadlines", "complaint"),
    [
        (Stall(after=0), Deadlines(first=0.1), r"no token in the first 0.1 s"),
        (Stall(after=1), Deadlines(between=0.01), r"no token for 0.01 s"),
        (Stall(after=1), Deadlines(total=0.5), r"(not finished after|no token in the first) 0.5 s"),
    ],
    ids=["first", "between", "total"],
)
async def test_a_server_that_falls_silent_is_left(
    meet: Meet, stall: Stall, deadlines: Deadlines, complaint: str
) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server) as met:
        # Its words are known then: only the stream itself can be late.
        await met.model.write(PROBLEM)
        connection = met.endpoint.connection
        connection.endpoint = connection.endpoint.model_copy(update={"deadlines": deadlines})
        server.faults.append(stall)
        with pytest.raises(EndpointUnavailable, match=complaint):
            await met.model.write(PROBLEM)
        await server.left.wait()
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize(
    "deadlines", [Deadlines(first=0.1), Deadlines(total=0.1)], ids=["first", "total"]
)
async def test_a_missing_response(meet: Meet, deadlines: Deadlines) -> None:
    server = FakeVllm(digits={"7": -0.1})
    async with meet(server) as met:
        # Its words are known then: only the score itself can be late.
        await met.model.score(PROBLEM, "So")
        connection = met.endpoint.connection
        connection.endpoint = connection.endpoint.model_copy(update={"deadlines": deadlines})
        server.faults.append(Stall(after=0))
        with pytest.raises(EndpointUnavailable, match=r"no answer after 0.1 s"):
            await met.model.score(PROBLEM, "So")
        await server.left.wait()


@pytest.mark.parametrize("after", [0, 2])
async def test_cancelling_a_write_closes_its_connection(meet: Meet, after: int) -> None:
    server = FakeVllm(SCRIPT, gate=asyncio.Semaphore(after))
    received = 0

    def until(step: Step) -> bool:
        nonlocal received
        received = len(step.tokens)
        return False

    async with meet(server) as met:
        writing = asyncio.create_task(met.model.write(PROBLEM, until=until))
        await eventually(lambda: received == after and server.requests[-1][0] == "/v1/completions")
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await server.left.wait()
        assert (met.calls[0].fate, met.calls[0].written) == ("cancelled", after)
    assert len(asyncio.all_tasks()) == 1


async def test_requests_do_not_wait_for_each_others_connections(meet: Meet) -> None:
    server = FakeVllm(SCRIPT, gate=asyncio.Semaphore(0))
    async with meet(server) as met:
        writes = [asyncio.create_task(met.model.write(PROBLEM)) for _ in range(3)]
        await eventually(
            lambda: [path for path, _ in server.requests].count("/v1/completions") == 3
        )
        server.permit(20)
        await asyncio.gather(*writes)


async def test_closed_streams_leave_nothing_in_memory(meet: Meet) -> None:
    # of failed tests, which are reported
    before = {id(each) for each in gc.get_objects() if type(each) is Events}
    async with meet(FakeVllm(SCRIPT * 4)) as met:
        for _ in range(5):
            await met.model.write(PROBLEM, until=lambda step: len(step.tokens) == 2)
        assert [call.fate for call in met.calls] == ["done"] * 5
        gc.collect()
        assert not [
            each for each in gc.get_objects() if type(each) is Events and id(each) not in before
        ]


async def test_the_proxy_of_the_environment_is_used_but_for_the_hosts_that_it_excepts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with FakeVllm(SCRIPT).serve() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        async with VllmEndpoint(
            Endpoint(role="large", url="http://stepspec.invalid:8000")
        ) as endpoint:
            assert endpoint.name == "fake"
        monkeypatch.setenv("no_proxy", "stepspec.invalid")
        connection = Connection(
            Endpoint(role="large", url="http://stepspec.invalid:8000", retries=0)
        )
        with pytest.raises(EndpointUnavailable, match="no connection"):
            await connection.model_name()
        await connection.close()


SETTINGS = Endpoint(
    role="large", url="http://127.0.0.1:9", retries=2, deadlines=Deadlines(connect=4, total=60)
)


def connect(connection: Connection, monkeypatch: pytest.MonkeyPatch, seconds: float) -> float:
    """
    Let *connection* look for its model while each try takes *seconds* to fail; return how long it
    took in all.
    """

    def pause(*failure: object) -> float:
        return 0.5

    async def send(*request: object) -> object:
        await asyncio.sleep(seconds)
        raise connection.call("connect").error(EndpointUnavailable, "no connection")

    monkeypatch.setattr(connection, "_send_once", send)
    monkeypatch.setattr(module, "_pause", pause)

    async def work() -> None:
        with pytest.raises(EndpointUnavailable):
            await connection.model_name()

    return run(work())[1]


def test_the_try_is_reported_from_the_first_second_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, WAITING)
    assert connect(Connection(SETTINGS), monkeypatch, 4.0) == 13.0
    reports = [record.getMessage() for record in caplog.records if record.name == WAITING]
    assert reports == [
        "waiting for the large model at http://127.0.0.1:9: try 1 of 3",  # after 1 s
        "waiting for the large model at http://127.0.0.1:9: try 2 of 3",  # 6 s
        "waiting for the large model at http://127.0.0.1:9: try 3 of 3",  # 11 s
    ]


def test_each_retry_is_logged_with_its_cause_and_a_server_that_fails_at_once_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert connect(
        Connection(SETTINGS.model_copy(update={"retries": 1})), monkeypatch, 0.1
    ) == pytest.approx(0.7)
    [(name, _, message)] = [
        record for record in caplog.record_tuples if record[0].startswith("stepspec")
    ]
    assert name == "stepspec.requests"
    assert re.fullmatch(r".*: no connection; try 2 in 0\.5 s", message)


@pytest.mark.parametrize(
    ("rate", "count", "seconds"), [(0.5, 1, 2.0), (1.0, 1, 1.0), (2.5, 2, 0.8), (10.0, 10, 1.0)]
)
def test_a_rate_allows_whole_requests(rate: float, count: int, seconds: float) -> None:
    throttle = slots._throttle(rate)  # pyright: ignore[reportPrivateUsage]
    assert isinstance(throttle, Throttler)
    assert (throttle.rate_limit, throttle.period) == (count, pytest.approx(seconds))


class Refused:
    """A response with an error, and its content."""

    status = 400
    history = ()
    headers: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.content = self
        self._parts = [b'{"error": "answered"}']

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *error: object) -> None: ...

    def at_eof(self) -> bool:
        return not self._parts

    async def readany(self) -> bytes:
        return self._parts.pop()


@jumping
async def test_the_deadline_of_a_request_begins_when_the_rate_lets_it_start() -> None:
    class Rate:
        async def __aenter__(self) -> None:
            await asyncio.sleep(2 * SETTINGS.deadlines.total)

        async def __aexit__(self, *error: object) -> None: ...

    async def request(*parts: object, **fields: object) -> Refused:
        return Refused()

    connection, began = Connection(SETTINGS), asyncio.get_running_loop().time()
    vars(connection.slots).update(_starts=Rate())
    vars(connection).update(_session=SimpleNamespace(request=request))
    for path, waited in (("/health", 0), ("/metrics", 0), ("/v1/models", 120)):
        with pytest.raises(EndpointRejected, match="answered"):
            await connection.fetch(connection.call("connect"), path)
        assert asyncio.get_running_loop().time() - began == waited


def test_an_idle_connection_is_closed_before_vllm_closes_it() -> None:
    # VLLM_HTTP_TIMEOUT_KEEP_ALIVE; a request that meets the end of it fails
    assert module.KEEP_ALIVE_SECONDS < 5.0


@pytest.mark.parametrize("tried", [1, 2, 4, 30])
def test_the_pause_before_a_try_is_random_and_grows_and_a_servers_wish_is_kept(tried: int) -> None:
    error = Connection(SETTINGS).call("connect").error(EndpointUnavailable, "no connection")

    def pause(after: float | None) -> float:
        error.retry_after = after or 0.0
        return module._pause(error, tried)  # pyright: ignore[reportPrivateUsage]

    longest = min(module.MAX_PAUSE_SECONDS, 0.2 * 2 ** (tried - 1))
    pauses = [pause(None) for _ in range(200)]
    assert all(0 <= each <= longest for each in pauses)
    assert max(pauses) > longest / 2 > min(pauses)
    assert pause(60.0) == 60
