"""The virtual clock is exact and reports hanging tests."""

import asyncio

import pytest

from .fakes import run


def test_sleeping_takes_no_time_but_advances_the_clock() -> None:
    async def main() -> list[float]:
        clock = asyncio.get_running_loop().time
        woken: list[float] = []

        async def sleep(seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append(clock())

        await asyncio.gather(sleep(1e6), sleep(0.5), sleep(0))
        return woken

    assert run(main()) == ([0.0, 0.5, 1e6], 1e6)


def test_a_task_that_is_left_behind_fails_the_test() -> None:
    async def main() -> None:
        asyncio.create_task(asyncio.sleep(1), name="left")  # noqa: RUF006  # the point

    with pytest.raises(AssertionError, match=r"left behind.*name='left'"):
        run(main())


def test_waiting_forever_fails_the_test() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="deadlock"):
        run(main())
