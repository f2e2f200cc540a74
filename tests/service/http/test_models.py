"""Model names: methods, and both served models, whose requests pass through unchanged."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence

import pytest
from fastapi.routing import APIRoute

from stepspec.service.http.app import Service
from stepspec.service.records import MODEL_PATHS, NEVER_FORWARDED
from stepspec.service.settings import ServiceSettings

from ..served import (
    SCRIPT,
    STREAM,
    TURN,
    Behind,
    Noting,
    Served,
    chosen,
    move,
    passing,
    put_behind,
    serving,
)
from .test_api_errors import OFFER

WEIRD = (
    b'{"model": "huge",  "messages": [], "anything": [1, {"at": "all"}], "\xc3\xa9t\xc3\xa9": 1e3}'
)


async def test_the_list_names_methods_and_models() -> None:
    async with serving() as served:
        listed = (await served.get("/v1/models")).json["data"]
        one = (await served.get("/v1/models/auto")).json
        spelt = (await served.get("/v1/models/small:tiny")).json
        assert "(did you mean '/v1/models'?)" in (await served.get("/models")).error["message"]
    names = [entry["id"] for entry in listed]
    assert names[0] == "auto"
    assert {"specreason", "bild", "large", "small", "tiny", "huge"} <= set(names)
    assert all(entry["max_model_len"] == 4096 and entry["object"] == "model" for entry in listed)
    assert one == listed[0]
    assert (spelt["id"], spelt["owned_by"]) == ("small:tiny", "vllm")


async def test_models_of_the_same_name_are_distinguished_by_role() -> None:
    async with serving(names=("same", "same")) as served:
        listed = [entry["id"] for entry in (await served.get("/v1/models")).json["data"]]
        behind = Behind()
        await put_behind(served, behind)
        replies = [
            await served.chat(method="same"),
            await served.post("/v1/chat/completions", {"model": "large:same", "messages": [TURN]}),
        ]
    assert {"small:same", "large:same"} <= set(listed)
    assert "same" not in listed
    assert [reply.status for reply in replies] == [404, 200]
    assert b'"model":"same"' in behind.got[0][2]
    async with serving(names=("tiny", "large")) as served:  # the name of a method
        listed = [entry["id"] for entry in (await served.get("/v1/models")).json["data"]]
    assert listed[-2:] == ["tiny", "large:large"]


async def test_a_served_model_gets_the_very_bytes_and_answers_with_its_own() -> None:
    behind = Behind([b"not even", b" JSON"], status=418)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with passing(behind, chosen(keys=("mine",)), key="theirs") as served:
        for path in sorted(set(MODEL_PATHS) - NEVER_FORWARDED):
            for key in ({"authorization": "Bearer mine"}, {"x_api_key": "mine"}):
                reply = await served.post(
                    f"{path}?beta=true",
                    WEIRD,
                    traceparent=trace,
                    **key,
                )
                assert (reply.status, reply.body, reply.headers["Retry-After"]) == (
                    418,
                    b"not even JSON",
                    "7",
                ), path
                at, headers, body = behind.got[-1]
                assert (at, body, headers["Authorization"]) == (path, WEIRD, "Bearer theirs")
                assert (headers["traceparent"], headers.get("x-api-key")) == (trace, None)


def test_no_post_route_escapes_the_limits_of_clients_the_metrics_and_the_traces() -> None:
    routes = Service(OFFER, ServiceSettings()).app.routes
    posts = [route for route in routes if isinstance(route, APIRoute) and "POST" in route.methods]
    assert {route.path for route in posts} == set(MODEL_PATHS)


async def test_a_stream_passes_through_unchanged_and_ends_when_the_client_disconnects() -> None:
    behind = Behind([b"data: 1\n\n", b"data: 2\n\n"], STREAM, gate=asyncio.Event())
    async with passing(behind) as served:
        async with served.http.post(f"{served.base}/v1/completions", data=WEIRD) as reply:
            assert await reply.content.readany() == b"data: 1\n\n"
            assert served.service.context.admission.running == 1
        async with asyncio.timeout(5):
            await behind.left.wait()
            await served.service.context.admission.idle()


async def test_a_server_that_is_down_is_503() -> None:
    async with serving() as served:
        await (await put_behind(served, Behind())).cleanup()
        reply = await served.post("/v1/completions", {"model": "huge", "prompt": "x"})
    assert (reply.status, reply.error["code"]) == (503, "upstream_unavailable")
    assert "no connection: " in reply.error["message"]
    assert "ssl:default" not in reply.error["message"]


@pytest.mark.parametrize(("status", "key"), [(401, "theirs"), (403, "")])
async def test_a_key_that_a_server_refuses_is_not_the_clients(status: int, key: str) -> None:
    async with passing(Behind(status=status), chosen(keys=("mine",)), key=key) as served:
        reply = await served.post(
            "/v1/completions", {"model": "huge", "prompt": "x"}, authorization="Bearer mine"
        )
    assert (reply.status, reply.error["code"], reply.headers["x-should-retry"]) == (
        500,
        "upstream_error",
        "false",
    )
    assert "STEPSPEC_LARGE__API_KEY" in reply.error["message"]
    assert "theirs" not in reply.error["message"]


async def test_a_server_that_takes_too_long_is_504() -> None:
    async with passing(Behind(silent=True), chosen(max_seconds=0.2)) as served:
        reply = await served.post("/v1/completions", {"model": "huge", "prompt": "x"})
    assert (reply.status, reply.error["code"], reply.headers["x-should-retry"]) == (
        504,
        "deadline",
        "false",
    )


async def test_an_answer_in_one_piece_that_stops_half_way_is_504() -> None:
    async with passing(Behind(gate=asyncio.Event()), chosen(max_seconds=0.2)) as served:
        assert (
            await served.post("/v1/completions", {"model": "huge", "prompt": "x"})
        ).status == 504


@pytest.mark.parametrize("reset", [False, True])
async def test_a_request_is_sent_again_if_the_server_closes_an_idle_connection_just_then(
    reset: bool,
) -> None:
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        if reset:
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        if connections > 1:
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
            )
            await writer.drain()
        writer.close()

    async with (
        serving() as served,
        await asyncio.start_server(
            answer,
            "127.0.0.1",
            0,
        ) as server,
    ):
        endpoint = served.service.context.offer.engine.large
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        move(endpoint, url)
        reply = await served.post("/v1/completions", {"model": "huge", "prompt": "x"})
    assert (reply.status, reply.json, connections) == (200, {}, 2)


# The turns of a session go to one replica of the large model, runs and forwarded requests alike.

SESSIONS = [f"session {number}" for number in range(12)]


def another() -> Noting:
    return Noting(SCRIPT, digits={"9": -0.1}, names=("huge",))


async def turn(served: Served, session: str, *, method: str = "specreason") -> None:
    headers = {"x_session_id": session}
    if method == "huge":
        fields = {"model": "huge", "prompt": "So", "max_tokens": 2, "logprobs": 0}
        reply = await served.post("/v1/completions", fields, **headers)
    else:
        reply = await served.chat(method=method, headers=headers)
    assert reply.status == 200, reply.body


def counts(servers: Sequence[Noting]) -> list[int]:
    """How many requests of runs and clients each server had; those of probes have no session."""
    return [sum("X-Session-ID" in head for head in server.heads) for server in servers]


def used(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """The servers, by their index, that were asked in between."""
    return [
        index
        for index, (was, now) in enumerate(
            zip(
                before,
                after,
                strict=True,
            )
        )
        if now > was
    ]


@pytest.mark.parametrize("method", ["specreason", "huge"])
async def test_every_turn_of_a_session_goes_to_the_same_replica(method: str) -> None:
    others = [another(), another()]
    async with serving(replicas=others) as served:
        larges = [served.large, *others]
        places: dict[str, list[int]] = {}
        for session in SESSIONS * 2:
            before = counts(larges)
            await turn(served, session, method=method)
            places.setdefault(session, []).extend(used(before, counts(larges)))
        heads = [head["X-Session-ID"] for server in larges for head in server.heads]
        if method == "specreason":
            heads += [head["X-Session-ID"] for head in served.small.heads]
    assert all(len(set(each)) == 1 and len(each) == 2 for each in places.values()), places
    assert len({each[0] for each in places.values()}) > 1
    assert set(heads) == set(SESSIONS)
