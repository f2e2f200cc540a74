"""
Runs stick to a replica, outlive it, and are spread evenly; on a clock that jumps, and once on real
sockets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Self, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Chain, reason
from stepspec.orchestrator.backends.vllm import VllmEndpoint, connect
from stepspec.orchestrator.budget import Budgeted
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints import (
    Endpoint,
    ReplicatedEndpoint,
    Template,
    replicas,
)
from stepspec.orchestrator.endpoints.breaker import Replica
from stepspec.orchestrator.endpoints.interfaces import Server
from stepspec.orchestrator.endpoints.metrics import QueueGauges
from stepspec.orchestrator.endpoints.replicas import in_order
from stepspec.orchestrator.endpoints.request_context import carrying
from stepspec.orchestrator.errors import (
    ConfigurationError,
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    MalformedReply,
    StepspecError,
)
from stepspec.orchestrator.events import Called, Committed, Event, Moved
from stepspec.orchestrator.ledger import Ledger

from ...fakes import ScriptedModel, counting, jumping, run
from ...stand_in import Break, FakeVllm
from ..arms import ARMS, BOUNDED, PROBLEM, arm, build
from .mortal import Mortal, MortalEndpoint, replicated

A = "http://a"
B = "http://b"
C = "http://c"


def server(url: str, role: Role = "large", **fields: Any) -> Mortal:
    return Mortal(url, ScriptedModel(role, counting(role, 4)), **fields)


def fail_once(one: Mortal) -> None:
    """Let a connection break under the next request to *one*."""
    broken = iter([EndpointUnavailable("reset", role="large", url=one.url)])
    one.scripted.fails = lambda verb, chain: next(broken, None)


@jumping
async def test_a_new_run_uses_the_replica_with_the_fewest_runs_and_stays_there() -> None:
    servers = [server(url) for url in (A, B, C)]

    async with replicated(*servers) as endpoint:
        models = [endpoint.model() for _ in range(5)]
        for model in models:
            await model.write(PROBLEM)
        assert endpoint.runs == {A: 2, B: 2, C: 1}
        models[1].leave()
        await endpoint.model().write(PROBLEM)
        assert endpoint.runs == {A: 2, B: 1, C: 1}  # The model of that last run is gone.
        for _ in range(3):
            await models[0].write(PROBLEM)
            await models[2].ask(PROBLEM, "Right?", "9")
            (scored,) = await models[2].score(PROBLEM, "So")
            assert [token.top for token in scored] == [()]
    assert [one.calls for one in servers] == [5, 3, 7]
    assert [one.entered for one in servers] == [0, 0, 0]


@jumping
async def test_processes_begin_with_any_of_the_idle_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: set[str] = set()
    for number in range(3):
        draws = iter([float(place != number) for place in range(3)])
        monkeypatch.setattr(replicas, "random", lambda draws=draws: next(draws))
        async with replicated(*map(server, (A, B, C))) as endpoint:
            model = endpoint.model()
            await model.write(PROBLEM)
            begun |= {url for url, runs in endpoint.runs.items() if runs}
    assert begun == {A, B, C}


@pytest.mark.parametrize("session", ["one", "two", "three", "four"])
@jumping
async def test_runs_of_a_session_begin_on_one_replica_however_many_runs_it_has(
    session: str,
) -> None:
    servers = [server(url) for url in (C, A, B)]

    async with replicated(*servers) as endpoint:
        with carrying({}, session=session):
            models = [endpoint.model() for _ in range(4)]
            for model in models:
                await model.write(PROBLEM)
        first = in_order((A, B, C), session)[0]
        assert {url: count for url, count in endpoint.runs.items() if count} == {first: 4}


@jumping
async def test_a_session_leaves_a_replica_that_fails_and_returns_when_it_is_back() -> None:
    order = in_order((A, B, C), "one")
    servers = [
        server(url, dies=10, revives=20) if url == order[0] else server(url) for url in (A, B, C)
    ]
    used: list[str] = []

    async with replicated(*servers) as endpoint:
        for at in (0, 12, 16, 60):
            await asyncio.sleep(at - asyncio.get_running_loop().time())
            before = {one.url: one.calls for one in servers}
            with carrying({}, session="one"):
                await endpoint.model().write(PROBLEM)
            used.extend(
                url for url in order if {one.url: one.calls for one in servers}[url] > before[url]
            )
    # The second run begins at the dead one.
    assert used == [order[0], *order[:2], order[1], order[0]]


def test_a_replica_that_is_added_or_lost_moves_only_its_own_sessions() -> None:
    sessions = [str(number) for number in range(3000)]
    two = {session: in_order((A, B), session)[0] for session in sessions}
    three = {session: in_order((C, B, A), session)[0] for session in sessions}
    moved = [session for session in sessions if two[session] != three[session]]
    assert {three[session] for session in moved} == {C}
    assert 900 < len(moved) < 1100
    assert 1400 < sum(url == A for url in two.values()) < 1600


@given(
    name=st.sampled_from(ARMS),
    seed=st.integers(0, 10_000),
    ahead=st.sampled_from([0, 1, 3]),
    sticky=st.booleans(),
    dies=st.integers(0, 60),
    who=st.sampled_from(["small", "large", "both"]),
)
@BOUNDED
def test_the_chain_is_the_same_whenever_a_replica_dies(
    name: str, seed: int, ahead: int, sticky: bool, dies: int, who: str
) -> None:
    tried = arm(name, seed, sticky=sticky)
    plain, _ = run(tried.run(ahead))
    events: list[Event] = []

    async def mortal() -> tuple[Chain, str]:
        servers = {
            role: [
                Mortal(url, again.small if role == "small" else again.large, dies=death)
                for url, death in where
            ]
            for role, where in (
                ("small", ((A, dies / 4 if who != "large" else 1e9), (B, 1e9))),
                ("large", ((A, dies / 4 if who != "small" else 1e9), (B, 1e9))),
            )
        }
        async with replicated(*servers["small"]) as small, replicated(*servers["large"]) as large:
            ours, theirs = (
                Budgeted(each.model(observe=events.append), tried.budget.left)
                for each in (small, large)
            )
            return await reason(
                build(name, ours, theirs, seed), PROBLEM, ahead=ahead, observe=events.append
            )

    again = arm(name, seed, sticky=sticky)
    (chain, end), _ = run(mortal())
    assert (chain, end) == plain
    assert again.small.open == again.large.open == 0
    moved = [event for event in events if isinstance(event, Moved)]
    assert len(moved) == len({event.role for event in moved})
    for move in moved:
        assert (move.url, move.to, move.cause) == (A, B, f"{A} is dead")
    assert tuple(event.step for event in events if isinstance(event, Committed)) == chain.steps


@jumping
async def test_an_interrupted_write_is_repeated_in_full_and_its_tokens_are_waste() -> None:
    first = server(A, dies=1.35)
    second = server(B)
    for one in (first, second):
        one.scripted.pace = 0.1
    events: list[Event] = []
    async with replicated(first, second) as endpoint:
        step = await endpoint.model(observe=events.append).write(PROBLEM)
    assert step.text == "The large one says 0.\n\n"
    assert asyncio.get_running_loop().time() == pytest.approx(1.35 + 1.0 + 6 * 0.1)
    calls = [event for event in events if isinstance(event, Called)]
    assert [(call.url, call.fate, call.written) for call in calls] == [
        (A, "cancelled", 3),
        (B, "done", 6),
    ]
    assert Ledger.of(events).large.discarded == 9  # nothing was committed here


@jumping
async def test_verbs_that_fail_together_move_the_run_once() -> None:
    servers = server(A, dies=0.5), server(B), server(C)
    events: list[Event] = []

    async with replicated(*servers) as endpoint:
        model = endpoint.model(observe=events.append)
        steps = await asyncio.gather(*(model.write(PROBLEM) for _ in range(4)))
        assert len(set(steps)) == 1
        assert endpoint.runs == {A: 0, B: 1, C: 0}
    assert [one.calls for one in servers] == [4, 4, 0]
    assert [event for event in events if isinstance(event, Moved)] == [
        Moved("large", A, B, f"{A} is dead")
    ]


@jumping
async def test_a_failed_server_is_probed_after_growing_pauses_and_used_once_a_probe_passes() -> (
    None
):
    first = server(A, dies=10, revives=100)
    second = server(B)
    async with replicated(first, second) as endpoint:

        async def where(at: float) -> str:
            """Where a run that begins at that second does its first work."""
            await asyncio.sleep(at - asyncio.get_running_loop().time())
            before = first.calls
            await endpoint.model().write(PROBLEM)
            return A if first.calls > before else B

        assert await where(0) == A
        model = endpoint.model()
        await asyncio.sleep(8.5)
        await model.write(PROBLEM)  # It sits at the first one when that dies.
        assert list(endpoint.down) == [A]
        probes = [10, 11, 13, 17, 25, 41, 71]  # pauses of 1, 2, 4, 8, 16, 30 seconds
        for at in (16, 24, 40, 70, 100):
            assert await where(at - 0.5) == B
            assert first.looks == 1 + sum(probe < at - 0.5 for probe in probes)
        calls = first.calls
        await asyncio.sleep(102.5 - asyncio.get_running_loop().time())
        assert (first.looks, first.calls) == (1 + 8, calls + 1)  # the probe at 101, and its token
        assert not endpoint.down
        assert await where(103) == A
        await model.write(PROBLEM)
        assert endpoint.runs[B] == 1  # It does not go back.
    assert first.entered == 0


@jumping
async def test_when_all_have_failed_the_error_names_every_url_with_its_cause() -> None:
    async with replicated(
        server(A, "small", dies=4), server(B, "small", dies=3, revives=8)
    ) as endpoint:
        await asyncio.sleep(5)
        model = endpoint.model()
        with pytest.raises(EndpointUnavailable) as caught:
            await model.write(PROBLEM)
        assert (
            str(caught.value)
            == f"the small model at {A}, {B}: no replica is left: {A}: {A} is dead; {B}: {B} is"
            " dead"
        )
        assert caught.value.role == "small"
        await asyncio.sleep(5)
        assert (await model.write(PROBLEM)).text  # The last resort is tried, rested or not.


@jumping
async def test_one_replica_that_is_up_is_enough_to_begin_and_the_other_joins_later() -> None:
    late = server(A, dies=0, revives=20)
    early = server(B)
    async with replicated(late, early) as endpoint:
        assert endpoint.down == {A: f"{A} is dead"}
        assert (endpoint.name, endpoint.vocabulary, endpoint.template) == (
            "model",
            "words",
            early.template,
        )
        for at, calls in ((0, 0), (25, 0), (35, 2)):  # a probe and a run
            await asyncio.sleep(at - asyncio.get_running_loop().time())
            await endpoint.model().write(PROBLEM)
            assert late.calls == calls
        assert not endpoint.down
        # at 0, 1, 3, 7, 15 and 31, and the connection that is kept
        assert (late.entered, late.looks) == (1, 7)
    assert (late.entered, early.entered) == (0, 0)


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (
            {"name": "else"},
            f"the large model at {B}: serves 'else', and its replica at {A} 'model'",
        ),
        (
            {"vocabulary": "else"},
            f"the large model at {B}: has another vocabulary than its replica at {A}",
        ),
        (
            {"template": Template("else", "")},
            f"the large model at {B}: has another chat template .* at {A}",
        ),
    ],
)
@jumping
async def test_a_replica_that_serves_something_else_is_refused(
    other: dict[str, Any], complaint: str
) -> None:
    servers = server(A), server(B, **other)
    with pytest.raises(EndpointRejected, match=complaint):
        await replicated(*servers).__aenter__()
    assert [one.entered for one in servers] == [0, 0]


@jumping
async def test_a_replica_that_returns_with_another_model_is_never_used_again() -> None:
    changed = server(A, dies=5, revives=6)
    steady = server(B)
    async with replicated(changed, steady) as endpoint:
        model = endpoint.model()
        await asyncio.sleep(4.5)
        await model.write(PROBLEM)
        changed.name = "else"
        calls = changed.calls
        for _ in range(3):
            await asyncio.sleep(50)
            await endpoint.model().write(PROBLEM)
        assert changed.calls == calls
        assert "serves 'else'" in endpoint.down[A]
    assert changed.entered == 0


@jumping
async def test_a_cancelled_verb_is_no_failure() -> None:
    servers = server(A), server(B)

    async with replicated(*servers) as endpoint:
        writing = asyncio.create_task(endpoint.model().write(PROBLEM))
        await asyncio.sleep(0.5)
        writing.cancel()
        await asyncio.wait([writing])
        assert not endpoint.down


@jumping
async def test_counting_outlives_a_server_and_takes_no_place() -> None:
    async with replicated(server(A, dies=1), server(B)) as endpoint:
        await asyncio.sleep(2)
        assert await endpoint.call(lambda server: server.count(PROBLEM.messages)) == 5
        assert set(endpoint.runs.values()) == {0}
        assert list(endpoint.down) == [A]


@jumping
async def test_replicas_have_what_all_have_and_the_sums_of_what_they_show() -> None:
    servers = (
        server(A, room=100, queue=QueueGauges(3, 1)),
        server(B, room=90),
        server(C, queue=QueueGauges(2, 5)),
    )

    async with replicated(*servers) as endpoint:
        assert endpoint.room == 90
        assert await endpoint.queue() == QueueGauges(5, 6)


@jumping
async def test_a_call_that_fails_moves_on_even_if_its_replica_passes_the_probe() -> None:
    first = server(A)
    second = server(B)
    poison = EndpointUnavailable("poison", role="large", url=A)
    first.scripted.fails = lambda verb, chain: poison if chain == PROBLEM else None
    events: list[Event] = []
    async with replicated(first, second) as endpoint:
        model = endpoint.model(observe=events.append)
        await model.write(PROBLEM)
        await asyncio.sleep(10)
        await model.write(PROBLEM)
        assert not endpoint.down
    assert [event for event in events if isinstance(event, Moved)] == [
        Moved("large", A, B, "poison")
    ]
    assert (first.calls, second.calls) == (2, 2)  # one and a probe, and both in the end


@jumping
async def test_a_run_leaves_a_replica_whose_circuit_another_run_opened() -> None:
    first = server(A, dies=5)
    second = server(B)
    async with replicated(first, second) as endpoint:
        one, between, other = (endpoint.model() for _ in range(3))
        for model in (one, between, other):
            await model.write(PROBLEM)
        assert endpoint.runs == {A: 2, B: 1}
        await asyncio.sleep(5)
        await one.write(PROBLEM)
        calls = first.calls
        await other.write(PROBLEM)
        assert first.calls == calls


@jumping
async def test_the_first_probe_is_sent_at_once_however_long_the_last_pause_was() -> None:
    only = server(A, dies=0.5, revives=60)
    async with replicated(only) as endpoint:
        now = asyncio.get_running_loop().time
        with pytest.raises(EndpointUnavailable):
            await endpoint.model().write(PROBLEM)
        await asyncio.sleep(89)
        assert not endpoint.down
        fail_once(only)
        began = now()
        await endpoint.model().write(PROBLEM)
        assert now() - began == 3  # the call, the probe, and the call


@jumping
async def test_a_probe_sends_each_request_once_and_writes_one_token() -> None:
    only = server(A)
    retries = list[int]()
    settings = replicated(only).settings
    only.scripted.pace = 1.0
    fail_once(only)

    def make(settings: Endpoint) -> VllmEndpoint:
        retries.append(settings.retries)
        return cast("VllmEndpoint", MortalEndpoint(settings, only))

    async with ReplicatedEndpoint(settings, make) as endpoint:
        began = asyncio.get_running_loop().time()
        step = await endpoint.model().write(PROBLEM)
        # the call that fails, the probe with its token, and the call
        assert asyncio.get_running_loop().time() - began == 1 + (1 + 1) + (1 + len(step.tokens))
    assert retries == [settings.retries, 0]
    assert settings.retries > 0


async def test_a_model_is_needed_unless_it_is_said_to_be_optional() -> None:
    settings = Endpoint(role="large", url="http://127.0.0.1:9", retries=0)
    with pytest.raises(EndpointUnavailable):
        await connect(settings).__aenter__()
    async with connect(settings, optional=True) as endpoint:
        assert not endpoint.known


@jumping
async def test_a_single_server_has_a_breaker_too_and_calls_fail_at_once_while_its_probes_fail() -> (
    None
):
    only = server(A, dies=3.5, revives=60)
    async with replicated(only) as endpoint:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(3)
        with pytest.raises(EndpointUnavailable, match=f"^the large model at {A}: {A} is dead$"):
            await endpoint.model().write(PROBLEM)
        assert (now(), endpoint.usable, endpoint.up) == (3.5, False, [])
        calls = only.calls
        await asyncio.sleep(20)
        with pytest.raises(EndpointUnavailable):
            await endpoint.model().write(PROBLEM)
        assert (now(), only.calls) == (23.5, calls)
        await asyncio.sleep(70)
        assert (await endpoint.model().write(PROBLEM)).text
        assert (endpoint.usable, dict(endpoint.down)) == (True, {})


@jumping
async def test_a_call_waits_for_the_probe_that_another_calls_failure_began() -> None:
    """
    A connection that breaks under one call costs no other call anything, if the server goes on.
    """
    only = server(A)
    fail_once(only)
    async with replicated(only) as endpoint:
        model = endpoint.model()
        first, second = await asyncio.gather(model.write(PROBLEM), model.write(PROBLEM))
        assert (first, endpoint.down) == (second, {})


@pytest.mark.parametrize(
    ("queue", "seconds", "late"),
    [
        (None, 5.5, 5),
        (QueueGauges(8, 0), 30.5, 30),
        (QueueGauges(8, 0), 29.5, None),
        (QueueGauges(8, 3), 119.5, None),
        (QueueGauges(8, 3), 120.5, 120),
        (QueueGauges(0, 0), 4.5, None),
    ],
)
@jumping
async def test_a_token_of_a_probe_has_five_seconds_and_as_long_as_any_other_at_a_busy_server(
    queue: QueueGauges | None, seconds: float, late: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    only = server(A, queue=queue)
    only.scripted.latency = lambda chain: 1.0 if chain == PROBLEM else seconds
    fail_once(only)
    async with replicated(only) as endpoint:
        if late is None:
            assert ((await endpoint.model().write(PROBLEM)).author, endpoint.down) == ("large", {})
            assert f"at {A} works again; before: " in caplog.text
            return
        with pytest.raises(EndpointUnavailable, match=f"no token in the first {late} s"):
            await endpoint.model().write(PROBLEM)
    assert f"no token in the first {late} s; it is probed again in 1 s" in caplog.text


@jumping
async def test_a_server_that_hangs_at_the_start_holds_up_the_other_for_five_seconds_only() -> None:
    first = server(A)
    hanging = server(B, far=120.0)
    async with replicated(first, hanging) as endpoint:
        assert asyncio.get_running_loop().time() == 5
        assert endpoint.down == {B: "no connection 5 s after another server"}
        assert (await endpoint.model().write(PROBLEM)).text
        hanging.far = 1.0
        await asyncio.sleep(200)
        assert not endpoint.down
    assert (first.entered, hanging.entered) == (0, 0)


@jumping
async def test_a_server_far_away_passes_its_probe_though_some_twenty_requests_take_longer() -> None:
    only = server(A, far=6.0)
    only.scripted.latency = lambda chain: 4.5
    fail_once(only)
    async with replicated(only) as endpoint:
        assert (await endpoint.model().write(PROBLEM)).text


@jumping
async def test_a_probe_of_a_busy_server_has_no_less_than_one_of_an_idle_server() -> None:
    only = server(A, queue=QueueGauges(8, 0))
    only.scripted.latency = lambda chain: 1.0 if chain == PROBLEM else 4.5
    fail_once(only)
    async with replicated(only, between=2.0) as endpoint:
        assert (await endpoint.model().write(PROBLEM)).text


@pytest.mark.parametrize("patience", [0.0, 1800.0])
@jumping
async def test_a_call_after_the_end_fails_at_once_and_a_solver_may_begin_again(
    patience: float,
) -> None:
    endpoint = replicated(server(A))
    endpoint.patience = patience
    for _ in range(2):
        async with endpoint:
            model = endpoint.model()
            assert (await model.write(PROBLEM)).text
        with pytest.raises(EndpointUnavailable, match="the solver is closed"):
            await asyncio.wait_for(model.write(PROBLEM), 5)


@pytest.mark.parametrize("fault", [None, RuntimeError("odd")])
@jumping
async def test_to_connect_anew_to_a_busy_server_may_take_long_and_may_fail_in_any_way(
    fault: Exception | None,
) -> None:
    only = server(A, queue=QueueGauges(8, 3))
    made = list[Endpoint]()

    class Anew(MortalEndpoint):
        async def __aenter__(self) -> Self:
            if len(made) == 2:
                await asyncio.sleep(60)
                if fault:
                    raise fault
            return await super().__aenter__()

    def make(settings: Endpoint) -> VllmEndpoint:
        made.append(settings)
        return cast("VllmEndpoint", Anew(settings, only))

    fail_once(only)
    async with ReplicatedEndpoint(replicated(only).settings, make) as endpoint:
        with pytest.raises(EndpointUnavailable) if fault else nullcontext():
            await endpoint.model().write(PROBLEM)
        await asyncio.sleep(5)
        assert (await endpoint.model().write(PROBLEM)).text


@pytest.mark.parametrize(
    ("kind", "patience", "tries"),
    [(EndpointUnavailable, 0, 2), (MalformedReply, 0, 2), (EndpointUnavailable, 1800, 5)],
)
@jumping
async def test_a_call_that_fails_again_on_a_server_that_passes_probes_is_given_up(
    kind: type[EndpointError], patience: float, tries: int
) -> None:
    only = server(A)
    tried = list[str]()

    def fails(verb: str, chain: Chain) -> Exception | None:
        if chain != PROBLEM:  # a probe's
            return None
        tried.append(verb)
        return kind("poison", role="large", url=A)

    only.scripted.fails = fails
    async with replicated(only) as endpoint:
        endpoint.patience = patience
        with pytest.raises(EndpointUnavailable, match="poison"):
            await endpoint.model().write(PROBLEM)
        assert len(tried) == tries


@pytest.mark.parametrize("complaint", ["", "it does not think"])
@jumping
async def test_an_optional_model_may_come_up_later_unless_it_is_refused(complaint: str) -> None:
    late = server(A, "small", dies=0, revives=10)
    endpoint = replicated(late, optional=True)

    def refuses(fresh: Server) -> str:
        return complaint

    endpoint.reason_to_refuse = refuses
    async with endpoint:
        assert (endpoint.known, endpoint.usable, endpoint.name) == (False, False, "unknown")
        with pytest.raises(EndpointUnavailable, match="dead"):
            await endpoint.call(lambda server: server.count(PROBLEM.messages))
        await asyncio.sleep(40)
        assert endpoint.usable == endpoint.known == (not complaint)
        assert list(endpoint.down.values()) == ([complaint] if complaint else [])
        if not complaint:
            assert (
                endpoint.name,
                await endpoint.call(lambda server: server.count(PROBLEM.messages)),
            ) == ("model", 5)
    assert late.entered == 0


async def test_over_http_a_broken_stream_continues_at_the_next_server() -> None:
    script = ("So", " one", ".\n\n", "Then", " two", ".\n\n", "Done", "</think>")
    first = FakeVllm(script)
    second = replace(first, faults=deque(), requests=[])  # They share their token ids.
    events: list[Event] = []
    async with first.serve("large", retries=0) as one, second.serve("large") as two:
        settings = one.model_copy(update={"url": f"{one.url},{two.url}"})
        async with connect(settings) as endpoint:
            model = endpoint.model(observe=events.append)
            chain = PROBLEM.extend(await model.write(PROBLEM))
            first.faults.append(Break(after=2))
            chain = chain.extend(await model.write(chain))
            chain = chain.extend(await model.write(chain))
    assert chain.text == "So one.\n\nThen two.\n\nDone</think>"
    calls = [event for event in events if isinstance(event, Called)]
    assert [(call.url, call.fate) for call in calls] == [
        (one.url, "done"),
        (one.url, "failed"),
        (two.url, "done"),
        (two.url, "done"),
    ]
    assert all(token.id >= 0 for step in chain.steps for token in step.tokens)


LONGEST = 30.0


def a_replica() -> Replica:
    settings = replicated(server(A), rest=LONGEST).settings
    return Replica(settings, VllmEndpoint, lambda replica, fresh: "")


def gone(cause: str) -> EndpointUnavailable:
    return EndpointUnavailable(cause, role="large", url="http://a")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (None, ""),
        (gone("reset"), "reset"),
        (gone(""), "failed"),
        (ConfigurationError("no such file"), "no such file"),
        (ConfigurationError(""), "failed"),
    ],
)
def test_the_cause_of_a_replica_is_that_of_the_last_failure(
    error: StepspecError | None, cause: str
) -> None:
    replica = a_replica()
    if error:
        replica.open(error)
    assert replica.cause == cause


@pytest.mark.parametrize(
    ("good", "pause"), [(0.0, 4.0), (LONGEST - 1, 4.0), (LONGEST, 1.0), (LONGEST + 1, 1.0)]
)
@jumping
async def test_a_server_that_fails_again_soon_is_paused_on_from_where_it_was(
    good: float, pause: float
) -> None:
    replica = a_replica()
    await asyncio.sleep(100)
    replica.fail(gone("reset"))
    replica.open(gone("reset"))
    replica.open(gone("reset"))
    assert replica.pause == 2
    replica.close()
    await asyncio.sleep(good)
    replica.fail(gone("reset"))
    replica.open(gone("reset"))
    assert replica.pause == pause
