"""Whether a thinking block is open depends on the conversation, and by which marks on the model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pytest
from aiohttp import web

from stepspec import Message, Solver
from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import THINK_END, Chain, Step, Tool, ToolCall
from stepspec.orchestrator.endpoints import GREEDY, Template
from stepspec.orchestrator.endpoints.settings import Endpoint
from stepspec.orchestrator.events import Answering, Event, Started
from stepspec.orchestrator.markers import KNOWN, ThinkingMarkers, pairs_in
from stepspec.service.formats.deltas import DeltaBuilder
from tests.templates import learn

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
ASKS = (Message("user", "What is <think> and 1 + 1?"),)


@dataclass
class Templated(FakeVllm):
    """
    Opens the thinking with *opening* and closes it with *closing*.

    The template opens the block itself, but for *bare* conversations; it closes it at once for
    *quiet* ones. If it *leaves* the block to the model, it opens none. With *shows*, earlier turns
    have their reasoning between the marks.
    """

    opening: str = "<think>"
    closing: str = THINK_END
    bare: str = "tool"
    leaves: bool = False
    shows: bool = False
    begins: str = ""  # the text with which the template begins the thinking
    asks: str = ""  # without which no conversation is thought about

    def render(
        self, messages: list[dict[str, Any]], generate: bool, tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        text = ""
        for message in messages:
            reasons = message.get("reasoning") if self.shows else None
            block = f"{self.opening}{reasons}{self.closing}" if reasons else ""
            text += f"{IM_START}{message['role']}\n{block}{message['content']}{IM_END}\n"
        return text + (PROMPT + self.opened_for(messages[-1]) if generate else "")

    def opened_for(self, last: dict[str, Any]) -> str:
        if "/no_think" in last["content"]:
            return f"{self.opening}\n\n{self.closing}\n\n"
        return "" if self.leaves or last["role"] == self.bare else f"{self.opening}\n{self.begins}"

    def continuation(self, prompt: str) -> list[bytes]:
        """Think if the block is open, and answer after it."""
        begun = prompt.rpartition(PROMPT)[2]
        if self.asks not in prompt:
            return [each.encode() for each in ANSWER.removeprefix(begun)]
        begins = self.begins if begun.startswith(f"{self.opening}\n{self.begins}") else ""
        full = (
            f"{self.opening}\n{begins}So one.\n\nThen two.\n{self.closing}\n\nIt is"
            " \\boxed{2}.\n\nReally."
        )
        if not begun.startswith(self.opening):
            full = full.rpartition("\n\nIt")[2] if not self.leaves else full
            full = "It" + full if not full.startswith(self.opening) else full
        elif f"{self.opening}\n\n{self.closing}" in begun:
            full = f"{self.opening}\n\n{self.closing}\n\nIt is \\boxed{{2}}.\n\nReally."
        assert full.startswith(begun), (full, begun)
        marked = full[len(begun) :].replace(self.opening, "\0").replace(self.closing, "\1")
        return [
            {"\0": self.opening, "\1": self.closing}.get(piece, piece).encode() for piece in marked
        ]


async def solved(
    cases: Sequence[tuple[Conversation, str]], small: FakeVllm, large: FakeVllm, **fields: Any
) -> list[tuple[str, str, bool]]:
    """
    Solve each of *cases*, a conversation and a policy, with both servers.

    Return what each gave: the thinking without its end, the answer, and whether the run began in a
    thinking block.
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
            assert (
                "".join(event.text for event in events if isinstance(event, Answering))
                == solution.text
            )
            (started,) = [event for event in events if isinstance(event, Started)]
            builder = DeltaBuilder("reasoning")
            deltas = [delta for event in events for delta in builder.add_event(event)]
            told = "".join(delta.fields.get("reasoning", "") for delta in deltas)
            assert told.strip() == (THOUGHT.strip() if THOUGHT in solution.thinking else ""), (
                messages,
                policy,
            )
            text = solution.text.rstrip("\n")  # a mark after it may stand on a line of its own
            gave.append((solution.thinking.removesuffix(THINK_END), text, started.thinks))
    return gave


def servers(kind: type[FakeVllm] = Templated, **fields: Any) -> tuple[FakeVllm, FakeVllm]:
    return kind(digits={"9": -0.1}, **fields), kind(digits={"9": -0.1}, **fields)


ANSWER = "It is \\boxed{2}.\n\nReally."
THOUGHT = "So one.\n\nThen two.\n"


THINKS = (THOUGHT, ANSWER, True)
ANSWERS = (ANSWER, ANSWER, False)


@pytest.mark.parametrize(
    ("thinking", "answering", "fields"),
    [
        ((QUESTION,), (CALLED, QUIET), {}),
        ((QUESTION, CALLED), (QUIET,), {"bare": ""}),
        ((QUESTION, CALLED), (QUIET,), {"leaves": True}),
        ((QUESTION,), (CALLED,), {"opening": "<reasoning>", "closing": "</reasoning>"}),
        ((QUESTION,), (QUIET,), {"opening": "<longcat_think>", "closing": "</longcat_think>"}),
        ((QUESTION,), (CALLED, QUIET), {"begins": "Okay, 1 < 2. Let me see:\n\n"}),
        (
            (QUESTION,),
            (QUIET,),
            {"begins": "Hm. ", "opening": "<reasoning>", "closing": "</reasoning>"},
        ),
        ((ASKS,), (QUIET,), {"begins": "Hm. "}),
    ],
)
async def test_the_end_of_the_rendered_prompt_says_whether_a_block_is_open(
    thinking: Sequence[Conversation], answering: Sequence[Conversation], fields: dict[str, Any]
) -> None:
    expected = {each: THINKS for each in thinking} | {each: ANSWERS for each in answering}
    cases = [
        (each, policy) for policy in ("large", "specreason", "bild", "small") for each in expected
    ]
    for case, gave in zip(cases, await solved(cases, *servers(**fields)), strict=True):
        assert gave == expected[case[0]], case


@pytest.mark.parametrize("markers", KNOWN[:4], ids=lambda markers: markers.opening)
async def test_a_block_that_only_some_conversations_have_ends_with_its_own_mark(
    markers: ThinkingMarkers,
) -> None:
    opening = markers.opening.rstrip()
    switched = (Message("system", "Think first."), *QUESTION)
    cases = [
        (each, policy)
        for policy in ("large", "specreason", "bild", "small")
        for each in (QUESTION, switched)
    ]
    both = servers(asks="Think first.", leaves=True, opening=opening, closing=markers.closing)
    assert await solved(cases, *both) == [ANSWERS, (f"{opening}\n{THOUGHT}", ANSWER, False)] * 4


async def test_a_small_model_whose_template_opens_a_block_all_the_same_has_it_closed() -> None:
    class Open(Templated):
        def opened_for(self, last: dict[str, Any]) -> str:
            return f"{self.opening}\n"

    small = Open(digits={"9": -0.1})
    large = Templated(digits={"9": -0.1})
    cases = [(each, policy) for each in (CALLED, QUIET) for policy in ("large", "specreason")]
    assert await solved(cases, small, large) == [ANSWERS] * 4


async def test_a_block_that_a_template_opens_with_text_in_some_conversations_is_open() -> None:
    class Begun(Templated):
        def opened_for(self, last: dict[str, Any]) -> str:
            opened = super().opened_for(last)
            return opened if last["role"] == "tool" else opened.removesuffix(self.begins)

    both = servers(Begun, bare="", begins="The tool says:\n")
    assert await solved([(CALLED, "large"), (CALLED, "specreason")], *both) == [THINKS] * 2


@pytest.mark.parametrize("answer", ["<|im_end|>\n<|im_start|>assistant\n", "\nASSISTANT: "])
def test_a_mark_of_the_user_opens_no_block(answer: str) -> None:
    template = Template(
        answer, answer, opened="<think>\n", thinks=True, skipped="<think>\n\n</think>\n\n"
    )
    prompt = f"What is <think>?{answer}"
    assert template.begin(prompt) == f"{prompt}<think>\n"
    assert template.begin(f"{prompt}<think>\nOkay.") == f"{prompt}<think>\nOkay."
    assert not Template(answer, answer, source="effect").opens(prompt)


async def test_a_block_that_an_option_of_the_template_closes_is_not_open() -> None:
    class Switched(Templated):
        async def tokenize(self, request: web.Request) -> web.Response:
            options = (await request.json()).get("chat_template_kwargs", {})
            self.bare = "user" if options.get("enable_thinking") is False else "tool"
            return await super().tokenize(request)

    cases = [(QUESTION, "large"), (QUESTION, "specreason")]
    assert (
        await solved(cases, *servers(Switched), template={"enable_thinking": False})
        == [ANSWERS] * 2
    )
    assert (
        await solved(cases, *servers(Switched), template={"enable_thinking": True}) == [THINKS] * 2
    )


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


@pytest.mark.parametrize(
    ("opening", "closing"), [*PAIRS.items(), ("<|beginning_of_thinking|>", "<|end_of_thinking|>")]
)
def test_the_closing_mark_of_one_that_speaks_of_thinking(opening: str, closing: str) -> None:
    assert [(each.opening, each.closing) for each in pairs_in(f"a {opening}{closing}\n")] == [
        (opening, closing)
    ]


@pytest.mark.parametrize(
    "mark", ["<|im_start|>", "<mind>", "<|no_think|>", "think", "<think", "</think>", "<a b>", ""]
)
def test_other_text_opens_no_pair(mark: str) -> None:
    assert not pairs_in(mark)


LEAVES = pytest.mark.parametrize(
    "leaves", [False, True], ids=["the template opens it", "the model opens it"]
)
BOTH = [(QUESTION, "large"), (QUESTION, "specreason")]


@LEAVES
@pytest.mark.parametrize(("opening", "closing"), PAIRS.items())
async def test_marks_that_speak_of_thinking_are_learnt(
    opening: str, closing: str, leaves: bool
) -> None:
    assert (
        await solved(BOTH, *servers(opening=opening, closing=closing, leaves=leaves))
        == [THINKS] * 2
    )


@LEAVES
async def test_any_pair_is_learnt_where_the_template_shows_the_reasoning_of_earlier_turns(
    leaves: bool,
) -> None:
    both = servers(opening="<mind>", closing="<done>", shows=True, leaves=leaves)
    assert await solved(BOTH, *both) == [THINKS] * 2


@LEAVES
async def test_any_pair_can_be_named(leaves: bool) -> None:
    both = servers(opening="<<mind>>", closing="<<done>>", leaves=leaves)
    assert await solved(BOTH, *both, marks=("<<mind>>", "<<done>>")) == [THINKS] * 2


async def test_the_marks_of_a_reply_can_be_named_too() -> None:
    layout = replace(LAYOUTS["a reply between marks that a template leaves out"], cuts="")
    marks = ("<think>", "</think>", "\n<answer>\n", "</answer>")
    gave = await solved(BOTH, *servers(Laid, layout=layout), marks=marks)
    assert gave == [(f"{THOUGHT}\n", ANSWER, True)] * 2


async def test_a_model_that_may_call_tools_begins_its_reply_by_itself() -> None:
    layout = LAYOUTS["a reply between marks"]
    tools = (Tool("add"),)
    chain = Chain(QUESTION, tools=tools).extend(Step(f"{THOUGHT}{THINK_END}", "small", "end"))
    server = Laid(layout=layout)
    async with server.serve("large") as endpoint, VllmEndpoint(endpoint) as vllm:
        await vllm.model(GREEDY).write(chain, stop=())
        body = server.requests[-1][1]
        assert server.decode(body["prompt"]).endswith("two.\n<|END_THINKING|>")
        assert (body["stop"], "stop_token_ids" in body) == ([], False)
        await vllm.model(GREEDY).write(replace(chain, tools=()), stop=())
        body = server.requests[-1][1]
        assert server.decode(body["prompt"]).endswith("two.\n<|END_THINKING|><|START_RESPONSE|>")
        assert body["stop_token_ids"] == server.encode("<|END_RESPONSE|>")


async def test_a_mark_that_nobody_knows_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    server = Templated(opening="<mind>", closing="</mind>", leaves=True)
    with caplog.at_level(logging.WARNING):
        async with server.serve("large") as endpoint, VllmEndpoint(endpoint) as vllm:
            assert not vllm.template.thinks
    (record,) = [each.getMessage() for each in caplog.records if "marks" in each.getMessage()]
    assert (
        'begins its answer with <mind>: if that opens its thinking, set marks = ["<mind>", "..."]'
        in record
    )
    assert "in [large]" in record


@pytest.mark.parametrize(
    "fields", [{}, {"leaves": True}, {"opening": "<thinking>", "closing": "</thinking>"}]
)
async def test_known_marks_are_not_warned_of(
    fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with Templated(**fields).serve("large") as endpoint, VllmEndpoint(endpoint) as vllm:
            assert vllm.template.thinks
    assert not caplog.records


@dataclass(frozen=True)
class Layout:
    """
    How a family lays out its turns: the texts around a user's words, those around a reply, and what
    a model writes. *header* begins the assistant's turn, and the prompt ends in *header* and
    *begun*. A template that *shows* has the reasoning of an earlier turn between *thought*, and all
    have its reply between *reply*. A model *writes* its reply between those texts.
    """

    user: tuple[str, str]
    header: str
    thought: tuple[str, str]
    reply: tuple[str, str]
    writes: tuple[str, str]
    marks: tuple[str, ...]
    begun: str = ""
    shows: bool = True
    cuts: str = ""  # what the template leaves out of earlier turns
    quiet: str = ""  # how a prompt ends that opens no block; "" if none does


CHATML = (
    ("<|im_start|>user\n", "<|im_end|>\n"),
    "<|im_start|>assistant\n",
)
COHERE = "<|START_OF_TURN_TOKEN|>"
LAYOUTS = {
    "a message of its own for the answer": Layout(
        ("<|begin|>user<|content|>", "<|end|>"),
        "<|begin|>assistant",
        ("<|think|>", "<|end|><|begin|>assistant"),
        ("<|content|>", "<|end|>"),
        ("<|content|>", ""),
        ("<|begin|>", "<|think|>", "<|end|>", "<|content|>"),
        quiet="<|think|><|end|><|begin|>assistant",
    ),
    "a reply between marks": Layout(
        (f"{COHERE}<|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        f"{COHERE}<|CHATBOT_TOKEN|>",
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("<|START_RESPONSE|>", "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"),
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        quiet="<|START_THINKING|><|END_THINKING|>",
    ),
    "a reply on lines between marks": Layout(
        *CHATML,
        ("<think>\n", "\n</think>\n\n"),
        ("<response>\n", "\n</response>\n<|im_end|>\n"),
        ("<response>\n", "\n</response>\n"),
        ("<think>", "</think>", "<response>", "</response>"),
        begun="<think>\n",
    ),
    "a reply between marks that a template leaves out": Layout(
        ("<hy_begin>", "<|extra_0|>"),
        "",
        ("<think>\n", "\n</think>\n"),
        ("", "<|eos|>"),
        ("<answer>\n", "\n</answer>"),
        ("<think>", "</think>", "<answer>", "</answer>"),
        shows=False,
        cuts="<answer>\n",
        quiet="<think>\n\n</think>\n",
    ),
    "names between two marks": Layout(
        ('<|open|>message role="user"<|sep|>', "<|close|>message<|sep|><|end_of_msg|>"),
        '<|open|>message role="assistant"<|sep|>',
        ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        (
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>",
        ),
        ("<|open|>response<|sep|>", "<|close|>response<|sep|><|close|>message<|sep|>"),
        ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
        begun="<|open|>think<|sep|>",
        quiet="<|open|>response<|sep|>",
    ),
    "a solution on lines of its own": Layout(
        *CHATML,
        ("<|begin_of_thought|>\n\n", "\n\n<|end_of_thought|>\n\n"),
        ("<|begin_of_solution|>\n\n", "\n\n<|end_of_solution|><|im_end|>\n"),
        ("<|begin_of_solution|>\n\n", "\n\n<|end_of_solution|>"),
        (
            "<|begin_of_thought|>",
            "<|end_of_thought|>",
            "<|begin_of_solution|>",
            "<|end_of_solution|>",
        ),
    ),
    "marks that speak of nothing": Layout(
        *(
            *CHATML,
            ("<mind>", "<done>"),
            ("<|say|><|now|>", "<|im_end|>\n"),
            ("<|say|><|now|>", ""),
        ),
        ("<mind>", "<done>", "<|say|>", "<|now|>"),
    ),
}


@dataclass
class Laid(FakeVllm):
    """Serves a model of a *layout*, whose marks are *whole* tokens or several."""

    layout: Layout = LAYOUTS["a reply between marks"]
    whole: bool = True

    def encode(self, text: str) -> list[int]:
        return [self.id(piece.encode()) for piece in self.divided(text)]

    def divided(self, text: str) -> list[str]:
        pieces: list[str] = []
        while text:
            mark = next(
                (mark for mark in (*self.layout.marks, IM_START, IM_END) if text.startswith(mark)),
                text[0],
            )
            size = len(mark) if self.whole or mark in (IM_START, IM_END) else 4
            pieces += [mark[at : at + size] for at in range(0, len(mark), size)]
            text = text.removeprefix(mark)
        return pieces

    def render(
        self, messages: list[dict[str, Any]], generate: bool, tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        layout = self.layout
        text = "<bos>"
        for message in messages:
            content = message["content"]
            if message["role"] == "assistant":
                reasons = message.get("reasoning") if layout.shows else None
                text += layout.header + (reasons or "").join(
                    layout.thought if reasons else ("", "")
                )
                for cut in filter(None, (layout.cuts, layout.cuts.replace("<", "</").rstrip())):
                    content = content.replace(cut, "")
                text += content.join(layout.reply)
            else:
                text += content.join(layout.user)
        return text + (layout.header + self.begun(messages[-1]["content"]) if generate else "")

    def begun(self, question: str) -> str:
        return self.layout.quiet if "/no_think" in question else self.layout.begun

    def continuation(self, prompt: str) -> list[bytes]:
        layout = self.layout
        begun = prompt.partition(layout.user[1] + layout.header)[2]
        quiet = (
            layout.quiet
            and begun.startswith(layout.quiet)
            and not begun.startswith(layout.thought[0] + "So")
        )
        before = (
            layout.quiet.removesuffix(layout.writes[0]) if quiet else THOUGHT.join(layout.thought)
        )
        full = before + ANSWER.join(layout.writes)
        assert full.startswith(begun), (full, begun)
        return [piece.encode() for piece in (*self.divided(full[len(begun) :]), IM_END)]


def test_a_template_that_shows_no_reasoning_shows_the_marks_of_its_reply() -> None:
    server = Laid(layout=replace(LAYOUTS["a reply on lines between marks"], shows=False))
    template = learn(
        lambda messages, generate: server.render([dict(each) for each in messages], generate)
    )
    assert (template.markers.handover, template.ending) == ("<response>", "</response>")


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "in pieces"])
@pytest.mark.parametrize("name", LAYOUTS)
async def test_marks_between_the_thinking_and_the_reply_are_neither(name: str, whole: bool) -> None:
    layout = LAYOUTS[name]
    expected = {QUESTION: THINKS} | ({QUIET: ANSWERS} if layout.quiet else {})
    cases = [(each, policy) for policy in ("large", "specreason", "bild") for each in expected]
    for case, gave in zip(
        cases, await solved(cases, *servers(Laid, layout=layout, whole=whole)), strict=True
    ):
        thinking, answer, thinks = expected[case[0]]
        assert (gave[0].strip(), *gave[1:]) == (thinking.strip(), answer, thinks), case


async def test_a_conversation_without_a_block_has_no_mark_in_its_prompts_and_no_stop() -> None:
    server = Templated()
    async with server.serve("large") as endpoint, VllmEndpoint(endpoint) as vllm:
        assert [await vllm.thinks(each) for each in (QUESTION, CALLED, QUIET)] == [
            True,
            False,
            False,
        ]
        chain = Chain(CALLED, thinks=False)
        await vllm.model(GREEDY).write(chain.extend(Step("It is", "small", "length")), stop=())
        body = server.requests[-1][1]
        assert (body["stop"], "stop_token_ids" in body) == ([], False)
        await vllm.model(GREEDY).write(Chain(QUESTION))
        assert server.requests[-1][1]["stop_token_ids"] == server.encode(THINK_END)
        assert await vllm.thinks(QUESTION)


def test_two_marks_are_needed_and_four_are_the_most() -> None:
    assert Endpoint(role="small", url="http://a", marks=("<a>", "<b>")).marks == ("<a>", "<b>")
    for wrong in (["<a>"], ["<a>", ""], list("abcde")):
        with pytest.raises(ValueError, match="marks"):
            Endpoint.model_validate({"role": "small", "url": "http://a", "marks": wrong})
