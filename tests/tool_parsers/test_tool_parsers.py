"""
Every parser of tools and of reasoning that vLLM ships, with vLLM's own code: a stream is parsed
token by token, a complete answer whole.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import orjson
import pytest
from tokenizers.decoders import DecodeStream

from stepspec.orchestrator import Step, Token
from stepspec.orchestrator import answer as answers
from stepspec.orchestrator.answer import CallStream
from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.chain import Tool, ToolCall, Toolset
from stepspec.orchestrator.endpoints import ReplicatedEndpoint
from stepspec.orchestrator.endpoints.answer_parser import ServerParser
from stepspec.orchestrator.errors import EndpointError
from stepspec.orchestrator.events import Answering, Calling, Event
from stepspec.orchestrator.http.http_errors import Call
from stepspec.orchestrator.http.prompts import write_body
from stepspec.orchestrator.json_values import is_json

from ..orchestrator.conftest import eventually
from ..stand_in import DERENDER
from .spellings import CALLS, SPELLERS, TOOLS, Calls

if TYPE_CHECKING:
    from .derender import ParsingVllm

T = TypeVar("T")

CONTENT = "Let me see.\n"
CHUNKS = (1, 3, 10, 10**6)  # tokens that arrive at once
EXTRA_MARKS = ("<|python_tag|>", "<tool_sep>", "<tool_calls>", "</tool_calls>")
ONE_CALL = {"gigachat3", "internlm"}
"""The parsers that read one call of an answer."""

NEED_A_PACKAGE = {"cohere_command3", "cohere_command4"}
"""The parsers that need a package which vLLM does not bring."""

OF_A_TOKENIZER = {"hf", "openai"}
"""
The parsers of a format that the model's own tokenizer describes, and of gpt-oss, whose answers
cannot call tools.
"""

NOT_BY_TOKENS = {"functiongemma", "jamba"}
"""The parsers that lose or double arguments when they get one token at a time."""

CONTENT_HIDES_CALLS = {"llama4_pythonic", "pythonic", "xlam"}
"""The parsers that read no call after content, in a complete answer either."""

DROP_CONTENT = {
    "llama3_json", "llama4_json", "minicpm5", "muse_glimmer", "olmo3", "phi4_mini_json",
}  # fmt: skip
"""The parsers that leave the content before calls out of a complete answer."""

MARKS_LEAK = DROP_CONTENT | {"granite-20b-fc", "hunyuan_a13b"}
"""The parsers that stream a part of a call as content before they know that it is one."""

TOOLSET = Toolset(
    tuple(
        Tool(
            each["function"]["name"],
            each["function"]["description"],
            json.dumps(each["function"]["parameters"]),
        )
        for each in TOOLS
    )
)


class Reading(ServerParser):
    """Counts the tokens that it has read, and keeps the failure after which nothing is read."""

    count = 0
    failure: EndpointError | None = None

    async def parse(
        self, tokens: Sequence[Token], *, finished: bool
    ) -> tuple[int, str, Sequence[Calling]]:
        try:
            taken = await super().parse(tokens, finished=finished)
        except EndpointError as exc:
            self.failure = exc
            raise
        self.count += taken[0]
        return taken

    def has_read(self, tokens: int) -> bool:
        return self.count == tokens or self.failure is not None


@asynccontextmanager
async def connected(server: ParsingVllm, **settings: Any) -> AsyncGenerator[VllmEndpoint]:
    async with server.serve(**settings) as endpoint, VllmEndpoint(endpoint) as vllm:
        yield vllm


def tokens_of(server: ParsingVllm, text: str) -> tuple[Token, ...]:
    """Divide *text* into tokens as a stream of vLLM does."""
    assert server.tokenizer is not None
    stream = DecodeStream(skip_special_tokens=False)
    return tuple(
        Token(stream.step(server.tokenizer, number) or "", id=number)
        for number in server.encode(text)
    )


@dataclass(frozen=True)
class Alone:
    """The endpoint of one server, which is connected already."""

    server: VllmEndpoint

    async def call(self, verb: Callable[[VllmEndpoint], Awaitable[T]]) -> T:
        return await verb(self.server)


def alone(vllm: VllmEndpoint) -> ReplicatedEndpoint:
    return cast("ReplicatedEndpoint", Alone(vllm))


def spelt(tokens: Sequence[Token]) -> str:
    return "".join(token.text for token in tokens)


async def streamed(
    vllm: VllmEndpoint, tokens: Sequence[Token], chunk: int
) -> tuple[str, list[tuple[str, Any]], CallStream]:
    """Write an answer of *tokens* that arrive *chunk* at a time, each after the last is read."""
    events: list[Event] = []
    parser = Reading(alone(vllm), TOOLSET)
    stream = CallStream(events.append, parser)
    async with stream.following():
        for end in range(chunk, len(tokens) + chunk, chunk):
            written = tuple(tokens[:end])
            stream.on_token(Step(spelt(written), "large", tokens=written))
            await eventually(partial(parser.has_read, len(written)))
    step = Step(spelt(tokens), "large", "end", tuple(tokens))
    await stream.complete(step)
    stream.finish(step.text)
    calls = {call.index: "" for call in events if isinstance(call, Calling)}
    for event in events:
        if isinstance(event, Calling):
            calls[event.index] += event.arguments
    assert [call.arguments for call in stream.calls] == [calls[index] for index in sorted(calls)]
    text = "".join(event.text for event in events if isinstance(event, Answering))
    return text, values(stream.calls), stream


def values(calls: Sequence[ToolCall]) -> list[tuple[str, Any]]:
    """Return names and arguments. Arguments that are no JSON stay texts."""
    return [
        (call.name, json.loads(call.arguments) if is_json(call.arguments) else call.arguments)
        for call in calls
    ]


async def whole(
    vllm: VllmEndpoint, tokens: Sequence[Token]
) -> tuple[str, list[tuple[str, Any]], CallStream]:
    toolset = Toolset(TOOLSET.tools, live=False)
    stream = CallStream(lambda event: None, ServerParser(alone(vllm), toolset), live=False)
    step = Step(spelt(tokens), "large", "end", tuple(tokens))
    await stream.complete(step)
    return stream.text, values(stream.calls), stream


@pytest.fixture(autouse=True)
def parse_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "PARSE_EVERY", 0.0)


@pytest.fixture(scope="module")
def serving() -> Callable[..., ParsingVllm]:
    """Make a server with vLLM's parsers; importing them takes seconds."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        from .derender import ParsingVllm, marks_of

    def make(text: str, **fields: Any) -> ParsingVllm:
        return ParsingVllm(marks={*marks_of(text), *EXTRA_MARKS}, **fields)

    return make


def test_every_parser_of_vllm_is_tried(serving: Callable[..., ParsingVllm]) -> None:
    from vllm.tool_parsers import ToolParserManager

    assert set(ToolParserManager.lazy_parsers) == set(SPELLERS) | OF_A_TOKENIZER


@pytest.mark.parametrize("name", sorted(set(SPELLERS) - NEED_A_PACKAGE))
async def test_calls_are_found_by_every_parser(
    serving: Callable[..., ParsingVllm], name: str
) -> None:
    text = SPELLERS[name](CALLS[:1] if name in ONE_CALL else CALLS)
    wanted = [(call, dict(arguments)) for call, arguments in CALLS]
    wanted = wanted[:1] if name in ONE_CALL else wanted
    server = serving(text, tool=name)
    async with connected(server) as vllm:
        for content in ("", CONTENT):
            if content and name in CONTENT_HIDES_CALLS:
                continue
            tokens = tokens_of(server, content + text)
            text_found, calls_found, _ = await whole(vllm, tokens)
            assert calls_found == wanted
            assert text_found.strip() == ("" if name in DROP_CONTENT else content.strip())
            if name in NOT_BY_TOKENS:
                continue
            for chunk in CHUNKS[1:2] if content else CHUNKS:
                text_shown, calls_shown, _ = await streamed(vllm, tokens, chunk)
                assert calls_shown == wanted, (chunk, content)
                if name not in MARKS_LEAK:
                    assert text_shown.strip() == content.strip()


PARAMETERS = {
    "title": "string", "steps": "array", "options": "object", "deep": "boolean",
    "ratio": "number", "nothing": "null", "count": "integer",
}  # fmt: skip
PLAN = Tool(
    "plan",
    "Make a plan.",
    json.dumps(
        {
            "type": "object",
            "properties": {name: {"type": kind} for name, kind in PARAMETERS.items()},
        }
    ),
)
PING = Tool("ping", "Ask whether it is there.", '{"type": "object", "properties": {}}')
MORE_TOOLS = Toolset((*TOOLSET.tools, PLAN, PING))

ODD_CALLS: Mapping[str, Calls] = {
    "nested": (
        ("plan", {"options": {"a": {"b": [1, {"c": "d"}], "e": {}}, "f": []}, "steps": ["x, y"]}),
    ),
    "unicode and quotes": (
        ("note", {"text": 'Größe 你好 🙂 it\'s "so" \\ back\\n {a} [b] a<b c>d'}),
    ),
    "line breaks": (("note", {"text": "\nfirst\n\n  second\n\tthird\n"}),),
    "nothing, and a negative number": (("ping", {}), ("lookup", {"item": "red cup", "count": -3})),
    "values": (
        (
            "plan",
            {
                "deep": True,
                "ratio": 2.5e-3,
                "nothing": None,
                "count": 12345678901234567890,
                "title": "true",
            },
        ),
    ),
    "texts like values": (("note", {"text": "007"}), ("note", {"text": ""})),
    "a long text": (("note", {"text": 'word "w" 3,\n' * 6}),),
}
AROUND: Sequence[tuple[str, str]] = (
    ("It is <think>x</think> so  {3} \n\n <b> . ", ""),
    ("I call it.\n\n", "\n\nDone <ok>."),
    ("", "\nThat is all."),
)
"""Contents before and after a call."""


@contextmanager
def without_network(server: ParsingVllm, vllm: VllmEndpoint) -> Generator[None]:
    """Let *vllm* have answers parsed by a call of *server*, which is quicker, and the same."""
    by_network = vllm.connection.post

    async def post(call: Call, path: str, body: dict[str, Any]) -> Any:
        if path != DERENDER:
            return await by_network(call, path, body)
        status, answer = server.derendered(write_body(body))
        assert status == 200, answer
        return orjson.loads(answer)

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(vllm.connection, "post", post)
        yield


async def by_vllm(
    vllm: VllmEndpoint, tokens: Sequence[Token]
) -> tuple[tuple[str, list[tuple[str, str]]], tuple[str, list[tuple[str, str]]]]:
    """Return content and calls of vLLM's own parser for the whole answer, and by single tokens."""
    ids = [token.id for token in tokens]
    answer = await vllm._parse_whole(MORE_TOOLS, ids)  # pyright: ignore[reportPrivateUsage]
    state: Mapping[str, Any] = {}
    content = ""
    stream = CallStream(lambda event: None, ServerParser(alone(vllm), MORE_TOOLS))
    for place, token in enumerate(tokens, 1):
        parsed = await vllm.parse_tokens(MORE_TOOLS, [token], state, finished=place == len(tokens))
        state = parsed.state
        content += parsed.content
        stream._add("", parsed.pieces)  # pyright: ignore[reportPrivateUsage]
    return (answer.content, spelt_calls(answer.calls)), (content, spelt_calls(stream.calls))


def spelt_calls(calls: Sequence[ToolCall]) -> list[tuple[str, str]]:
    """Return names and arguments. Arguments that are JSON stand without white space."""
    found: list[tuple[str, str]] = []
    for call in calls:
        arguments = call.arguments
        if is_json(arguments):
            arguments = json.dumps(json.loads(arguments))
        found.append((call.name, arguments))
    return found


@pytest.mark.parametrize("name", sorted(set(SPELLERS) - NEED_A_PACKAGE))
async def test_an_answer_is_read_as_vllm_reads_it(
    serving: Callable[..., ParsingVllm], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spell = SPELLERS[name]
    first = CALLS[:1]
    texts = [spell(calls[:1] if name in ONE_CALL else calls) for calls in ODD_CALLS.values()]
    texts += [before + spell(first) + after for before, after in AROUND]
    server = serving(spell(CALLS), tool=name)
    monkeypatch.setattr(f"{__name__}.TOOLSET", MORE_TOOLS)
    async with connected(server) as vllm:
        for text in texts:
            tokens = tokens_of(server, text)
            with without_network(server, vllm):
                whole_answer, single = await by_vllm(vllm, tokens)
            _, _, stream = await whole(vllm, tokens)
            assert (stream.text, spelt_calls(stream.calls)) == whole_answer, text
            if name in NOT_BY_TOKENS:
                continue
            content, _, stream = await streamed(vllm, tokens, 3)
            calls = spelt_calls(stream.calls)
            if calls != single[1]:  # tokens of the call were lost, and the whole answer has them
                assert calls == whole_answer[1], text
            elif name not in MARKS_LEAK and not single[0].isspace():
                assert content == single[0], text


REASONING = {
    "deepseek_r1": ("<think>", "</think>", "deepseek_v3"),
    "deepseek_v3": ("<think>", "</think>", "deepseek_v31"),
    "deepseek_v4": ("<think>", "</think>", "deepseek_v4"),
    "deepseek_v41": ("<think>", "</think>", "deepseek_v41"),
    "ernie45": ("<think>", "</think>", "ernie45"),
    "gemma4": ("<|channel>thought\n", "<channel|>", "gemma4"),
    "glm45": ("<think>", "</think>", "glm45"),
    "glm47": ("<think>", "</think>", "glm47"),
    "granite": ("Here is my thought process:", "Here is my response:", "granite"),
    "granite_thinking_parser": ("<think>", "</think>", "qwen3_coder"),
    "holo2": ("<think>", "</think>", "hermes"),
    "hunyuan_a13b": ("<think>", "</think>", "hunyuan_a13b"),
    "hy_v3": ("<think>", "</think>", "hy_v3"),
    "hy_v4": ("<think>", "</think>", "hy_v4"),
    "k2_horizon": ("<ifm|think>", "</ifm|think>", "k2_horizon"),
    "kimi_k2": ("<think>", "</think>", "kimi_k2"),
    "ling3": ("<think>", "</think>", "ling3"),
    "mimo": ("<think>", "</think>", "mimo"),
    "minimax_m2": ("<think>", "</think>", "minimax_m2"),
    "minimax_m2_append_think": ("<think>", "</think>", "minimax_m2"),
    "minimax_m3": ("<mm:think>", "</mm:think>", "minimax_m3"),
    "mistral": ("[THINK]", "[/THINK]", "mistral"),
    "nemotron_v3": ("<think>", "</think>", "qwen3_coder"),
    "plamo3": ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>", "plamo3"),
    "qwen3": ("<think>", "</think>", "hermes"),
    "seed_oss": ("<seed:think>", "</seed:think>", "seed_oss"),
    "step3": ("<think>", "</think>", "step3"),
    "step3p5": ("<think>", "</think>", "step3p5"),
}
"""The marks of the thinking, and the parser of tools, that belong to each parser of reasoning."""

STREAM_DROPS_MARKS = {
    "deepseek_v4", "deepseek_v41", "granite_thinking_parser", "mimo", "minimax_m2",
    "minimax_m2_append_think", "nemotron_v3", "step3p5",
}  # fmt: skip
"""Those whose parser of tools takes a thinking block out of an answer that streams."""

ANSWERS = (
    "It costs 3 euros.",
    "It is <think>x</think> so 3.",
    "<think>x</think>It is 3.",
    "<think></think>It is 3.",
    "<think>\n\n</think>\n\nIt is 3.",
    "<think>open only",
    "x</think>closed only",
    "A<think>B",
    "</think>It is 3.",
    "  return x\n",
    '{"a": 1}',
)


@pytest.mark.parametrize("name", sorted(REASONING))
@pytest.mark.parametrize("thinking", [True, False])
async def test_an_answer_is_no_thinking_for_any_parser_of_reasoning(
    serving: Callable[..., ParsingVllm], name: str, *, thinking: bool
) -> None:
    opening, closing, tool = REASONING[name]
    text = SPELLERS.get(tool, SPELLERS["qwen3_coder"])(CALLS)
    server = serving(
        text + "".join(ANSWERS), tool=tool if tool in SPELLERS else "qwen3_coder",
        reasoning=name, around=(opening, closing), thinking=thinking,
    )  # fmt: skip
    settings = {} if thinking else {"template": {"enable_thinking": False}}
    wanted = [(call, dict(arguments)) for call, arguments in CALLS]
    async with connected(server, marks=(opening, closing), **settings) as vllm:
        for answer in ANSWERS:
            tokens = tokens_of(server, answer)
            content, calls, _ = await whole(vllm, tokens)
            assert (content, calls) == (answer, [])
            if "think>" in answer and name in STREAM_DROPS_MARKS:
                continue
            content, calls, _ = await streamed(vllm, tokens, 3)
            assert (content, calls) == (answer, [])
        tokens = tokens_of(server, text)
        content, calls, _ = await whole(vllm, tokens)
        assert (content.strip(), calls) == ("", wanted)
        before, _, _ = await whole(vllm, tokens_of(server, f"It costs 3.\n{text}"))
        assert before.strip() == ("" if tool in DROP_CONTENT else "It costs 3.")
        content, calls, _ = await streamed(vllm, tokens, 3)
        assert calls == wanted
