"""
Costs of a pass, and one simulated server against examples worked by hand: a pass takes 1 s unless
costs differ.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from lab.simulation.costs import ServerCosts
from lab.simulation.server import Card, Request, SimulatedServer
from stepspec.orchestrator.errors import ConfigurationError

from ..fakes import run


@dataclass(frozen=True)
class Client:
    """Sends a request at second *at*, waits for *most* tokens, or closes it at second *leaves*."""

    at: float
    prompt: int = 1
    most: int = 1
    priority: int = 0
    run: str = ""
    shared: int = 0
    leaves: float | None = None


def times(
    clients: Sequence[Client], servers: Sequence[SimulatedServer]
) -> list[tuple[float, Request]]:
    """When each request ended, one server after the other in turn; everything ends."""

    async def ask(client: Client, server: SimulatedServer) -> tuple[float, Request]:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(client.at)
        request = Request(
            client.run or object(), client.prompt, client.most, client.shared, client.priority
        )
        server.submit(request)
        if client.leaves is None:
            await server.reach(request, client.most)
        else:
            await asyncio.sleep(client.leaves - client.at)
            server.close(request)
        return clock(), request

    async def main() -> list[tuple[float, Request]]:
        asking = (
            ask(client, servers[place % len(servers)]) for place, client in enumerate(clients)
        )
        found = await asyncio.gather(*asking)
        assert all((server.running, server.waiting) == (0, 0) for server in servers)
        return found

    return run(main())[0]


def test_a_pass_takes_the_sum_of_its_costs() -> None:
    costs = ServerCosts(
        0.03, per_sequence=0.001, per_prompt_token=0.0001, per_context_token=0.00001
    )
    assert costs.seconds(4, 100, 2000) == pytest.approx(0.03 + 0.004 + 0.01 + 0.02)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"per_pass": -0.1}, "per_pass is -0.1, and has to be at least 0"),
        ({"per_pass": float("nan")}, "per_pass is nan"),
        ({"per_prompt_token": float("inf")}, "per_prompt_token is inf"),
        ({"sequences": 0}, "sequences is 0, and has to be at least 1"),
        ({"written": 0.5}, "written is 0.5, and has to be at least 1"),
        ({"cache": 0}, "cache is 0"),
        ({"sequences": 64, "tokens": 32}, "a pass of 32 tokens has no room for 64 sequences"),
    ],
)
def test_costs_that_cannot_be_are_refused(wrong: dict[str, Any], why: str) -> None:
    costs: dict[str, Any] = {"per_pass": 0.03, **wrong}
    with pytest.raises(ConfigurationError, match=why):
        ServerCosts(**costs)


def ends(clients: Sequence[Client], **costs: Any) -> list[float]:
    return [at for at, _ in times(clients, [SimulatedServer(ServerCosts(1.0, **costs))])]


def test_a_prompt_takes_one_pass_which_writes_the_first_token() -> None:
    assert ends([Client(0.0, prompt=10, most=3)]) == [3.0]
    assert ends([Client(0.0, prompt=10, most=3)], per_prompt_token=0.1, per_sequence=0.5) == [
        2.0 + 2 * 1.5
    ]


def test_requests_share_passes_and_one_that_comes_during_a_pass_waits_for_its_end() -> None:
    clients = [Client(0.0, most=5), Client(1.5, most=2), Client(1.7, most=1)]
    assert ends(clients) == [5.0, 4.0, 3.0]
    # A pass with two sequences that write takes 1.5 s more than one that only reads: 1, 1.5, then 2
    # s.
    assert ends([Client(0.0, most=4), Client(0.5, most=2)], per_sequence=0.5) == [
        1 + 1.5 + 2 + 1.5,
        1 + 1.5 + 2,
    ]


def test_a_pass_costs_what_its_sequences_attend_to() -> None:
    # Prompts of 10: the first pass attends to nothing before them; then 11 and 12 tokens.
    assert ends([Client(0.0, prompt=10, most=3)], per_context_token=0.1) == pytest.approx(
        [1.0 + 2.1 + 2.2]
    )


def test_requests_beyond_the_sequences_wait_by_priority_and_then_by_arrival() -> None:
    clients = [
        Client(0.0, most=3),
        Client(0.1, priority=5),
        Client(0.2, priority=1),
        Client(0.3, priority=5),
    ]
    assert ends(clients, sequences=1) == [3.0, 5.0, 4.0, 6.0]


def test_a_long_prompt_is_read_in_parts_beside_sequences_that_write() -> None:
    """
    A pass has 10 tokens: the first request writes one of them, so that 9 of the other's prompt are
    read.
    """
    clients = [Client(0.0, most=8), Client(0.5, prompt=20, most=1)]
    assert ends(clients, tokens=10, sequences=4) == [8.0, 4.0]


def test_a_second_request_of_a_run_reads_what_is_new_in_whole_blocks() -> None:
    server = SimulatedServer(ServerCosts(1.0, per_prompt_token=0.01, block=16))
    clients = [
        Client(0.0, prompt=100, run="a"),
        Client(10.0, 120, run="a", shared=100),
        Client(20.0, 120, run="b"),
    ]
    found = times(clients, [server])
    assert [request.cached for _, request in found] == [0, 96, 0]
    assert [at for at, _ in found] == pytest.approx([2.0, 10 + 1.24, 20 + 2.2])
    assert server.read == 100 + 24 + 120


def test_a_full_memory_forgets_the_least_recently_used_run_and_admits_what_fits() -> None:
    server = SimulatedServer(ServerCosts(1.0, cache=300, block=1))
    clients = [
        Client(0.0, 99, run="a"),
        Client(2.0, 99, run="b"),
        Client(4.0, 99, run="a", shared=99),
    ]
    clients += [
        Client(6.0, 149, run="c"),
        Client(8.0, 99, run="a", shared=99),
        Client(10.0, 99, run="b", shared=99),
    ]
    assert [request.cached for _, request in times(clients, [server])] == [0, 0, 98, 0, 98, 0]
    together = [Client(0.0, 140, most=10), Client(0.0, 140, most=10), Client(0.0, 140, most=10)]
    assert [at for at, _ in times(together, [SimulatedServer(ServerCosts(1.0, cache=300))])] == [
        10.0,
        10.0,
        20.0,
    ]


def test_a_request_that_never_fits_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="a request of 110 tokens does not fit into a cache of 100"
    ):
        times([Client(0.0, 100, most=10)], [SimulatedServer(ServerCosts(1.0, cache=100))])


def test_a_closed_request_leaves_its_place_at_the_end_of_the_pass() -> None:
    clients = [
        Client(0.0, most=100, leaves=3.5),
        Client(1.0, most=2),
        Client(2.0, most=1, leaves=2.5),
    ]
    server = SimulatedServer(ServerCosts(1.0, sequences=1))
    found = times(clients, [server])
    assert [(at, request.written) for at, request in found] == [(3.5, 3), (6.0, 2), (2.5, 0)]


def test_token_level_speculation_writes_several_tokens_a_pass() -> None:
    assert ends([Client(0.0, most=9)], written=2.0) == [5.0]
    assert ends([Client(0.0, most=9)], written=2.5) == [5.0]


def test_passes_on_a_shared_card_take_turns() -> None:
    card = Card()
    servers = [SimulatedServer(ServerCosts(seconds), card) for seconds in (1.0, 3.0)]
    assert [at for at, _ in times([Client(0.0, most=3), Client(0.0, most=2)], servers)] == [
        1 + 3 + 1 + 3 + 1,
        8.0,
    ]


@pytest.mark.parametrize("seed", range(8))
def test_passes_that_the_clock_jumps_over_take_what_they_take_one_by_one(seed: int) -> None:
    """A card that another server shares, which does nothing, is used pass by pass."""
    drawn = random.Random(seed)
    costs = ServerCosts(
        0.5, 0.1, 0.01, 0.0003, sequences=4, tokens=64, cache=900, written=drawn.choice([1.0, 1.7])
    )
    clients = [
        Client(
            drawn.uniform(0, 60),
            drawn.randrange(1, 200),
            drawn.randrange(1, 40),
            drawn.randrange(3),
            shared=0,
            leaves=90.0 if drawn.random() < 0.2 else None,
        )
        for _ in range(30)
    ]
    alone = SimulatedServer(costs)
    card = Card()
    shared = SimulatedServer(costs, card)
    SimulatedServer(costs, card)
    jumping = times(clients, [alone])
    stepping = times(clients, [shared])
    assert [at for at, _ in jumping] == pytest.approx([at for at, _ in stepping])
    assert [request.written for _, request in jumping] == [
        request.written for _, request in stepping
    ]
    assert (alone.passes, alone.read, alone.sequences) == (
        shared.passes,
        shared.read,
        shared.sequences,
    )
    assert alone.busy == pytest.approx(shared.busy)
