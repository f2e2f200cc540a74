"""
The connection to a model served by vLLM: `VllmEndpoint`. All runs share it.

`VllmModel` is the model as one run uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from typing import TypeAlias

from ...chain import Chain, Step, Token, Toolset
from ...concurrency import at_once
from ...endpoints.capabilities import Capabilities
from ...endpoints.chat_template import Template
from ...endpoints.interfaces import (
    Clock,
    Format,
    Messages,
    ParsedAnswer,
    ParsedTokens,
    ParserState,
    Tools,
    or_now,
)
from ...endpoints.metrics import (
    Acceptance,
    QueueGauges,
    read_acceptance,
    read_cache_config,
    read_queue,
    read_start,
)
from ...endpoints.replicas import ReplicatedEndpoint
from ...endpoints.settings import GREEDY, Endpoint, Sampling
from ...errors import (
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    StepspecError,
)
from ...events import Observer
from ...http.http_errors import Call, Reply, reading
from ...http.paths import COMPLETIONS, HEALTH, METRICS, Body
from ...markers import THINK
from ...step_builder import text_of
from . import bodies, tool_protocol
from .model import VllmModel
from .probe import probe
from .server import VllmServer
from .text_tokenizer import AsyncCache
from .tokenizer import ModelTokenizer
from .tokenizer_source import TokenizerSource
from .tool_protocol import DERENDER, RENDER

FIRST_WORDS_TOKENS = 16
"""A model that thinks opens its block within these tokens."""
WARM_UP_TOKENS = 8
"""Tokens that each request of the warm-up writes."""
WARM_UP_BATCHES = (1, 4)
"""The numbers of requests at the same time. Compilers treat a batch of 1 as a special case."""
WARM_UP_SECONDS = 120.0
"""The longest time of a warm-up."""
MAX_TOOLSETS = 64
"""The most sets of tools whose formats are cached."""


Process: TypeAlias = tuple[bytes, bool]
"""
Identifies the process of a server: its start time as the metrics show it, and whether vLLM itself
speculates on tokens. A restarted server is another process.
"""


class VllmEndpoint(VllmServer):
    """
    The connection to one served model. Entering it learns the model's tokenizer and chat template.

    Entering raises an `EndpointError` if the server cannot be used. It raises `MissingCapability`
    if the chat template cannot be learnt. The message names the cure.
    """

    def __init__(self, settings: Endpoint) -> None:
        super().__init__(settings)
        self._process: Process | None = None  # None: not connected yet

    async def _learn(self) -> None:
        self.tokenizer = ModelTokenizer(self._tokenizer_source(), self.settings)
        await self.tokenizer.learn(self._first_words)
        await self._learn_flags()

    def _tokenizer_source(self) -> TokenizerSource:
        return TokenizerSource(self.connection, self.name, self.settings.template)

    async def _first_words(self, prompt: Sequence[int]) -> str:
        """Send *prompt* to the model. Return the first words of the greedy answer."""
        call = self.tokenizer.source.call
        body = bodies.completion_body(self.name, prompt, GREEDY, FIRST_WORDS_TOKENS)
        reply = await self.connection.post(call, COMPLETIONS, body)
        with reading(call, "text", reply):
            return str(reply["choices"][0]["text"])

    async def _learn_flags(self) -> None:
        """
        Find out whether the server speculates on tokens.

        Nothing changes while the metrics show the same process. If the server shows no metrics,
        only the first call has an effect.
        """
        metrics = await self._metrics()
        process = (read_start(metrics), read_acceptance(metrics) is not None)
        if process != self._process and (metrics or self._process is None):
            self._begin(process)

    def _begin(self, process: Process) -> None:
        """Forget what was learnt by trying requests, because the server is now *process*."""
        self._process = process
        _, self.speculates = process
        # A V1 runner that speculates cannot return log-probabilities by token id. The request
        # fails. If the batch has drafted tokens, the engine even ends.
        self.answers_by_id = False if self.speculates else None
        self._tool_formats = AsyncCache(self._tool_format, MAX_TOOLSETS)
        self.connection.priorities = self.settings.priorities

    @property
    def template(self) -> Template:
        return self.tokenizer.template

    @property
    def vocabulary(self) -> str:
        """A hash of the vocabulary. Models that share their token ids have equal hashes."""
        return self.tokenizer.vocabulary

    @property
    def waiting(self) -> int:
        return self.connection.slots.waiting

    @property
    def room(self) -> int:
        return self.tokenizer.context_length

    async def queue(self) -> QueueGauges | None:
        """Read the server's queue. None: the metrics lack it, or the server is unreachable."""
        return read_queue(await self._metrics())

    async def acceptance(self) -> Acceptance | None:
        """Read the counters of token-level speculation. None: the metrics lack these counters."""
        return read_acceptance(await self._metrics())

    async def count(self, messages: Messages, tools: Tools = ()) -> int:
        """Count the tokens before the first step of a chain with *messages* and *tools*."""
        await self.refresh()
        return len(await self.tokenizer.encode_prefix(messages, tools))

    async def check_health(self) -> None:
        """
        Raise `EndpointUnavailable` if ``/health`` answers with a failure.

        A server without this route counts as healthy.
        """
        with suppress(EndpointRejected):
            await self.connection.fetch(self.connection.call("probe"), HEALTH, retries=0)

    async def check_unchanged(self) -> None:
        """
        Raise `EndpointUnavailable` if another model seems to be served.

        Then the vocabulary, the chat template or the context length has changed.
        """
        if await self.tokenizer.has_changed():
            raise self.connection.call("connect").error(
                EndpointUnavailable,
                "another server answers here, or the same server with other flags: stepspec has to"
                " learn it anew",
            )

    async def _look(self) -> None:
        await at_once((self.check_unchanged(), self._learn_flags()))

    def adopt(self, fresh: VllmEndpoint) -> None:
        """Take over what *fresh* has learnt. *fresh* is a new connection to the same server."""
        self.tokenizer = fresh.tokenizer
        self.tokenizer.source = self._tokenizer_source()
        self.cache = fresh.cache
        assert fresh._process, "a connection that was entered has looked at the process"
        self._begin(fresh._process)

    async def thinks(self, messages: Messages, tools: Tools = ()) -> bool:
        """
        Return whether the model thinks in a thinking block before it answers *messages*.

        Every run calls this method first. A restart of the server closes all connections. So the
        server is examined again if a connection was opened since the last examination.
        """
        await self.refresh()
        return (await self.tokenizer.conversation((messages, tools, True))).opened

    async def tool_format(self, toolset: Toolset) -> Format | None:
        """
        Ask the server for the format of an answer that calls tools of *toolset*. None: any format.

        Raise `MissingCapability`, with the cure, if the server has no parser for tool calls.
        """
        return await self._tool_formats(toolset)

    async def parse_answer(self, toolset: Toolset, tokens: Sequence[Token]) -> ParsedAnswer:
        """
        Parse the *tokens* of a complete answer with the server's parser for *toolset*.

        If the parser takes the beginning of the answer for thinking, the answer is parsed again
        with an empty thinking block before it. The first parsing has no empty block, because some
        parsers take an empty block for a part of the answer.
        """
        ids = await self.tokenizer.token_ids(tokens)
        if not ids:
            return ParsedAnswer("", ())
        parsed = await self._parse_whole(toolset, ids)
        markers = self.template.markers
        if parsed.reasoning:
            block = await self.tokenizer.encode_special(f"{markers.opening}\n\n{markers.closing}")
            parsed = await self._parse_whole(toolset, [*block, *ids])
        answer = parsed.after(text_of(tokens), (*markers.marks, *THINK.marks))
        if not answer.calls:
            return answer
        try:
            return answer.with_ids(
                await self.parse_tokens(
                    toolset,
                    tokens,
                    {},
                    finished=True,
                )
            )
        except EndpointRejected:
            return answer

    async def parse_tokens(
        self,
        toolset: Toolset,
        tokens: Sequence[Token],
        state: ParserState,
        *,
        finished: bool,
    ) -> ParsedTokens:
        """
        Parse the next *tokens* of an answer with the server's parser for *toolset*.

        *state* describes the tokens before. *finished* says that these tokens are the last tokens.
        """
        ids = await self.tokenizer.token_ids(tokens)
        call = self.connection.call("parse")
        fields = tool_protocol.tokens_fields(ids, state, finished=finished)
        return tool_protocol.parsed_tokens(
            call,
            await self._parse(
                call,
                toolset,
                fields,
            ),
        )

    async def _parse_whole(self, toolset: Toolset, ids: Sequence[int]) -> ParsedAnswer:
        call = self.connection.call("parse")
        reply = await self._parse(call, toolset, tool_protocol.answer_fields(ids))
        return tool_protocol.parsed_answer(call, reply, parallel=toolset.parallel)

    async def _parse(self, call: Call, toolset: Toolset, fields: Body) -> Reply:
        """Send *fields* to the server's parser for *toolset*. They describe an answer."""
        body = tool_protocol.parsing_body(
            self.name,
            toolset,
            self.settings.template,
            await self.tokenizer.empty_block(),
        )
        return await self.connection.post(call, DERENDER, body | fields)

    async def _tool_format(self, toolset: Toolset) -> Format | None:
        call = self.connection.call("learn the form of tool calls")
        if self.template.markers.opens_message:
            raise call.missing(
                "its chat template opens a message for the answer, in which no tool can be called;"
                " send requests with tools to the model by its own name"
            )
        request = tool_protocol.chat_request(self.name, toolset)
        try:
            reply = await self.connection.post(call, RENDER, request)
        except EndpointRejected as exc:
            raise (tool_protocol.no_parser(call, exc) or exc) from exc
        return tool_protocol.answer_format(call, reply)

    def model(
        self,
        sampling: Sampling = GREEDY,
        *,
        observe: Observer = lambda event: None,
        clock: Clock | None = None,
        format: Format | None = None,
    ) -> VllmModel:
        """
        Make the model of one run. With a *format*, all text of the model is JSON.

        *clock* returns the seconds since the run began. None: the run begins now.
        """
        return VllmModel(self, sampling, observe, or_now(clock), format)

    async def capabilities(self) -> Capabilities:
        """Find out what the server can do."""
        can = await probe(self)
        self.answers_by_id = can.chosen_logprobs
        return can

    async def warm_up(self) -> None:
        """
        Send every kind of request that methods send. Send each first alone, then several at once.

        At the first request for log-probabilities vLLM compiles code, which takes seconds. A failed
        request is ignored, because a run that needs such a request will report the failure. The
        warm-up ends after `WARM_UP_SECONDS` at the latest.
        """
        chain = Chain.of("What is 1 + 1?")
        step = Step("2", "small")
        greedy = self.model()
        sampled = self.model(Sampling(seed=0))
        requests: tuple[Callable[[], Awaitable[object]], ...] = (
            partial(greedy.write, chain, limit=WARM_UP_TOKENS),
            partial(sampled.write, chain, limit=WARM_UP_TOKENS, top=bodies.MAX_LOGPROBS),
            partial(greedy.ask, chain.extend(step), "Is it right?", "0123456789"),
            partial(greedy.score, chain, step.text, top=bodies.MAX_LOGPROBS),
            partial(self.model(format="json").write, chain, limit=WARM_UP_TOKENS),
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(WARM_UP_SECONDS):
                for request, count in product(requests, WARM_UP_BATCHES):
                    await asyncio.gather(*(request() for _ in range(count)), return_exceptions=True)

    async def _metrics(self) -> bytes:
        try:
            metrics = await self.connection.fetch(
                self.connection.call("probe"),
                METRICS,
                retries=0,
            )
        except EndpointError:
            return b""
        self.cache = read_cache_config(metrics) or self.cache
        return metrics


async def warm_up(settings: Endpoint) -> None:
    """Warm up the server that *settings* name. Do nothing if the server cannot be used."""
    with suppress(StepspecError):
        async with VllmEndpoint(settings) as endpoint:
            await endpoint.warm_up()


def connect(settings: Endpoint, *, optional: bool = False) -> ReplicatedEndpoint:
    """
    Make the endpoint that *settings* describe. The endpoint connects on entering.

    An *optional* endpoint can be entered while none of its servers is up.
    """
    return ReplicatedEndpoint(settings, VllmEndpoint, optional=optional)
