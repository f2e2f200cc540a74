"""
A solver over servers that are real but for their models: what it tells the engine, and what it
outlives.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from stepspec import Endpoint, Sampling, Solver
from stepspec.api import StreamArguments
from stepspec.orchestrator import trace
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import ConfigurationError, EndpointUnavailable, MalformedReply
from stepspec.orchestrator.events import Called, Committed, Decided, Event, Moved, Started
from stepspec.orchestrator.prior import Prior
from stepspec.orchestrator.run_options import RunOptions, RunOverrides
from stepspec.orchestrator.server_load import ServerLoad
from stepspec.policies import SpecReason
from stepspec.settings import load

from .fakes import constructed
from .service.served import until
from .stand_in import Break, FakeVllm, Refuse

pytestmark = pytest.mark.usefixtures("nowhere")

USUAL: dict[str, Any] = {"sampling": GREEDY, "ending": "small", "answer": "large", "auto": False}
SCRIPT = ("So", " one", ".\n\n", "Then", " two", ".\n\n", "Done", "</think>", "\n\n\\boxed{2}")
PROBLEM = "What is 1 + 1?"


@dataclass
class Servers:
    """A small model, and a large one on two servers."""

    small: FakeVllm
    large: tuple[FakeVllm, FakeVllm]
    endpoints: tuple[Endpoint, Endpoint]
    urls: tuple[str, str]

    def solver(self, **settings: Any) -> Solver:
        """
        A solver whose small model may end the thinking and whose large one answers, unless the
        *settings* differ.
        """
        return Solver(*self.endpoints, **{**USUAL, **settings})


@asynccontextmanager
async def serving() -> AsyncGenerator[Servers]:
    small = FakeVllm(SCRIPT, digits={"9": -0.1})
    # All share their token ids.
    first, second = (replace(small, faults=deque(), requests=[]) for _ in range(2))
    async with (
        small.serve("small") as s,
        first.serve("large", retries=0) as one,
        second.serve("large") as two,
    ):
        large = one.model_copy(update={"url": f"{one.url},{two.url}"})
        yield Servers(small, (first, second), (s, large), (one.url, two.url))


async def test_a_large_model_that_writes_alone_is_stopped_in_a_loop_too() -> None:
    paragraph = (*[f" w{number}" for number in range(20)], ".\n\n")
    server = FakeVllm((*paragraph * 100, "Done", "</think>", "\n\n\\boxed{2}"))
    more: dict[str, Any] = {
        "auto": True,
        "stop_loops": True,
        "prior": Prior(accept_rate=0.0, verdict_seconds=100.0),
    }
    async with (
        server.serve("small") as small,
        server.serve("large") as large,
        Solver(small, large, sampling=GREEDY, **more) as solver,
    ):
        solution = await solver.solve(PROBLEM)
    assert ({step.author for step in solution.steps}, solution.finish_reason) == (
        {"large"},
        "repetition",
    )


async def test_a_replica_that_dies_under_a_run_costs_nothing_but_time() -> None:
    events: list[Event] = []
    async with serving() as servers, servers.solver() as solver:
        plain = await solver.solve(PROBLEM)
        servers.large[0].faults.extend([Break(after=0)] * 99)
        solution = await solver.solve(PROBLEM, observe=events.append)
        assert list(solver.large.down) == [servers.urls[0]]
        assert set(solver.large.runs.values()) == {0}
    assert (
        (solution.thinking, solution.answer)
        == (plain.thinking, plain.answer)
        == ("So one.\n\nThen two.\n\nDone</think>", "2")
    )
    assert solution.degraded == ()
    assert [(event.url, event.to) for event in events if isinstance(event, Moved)] == [servers.urls]
    asked = [event for event in events if isinstance(event, Called) and event.role == "large"]
    assert {event.url for event in asked} == set(servers.urls)
    assert [event.fate for event in asked if event.url == servers.urls[1]] == ["done"] * 4


async def test_runs_are_spread_over_the_replicas() -> None:
    async with serving() as servers, servers.solver() as solver:
        await asyncio.gather(solver.solve(PROBLEM), solver.solve(PROBLEM))
        asked = [
            sum(path == "/v1/completions" for path, _ in each.requests) for each in servers.large
        ]
    assert asked == [4, 4]


async def test_without_any_replica_of_the_small_model_the_large_one_goes_on_alone() -> None:
    async with serving() as servers, servers.solver() as solver:
        servers.small.faults.extend([Refuse(500, "dead")] * 99)
        solution, sent = await solver.solve(PROBLEM), len(servers.small.requests)
        await solver.solve(PROBLEM, policy="large")
        assert len(servers.small.requests) == sent
    assert (solution.degraded, solution.answer) == (("small",), "2")


async def test_work_that_needs_both_models_fails_with_the_small_one() -> None:
    async with serving() as servers, servers.solver() as solver:
        solver.require_both()
        solver.small.patience = 0.0  # instead of half an hour
        servers.small.faults.extend([Refuse(500, "dead")] * 99)
        with pytest.raises(EndpointUnavailable, match="the small model"):
            await solver.solve(PROBLEM)


async def test_a_run_that_begins_without_the_small_model_goes_on_alone_until_it_is_back() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with serving() as servers:
        small = servers.endpoints[0].model_copy(
            update={"url": f"http://127.0.0.1:{port}", "retries": 0}
        )
        async with replace(servers, endpoints=(small, servers.endpoints[1])).solver() as solver:
            assert list(solver.down) == [small.url]
            with pytest.raises(EndpointUnavailable, match="connection refused"):
                solver.require_both()
            alone = await solver.solve(PROBLEM)
            baseline = await solver.solve(PROBLEM, policy="large")
            with pytest.raises(EndpointUnavailable, match="the small model"):
                await solver.solve(PROBLEM, policy="small")
            async with replace(servers.small, faults=deque(), requests=[]).listening(port=port):
                await until(lambda: not solver.down)
                solver.require_both()
                again = await solver.solve(PROBLEM)
    assert (alone.answer, alone.degraded) == ("2", ("small",))
    assert {step.author for step in alone.steps} == {"large"}
    assert (baseline.answer, baseline.degraded) == ("2", ())
    assert (again.answer, again.degraded, again.steps[0].author) == ("2", (), "small")


async def test_a_stream_that_breaks_on_the_only_large_server_is_written_again() -> None:
    async with serving() as servers:
        large = servers.endpoints[1].each[0]
        async with replace(servers, endpoints=(servers.endpoints[0], large)).solver() as solver:
            plain = await solver.solve(PROBLEM, policy="large")
            servers.large[0].faults.extend([None, Break(after=1)])
            broken = await solver.solve(PROBLEM, policy="large")
    assert (broken.thinking, broken.text) == (plain.thinking, plain.text)
    assert not servers.large[0].faults


async def test_when_every_large_replica_is_gone_the_error_names_them() -> None:
    async with serving() as servers, servers.solver() as solver:
        for each in servers.large:
            each.faults.extend([Break(after=0)] * 99)
        with pytest.raises(EndpointUnavailable) as caught:
            await solver.solve(PROBLEM, policy="large")
    assert all(f"{url}: " in str(caught.value) for url in servers.urls)


@pytest.mark.parametrize(
    ("chosen", "authors"),
    [
        ({}, ["small"] * 3),
        ({"lead": 2}, ["large", "large", "small"]),
        ({"lead": 1}, ["large", "small", "small"]),
        ({"lead": 1, "policy": "small"}, ["small"] * 3),
    ],
)
async def test_the_large_model_leads_if_wanted_but_never_a_baseline(
    chosen: RunOverrides, authors: list[str]
) -> None:
    async with serving() as servers, servers.solver(**chosen) as solver, servers.solver() as other:
        for solution in (await solver.solve(PROBLEM), await other.solve(PROBLEM, **chosen)):
            assert [step.author for step in solution.steps if step.fate == "kept"] == authors


async def test_a_run_with_auto_says_who_wrote_its_steps_and_why() -> None:
    never = Prior(runs=1)
    events: list[Event] = []
    async with serving() as servers, servers.solver(auto=True, prior=never) as solver:
        begun = await solver.solve(PROBLEM, observe=events.append)
        solver.auto.server_load.grow("another run", 1)
        alone = await solver.solve(PROBLEM, observe=events.append)
        others = [
            await solver.solve(PROBLEM, auto=False),
            await solver.solve(PROBLEM, policy="large"),
        ]
    assert {(event.choice, event.ahead) for event in events if isinstance(event, Decided)} == {
        ("large", 1)
    }
    assert {event.reason for event in events if isinstance(event, Decided)} == {
        "the method is not measured yet",
        "by `prior.runs`, more than 1 runs at once save no time",
    }
    assert begun.aside == alone.aside == ""  # there is nothing yet to tell the user
    assert begun.share_alone == alone.share_alone == 1.0
    assert (alone.thinking, alone.answer, alone.ledger.accept_rate) == (
        begun.thinking,
        begun.answer,
        None,
    )
    assert [each.share_alone for each in others] == [None, None]


async def test_nothing_is_decided_once_the_small_model_is_gone() -> None:
    events: list[Event] = []
    async with serving() as servers, servers.solver(auto=True) as solver:
        run = solver.settings.run
        timings = solver.auto.run(run.policy, run.options, 1).record.timings
        solver.auto.timings.add("alone", 1, 50.0, 10)
        for kind in ("accepted", "rejected"):
            for _ in range(3):
                timings.add(kind, 1, 1.0, 10)
        servers.small.faults.extend([Refuse(500, "dead")] * 99)
        solution = await solver.solve(PROBLEM, observe=events.append)
    assert (solution.degraded, solution.answer) == (("small",), "2")
    assert [event.choice for event in events if isinstance(event, Decided)] == ["method"]


async def test_runs_decide_by_default_but_with_a_seed() -> None:
    async with serving() as servers, servers.solver(auto=None) as solver:
        assert (await solver.solve(PROBLEM)).share_alone is not None
        assert (await solver.solve(PROBLEM, seed=1)).share_alone is None
        assert (await solver.solve(PROBLEM, auto=False)).share_alone is None


async def test_the_wait_for_a_place_is_a_part_of_a_runs_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ServerLoad, "capacity", 1)
    async with serving() as servers, servers.solver(auto=True) as solver:
        async with solver.auto.server_load.slot():
            solving = asyncio.create_task(solver.solve(PROBLEM, budget=Budget(seconds=0.1)))
            await asyncio.sleep(0.2)
        assert (await solving).finish_reason == "time"


@pytest.mark.parametrize(
    ("policy", "seed", "requests"),
    [("large", None, 2), ("small", None, 2), ("large", 7, 4), ("specreason", None, 4)],
)
async def test_one_model_alone_draws_no_seed_and_so_thinks_in_one_request(
    policy: str, seed: int | None, requests: int
) -> None:
    async with serving() as servers, servers.solver(policy=policy, sampling=Sampling()) as solver:
        solution = await solver.solve(PROBLEM, seed=seed)
    bodies = [body for server in (servers.small, *servers.large) for body in written(server)]
    assert (len(bodies), all("seed" in body for body in bodies)) == (requests, requests == 4)
    assert (solution.seed is None, solution.answer) == (requests == 2, "2")
    assert seed in (None, solution.seed)


async def test_what_was_judged_before_is_known_to_the_first_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "stepspec.toml").write_text("[prior]\naccept_rate = 0.0\nverdict_seconds = 9.0\n")
    async with serving() as servers:
        small, large = servers.endpoints
        async with Solver(load(small=small, large=large, **{**USUAL, "auto": True})) as solver:
            solutions = [await solver.solve(PROBLEM) for _ in range(2)]
    assert [solution.share_alone for solution in solutions] == [1.0, 1.0]
    for solution in solutions:
        assert solution.aside.startswith("the method is slower: method ")
        assert solution.aside.endswith(" 0% of drafts accepted: run `stepspec tune`")
    logged = [
        record.getMessage() for record in caplog.records if "goes on alone" in record.getMessage()
    ]
    assert logged == [f"the large model goes on alone: {solutions[0].aside}"]


@pytest.mark.parametrize(
    ("chosen", "complaint"),
    [
        ({"aheadd": 1}, "unknown setting 'aheadd' (did you mean 'ahead'?)"),
        ({"ahead": -1}, "ahead: Input should be greater than or equal to 0"),
        ({"hedge": 2}, "hedge: Input should be less than or equal to 1"),
        (
            {"policy": "specreasn"},
            "no policy 'specreasn' (did you mean 'specreason'?); the policies: ",
        ),
        ({"options": {"thresholds": 1}}, "'thresholds'"),
        ({"options": {"threshold": 10}}, "option 'threshold': a number from 0 to 9 (got 10)"),
        ({"policy": "reward"}, "policy 'reward' needs a reward model"),
    ],
)
async def test_a_wrong_choice_for_one_run_asks_nothing_of_the_models(
    chosen: dict[str, Any], complaint: str
) -> None:
    async with serving() as servers, servers.solver() as solver:
        before = [len(each.requests) for each in (servers.small, *servers.large)]
        with pytest.raises(ConfigurationError, match=re.escape(complaint)):
            await solver.solve(PROBLEM, **chosen)
        assert [len(each.requests) for each in (servers.small, *servers.large)] == before


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[SpecReason]:
    return constructed(SpecReason, monkeypatch)


THREE = {"threshold": 8, "sure": 0.1, "read": "greedy"}


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"ahead": 1, "lead": 1, "seed": 5},
        {"options": THREE},
        {"policy": "specreason"},
    ],
)
async def test_a_policy_is_built_once_for_a_run(
    chosen: dict[str, Any], built: list[SpecReason]
) -> None:
    async with serving() as servers, servers.solver() as solver:
        built.clear()
        await solver.solve(PROBLEM, **chosen)
    assert len(built) == 1


async def test_options_that_are_resolved_are_run_as_they_are(
    built: list[SpecReason], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as servers, servers.solver(lead=1) as solver:
        run = solver.resolve(
            options=THREE, sampling=Sampling(temperature=0.5), seed=7, budget=Budget(200, steps=2)
        )
        own = {
            "options": THREE,
            "sampling": Sampling(temperature=0.5, seed=7),
            "budget": Budget(tokens=200, steps=2),
        }
        assert run == solver.settings.run.model_copy(update=own)
        assert (type(run), run.lead) == (RunOptions, 1)
        built.clear()
        monkeypatch.setattr(RunOptions, "model_validate", None)
        solution = await solver.solve(PROBLEM, run)
        large = (await solver.solve(PROBLEM, RunOptions(policy="large"))).steps
    assert [(policy.threshold, policy.read) for policy in built] == [(8, "greedy")]
    assert (solution.seed, [step.author for step in solution.steps if step.fate == "kept"]) == (
        7,
        ["large", "small"],
    )
    assert {step.author for step in large} == {"large"}


async def test_overrides_change_options_that_are_resolved() -> None:
    async with serving() as servers, servers.solver() as solver:
        run = solver.resolve(lead=2, sampling=Sampling(), seed=7)
        solution = await solver.solve(PROBLEM, run, lead=1, seed=8)
        assert (run.lead, run.sampling.seed) == (2, 7)
        with pytest.raises(ConfigurationError, match="unknown setting 'leads'"):
            await solver.solve(PROBLEM, run, leads=1)  # type: ignore[call-arg]
    assert solution.seed == 8
    assert [step.author for step in solution.steps if step.fate == "kept"] == [
        "large",
        "small",
        "small",
    ]


SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}


@pytest.mark.parametrize(
    ("format", "sent"),
    [("json", {"json_object": True}), (SCHEMA, {"json": SCHEMA})],
    ids=["json", "schema"],
)
async def test_only_the_answer_is_asked_for_in_a_format(format: Any, sent: dict[str, Any]) -> None:
    async with serving() as servers, servers.solver() as solver:
        for server in (servers.small, *servers.large):
            server.script = (*SCRIPT[:-1], '\n\n{"answer": 2}')
        solution = await solver.solve(PROBLEM, format=format, stop=["Problem:"])
    assert solution.text == '{"answer": 2}'
    writes = [body for server in servers.large for body in written(server)]
    assert [body["structured_outputs"] for body in writes] == [sent]
    assert writes[0]["stop"] == ["Problem:"]  # a mark of thinking is text in an answer
    assert not [body for body in written(servers.small) if "structured_outputs" in body]


async def test_a_server_that_ignores_the_format_is_found_out() -> None:
    async with serving() as servers, servers.solver() as solver:
        with pytest.raises(
            MalformedReply, match=r"asked for JSON and wrote '\\\\boxed\{2\}'.*structured outputs"
        ):
            await solver.solve(PROBLEM, format="json")
        cut = await solver.solve(PROBLEM, format="json", stop=["{"])
    assert cut.text == "\\boxed"  # which a stop string may have made of JSON


def written(server: FakeVllm) -> list[dict[str, Any]]:
    """The requests to write."""
    return [body for _, body in server.requests if body.get("stream")]


CALIBRATION = {
    "policy": "specreason",
    "option": "threshold",
    "value": 6.0,
    "max_loss": 0.01,
    "confidence": 0.95,
}


@pytest.mark.parametrize(
    ("made", "settings", "differs"),
    [
        ({}, {}, ""),
        ({"models": {"small": "fake", "large": "fake"}}, {}, ""),
        ({"models": {"small": "fake", "large": "another"}}, {}, "models.large"),
        ({}, {"options": {"threshold": 5.0}}, "options.threshold"),
        ({"conditions": True}, {}, ""),
        ({"conditions": True}, {"options": {"threshold": 6.0, "read": "greedy"}}, "options.read"),
        (
            {"conditions": True},
            {"options": {"threshold": 6.0, "read": "expected"}, "ahead": 4, "hedge": 0.5},
            "",
        ),
        ({"conditions": True}, {"lead": 3, "ending": "large"}, "lead, ending"),
        ({"conditions": True}, {"budget": {"steps": 4}}, "budget.steps"),
        (
            {"conditions": True},
            {"sampling": Sampling(temperature=1.0, top_p=1.0)},
            "sampling.temperature",
        ),
    ],
)
async def test_a_promise_is_of_the_models_and_settings_that_it_was_made_with(
    made: dict[str, Any], settings: dict[str, Any], differs: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as servers:
        chosen: dict[str, Any] = {"policy": "specreason", "options": {"threshold": 6.0}}
        if "conditions" in made:
            bearing = servers.solver(**chosen).settings.conditions()
            del bearing["options"]["threshold"]
            made = {**made, "conditions": bearing}
        small, large = servers.endpoints
        before = load(
            small=small,
            large=large,
            calibration={**CALIBRATION, **made},
            **{**USUAL, **chosen, **settings},
        )
        async with Solver(before) as solver:
            assert solver.settings.calibration is not None
            found = solver.settings.calibration.differences(solver.conditions(solver.settings))
            assert ", ".join(found) == differs
    told = [record.getMessage() for record in caplog.records if record.name == "stepspec"]
    assert [f"(other: {differs})" in line for line in told] == ([True] if differs else [])


async def test_a_trace_has_the_threshold_of_its_run() -> None:
    events: list[Event] = []
    async with serving() as servers, servers.solver() as solver:
        await solver.solve(PROBLEM, observe=events.append, options={"threshold": 6.5})
        await solver.solve(PROBLEM, observe=events.append, policy="large")
    assert [event.threshold for event in events if isinstance(event, Started)] == [
        ("threshold", 6.5),
        None,
    ]


async def test_a_stream_has_every_event_and_then_the_solution(tmp_path: Path) -> None:
    observed: list[Event] = []
    async with serving() as servers, servers.solver() as solver:
        solution = await solver.solve(PROBLEM, observe=observed.append)
        async with solver.stream(PROBLEM, trace_to=tmp_path / "run.jsonl") as events:
            with pytest.raises(RuntimeError, match="the run is not over"):
                _ = events.solution
            streamed = [event async for event in events]
            assert not [event async for event in events]
    assert (events.solution.answer, events.solution.thinking) == (
        solution.answer,
        solution.thinking,
    )
    assert [each for each in streamed if isinstance(each, Committed)] == [
        each for each in observed if isinstance(each, Committed)
    ]
    assert [moment.event for moment in trace.read(tmp_path / "run.jsonl")] == streamed


async def test_a_trace_that_cannot_be_written_costs_no_solution(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as servers, servers.solver() as solver:
        solution = await solver.solve(PROBLEM, trace_to=tmp_path / "missing" / "run.jsonl")
    assert "2" in solution.answer
    (record,) = (
        each
        for each in caplog.records
        if each.name.startswith("stepspec") and "trace" in each.message
    )
    assert "missing/run.jsonl: No such file or directory" in record.message


async def test_leaving_a_stream_early_cancels_the_run() -> None:
    async with serving() as servers, servers.solver() as solver:
        servers.small.gate = asyncio.Semaphore(4)  # one step, and the first token of the next
        async with solver.stream(PROBLEM) as events:
            async for event in events:
                if isinstance(event, Committed):
                    break
            assert not servers.small.left.is_set()
        async with asyncio.timeout(10):
            await servers.small.left.wait()
        with pytest.raises(RuntimeError, match="was cancelled"):
            _ = events.solution


async def test_a_stream_raises_what_ends_its_run() -> None:
    async with serving() as servers, servers.solver() as solver:
        for each in servers.large:
            each.faults.extend([Break(after=0)] * 99)
        async with solver.stream(PROBLEM, policy="large") as events:
            with pytest.raises(EndpointUnavailable):
                _ = [event async for event in events]
        with pytest.raises(EndpointUnavailable):
            _ = events.solution


def test_a_stream_takes_the_arguments_of_solve() -> None:
    taken = signature(Solver.solve).parameters.keys() - {"self", "problem", "observe", "overrides"}
    assert StreamArguments.__annotations__.keys() - RunOverrides.__annotations__.keys() == taken
