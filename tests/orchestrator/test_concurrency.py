"""What is begun at once ends together."""

import asyncio

import pytest

from stepspec.orchestrator.concurrency import at_once, background

from ..fakes import run


async def work(seconds: float, log: list[str], failing: bool = False) -> float:
    try:
        await asyncio.sleep(seconds)
        if failing:
            raise ValueError(f"after {seconds:g}")
        return seconds
    except asyncio.CancelledError:
        await asyncio.sleep(0.5)
        log.append(f"{seconds:g} cancelled")
        raise


def test_background_tasks_end_with_the_block() -> None:
    log: list[str] = []

    async def main() -> float:
        async with background(work(3.0, log), work(9.0, log)) as (three, nine):
            await asyncio.sleep(1.0)
        assert three.cancelled()
        assert nine.cancelled()
        async with background(work(1.0, log)) as (one,):
            assert await one == 1.0
        return asyncio.get_running_loop().time()

    assert run(main())[0] == 2.5
    assert log == ["3 cancelled", "9 cancelled"]


def test_background_tasks_end_with_a_block_that_fails_and_may_fail_themselves() -> None:
    log: list[str] = []

    async def block() -> None:
        async with background(work(3.0, log), work(1.0, log, failing=True)):
            await asyncio.sleep(2.0)
            raise LookupError

    async def main() -> None:
        with pytest.raises(LookupError):
            await block()

    assert run(main())[1] == 2.5
    assert log == ["3 cancelled"]


def test_all_are_done_at_the_same_time_and_come_back_in_order() -> None:
    assert run(at_once(work(seconds, []) for seconds in (3.0, 1.0, 2.0))) == ([3.0, 1.0, 2.0], 3.0)
    assert run(at_once(work(1.0, []) for _ in range(0))) == ([], 0.0)


def test_a_failure_ends_the_others_and_waits_until_they_are_gone() -> None:
    log: list[str] = []

    async def main() -> float:
        with pytest.raises(ValueError, match="after 1"):
            await at_once([work(3.0, log), work(1.0, log, failing=True), work(9.0, log)])
        return asyncio.get_running_loop().time()

    assert run(main())[0] == 1.5
    assert log == ["3 cancelled", "9 cancelled"]


def test_to_be_cancelled_is_passed_on_once() -> None:
    log: list[str] = []

    async def main() -> None:
        both = asyncio.create_task(at_once([work(3.0, log), work(9.0, log)]))
        await asyncio.sleep(1.0)
        both.cancel()
        await asyncio.wait([both])
        assert both.cancelled()

    assert run(main())[1] == 1.5
    assert log == ["3 cancelled", "9 cancelled"]
