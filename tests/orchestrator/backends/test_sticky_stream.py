"""
The sticky stream: the same text in fewer requests, at most one step ahead, and nothing left open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from stepspec.orchestrator.backends.vllm import VllmModel
from stepspec.orchestrator.chain import DELIMITER, THINK_END, Chain, Step
from stepspec.orchestrator.endpoints import Sampling
from stepspec.orchestrator.errors import EndpointUnavailable
from stepspec.orchestrator.events import Called, Committed, Drafted, Event
from stepspec.orchestrator.interfaces import RequestContext, requesting
from stepspec.orchestrator.ledger import Ledger

from ...contracts.model import kept_open
from ...stand_in import Break, FakeVllm, Stall
from ..conftest import Meet, eventually
from .streaming import streamed
from .test_judging import SPECULATES

PROBLEM = Chain.of("What is 1 + 1?")
STEPS = [f"step {n}\n\n" for n in range(5)]
SCRIPT = (*[piece for step in STEPS for piece in (step[:4], step[4:6], "\n\n")], "Done", THINK_END)
FUSED = (
    "So",
    " one",
    ".\n\n",
    "Then",
    " two",
    ".\n\nSo",
    " it",
    " is",
    ".",
    "\n",
    "\n",
    "Done",
    THINK_END,
)


async def steps(model: VllmModel, chain: Chain, *, limit: int = 512) -> list[Step]:
    while not chain.finished:
        chain = chain.extend(await model.write(chain, limit=limit))
        assert chain.finished or chain.steps[-1].text
    return list(chain.steps)


def requests(server: FakeVllm) -> int:
    return sum(path == "/v1/completions" for path, _ in server.requests)


@pytest.mark.parametrize("script", [SCRIPT, FUSED])
@pytest.mark.parametrize("chunk", [1, 2, 4, 100])
async def test_steps_are_those_of_separate_requests(
    meet: Meet, script: tuple[str, ...], chunk: int
) -> None:
    server = FakeVllm(script, chunk=chunk)
    async with meet(server) as met:
        for limit in (1, 2, 512):
            server.requests.clear()
            plain = await steps(met.model, PROBLEM, limit=limit)
            separate = requests(server)
            async with kept_open():
                assert await steps(met.model, PROBLEM, limit=limit) == plain
            assert requests(server) - separate < separate or chunk == 100
    assert len(asyncio.all_tasks()) == 1


async def test_one_request_serves_every_write_that_extends_the_last(meet: Meet) -> None:
    server = FakeVllm(SCRIPT, gate=asyncio.Semaphore(0))
    async with meet(server) as met, kept_open():
        chain = PROBLEM
        for expected in STEPS:
            server.permit(3)
            step = await met.model.write(chain)
            assert step.text == expected
            chain = chain.extend(step)
        assert requests(server) == 1
        assert server.requests[-1][1]["stop"] == []
    assert [(call.fate, call.written) for call in met.calls] == [("done", 15)]


@pytest.mark.parametrize(
    ("role", "metrics", "asked", "sent"),
    [
        ("large", b"", 0, None),
        ("small", b"", 0, 0),
        ("large", SPECULATES, 0, 0),
        ("large", b"", 3, 3),
    ],
    ids=["large", "small", "speculating", "asked"],
)
async def test_a_large_model_alone_writes_without_log_probabilities(
    meet: Meet, role: str, metrics: bytes, asked: int, sent: int | None
) -> None:
    server = FakeVllm(SCRIPT, metrics=metrics, rivals=("x", "y", "z"))
    async with meet(server, Sampling(temperature=0, logprobs=asked), role=role) as met, kept_open():
        assert [step.text for step in await steps(met.model, PROBLEM)] == [
            *STEPS,
            f"Done{THINK_END}",
        ]
    assert server.requests[-1][1].get("logprobs") == sent


@pytest.mark.parametrize("chunk", [2, 4, 100])
@pytest.mark.parametrize("limit", [2, 512])
async def test_events_of_several_tokens_are_divided(meet: Meet, chunk: int, limit: int) -> None:
    """Where a step ends in an event, and with the token that ends the turn."""
    server = FakeVllm(("So", " one", ".\n\n", "The", " answer"), chunk=chunk)
    async with meet(server, role="large", max_concurrency=1) as met:
        separate = await steps(met.model, PROBLEM, limit=limit)
        async with kept_open():
            found = await steps(met.model, PROBLEM, limit=limit)
    assert [(step.text, step.stop) for step in found] == [
        (step.text, step.stop) for step in separate
    ]
    assert [token.text for step in found for token in step.tokens] == [
        "So",
        " one",
        ".\n\n",
        "The",
        " answer",
    ]


@pytest.mark.parametrize("chunk", [2, 4, 100])
async def test_events_of_several_tokens_are_divided_by_the_spellings_of_those_that_arrived_alone(
    meet: Meet, chunk: int
) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server, role="large") as met:
        async with kept_open():
            alone = await steps(met.model, PROBLEM)
        server.chunk = chunk
        before = requests(server)
        async with kept_open():
            assert await steps(met.model, PROBLEM) == alone
    assert requests(server) == before + 1


async def test_a_mark_whose_text_came_with_a_later_token_is_read_ahead_whole(meet: Meet) -> None:
    server = FakeVllm(
        ("So", " one", ".\n\n", "Done", THINK_END, "\n\n", "2"), chunk=3, gate=asyncio.Semaphore(3)
    )
    async with meet(server, role="large") as met, kept_open():
        chain = PROBLEM.extend(await met.model.write(PROBLEM))
        server.permit(3)
        for _ in range(200):
            await asyncio.sleep(0)  # until all three are read ahead
        server.permit(9)
        assert (await met.model.write(chain)).text == f"Done{THINK_END}"


@pytest.mark.parametrize("begins", [("So", " "), (" ",)])
async def test_characters_that_two_events_share_are_sent_back_whole(
    meet: Meet, begins: tuple[str, ...]
) -> None:
    halves = (b"\xf0\x9f", b"\x99\x82")
    chunk = len(begins) + 1
    server = FakeVllm((*begins, *halves, *halves, " on", ".", "\n\n", "B", THINK_END), chunk=chunk)
    first = f"{''.join(begins)}\U0001f642\U0001f642 on.\n\n"
    async with meet(server, role="large") as met, kept_open():
        step, end = await steps(met.model, PROBLEM)
        assert (step.text, end.text) == (first, f"B{THINK_END}")
        assert server.decode(
            await met.endpoint.tokenizer.encode_chain(PROBLEM.extend(step))
        ).endswith(first)


async def test_it_runs_ahead_by_one_step_and_stops_the_server(meet: Meet) -> None:
    server = FakeVllm(SCRIPT, gate=asyncio.Semaphore(3))
    async with meet(server) as met, kept_open():
        first = await met.model.write(PROBLEM)
        chain = PROBLEM.extend(first)
        server.permit(3)
        await server.left.wait()  # The server is stopped between two writes;
        await eventually(lambda: ended(met.model))
        assert met.calls == []  # whether its second step will be taken is not known yet.
        second = await met.model.write(chain)  # Tokens that have arrived may be read,
        assert second.text == STEPS[1]
        assert requests(server) == len(met.calls) == 1
        server.gate = None
        third = await met.model.write(chain.extend(second))  # and then there is a new request.
        assert third.text == STEPS[2]
        assert requests(server) == 2


async def test_a_step_without_an_end_is_bounded_by_the_limit(meet: Meet) -> None:
    server = FakeVllm(["on"] * 100, gate=asyncio.Semaphore(10))
    async with meet(server) as met, kept_open():
        chain = PROBLEM.extend(await met.model.write(PROBLEM, limit=5))
        await server.left.wait()
        step = await met.model.write(chain, limit=5)
        assert (step.text, step.stop) == ("on" * 5, "length")
        assert requests(server) == 1
        server.gate = None
        longer = await met.model.write(chain.extend(step), limit=7)
        assert longer.text == "on" * 7
        assert requests(server) == 2


async def test_a_turn_that_ends_ends_the_chain(meet: Meet) -> None:
    server = FakeVllm(("So", "\n\n", "Done"))
    async with meet(server) as met, kept_open():
        assert [(step.text, step.stop) for step in await steps(met.model, PROBLEM)] == [
            ("So\n\n", "delimiter"),
            ("Done", "end"),
        ]
    assert [(call.fate, call.written) for call in met.calls] == [("done", 4)]


async def test_another_chain_closes_it_first(meet: Meet) -> None:
    server = FakeVllm(SCRIPT, gate=asyncio.Semaphore(4))
    async with meet(server) as met, kept_open():
        await met.model.write(PROBLEM)
        server.gate = None
        other = await met.model.write(PROBLEM)
        assert server.left.is_set()
        assert other.text == STEPS[0]
    assert [call.fate for call in met.calls] == ["done", "done"]


@pytest.mark.parametrize("changed", [{"stop": ("7",)}, {"opening": "s"}])
async def test_another_way_of_writing_opens_another_request(
    meet: Meet, changed: dict[str, str]
) -> None:
    server = FakeVllm(SCRIPT)
    async with meet(server) as met, kept_open():
        step = await met.model.write(PROBLEM)
        await met.model.write(PROBLEM.extend(step), limit=4, **changed)  # type: ignore[arg-type]
        assert requests(server) == 2


@pytest.mark.parametrize(
    ("first", "second", "opened"), [(2, 0, 1), (2, 1, 1), (2, 2, 1), (0, 1, 2), (1, 2, 2)]
)
async def test_it_continues_if_its_tokens_have_enough_alternatives(
    meet: Meet, first: int, second: int, opened: int
) -> None:
    server = FakeVllm(SCRIPT, rivals=("x", "y", "z"))
    async with meet(server) as met:
        plain = [await met.model.write(PROBLEM, top=first)]
        plain.append(await met.model.write(PROBLEM.extend(plain[0]), top=second))
        server.requests.clear()
        async with kept_open():
            step = await met.model.write(PROBLEM, top=first)
            following = await met.model.write(PROBLEM.extend(step), top=second)
            assert requests(server) == opened
    assert [[(t.text, t.logprob, t.top) for t in s.tokens] for s in (step, following)] == [
        [(t.text, t.logprob, t.top) for t in s.tokens] for s in plain
    ]


async def test_unread_tokens_are_counted_when_it_is_closed(meet: Meet) -> None:
    server = FakeVllm(SCRIPT, gate=asyncio.Semaphore(5))
    async with meet(server) as met:
        async with kept_open():
            await met.model.write(PROBLEM)
            await eventually(lambda: server.sent == 5)
            await eventually(lambda: counted(met.model) == 2)
        assert [(call.fate, call.written) for call in met.calls] == [("done", 5)]


def counted(model: VllmModel) -> int:
    assert model._sticky  # pyright: ignore[reportPrivateUsage]
    arrivals = model._sticky._arrivals  # pyright: ignore[reportPrivateUsage]
    return len(arrivals.tokens) if arrivals else 0


def ended(model: VllmModel) -> bool:
    assert model._sticky  # pyright: ignore[reportPrivateUsage]
    reader = model._sticky._reader  # pyright: ignore[reportPrivateUsage]
    return reader is not None and reader.done()


async def test_a_mark_in_an_answer_ends_nothing(meet: Meet) -> None:
    script = (f"\n{THINK_END}\n\n", "A", ".\n\n", "Use ", THINK_END, " it", ".\n\n")
    chain = replace(PROBLEM, thinks=False)
    server = FakeVllm(script, gate=asyncio.Semaphore(2))
    async with meet(server) as met, kept_open():
        chain = chain.extend(await met.model.write(chain))
        server.permit(4)
        await eventually(lambda: ended(met.model))
        assert (await met.model.write(chain)).text == f"Use {THINK_END} it.\n\n"


async def test_cancelling_a_write_closes_it(meet: Meet) -> None:
    server = FakeVllm(SCRIPT, gate=asyncio.Semaphore(4))
    async with meet(server) as met, kept_open():
        chain = PROBLEM.extend(await met.model.write(PROBLEM))
        begun: list[Step] = []
        write = met.model.write(chain, until=begun.append)  # type: ignore[arg-type]
        writing = asyncio.create_task(write)
        await eventually(lambda: bool(begun))
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert [call.fate for call in met.calls] == ["cancelled"]
        await server.left.wait()


async def test_a_failure_between_two_writes_is_raised_by_the_next_write(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    server.faults.append(Break(after=4))
    async with meet(server) as met, kept_open():
        chain = PROBLEM.extend(await met.model.write(PROBLEM))
        with pytest.raises(EndpointUnavailable, match="did the server die"):
            await met.model.write(chain)
        assert (await met.model.write(chain)).text == STEPS[1]
    assert [call.fate for call in met.calls] == ["failed", "done"]


async def test_a_failure_after_the_last_write_is_ignored(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    server.faults.append(Break(after=4))
    async with meet(server) as met, kept_open():
        await met.model.write(PROBLEM)
        await eventually(lambda: ended(met.model))
    assert [call.fate for call in met.calls] == ["failed"]


async def test_two_writes_at_once_do_not_share_it(meet: Meet) -> None:
    server = FakeVllm(SCRIPT)
    server.faults.append(Stall(after=1))
    async with meet(server) as met, kept_open():
        stuck = asyncio.create_task(met.model.write(PROBLEM))
        await eventually(lambda: server.sent == 1)
        assert (await met.model.write(PROBLEM)).text == f"step 0{DELIMITER}"
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck


@pytest.mark.parametrize("third", [False, True])
async def test_its_account_names_the_steps_that_were_taken_from_it(
    meet: Meet, *, third: bool
) -> None:
    server = FakeVllm(SCRIPT, gate=asyncio.Semaphore(3))
    async with meet(server) as met, kept_open():
        with requesting(RequestContext("draft", 0)):
            first = await met.model.write(PROBLEM)
        with requesting(RequestContext("draft", 1, bet=True)):
            writing = asyncio.create_task(met.model.write(PROBLEM.extend(first)))
        await asyncio.sleep(0)
        server.permit(6)
        second = await writing
        await server.left.wait()  # The third step is complete: it was written ahead.
        await eventually(lambda: ended(met.model))
        assert met.calls == []
        if third:
            with requesting(RequestContext("draft", 2, bet=True)):
                await met.model.write(PROBLEM.extend(first).extend(second))
            assert len(met.calls) == 1
    assert second.text == STEPS[1]
    assert [(call.purpose, call.step, call.last_step) for call in met.calls] == [
        ("draft", 0, 2 if third else 1)
    ]


def drafting(events: Sequence[Event]) -> list[Called]:
    return [event for event in events if isinstance(event, Called) and event.purpose == "draft"]


@pytest.mark.parametrize("chunk", [1, 4, 12, 500])
def test_its_last_step_is_the_last_one_that_was_taken_however_early_the_request_ended(
    chunk: int,
) -> None:
    events = [moment.event for moment in streamed(chunk, length=5)]
    named = [step for call in drafting(events) for step in range(call.step, call.last_step + 1)]
    taken = [event.index for event in events if isinstance(event, Drafted)]
    assert named == taken == list(range(5))


def test_steps_that_were_sent_and_never_taken_are_discarded_and_not_its_last_one() -> None:
    events = [moment.event for moment in streamed(500, length=9, wrong=(1,), ahead=1)]
    first, second = drafting(events)
    assert [(call.fate, call.step, call.last_step) for call in (first, second)] == [
        ("done", 0, 1),
        ("done", 2, 8),
    ]
    ledger = Ledger.of(events)
    kept = sum(len(event.step.tokens) for event in events if isinstance(event, Committed))
    assert (ledger.small.requests, ledger.small.kept + ledger.large.kept) == (2, kept)
    assert ledger.small.written == first.written + second.written  # Each counts once.
