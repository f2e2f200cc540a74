"""Whether a thinking block is open depends on the conversation, and by which marks on the model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from stepspec import Message, Solution, Solver
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import THINK_END, Chain, Step, ToolCall
from stepspec.orchestrator.endpoints import GREEDY, VllmEndpoint
from stepspec.orchestrator.endpoints.settings import Endpoint
from stepspec.orchestrator.events import Event, Started
from stepspec.orchestrator.markers import pair_of

from .orchestrator.endpoints.server import IM_END, IM_START, FakeVllm

PROMPT = f"{IM_START}assistant\n"
QUESTION = (Message("user", "What is 1 + 1?"),)
CALLED = (
    *QUESTION,
    Message("assistant", "", calls=(ToolCall("c1", "add", '{"a": 1}'),)),
    Message("tool", "2", call_id="c1"),
)
QUIET = (Message("user", "What is 1 + 1? /no_think"),)


@dataclass
class Templated(FakeVllm):
    """
    Opens the thinking with *opening* and closes it with *closing*.

    The template opens the block itself, but for *bare* conversations; it closes it at once for *quiet* ones. If it
    *leaves* the block to the model, it opens none. With *shows*, earlier turns have their reasoning between the marks.
    """

    opening: str = "<think>"
    closing: str = THINK_END
    bare: str = "tool"
    leaves: bool = False
    shows: bool = False

    def render(self, messages: list[dict[str, Any]], generate: bool, tools: Sequence[dict[str, Any]] = ()) -> str:
        text = ""
        for message in messages:
            reasons = message.get("reasoning") if self.shows else None
            block = f"{self.opening}{reasons}{self.closing}" if reasons else ""
            text += f"{IM_START}{message['role']}\n{block}{message['content']}{IM_END}\n"
        return text + (PROMPT + self.opened_for(messages[-1]) if generate else "")

    def opened_for(self, last: dict[str, Any]) -> str:
        if "/no_think" in last["content"]:
            return f"{self.opening}\n\n{self.closing}\n\n"
        return "" if self.leaves or last["role"] == self.bare else f"{self.opening}\n"

    def continuation(self, prompt: str) -> list[bytes]:
        """Think if the block is open, and answer after it."""
        begun = prompt.rpartition(PROMPT)[2]
        full = f"{self.opening}\nSo one.\n\nThen two.\n{self.closing}\n\nIt is \\boxed{{2}}.\n\nReally."
        if not begun.startswith(self.opening):
            full = full.rpartition("\n\nIt")[2] if not self.leaves else full
            full = "It" + full if not full.startswith(self.opening) else full
        elif f"{self.opening}\n\n{self.closing}" in begun:
            full = f"{self.opening}\n\n{self.closing}\n\nIt is \\boxed{{2}}.\n\nReally."
        assert full.startswith(begun), (full, begun)
        marked = full[len(begun) :].replace(self.opening, "\0").replace(self.closing, "\1")
        return [{"\0": self.opening, "\1": self.closing}.get(piece, piece).encode() for piece in marked]


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)


async def solved(
    messages: tuple[Message, ...], policy: str, small: Templated, large: Templated, **fields: Any
) -> tuple[Solution, bool]:
    """Solve with both servers; also return whether the run began in a thinking block."""
    events: list[Event] = []
    small._ids = large._ids  # pyright: ignore[reportPrivateUsage]  # one vocabulary
    async with (
        small.serve("small", **fields) as s,
        large.serve("large", **fields) as other,
        Solver(s, other, policy=policy, sampling=GREEDY, auto=False) as solver,
    ):
        solution = await solver.solve(messages, budget=Budget(2000), observe=events.append)
    (started,) = [event for event in events if isinstance(event, Started)]
    return solution, started.thinks


def servers(**fields: Any) -> tuple[Templated, Templated]:
    small, large = (Templated(digits={"9": -0.1}, **fields) for _ in range(2))
    return small, large


ANSWER = "It is \\boxed{2}.\n\nReally."
THOUGHT = "So one.\n\nThen two.\n"


@pytest.mark.parametrize("policy", ["large", "specreason", "bild", "small"])
@pytest.mark.parametrize(
    ("messages", "fields", "thought"),
    [
        (QUESTION, {}, True),
        (CALLED, {}, False),
        (QUIET, {}, False),
        (CALLED, {"bare": ""}, True),
        (QUESTION, {"leaves": True}, True),
        (CALLED, {"leaves": True}, True),
        (QUIET, {"leaves": True}, False),
        (CALLED, {"opening": "<reasoning>", "closing": "</reasoning>"}, False),
        (QUIET, {"opening": "<longcat_think>", "closing": "</longcat_think>"}, False),
    ],
)
async def test_the_end_of_the_rendered_prompt_says_whether_a_block_is_open(
    messages: tuple[Message, ...], fields: dict[str, Any], thought: bool, policy: str
) -> None:
    solution, thinks = await solved(messages, policy, *servers(**fields))
    assert (solution.text, solution.finish_reason, thinks) == (ANSWER, "stop", thought)
    thinking = solution.thinking.removesuffix(THINK_END)
    assert thinking == (THOUGHT if thought else ANSWER)


@pytest.mark.parametrize("policy", ["large", "specreason"])
@pytest.mark.parametrize("messages", [CALLED, QUIET])
async def test_a_small_model_whose_template_opens_a_block_all_the_same_has_it_closed(
    messages: tuple[Message, ...], policy: str
) -> None:
    class Open(Templated):
        def opened_for(self, last: dict[str, Any]) -> str:
            return f"{self.opening}\n"

    _, large = servers()
    solution, _ = await solved(messages, policy, Open(digits={"9": -0.1}), large)
    assert (solution.text, solution.finish_reason) == (ANSWER, "stop")


@pytest.mark.parametrize("policy", ["large", "specreason"])
async def test_a_block_that_an_option_of_the_template_closes_is_not_open(policy: str) -> None:
    class Switched(Templated):
        async def tokenize(self, request: web.Request) -> web.Response:
            options = (await request.json()).get("chat_template_kwargs", {})
            self.bare = "user" if options.get("enable_thinking") is False else "tool"
            return await super().tokenize(request)

    for thinks in (False, True):
        both = (Switched(digits={"9": -0.1}), Switched(digits={"9": -0.1}))
        solution, thought = await solved(QUESTION, policy, *both, template={"enable_thinking": thinks})
        assert (solution.text, solution.finish_reason, thought) == (ANSWER, "stop", thinks)


PAIRS = {
    "<mm:think>": "</mm:think>",
    "\u25c1think\u25b7": "\u25c1/think\u25b7",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<longcat_think>": "</longcat_think>",
    "<reasoning>": "</reasoning>",
    "<thinking>": "</thinking>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<Thought>": "</Thought>",
    "[REASONING]": "[/REASONING]",
}


@pytest.mark.parametrize(("opening", "closing"), PAIRS.items())
def test_the_closing_mark_of_one_that_speaks_of_thinking(opening: str, closing: str) -> None:
    markers = pair_of(opening)
    assert markers is not None
    assert (markers.opening, markers.closing) == (opening, closing)
    assert pair_of(closing) is None


@pytest.mark.parametrize("mark", ["<|im_start|>", "<mind>", "<|no_think|>", "think", "<think", "</think>", "<a b>", ""])
def test_other_text_opens_no_pair(mark: str) -> None:
    assert pair_of(mark) is None


@pytest.mark.parametrize("leaves", [False, True], ids=["the template opens it", "the model opens it"])
@pytest.mark.parametrize("policy", ["large", "specreason"])
@pytest.mark.parametrize(("opening", "closing"), PAIRS.items())
async def test_marks_that_speak_of_thinking_are_learnt(opening: str, closing: str, policy: str, leaves: bool) -> None:
    solution, thinks = await solved(QUESTION, policy, *servers(opening=opening, closing=closing, leaves=leaves))
    assert (solution.text, solution.finish_reason, thinks) == (ANSWER, "stop", True)
    assert solution.thinking == THOUGHT + THINK_END


@pytest.mark.parametrize("fields", [{}, {"leaves": True}])
@pytest.mark.parametrize("policy", ["large", "specreason"])
async def test_any_pair_is_learnt_where_the_template_shows_the_reasoning_of_earlier_turns(
    policy: str, fields: dict[str, Any]
) -> None:
    both = servers(opening="<mind>", closing="<done>", shows=True, **fields)
    solution, thinks = await solved(QUESTION, policy, *both)
    assert (solution.text, solution.thinking, thinks) == (ANSWER, THOUGHT + THINK_END, True)


@pytest.mark.parametrize("fields", [{}, {"leaves": True}])
async def test_any_pair_can_be_named(fields: dict[str, Any]) -> None:
    both = servers(opening="<<mind>>", closing="<<done>>", **fields)
    solution, thinks = await solved(QUESTION, "specreason", *both, marks=("<<mind>>", "<<done>>"))
    assert (solution.text, solution.thinking, thinks) == (ANSWER, THOUGHT + THINK_END, True)


async def test_a_mark_that_nobody_knows_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    server = Templated(opening="<mind>", closing="</mind>", leaves=True)
    with caplog.at_level(logging.WARNING):
        async with server.serve("large") as endpoint, VllmEndpoint(endpoint) as vllm:
            assert not vllm.template.thinks
    (record,) = [each.getMessage() for each in caplog.records if "marks" in each.getMessage()]
    assert 'begins its answer with <mind>: if that opens its thinking, set marks = ["<mind>", "..."]' in record
    assert "in [large]" in record


@pytest.mark.parametrize("fields", [{}, {"leaves": True}, {"opening": "<thinking>", "closing": "</thinking>"}])
async def test_known_marks_are_not_warned_of(fields: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with Templated(**fields).serve("large") as endpoint, VllmEndpoint(endpoint) as vllm:
            assert vllm.template.thinks
    assert not caplog.records


async def test_a_conversation_without_a_block_has_no_mark_in_its_prompts_and_no_stop() -> None:
    server = Templated()
    async with server.serve("large") as endpoint, VllmEndpoint(endpoint) as vllm:
        assert [await vllm.thinks(each) for each in (QUESTION, CALLED, QUIET)] == [True, False, False]
        chain = Chain(CALLED, thinks=False)
        await vllm.model(GREEDY).write(chain.extend(Step("It is", "small", "length")), stop=())
        body = server.requests[-1][1]
        assert (body["stop"], "stop_token_ids" in body) == ([], False)
        await vllm.model(GREEDY).write(Chain(QUESTION))
        assert server.requests[-1][1]["stop_token_ids"] == server.encode(THINK_END)
        assert await vllm.thinks(QUESTION)


def test_two_marks_are_needed() -> None:
    assert Endpoint(role="small", url="http://a", marks=("<a>", "<b>")).marks == ("<a>", "<b>")
    with pytest.raises(ValueError, match="marks"):
        Endpoint.model_validate({"role": "small", "url": "http://a", "marks": ["<a>"]})
    with pytest.raises(ValueError, match="marks"):
        Endpoint.model_validate({"role": "small", "url": "http://a", "marks": ["<a>", ""]})
