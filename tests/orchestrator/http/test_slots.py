"""The slots of an endpoint: how long a request waits for one, and who waits."""

from __future__ import annotations

import asyncio

import pytest

from stepspec.orchestrator.endpoints.settings import Endpoint
from stepspec.orchestrator.errors import LocalShortage
from stepspec.orchestrator.http.slots import Slots, waiting_at_most

from ...fakes import jumping

MOST_SECONDS = 30.0


def slots(most: int = 1) -> Slots:
    return Slots(Endpoint(role="large", url="http://x:1", max_concurrency=most))


async def hold(slots: Slots, seconds: float) -> float:
    """Hold a slot for some *seconds*; return the second at which it was free."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with slots.held():
        waited = loop.time() - began
        await asyncio.sleep(seconds)
    return waited


@jumping
async def test_a_wait_beyond_the_limit_is_a_shortage_that_names_the_settings() -> None:
    one = slots()
    with waiting_at_most(MOST_SECONDS, 0.0):
        holding = asyncio.create_task(hold(one, 100.0))
        await asyncio.sleep(1.0)
        late = asyncio.create_task(hold(one, 1.0))
        await asyncio.sleep(29.0)
        assert one.waiting == 1
        with pytest.raises(LocalShortage, match=r"large model .* within 30 s .*max_concurrency"):
            await late
    assert one.waiting == 0
    assert await holding == 0.0
    assert await hold(one, 1.0) == 0.0


@jumping
async def test_a_request_of_no_service_waits_as_long_as_it_takes() -> None:
    one = slots()
    waits = await asyncio.gather(*(hold(one, 1000.0) for _ in range(4)))
    assert waits == [0.0, 1000.0, 2000.0, 3000.0]


@jumping
async def test_after_its_first_slot_a_request_may_wait_as_long_for_each_further_one() -> None:
    one = slots()
    with waiting_at_most(MOST_SECONDS, 20.0):
        for _ in range(3):
            async with one.held():
                later = asyncio.create_task(hold(one, 1.0))
                await asyncio.sleep(29.5)
            assert await later == 29.5


@jumping
async def test_a_request_that_has_waited_for_the_service_waits_less_for_its_first_slot() -> None:
    one = slots()
    holding = asyncio.create_task(hold(one, 25.0))
    await asyncio.sleep(0)
    began = asyncio.get_running_loop().time()
    with waiting_at_most(MOST_SECONDS, 20.0), pytest.raises(LocalShortage):
        await hold(one, 1.0)
    assert asyncio.get_running_loop().time() - began == 10.0
    with waiting_at_most(MOST_SECONDS, 31.0), pytest.raises(LocalShortage):
        await hold(one, 1.0)
    await holding
    with waiting_at_most(MOST_SECONDS, 31.0):
        assert await hold(one, 1.0) == 0.0, "a free slot needs no wait"


@jumping
async def test_requests_that_give_up_leave_their_slots_to_others() -> None:
    two = slots(2)
    waiting = [asyncio.create_task(hold(two, 10.0)) for _ in range(6)]
    await asyncio.sleep(5.0)
    assert two.waiting == 4
    for task in waiting[1:5]:
        task.cancel()
    await asyncio.wait(waiting)
    assert waiting[5].result() == 5.0
    assert two.waiting == 0
    assert await asyncio.gather(*(hold(two, 1.0) for _ in range(2))) == [0.0, 0.0]


@jumping
async def test_the_wait_for_the_rate_is_a_wait_and_returns_its_slot() -> None:
    class Rate:
        async def __aenter__(self) -> None:
            await asyncio.sleep(60.0)

        async def __aexit__(self, *error: object) -> None: ...

    one = slots()
    vars(one).update(_starts=Rate())
    with waiting_at_most(MOST_SECONDS, 0.0):
        for wait in (hold(one, 1.0), one.start(), hold(one, 1.0)):
            with pytest.raises(LocalShortage):
                await wait
    assert await hold(one, 1.0) == 60.0


@jumping
async def test_a_failure_of_the_wait_itself_is_no_shortage() -> None:
    class Failing:
        async def __aenter__(self) -> None:
            raise TimeoutError("of something else")

        async def __aexit__(self, *error: object) -> None: ...

    one = slots()
    vars(one).update(_starts=Failing())
    with waiting_at_most(MOST_SECONDS, 0.0), pytest.raises(TimeoutError, match="something else"):
        await one.start()
