"""
A small model that is a pair in its turn: how it is described, and a solver over three servers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from stepspec import Endpoint, NestedPair, Solver, settings
from stepspec.cli import terminal
from stepspec.orchestrator import Ledger, trace
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import ConfigurationError, EndpointRejected
from stepspec.orchestrator.events import Event, Started
from stepspec.orchestrator.nested_settings import neighbours
from stepspec.orchestrator.nesting import NestedEndpoint, described, leaves, named

from .stand_in import Break, FakeVllm

pytestmark = pytest.mark.usefixtures("nowhere")

SCRIPT = ("So", " one", ".\n\n", "Then", " two", ".\n\n", "Done", "</think>", "\n\n\\boxed{2}")
PROBLEM = "What is 1 + 1?"
RECORDED = Path(__file__).parent / "service/watch/page/traces/nested.jsonl"
FILE = """
large = "http://large:1"

[small]
policy = "bild"
options = { scale = "step" }
large = { url = "http://small:1", model = "middle" }

[small.small]
small = "http://tiniest:1"
large = "http://tiny:1"
"""


def test_pairs_nest_in_the_file_to_any_depth(nowhere: Path) -> None:
    (nowhere / "stepspec.toml").write_text(FILE)
    small = settings.load().small
    assert isinstance(small, NestedPair)
    assert (small.policy, small.options, small.large.model) == ("bild", {"scale": "step"}, "middle")
    assert isinstance(small.small, NestedPair)
    assert small.small.policy == "specreason"
    assert [(path, one.role, one.url) for path, one in small.models] == [
        ("small.small.small", "small", "http://tiniest:1"),
        ("small.small.large", "large", "http://tiny:1"),
        ("small.large", "large", "http://small:1"),
    ]
    large = settings.load().large
    assert large is not None
    assert list(neighbours(small, large)) == [
        "small.small.small with small.small.large",
        "small.small.large with small.large",
        "small.large with large",
    ]
    assert [[one.role for one in both] for both in neighbours(small, large).values()] == [
        ["small", "large"]
    ] * 3
    assert list(neighbours(large.model_copy(update={"role": "small"}), large)) == [
        "small with large"
    ]


def test_a_pair_may_be_set_by_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("SMALL__SMALL", "http://tiny:1"),
        ("SMALL__LARGE__URL", "http://small:1"),
        ("SMALL__POLICY", "bild"),
        ("SMALL__OPTIONS", '{"scale": "step"}'),
    ):
        monkeypatch.setenv(f"STEPSPEC_{name}", value)
    small = settings.load().small
    assert isinstance(small, NestedPair)
    assert (small.policy, small.options) == ("bild", {"scale": "step"})
    assert [one.url for _, one in small.models] == ["http://tiny:1", "http://small:1"]


@dataclass
class Servers:
    """Three models that write the same; the tiny one is on a server of its own."""

    tiny: FakeVllm
    small: FakeVllm
    endpoints: tuple[Endpoint, Endpoint, Endpoint]

    def solver(self, policy: str = "specreason", **options: Any) -> Solver:
        tiny, small, large = self.endpoints
        return Solver(
            {"small": tiny, "large": small, "policy": policy},
            large,
            sampling=GREEDY,
            ending="small",
            answer="large",
            auto=False,
            **options,
        )


@asynccontextmanager
async def serving() -> AsyncGenerator[Servers]:
    tiny = FakeVllm(SCRIPT, digits={"9": -0.1})
    # All share their token ids.
    others = [replace(tiny, faults=deque(), requests=[]) for _ in range(2)]
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(tiny.serve("small", retries=0))
        two, three = [
            await stack.enter_async_context(other.serve("large", retries=0)) for other in others
        ]
        yield Servers(tiny, others[0], (one, two, three))


async def test_three_servers_solve_a_problem_and_every_model_has_an_account() -> None:
    events: list[Event] = []
    async with serving() as servers, servers.solver() as solver:
        assert isinstance(solver.small, NestedEndpoint)
        assert [leaf.settings.url for leaf in leaves(solver.small)] == [
            one.url for one in servers.endpoints[:2]
        ]
        solution = await solver.solve(PROBLEM, observe=events.append)
    assert (solution.thinking, solution.answer) == ("So one.\n\nThen two.\n\nDone</think>", "2")
    small, tiny = solution.ledger.nested
    assert (small.path, tiny.path) == ("small.large", "small.small")
    assert (tiny.kept, small.kept, small.judging > 0) == (8, 0, True)
    assert solution.ledger.small.kept == 8
    assert solution.ledger.sifted == (("small", 3, 3),)
    (started,) = [event for event in events if isinstance(event, Started)]
    assert dict(started.models)["small"] == described(solver.small)
    assert described(solver.small).startswith("specreason of ")
    names = [leaf.name for leaf in leaves(solver.small)]
    assert list(named(solver.small)) == [
        ("small", described(solver.small)),
        ("small.small", names[0]),
        ("small.large", names[1]),
    ]
    assert list(named(solver.large)) == [("large", solver.large.name)]


async def test_the_budget_of_a_run_holds_within_the_pair() -> None:
    async with serving() as servers, servers.solver(budget={"tokens": 8, "answer": 3}) as solver:
        solution = await solver.solve(PROBLEM)
    assert solution.finish_reason == "length"
    assert solution.thinking == "So one.\n\nThen two"


async def test_a_tiny_model_that_dies_leaves_the_others_to_it() -> None:
    async with serving() as servers, servers.solver() as solver:
        servers.tiny.faults.extend([Break(after=0)] * 99)
        solution = await solver.solve(PROBLEM)
        assert solution.answer == "2"
        assert solution.degraded == ("small.small",)
        assert solution.ledger.nested[0].kept == 8
        servers.small.faults.extend([Break(after=0)] * 99)
        alone = await solver.solve(PROBLEM)
    assert (alone.answer, alone.degraded) == ("2", ("small.small", "small"))


@pytest.mark.parametrize(
    ("pair", "complaint"),
    [
        ({"policy": "bidl"}, r"^small: there is no policy 'bidl' \(did you mean 'bild'"),
        (
            {"options": {"scal": "step"}},
            "^small: policy 'specreason' has no option 'scal'; its options: ",
        ),
        ({"options": {"threshold": -1}}, r"^small: .*'threshold': a number from 0 to 9 \(got -1\)"),
        (
            {"policy": "reward"},
            "^small: policy 'reward' needs a reward model, which no pair within another has",
        ),
        (
            {"small": {"policy": "bidl", "small": "http://d", "large": "http://e"}},
            r"^small\.small: there is no policy 'bidl'",
        ),
    ],
)
def test_an_invalid_inner_policy_is_refused_before_any_request(
    pair: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        Solver({"small": "http://a", "large": "http://b", **pair}, "http://c", critic="http://f")


@pytest.mark.parametrize(
    ("down", "lost"), [((0,), ("small.small",)), ((1,), ("small",)), ((0, 1), ("small",))]
)
async def test_a_pair_that_was_never_up_is_replaced_by_what_is(
    down: tuple[int, ...], lost: tuple[str, ...]
) -> None:
    async with serving() as servers:
        for at in down:  # ports at which nothing listens
            dead = servers.endpoints[at].model_copy(
                update={"url": f"http://127.0.0.1:{7 + at}", "retries": 0}
            )
            first, second, third = (
                dead if place == at else one for place, one in enumerate(servers.endpoints)
            )
            servers.endpoints = first, second, third
        async with servers.solver() as solver:
            solution = await solver.solve(PROBLEM)
            assert len(solver.down) == len(down)
    assert (solution.answer, solution.degraded) == ("2", lost)


def test_the_terminal_shows_the_work_of_each_inner_model() -> None:
    events = [moment.event for moment in trace.read(RECORDED)]
    assert [each.plain for each in terminal.nested_lines(Ledger.of(events))] == [
        "small.large: 2 tokens kept, 2 discarded",
        "small.small: 36 tokens kept, 32 discarded, 2 of 4 drafts stood",
    ]


async def test_the_cure_for_a_key_names_the_table_of_the_model() -> None:
    server = FakeVllm(SCRIPT, key="right")
    async with server.serve("small") as inner, server.serve("large") as outer:
        small = NestedPair(small=inner, large=outer)
        large = outer.model_copy(update={"api_key": SecretStr("right")})
        with pytest.raises(EndpointRejected, match=r"STEPSPEC_SMALL__(SMALL|LARGE)__API_KEY"):
            async with Solver(small, large):
                pytest.fail("it has no key")
