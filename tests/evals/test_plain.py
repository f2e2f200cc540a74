"""The arm ``plain``: one ordinary request, and nothing else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from aiohttp import web

from stepspec import Sampling, Solution, Solver
from stepspec.evals.arms import PLAIN
from stepspec.evals.grading.graders import Answer, Graders
from stepspec.evals.plan import check_arm
from stepspec.evals.sample import Task, graded, solve_once
from stepspec.orchestrator.backends.vllm import connect
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.errors import EndpointUnavailable
from stepspec.settings import Settings
from tests.stand_in import FakeVllm

BUDGET = Budget(tokens=512)
SAMPLED = Sampling(temperature=0.6, top_p=0.9, seed=7)
USAGE = {
    "prompt_tokens": 40,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 16},
}


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


BOXED = delta(content="It is \\boxed{2}.")


def ending(reason: str = "stop") -> list[dict[str, Any]]:
    choice: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": reason}
    return [{"choices": [choice]}, {"choices": [], "usage": USAGE}]


@dataclass
class Chatting(FakeVllm):
    """
    Answers a conversation with the *events* of a stream; it stays open for ever if there are none.
    """

    events: Sequence[Any] = ()
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def application(self) -> web.Application:
        app = super().application()
        app.router.add_post("/v1/chat/completions", self.stream_chat)
        return app

    async def stream_chat(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(orjson.loads(await request.read()))
        if self.faults:
            raise web.HTTPServiceUnavailable(text=f"busy: {self.faults.popleft()}")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in self.events:
            await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
        if not self.events[-1]["choices"]:
            await response.write(b"data: [DONE]\n\n")
        elif "delta" in self.events[-1]["choices"][0]:
            await asyncio.sleep(60)
        return response


async def solve(
    server: Chatting, budget: Budget = BUDGET, system: str | None = None, **settings: Any
) -> Solution | None:
    async with server.serve("large", **settings) as endpoint, connect(endpoint) as large:
        both = Settings(
            large=endpoint, small=Endpoint(role="small", url="http://h:1"), system=system
        )
        solver = SimpleNamespace(large=large, settings=both)
        return await solve_once(
            cast("Solver", solver), PLAIN, "What is 1 + 1?", sampling=SAMPLED, budget=budget
        )


@pytest.mark.parametrize(
    "events",
    [
        [
            delta(role="assistant", content=""),
            delta(reasoning="Add "),
            delta(reasoning="them."),
            BOXED,
        ],
        [
            delta(reasoning_content="Add them."),
            delta(content="It is "),
            delta(content="\\boxed{2}."),
        ],
        [delta(content="Add them.\n</th"), delta(content="ink>\n\nIt is \\boxed{2}.")],
    ],
)
async def test_thinking_and_text_are_told_apart_with_and_without_a_reasoning_parser(
    events: list[Any],
) -> None:
    server = Chatting(events=[*events, *ending()])
    found = await solve(server)
    assert found
    assert (found.answer, found.text, found.thinking) == ("2", "It is \\boxed{2}.", "Add them.")
    assert (found.finish_reason, found.seed) == ("stop", 7)
    spent = found.ledger.large
    assert (spent.kept, spent.prompt, spent.cached, spent.requests) == (4, 40, 16, 1)
    assert found.ledger.small.requests == found.ledger.drafts == 0
    assert 0 < spent.writing == found.seconds


async def test_the_request_is_an_ordinary_one_with_the_sampling_of_the_run() -> None:
    server = Chatting(events=[delta(content="2"), *ending()])
    await solve(server, Budget(tokens=200))
    (body,) = server.asked
    assert body["messages"] == [{"role": "user", "content": "What is 1 + 1?"}]
    assert (body["max_tokens"], body["temperature"], body["top_p"], body["seed"]) == (
        200,
        0.6,
        0.9,
        7,
    )
    await solve(server, system="Be brief.")
    assert [turn["content"] for turn in server.asked[1]["messages"]] == [
        "Be brief.",
        "What is 1 + 1?",
    ]
    assert not {"stop", "logprobs", "return_token_ids", "prompt"} & body.keys()
    assert not [
        path for path, body in server.requests if "completions" in path and body.get("stream")
    ]


async def test_the_context_bounds_the_answer_and_an_answer_that_is_cut_is_truncated() -> None:
    server = Chatting(events=[delta(content="So \\boxed{2}"), *ending("length")], room=100)
    solved = await solve(server, Budget(tokens=5000))
    sample = await graded(solved, PLAIN, Task("", Answer("2", "exact")), 7, Graders())
    assert (sample.outcome, sample.arm) == ("truncated", "plain")
    assert 0 < server.asked[0]["max_tokens"] < 100


async def test_a_problem_that_is_too_long_is_not_sent() -> None:
    server = Chatting(events=[delta(content="2"), *ending()], room=20)
    assert await solve(server) is None
    assert server.asked == []


async def test_cut_thinking_is_no_answer_with_and_without_a_reasoning_parser() -> None:
    for thought in ("reasoning", "content"):
        solved = await solve(
            Chatting(events=[delta(**{thought: "So \\boxed{2}? Wait"}), *ending("length")])
        )
        assert solved is not None
        assert (solved.text, solved.thinking) == ("", "So \\boxed{2}? Wait")


async def test_the_time_of_a_budget_ends_the_stream_with_what_was_written() -> None:
    server = Chatting(events=[delta(content="</think>So \\boxed{3}")])
    solved = await solve(server, Budget(tokens=512, seconds=1.0))
    assert solved is not None
    assert (solved.finish_reason, solved.answer) == ("time", "3")


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"choices": [7]}, "not a piece"),
        ({"error": {"message": "engine died", "code": 500}}, "died"),
        (ending("abort")[0], "gave the request up"),  # as when the server is stopped
        (BOXED, "without a finish_reason"),
    ],
)
async def test_a_stream_that_is_none_or_that_the_server_ended_is_an_error(
    event: Any, words: str
) -> None:
    with pytest.raises(EndpointUnavailable, match=words):
        await solve(Chatting(events=[event, *ending()[event is BOXED :]]), retries=0)


async def test_a_server_that_fails_for_a_while_costs_nothing_but_time() -> None:
    server = Chatting(events=[delta(content="2"), *ending()], faults=deque([None] * 2))
    assert await solve(server, retries=0) is not None
    assert len(server.asked) == 2


def test_every_solver_can_run_it() -> None:
    check_arm(PLAIN, Settings())
