"""
vLLM's own parsers of answers, in this process: the code of its route `DERENDER`, without a model.

`ParsingVllm` is a stand-in whose answers are parsed by them. Its vocabulary is the miniature
pair's, with the marks of a model family as special tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import orjson
from aiohttp import web
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.scale_out.token_in_token_out.protocol import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderStreamState,
)
from vllm.parser import ParserManager
from vllm.renderers.online_derenderer import OnlineDerenderer

from ..orchestrator.backends.real_vocabularies import RealVllm
from ..stand_in import DERENDER, IM_END, SPECIAL, THINK
from ..vocabularies import MINIATURE, real_vocabulary

MODEL = "fake"
# What looks like a mark, but has spaces, or is an element with a name in it, is text.
_MARK = re.compile(r"<[^<>\s{}=]{1,60}>|\[[A-Z_]{2,}\]|<\uff5c[^<>=]{1,40}\uff5c>")
_TEXTUAL = re.compile(r"</?(?:function|param|parameter|invoke|item|count|text|steptml:.*|atem:.*)>")


def marks_of(text: str) -> set[str]:
    """Return the parts of *text* that are special tokens of the model that writes it."""
    return {mark for mark in _MARK.findall(text) if not _TEXTUAL.fullmatch(mark)}


def vocabulary(marks: Iterable[str]) -> Tokenizer:
    """Load the miniature pair's tokenizer, with further special tokens *marks*."""
    tokenizer = Tokenizer.from_file(str(real_vocabulary(MINIATURE)))
    added = [AddedToken(mark, special=True, normalized=False) for mark in sorted(marks)]
    tokenizer.add_special_tokens(added)  # pyright: ignore[reportUnknownMemberType]
    return tokenizer


class ReadingOn:
    """vLLM's *parser* after the first *count* parts of an answer, which it is not given again."""

    def __init__(self, parser: Any, count: int) -> None:
        self._parser = parser
        self._known = count

    def parse_delta(self, *arguments: Any, **options: Any) -> Any:
        if self._known:
            self._known -= 1
            return None
        return self._parser.parse_delta(*arguments, **options)


class Derenderer:
    """
    vLLM's parsers *tool* and *reasoning*, by their names for the command line.

    For each token of a stream, vLLM lets a new parser read all tokens again, which takes most of
    the time. Here a stream that goes on has the parser of its last request, which has read the
    same.
    """

    def __init__(self, tokenizer: Tokenizer, tool: str | None, reasoning: str | None) -> None:
        known: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
        parser = ParserManager.get_parser(
            tool, reasoning, enable_auto_tools=tool is not None, tokenizer=known
        )
        # Its constructor needs the configuration of a whole model.
        made: Any = OnlineDerenderer.__new__(OnlineDerenderer)
        made.renderer = SimpleNamespace(get_tokenizer=lambda: known, tokenizer=known)
        made.model_config = None
        made.parser = parser
        made.enable_auto_tools = tool is not None
        made.use_harmony = False
        made.chat_template = None
        made.chat_template_content_format = "auto"
        made.default_chat_template_kwargs = {}
        made._detokenize_delta = self._detokenized
        self._derenderer = made
        self._texts: dict[object, Any] = {}
        self._goes_on: dict[str, Any] | None = None
        """What the next request of the last stream has in common with the last answer."""
        self._reading: Any = None
        """The parser of the last stream."""

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer the *body* of a request to `DERENDER`."""
        if body.get("stream"):
            return self._tokens(body)
        request = DerenderChatRequest.model_validate(body)
        choices = self._derenderer._derender_chat(
            request.generate_response, request.chat_request, request.prompt_token_ids
        )
        return {"choices": [choice.model_dump() for choice in choices]}

    def _tokens(self, body: dict[str, Any]) -> dict[str, Any]:
        request = DerenderChatStreamRequest.model_validate(body)
        state = request.stream_state or DerenderStreamState()
        goes_on = self._goes_on is not None and self._goes_on.items() <= body.items()
        known = ReadingOn(self._reading, len(state.output_chunk_lens)) if goes_on else None
        self._goes_on = None  # a parser that fails here is not used again

        def parser(*arguments: Any, **options: Any) -> Any:
            if known is not None:
                return known
            self._reading = self._derenderer.parser(*arguments, **options)
            return self._reading

        chunk, state = self._derenderer._derender_chat_stream_parsed(
            parser,
            MODEL,
            request.generate_chunk,
            state,
            request.chat_request,
            None,
            request.prompt_token_ids,
        )
        after = state.model_dump()
        if not any(choice.finish_reason for choice in request.generate_chunk.choices):
            self._goes_on = {**body, "stream_state": after}
            del self._goes_on["generate_chunk"]
        return {"chunk": chunk.model_dump(), "stream_state": after}

    def _detokenized(
        self, tokenizer: Any, ids: Sequence[int], state: DerenderStreamState, **options: bool
    ) -> Any:
        """Remember the texts of tokens, which vLLM finds again for each token of a stream."""
        window = (tuple(state.prev_tokens), state.prefix_offset, state.read_offset)
        key = (tuple(ids), window, tuple(options.items()))
        if key not in self._texts:
            find: Any = OnlineDerenderer._detokenize_delta  # pyright: ignore[reportPrivateUsage]
            self._texts[key] = find(self._derenderer, tokenizer, list(ids), state, **options)
        return self._texts[key]


@dataclass
class ParsingVllm(RealVllm):
    """A stand-in with vLLM's own parsers *tool* and *reasoning*."""

    tool: str | None = "hermes"
    reasoning: str | None = None
    marks: Iterable[str] = ()
    """Its special tokens, beside those of its template."""

    around: tuple[str, str] = ("<think>", "</think>")
    """What opens and what closes its thinking."""

    thinking: bool = True
    """Whether its template opens the thinking block; if not, it shows an empty one."""

    scale_out: bool = True
    parser: Derenderer = field(init=False)
    answers: dict[bytes, tuple[int, bytes]] = field(default_factory=dict[bytes, tuple[int, bytes]])
    """
    The status and the answer of each request so far. vLLM keeps no state: equal requests have equal
    answers.
    """

    def __post_init__(self) -> None:
        self.tokenizer = vocabulary({*SPECIAL, *self.marks, *marks_of("".join(self.around))})
        self.parser = Derenderer(self.tokenizer, self.tool, self.reasoning)
        self.end = self.id(IM_END.encode())

    def render(
        self, messages: list[dict[str, Any]], generate: bool, tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        opening, closing = self.around
        block = f"{opening}\n" if self.thinking else f"{opening}\n\n{closing}\n\n"
        return super().render(messages, generate, tools).replace(f"{THINK}\n", block)

    async def parse_tools(self, request: web.Request) -> web.Response:
        if request.path != DERENDER:
            return await super().parse_tools(request)
        status, answer = self.derendered(await request.read())
        return web.Response(body=answer, status=status, content_type="application/json")

    def derendered(self, content: bytes) -> tuple[int, bytes]:
        """Return the status and the answer of vLLM's route to a request."""
        if content not in self.answers:
            status = 200
            try:
                answer = self.parser.answer(orjson.loads(content))
            except Exception as exc:  # vLLM's route answers so, too
                status = 400
                answer = {"error": {"message": str(exc), "code": 400}}
            self.answers[content] = status, json.dumps(answer).encode()
        return self.answers[content]
