"""Whether a server orders requests by priority is seen from what it does, and never where it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepspec.orchestrator.endpoints.doctor import conclude
from stepspec.orchestrator.endpoints.probe import Ordering, ordering

from .conftest import Meet
from .server import FakeVllm, Refuse
from .test_doctor import FAST, GOOD

WORDS = ("So", " one", ".", " two")


async def test_a_server_that_is_never_busy_shows_no_order(meet: Meet) -> None:
    server = FakeVllm(WORDS)
    async with meet(server) as met:
        tokens = await met.endpoint.encoder.encode("So one two")
        assert await ordering(met.endpoint.connection, met.endpoint.name, tokens, 64) == "not seen"


async def test_a_server_that_refuses_priorities_is_told_apart(meet: Meet) -> None:
    server = FakeVllm(WORDS)
    async with meet(server) as met:
        tokens = await met.endpoint.encoder.encode("So one two")
        server.faults.append(Refuse(400, "priority scheduling is not enabled"))
        assert await ordering(met.endpoint.connection, met.endpoint.name, tokens, 64) == "refused"


@pytest.mark.parametrize(
    ("ordering", "note"),
    [
        ("kept", None),
        ("not seen", "large: it was not seen to order requests by priority: while it is busy, verdicts wait behind"),
        ("refused", "large: it refuses priorities, and is sent none: while it is busy, verdicts wait behind bets"),
    ],
)
def test_what_is_missing_without_an_order_is_said(ordering: Ordering, note: str | None) -> None:
    notes = conclude(FAST, replace(GOOD, ordering=ordering)).notes
    assert len(notes) == (note is not None)
    assert (note or "") in "".join(notes)
