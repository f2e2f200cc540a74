"""Pages of other sites and a service without keys: by requests as browsers send them, and by a browser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator.service.http.middleware import registrable

from ..served import TURN, chosen, serving

ELSEWHERE = "https://a.example"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8765",
        "[::1]:8765",
        "::1",
        "localhost:8765",
        "LOCALHOST.",
        "stepspec:8765",
        "host.docker.internal:8765",
        "desk.local",
        "10.0.0.7",
        "",
    ],
)
def test_addresses_and_names_of_local_nets_are_nobodys(host: str) -> None:
    assert not registrable(host)


@pytest.mark.parametrize(
    "host", ["a.example:8765", "a.example.", "127.0.0.1.a.example", "local.a.example", "A.EXAMPLE", "notlocal.dev:1"]
)
def test_other_names_can_be_owned(host: str) -> None:
    assert registrable(host)


@given(st.from_regex(r"[a-z0-9-]{1,12}(\.[a-z0-9-]{1,12}){1,3}", fullmatch=True), st.integers(0, 65535))
def test_a_port_changes_nothing(name: str, port: int) -> None:
    assert registrable(f"{name}:{port}") == registrable(name)


async def test_a_name_that_is_made_to_point_here_is_refused_unless_a_key_is_needed() -> None:
    for settings, status in ((chosen(), 403), (chosen(insecure=True), 200), (chosen(keys=("k",)), 401)):
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
        reply = await served.post("/v1/chat/completions", {"model": "auto", "messages": [TURN]}, origin=origin)
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
