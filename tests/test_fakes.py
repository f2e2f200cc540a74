"""The virtual clock is exact and reports hanging tests; properties of the scripted model beyond those of any model."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from stepspec.orchestrator import Chain, Step
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.events import Called, Event
from stepspec.orchestrator.interfaces import KEPT_OPEN

from .fakes import ScriptedModel, counting, run, tokenise

PROBLEM = Chain.of("Why?")


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


def test_tokens_join_to_the_text_and_a_mark_and_a_delimiter_are_one() -> None:
    text = "So it's 3.\n\nWell?\n\n \\boxed{4}\n</think>\n\nYes"
    assert "".join(tokenise(text)) == text
    assert {".\n\n", "?\n\n", THINK_END, " it"} < set(tokenise(text))


def test_a_write_takes_its_latency_and_the_pace_of_every_token() -> None:
    events: list[Event] = []
    model = ScriptedModel("small", counting("small", 3), pace=0.5, observe=events.append)
    step, seconds = run(model.write(PROBLEM))
    assert (len(step.tokens), seconds) == (6, 4.0)
    assert events == [Called("small", "write", "done", 0.0, 4.0, 1.0, len(tokenise("")), 0, 6)]


def test_a_failure_and_a_cancellation_are_logged_and_leave_nothing_open() -> None:
    events: list[Event] = []
    model = ScriptedModel("small", counting("small", 3), closing=2.0, observe=events.append)
    model.fails = lambda verb, chain: ConnectionError("gone") if verb == "ask" else None

    async def main() -> None:
        with pytest.raises(ConnectionError, match="gone"):
            await model.ask(PROBLEM, "Right?", "01")
        writing = asyncio.create_task(model.write(PROBLEM))
        await asyncio.sleep(0.5)
        writing.cancel()
        await asyncio.wait([writing])

    assert run(main())[1] == 3.5
    assert model.log == ["small ask 0", "small ask 0 failed", "small write 0", "small write 0 cancelled"]
    assert model.open == 0
    assert [event.fate for event in events if isinstance(event, Called)] == ["failed", "cancelled"]


def test_a_sticky_model_continues_its_request_and_opens_another_if_the_text_differs() -> None:
    model = ScriptedModel("small", counting("small", 9), sticky=True)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            KEPT_OPEN.set(stack)
            chain = PROBLEM.extend(await model.write(PROBLEM))
            chain = chain.extend(await model.write(chain))
            await model.write(chain.extend(Step("Something else.\n\n", "large")))
            assert model.open == 1

    assert run(main())[1] == 2.0
    assert model.open == 0
    assert model.log == [
        "small write 0",
        "small goes on 1",
        "small write 0 cancelled",
        "small write 3",
        "small write 3 cancelled",
    ]
