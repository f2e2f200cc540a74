from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from stepspec.orchestrator.launcher.beside import Beside


class Job:
    """Fails when told to; takes a moment to stop when cancelled."""

    def __init__(self) -> None:
        self.fail = asyncio.Event()
        self.stopped = False

    async def run(self) -> None:
        try:
            await self.fail.wait()
            raise LookupError("the job failed")
        finally:
            await asyncio.sleep(0)
            self.stopped = True


def current() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def test_leaving_the_block_stops_the_jobs_and_waits_for_them() -> None:
    jobs = [Job(), Job()]
    async with Beside([job.run() for job in jobs]):
        await asyncio.sleep(0)
    assert all(job.stopped for job in jobs)


async def test_a_failure_cancels_the_block_and_is_raised_instead() -> None:
    failing, other = Job(), Job()

    async def block() -> None:
        async with Beside([failing.run(), other.run()]):
            failing.fail.set()
            await asyncio.Event().wait()

    with pytest.raises(LookupError, match="the job failed"):
        await block()
    assert other.stopped
    assert not current().cancelling()


async def test_two_failures_count_as_one() -> None:
    jobs = [Job(), Job()]

    async def block() -> None:
        async with Beside([job.run() for job in jobs]):
            for job in jobs:
                job.fail.set()
            await asyncio.Event().wait()

    with pytest.raises(LookupError):
        await block()
    assert not current().cancelling()


async def test_a_failure_is_told_even_if_the_block_ignores_its_cancellation() -> None:
    job = Job()

    async def block() -> None:
        async with Beside([job.run()]):
            job.fail.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    with pytest.raises(LookupError):
        await block()


async def test_the_blocks_own_error_comes_through() -> None:
    job = Job()

    async def block() -> None:
        async with Beside([job.run()]):
            await asyncio.sleep(0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await block()
    assert job.stopped


async def test_a_block_that_fails_because_of_a_job_has_that_as_its_reason() -> None:
    job = Job()

    async def block() -> None:
        async with Beside([job.run()]):
            job.fail.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ConnectionError("no answer") from None

    with pytest.raises(LookupError) as failure:
        await block()
    assert isinstance(failure.value.__cause__, ConnectionError)


async def test_somebody_elses_cancellation_is_not_swallowed() -> None:
    job = Job()

    async def block() -> None:
        async with Beside([job.run()]):
            job.fail.set()
            await asyncio.sleep(0)
            current().cancel()
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_while_stopping_it_stops_all_the_same() -> None:
    job = Job()

    async def block() -> None:
        async with Beside([job.run()]):
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(current().cancel)

    task = asyncio.create_task(block())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert job.stopped
