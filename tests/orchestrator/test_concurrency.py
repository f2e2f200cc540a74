"""Concurrent tasks end together."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from stepspec.orchestrator.concurrency import (
    all_entered,
    at_once,
    background,
    supervised,
    to_the_end,
)

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


def test_background_tasks_end_with_the_block_however_it_ends_and_may_fail_themselves() -> None:
    log: list[str] = []

    async def block() -> None:
        async with background(work(3.0, log), work(1.0, log, failing=True)):
            await asyncio.sleep(2.0)
            raise LookupError

    async def main() -> None:
        async with background(work(3.0, log), work(9.0, log)) as (three, nine):
            await asyncio.sleep(1.0)
        assert three.cancelled()
        assert nine.cancelled()
        async with background(work(1.0, log)) as (one,):
            assert await one == 1.0
        with pytest.raises(LookupError):
            await block()
        cancelled = asyncio.create_task(block())
        for _ in range(2):
            await asyncio.sleep(0.25)
            cancelled.cancel()
        await asyncio.wait([cancelled])

    assert run(main())[1] == 2.5 + 2.5 + 0.75
    assert sorted(log) == ["1 cancelled", *["3 cancelled"] * 3, "9 cancelled"]


def test_all_run_concurrently_and_return_in_order() -> None:
    assert run(at_once(work(seconds, []) for seconds in (3.0, 1.0, 2.0))) == ([3.0, 1.0, 2.0], 3.0)
    assert run(at_once(work(1.0, []) for _ in range(0))) == ([], 0.0)


def test_a_failure_ends_the_others_and_a_cancellation_is_passed_on_once() -> None:
    log: list[str] = []

    async def main() -> None:
        with pytest.raises(ValueError, match="after 1"):
            await at_once([work(3.0, log), work(1.0, log, failing=True), work(9.0, log)])
        both = asyncio.create_task(at_once([work(3.0, log), work(9.0, log)]))
        await asyncio.sleep(1.0)
        both.cancel()
        await asyncio.wait([both])
        assert both.cancelled()

    assert run(main())[1] == 1.5 + 1.5
    assert log == ["3 cancelled", "9 cancelled"] * 2


@pytest.mark.parametrize("failing", [False, True])
def test_work_that_is_done_to_the_end_outlasts_every_cancellation(failing: bool) -> None:
    log: list[str] = []

    async def ended() -> None:
        await work(3.0, log, failing)
        log.append("ended")

    async def main() -> None:
        waiting = asyncio.create_task(to_the_end(ended()))
        for _ in range(2):
            await asyncio.sleep(1.0)
            waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled() is not failing
        if failing:
            assert str(waiting.exception()) == "after 3"

    assert run(main())[1] == 3.0
    assert log == ([] if failing else ["ended"])


@asynccontextmanager
async def place(seconds: float, log: list[str], failing: bool = False) -> AsyncGenerator[None]:
    await work(seconds, log, failing)
    log.append(f"{seconds:g} entered")
    try:
        yield
    finally:
        log.append(f"{seconds:g} left")


def test_contexts_are_entered_at_the_same_time_and_left_with_the_stack() -> None:
    log: list[str] = []

    async def main() -> None:
        async with AsyncExitStack() as stack:
            await all_entered(stack, (place(seconds, log) for seconds in (2.0, 1.0)))
            log.append("inside")

    assert run(main())[1] == 2.0
    assert log == ["1 entered", "2 entered", "inside", "2 left", "1 left"]


def test_a_context_that_cannot_be_entered_fails_after_the_others_have_been_tried() -> None:
    log: list[str] = []

    async def main() -> None:
        async with AsyncExitStack() as stack:
            await all_entered(
                stack,
                [place(3.0, log), place(2.0, log, failing=True), place(1.0, log, failing=True)],
            )

    with pytest.raises(ValueError, match="after 2"):
        run(main())
    assert log == ["3 entered", "3 left"]


class Job:
    """Fails once *fail* is set; takes a moment to stop when cancelled."""

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


async def supervise(jobs: Sequence[Job], inside: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with supervised(*(job.run() for job in jobs)):
        await inside()


@pytest.mark.parametrize("failing", [1, 2])
async def test_a_failure_cancels_the_block_and_is_raised_instead(failing: int) -> None:
    jobs = [Job(), Job()]

    async def inside() -> None:
        for job in jobs[:failing]:
            job.fail.set()
        await asyncio.Event().wait()

    with pytest.raises(LookupError, match="the job failed"):
        await supervise(jobs, inside)
    assert all(job.stopped for job in jobs)
    assert not current().cancelling()


async def test_the_blocks_own_error_is_raised_or_shown_with_that_of_the_job_that_caused_it() -> (
    None
):
    job = Job()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def fails_after_the_job() -> None:
        job.fail.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("no answer") from None

    with pytest.raises(ZeroDivisionError):
        await supervise([job], fails)
    assert job.stopped
    with pytest.raises(LookupError) as failure:
        await supervise([job], fails_after_the_job)
    assert isinstance(failure.value.__cause__, ConnectionError)


@pytest.mark.parametrize("failing", [True, False])
async def test_a_cancellation_from_outside_is_not_swallowed_also_while_jobs_are_stopped(
    failing: bool,
) -> None:
    job = Job()

    async def inside() -> None:
        if failing:
            job.fail.set()
        await asyncio.sleep(0)
        if failing:
            current().cancel()
            await asyncio.Event().wait()
        asyncio.get_running_loop().call_soon(current().cancel)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(supervise([job], inside))
    assert job.stopped


async def test_a_failure_is_raised_in_the_cleanup_of_a_task_that_was_cancelled_before() -> None:
    job = Job()

    async def inside() -> None:
        job.fail.set()
        await asyncio.Event().wait()

    async def cleaning_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await supervise([job], inside)

    task = asyncio.create_task(cleaning_up())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(LookupError, match="the job failed"):
        await task
