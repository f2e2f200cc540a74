"""Runs wait while their chains would not fit into the large model's cache."""

from __future__ import annotations

import asyncio

import pytest

from stepspec.orchestrator.server_load import MAX_CACHE_SHARE, ServerLoad

from ..fakes import run


@pytest.mark.parametrize(("waiting", "busy"), [(1, False), (2, False), (3, True)])
def test_a_queue_of_more_than_a_quarter_of_the_running_requests_is_one(
    waiting: int, busy: bool
) -> None:
    server = ServerLoad(running=9, waiting=waiting)
    assert server.busy == busy
    assert server.advice.startswith("3 requests wait") == busy


def test_the_chains_of_all_runs_fill_the_cache() -> None:
    server = ServerLoad(cache=1000)
    server.grow("first", 500)
    server.grow("other", 300)
    server.grow("other", 200)  # a chain does not shrink
    assert not server.full
    server.grow("other", round(MAX_CACHE_SHARE * 1000) - 499)
    assert server.full
    assert server.advice.startswith("the chains of 2 runs fill the large model's cache")
    server.leave("first")
    assert (server.full, server.advice, server.runs) == (False, "", 1)


def test_as_many_runs_fit_as_the_mean_chain_lets_and_a_chain_that_does_not_fit_runs_alone() -> None:
    server = ServerLoad()
    assert server.capacity is None
    server.grow("first", 400)
    server.finish("first")
    assert server.capacity is None  # the size of the cache is not known
    for cache, fits in ((1000, 2), (200, 1)):
        server.poll(0, 0, cache)
        assert server.capacity == fits


def test_runs_that_do_not_fit_wait_in_their_order() -> None:
    server = ServerLoad(cache=1000)
    server.grow("before", 400)
    server.finish("before")
    order = list[int]()

    async def one(number: int) -> None:
        async with server.slot():
            order.append(number)
            await asyncio.sleep(1)

    async def main() -> float:
        started = asyncio.get_running_loop().time()
        waiting = [asyncio.create_task(one(number)) for number in range(5)]
        await asyncio.sleep(0.5)
        assert order == [0, 1]
        waiting[2].cancel()
        await asyncio.wait(waiting)
        return asyncio.get_running_loop().time() - started

    assert run(main())[0] == 2.0
    assert order == [0, 1, 3, 4]
