"""
The arm ``plain``: the large model as one ordinary request, as a program without stepspec sends it.

The conversation goes to the server's own ``/v1/chat/completions`` as one stream, without steps,
stop strings and token ids. Methods are compared with this arm. On a server that speculates on
tokens, the arm includes this speculation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson

from stepspec.api import Solver
from stepspec.orchestrator.answer import extract
from stepspec.orchestrator.backends.vllm.bodies import completion_body
from stepspec.orchestrator.backends.vllm.replies import ending, usage
from stepspec.orchestrator.chain import Message
from stepspec.orchestrator.endpoints import Sampling
from stepspec.orchestrator.endpoints.interfaces import Server
from stepspec.orchestrator.endpoints.request_context import carrying
from stepspec.orchestrator.errors import ContextTooLong, MalformedReply
from stepspec.orchestrator.http.client import ConnectedEndpoint
from stepspec.orchestrator.http.http_errors import Call, reply_error
from stepspec.orchestrator.http.paths import Body
from stepspec.orchestrator.ledger import Account, Ledger
from stepspec.orchestrator.run import FinishReason
from stepspec.orchestrator.run_options import RunOptions
from stepspec.orchestrator.solution import Solution

PLAIN = "plain"


@dataclass(slots=True)
class Reply:
    """What a stream has brought so far."""

    thinking: str = ""
    """The thinking, as a reasoning parser has found it."""
    text: str = ""
    """The other text."""
    finish: str = ""
    """Why the stream ended; "" until it has ended."""
    prompt: int = 0
    """Tokens of the prompt."""
    cached: int = 0
    """Tokens of the prompt that were in the server's cache."""
    written: int = 0
    """Written tokens. Until the usage at the end, events with text are counted in their place."""

    def add(self, call: Call, event: bytes) -> None:
        """Take in one event of the stream. Raise the error that it carries."""
        try:
            reply: Mapping[str, Any] = orjson.loads(event)
            error = reply_error(call, reply)
            if error is not None:
                raise error
            for choice in reply["choices"]:
                self._add_delta(choice.get("delta") or {})
                self.finish = ending(call, choice) or self.finish
            if reply.get("usage"):
                self.prompt, self.cached, self.written = usage(reply)
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            raise call.error(
                MalformedReply, f"not a piece of a conversation's stream: {event[:200]!r}"
            ) from exc

    def _add_delta(self, delta: Mapping[str, str | None]) -> None:
        # The field of a server with a reasoning parser, in newer and in older versions.
        thought = delta.get("reasoning") or delta.get("reasoning_content") or ""
        text = delta.get("content") or ""
        self.thinking += thought
        self.text += text
        if thought or text:
            self.written += 1

    def parts(self, closing: str, *, thinks: bool) -> tuple[str, str]:
        """
        Return the thinking and the text after it.

        A server without a reasoning parser leaves *closing* between them. If the model *thinks* and
        was cut before that, all is thinking.
        """
        before, mark, after = self.text.partition(closing)
        if mark or (self.cut and thinks and not self.thinking):
            return self.thinking + before, after
        return self.thinking, self.text

    @property
    def cut(self) -> bool:
        """Whether the stream ended before the model did."""
        return self.finish in ("length", "time")


def body(
    model: str,
    messages: Sequence[Message],
    sampling: Sampling,
    limit: int,
    cache: str,
) -> Body:
    """
    Return the request for one stream of at most *limit* tokens.

    *cache* separates its prefixes in the server's cache from those of other arms.
    """
    request: Body = {
        **completion_body(model, (), sampling, limit),
        "messages": [{"role": message.role, "content": message.content} for message in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_salt": cache,
    }
    del request["prompt"]
    if sampling.temperature and sampling.seed is not None:
        request["seed"] = sampling.seed
    return request


async def solve_plain(solver: Solver, problem: str, run: RunOptions) -> Solution:
    """
    Solve *problem* by one request to the large model.

    Raise `ContextTooLong` if the problem leaves no room for an answer.
    """
    large = solver.large
    messages: tuple[Message, ...] = (Message("user", problem),)
    if run.system:
        messages = (Message("system", run.system), *messages)
    room = large.room - await large.call(lambda server: server.count(messages))
    if room <= 0:
        raise ContextTooLong(
            "the problem alone is too long",
            role="large",
            url=large.settings.url,
            verb="write",
        )
    limit = min(run.budget.tokens, room)
    request = body(large.name, messages, run.sampling, limit, PLAIN)
    if large.settings.template:
        request["chat_template_kwargs"] = large.settings.template

    async def ask(server: Server) -> tuple[Reply, float]:
        assert isinstance(server, ConnectedEndpoint)
        reply = Reply()
        clock = asyncio.get_running_loop().time
        began = clock()
        call = server.connection.call("write")
        try:
            async with (
                asyncio.timeout(run.budget.seconds),
                server.connection.stream(call, request, path="/v1/chat/completions") as events,
            ):
                while (event := await events.next()) is not None:
                    reply.add(call, event)
                if not reply.finish:
                    raise call.error(MalformedReply, "the stream ended without a finish_reason")
        except TimeoutError:
            reply.finish = "time"
        return reply, clock() - began

    # A problem has the same replica in every session while that is up.
    with carrying({}, session=problem):
        reply, seconds = await large.call(ask)
    thinks = await large.call(lambda server: server.thinks(messages))
    parts = reply.parts(large.template.markers.closing, thinks=thinks)
    thinking, text = (part.strip() for part in parts)
    spent = Account(
        "large",
        reply.written,
        prompt=reply.prompt,
        cached=reply.cached,
        requests=1,
        writing=seconds,
    )
    return Solution(
        answer=extract(text),
        text=text,
        thinking=thinking,
        steps=(),
        ledger=Ledger(Account("small"), spent),
        finish_reason=cast("FinishReason", reply.finish if reply.cut else "stop"),
        seconds=seconds,
        seed=run.sampling.seed,
    )
