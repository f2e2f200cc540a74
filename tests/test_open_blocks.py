"""Whether a thinking block is open depends on the conversation, and by which marks on the model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from aiohttp import web

from stepspec import Message, Solver
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import THINK_END, Chain, Step, ToolCall
from stepspec.orchestrator.endpoints import GREEDY, VllmEndpoint
from stepspec.orchestrator.endpoints.settings import Endpoint
from stepspec.orchestrator.events import Event, Started
from stepspec.orchestrator.markers import pair_of

from .stand_in import IM_END, IM_START, FakeVllm

pytestmark = pytest.mark.usefixtures("nowhere")

Conversation: TypeAlias = tuple[Message, ...]

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


async def solved(
    cases: Sequence[tuple[Conversation, str]], small: Templated, large: Templated, **fields: Any
) -> list[tuple[str, str, bool]]:
    """
    Solve each of *cases*, a conversation and a policy, with both servers.

    Return what each gave: the thinking without its end, the answer, and whether the run began in a thinking block.
    """
    small._ids = large._ids  # pyright: ignore[reportPrivateUsage]  # one vocabulary
    gave: list[tuple[str, str, bool]] = []
    async with (
        small.serve("small", **fields) as s,
        large.serve("large", **fields) as other,
        Solver(s, other, sampling=GREEDY) as solver,
    ):
        for messages, policy in cases:
            events: list[Event] = []
            solution = await solver.solve(
                messages, policy=policy, auto=False, budget=Budget(2000), observe=events.append
            )
            assert solution.finish_reason == "stop", (messages, policy)
            (started,) = [event for event in events if isinstance(event, Started)]
            gave.append((solution.thinking.removesuffix(THINK_END), solution.text, started.thinks))
    return gave


def servers(kind: type[Templated] = Templated, **fields: Any) -> tuple[Templated, Templated]:
    return kind(digits={"9": -0.1}, **fields), kind(digits={"9": -0.1}, **fields)


ANSWER = "It is \\boxed{2}.\n\nReally."
THOUGHT = "So one.\n\nThen two.\n"


THINKS, ANSWERS = (THOUGHT, ANSWER, True), (ANSWER, ANSWER, False)


@pytest.mark.parametrize(
    ("thinking", "answering", "fields"),
    [
        ((QUESTION,), (CALLED, QUIET), {}),
        ((QUESTION, CALLED), (QUIET,), {"bare": ""}),
        ((QUESTION, CALLED), (QUIET,), {"leaves": True}),
        ((QUESTION,), (CALLED,), {"opening": "<reasoning>", "closing": "</reasoning>"}),
        ((QUESTION,), (QUIET,), {"opening": "<longcat_think>", "closing": "</longcat_think>"}),
    ],
)
async def test_the_end_of_the_rendered_prompt_says_whether_a_block_is_open(
    thinking: Sequence[Conversation], answering: Sequence[Conversation], fields: dict[str, Any]
) -> None:
    expected = {each: THINKS for each in thinking} | {each: ANSWERS for each in answering}
    cases = [(each, policy) for policy in ("large", "specreason", "bild", "small") for each in expected]
    for case, gave in zip(cases, await solved(cases, *servers(**fields)), strict=True):
        assert gave == expected[case[0]], case


async def test_a_small_model_whose_template_opens_a_block_all_the_same_has_it_closed() -> None:
    class Open(Templated):
        def opened_for(self, last: dict[str, Any]) -> str:
            return f"{self.opening}\n"

    small, large = Open(digits={"9": -0.1}), Templated(digits={"9": -0.1})
    cases = [(each, policy) for each in (CALLED, QUIET) for policy in ("large", "specreason")]
    assert await solved(cases, small, large) == [ANSWERS] * 4


async def test_a_block_that_an_option_of_the_template_closes_is_not_open() -> None:
    class Switched(Templated):
        async def tokenize(self, request: web.Request) -> web.Response:
            options = (await request.json()).get("chat_template_kwargs", {})
            self.bare = "user" if options.get("enable_thinking") is False else "tool"
            return await super().tokenize(request)

    cases = [(QUESTION, "large"), (QUESTION, "specreason")]
    assert await solved(cases, *servers(Switched), template={"enable_thinking": False}) == [ANSWERS] * 2
    assert await solved(cases, *servers(Switched), template={"enable_thinking": True}) == [THINKS] * 2


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


@pytest.mark.parametrize(("opening", "closing"), [*PAIRS.items(), ("<|beginning_of_thinking|>", "<|end_of_thinking|>")])
def test_the_closing_mark_of_one_that_speaks_of_thinking(opening: str, closing: str) -> None:
    markers = pair_of(opening)
    assert markers is not None
    assert (markers.opening, markers.closing) == (opening, closing)
    assert pair_of(closing) is None


@pytest.mark.parametrize("mark", ["<|im_start|>", "<mind>", "<|no_think|>", "think", "<think", "</think>", "<a b>", ""])
def test_other_text_opens_no_pair(mark: str) -> None:
    assert pair_of(mark) is None


LEAVES = pytest.mark.parametrize("leaves", [False, True], ids=["the template opens it", "the model opens it"])
BOTH = [(QUESTION, "large"), (QUESTION, "specreason")]


@LEAVES
@pytest.mark.parametrize(("opening", "closing"), PAIRS.items())
async def test_marks_that_speak_of_thinking_are_learnt(opening: str, closing: str, leaves: bool) -> None:
    assert await solved(BOTH, *servers(opening=opening, closing=closing, leaves=leaves)) == [THINKS] * 2


@LEAVES
async def test_any_pair_is_learnt_where_the_template_shows_the_reasoning_of_earlier_turns(leaves: bool) -> None:
    both = servers(opening="<mind>", closing="<done>", shows=True, leaves=leaves)
    assert await solved(BOTH, *both) == [THINKS] * 2


@LEAVES
async def test_any_pair_can_be_named(leaves: bool) -> None:
    both = servers(opening="<<mind>>", closing="<<done>>", leaves=leaves)
    assert await solved(BOTH, *both, marks=("<<mind>>", "<<done>>")) == [THINKS] * 2


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
