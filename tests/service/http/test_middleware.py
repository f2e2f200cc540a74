"""The middleware: keys, sizes, ids, other sites, and unexpected errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.requests import Request

from stepspec.service.admission import Clients
from stepspec.service.errors import ApiError
from stepspec.service.http.middleware import registrable
from stepspec.service.http.routes import read_body
from stepspec.service.records import POLLED_PATHS

from ...fakes import run
from ..served import TURN, chosen, serving, until

LOCKED = chosen(keys=("one", "two"))
OPEN = ("/", "/health", "/health/liveness", "/health/readiness", "/version", "/metrics")


WRONG_KEYS = ("Bearer three", "Bearer one,two", "Bearer ", "Basic one", "one", "", None)


@pytest.mark.parametrize("header", ["Bearer one", "bearer two", "Bearer  two ", *WRONG_KEYS])
def test_keys(header: str | None) -> None:
    assert (Clients(LOCKED).find(header) is None) is (header in WRONG_KEYS)
    assert Clients(chosen()).find(header) == ""
    secret = chosen(clients={"ann": {"key": "one\n"}}, keys=["two "])  # as files of secrets end
    assert (Clients(secret).find(header) is None) is (header in WRONG_KEYS)


async def test_without_a_key_only_the_upkeep_answers() -> None:
    async with serving(LOCKED) as served:
        for path in OPEN:
            assert (await served.get(path)).status == 200, path
        for path in ("/v1/models", "/live/methods", "/v1/nothing"):
            reply = await served.get(path)
            assert (reply.status, reply.error["code"]) == (401, "invalid_api_key"), path
            assert reply.headers["WWW-Authenticate"] == "Bearer"
        assert (await served.chat()).status == 401
        assert (await served.chat(headers={"authorization": "Bearer two"})).status == 200
        assert (await served.get("/v1/models", authorization="Bearer one")).status == 200
        upstream = {head.get("Authorization") for head in served.small.heads}
    assert upstream == {"Bearer none"}


@pytest.mark.parametrize("path", sorted(POLLED_PATHS - {"/metrics"}))
async def test_health_responds_to_head_requests_too(path: str) -> None:
    async with serving(LOCKED) as served, served.http.head(served.base + path) as reply:
        assert (reply.status, await reply.read()) == (200, b"")


@pytest.mark.parametrize("root", ["/api", "/api/"])
async def test_a_key_is_needed_wherever_a_proxy_puts_it(root: str) -> None:
    async with serving(chosen(keys=("one",), root_path=root)) as served:
        for path in (
            "/v1/models",
            "/api/v1/models",
            "//v1/models",
            "/v1/models/",
            "/api/api/v1/models",
        ):
            assert (await served.get(path)).status == 401, path
        for path in ("/v1/models", "/api/v1/models"):
            assert (await served.get(path, authorization="Bearer one")).status == 200, path
        for path in ("/api/health", "/api"):  # the latter is redirected to the page
            assert (await served.get(path)).status == 200
        reply = await served.post("/api/v1/chat/completions", {"model": "auto", "messages": []})
        assert reply.status == 401


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_that_is_too_large_is_not_read(announced: bool) -> None:
    async def pieces() -> Any:
        for _ in range(100):
            yield b"x" * 100

    async with serving(chosen(max_body_bytes=1000)) as served:
        body = b"x" * 2000 if announced else pieces()
        async with served.http.post(f"{served.base}/v1/chat/completions", data=body) as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (413, "body_too_large")
        assert (await served.chat()).status == 200


def test_the_timeout_is_for_the_complete_body() -> None:
    async def main() -> tuple[int, float]:
        left = iter(range(5, -1, -1))

        async def piece() -> dict[str, Any]:
            await asyncio.sleep(4)
            return {"type": "http.request", "body": b"x", "more_body": next(left) > 0}

        request = Request({"type": "http", "method": "POST", "headers": []}, piece)
        with pytest.raises(ApiError) as caught:
            await read_body(request, chosen(send_seconds=10))
        return caught.value.status, asyncio.get_running_loop().time()

    assert run(main()) == ((408, 10), 10)


async def test_a_client_that_disconnects_within_its_body_is_no_failure() -> None:
    async with serving() as served:
        host, port = served.base.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        await until(lambda: served.recorded.requests)
    assert [request.status for request in served.recorded.requests] == [499]
    assert served.recorded.failures == []


@pytest.mark.parametrize("header", ["", "x" * 129, "a b", "é"])
async def test_an_invalid_request_id_is_replaced(header: str) -> None:
    async with serving() as served:
        reply = await served.get("/health", x_request_id=header)
    assert len(reply.headers["X-Request-Id"]) == 32


async def test_other_sites_may_use_it_if_they_are_listed() -> None:
    settings = chosen(keys=("k",), cors_origins=("https://a.example",))
    async with serving(settings) as served:
        preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
        more = {"Access-Control-Request-Headers": "authorization,content-type"}
        async with served.http.options(
            f"{served.base}/v1/chat/completions", headers={**preflight, **more}
        ) as reply:
            assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (
                200,
                "https://a.example",
            )
        for origin, allowed in (
            ("https://a.example", "https://a.example"),
            ("https://b.example", None),
        ):
            refused = await served.chat(headers={"origin": origin})
            assert (refused.status, refused.headers.get("Access-Control-Allow-Origin")) == (
                401,
                allowed,
            )


async def test_an_unexpected_error_is_a_500_without_details(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as served:
        engine = served.service.context.offer.engine

        async def broken(*_: object, **__: object) -> None:
            raise KeyError("secret")

        monkeypatch.setattr(engine, "solve", broken)
        reply = await served.chat(stream=True)
        assert (reply.status, reply.error["code"]) == (500, "internal_error")
        assert "secret" not in reply.body.decode()
        assert isinstance(served.recorded.failures[0], KeyError)


def test_a_public_address_needs_a_key_or_a_word() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.5", "example.com"):
        with pytest.raises(ValidationError, match="can be reached from outside"):
            chosen(host=host)
        chosen(host=host, keys=("k",))
        chosen(host=host, insecure=True)
    for host in ("127.0.0.1", "127.0.0.5", "::1", "localhost"):
        chosen(host=host)
    with pytest.raises(ValidationError, match="empty"):
        chosen(keys=("",))
    assert [key.get_secret_value() for key in chosen(keys=" a,, b ").keys] == ["a", "b"]


# Pages of other sites, and a service without keys.

ELSEWHERE = "https://a.example"
LOCAL = (
    "127.0.0.1:8765 [::1]:8765 ::1 localhost:8765 LOCALHOST. stepspec:8765 a.docker.internal:1"
    " desk.local 10.0.0.7"
)
OWNED = "a.example:8765 a.example. 127.0.0.1.a.example local.a.example A.EXAMPLE notlocal.dev:1"


@pytest.mark.parametrize("host", ["", *LOCAL.split(), *OWNED.split()])
def test_only_names_outside_of_local_nets_can_be_owned(host: str) -> None:
    assert registrable(host) is (host in OWNED.split())


async def test_a_name_that_is_made_to_point_here_is_refused_unless_a_key_is_needed() -> None:
    for settings, status in (
        (chosen(), 403),
        (chosen(insecure=True), 200),
        (chosen(keys=("k",)), 401),
    ):
        async with serving(settings) as served:
            reply = await served.get("/v1/models", host="a.example:8765")
            assert reply.status == status, settings
            if status == 403:
                assert reply.error["code"] == "host_not_allowed"
                assert "--insecure" in reply.error["message"]
                assert (await served.chat(headers={"host": "a.example"})).status == 403
                assert served.small.heads == served.large.heads == []
                assert (await served.get("/v1/models", host="stepspec:8765")).status == 200


@pytest.mark.parametrize("origin", [ELSEWHERE, "null", "http://127.0.0.1:1", "http://["])
async def test_the_page_of_another_site_runs_nothing(origin: str) -> None:
    async with serving() as served:
        reply = await served.post(
            "/v1/chat/completions", {"model": "auto", "messages": [TURN]}, origin=origin
        )
        assert (reply.status, reply.error["code"]) == (403, "origin_not_allowed")
        assert "--cors-origin" in reply.error["message"]
        assert served.small.heads == served.large.heads == []


@pytest.mark.parametrize("origins", [(ELSEWHERE,), ("*",)])
async def test_a_listed_page_and_its_own_may_use_it(origins: tuple[str, ...]) -> None:
    async with serving(chosen(cors_origins=origins)) as served:
        for origin in (ELSEWHERE, served.base):
            assert (await served.chat(headers={"origin": origin})).status == 200, origin
    async with serving() as served:
        assert (await served.chat(headers={"origin": served.base})).status == 200
