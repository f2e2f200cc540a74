"""
The arm ``plain``: the large model as one ordinary request, as a program without stepspec sends it
today.

The conversation goes to the server's own ``/v1/chat/completions`` as one stream. No steps, no stop
strings, no token ids: what stepspec does and costs is measured against this. On a server that
speculates on tokens, the arm is the large model with this speculation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from stepspec.api import Solver
from stepspec.orchestrator.answer import extract
from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.backends.vllm.bodies import Body, completion_body
from stepspec.orchestrator.backends.vllm.http_errors import Call, reply_error
from stepspec.orchestrator.backends.vllm.replies import ending, usage
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Message, Role
from stepspec.orchestrator.endpoints import ReplicatedEndpoint, Sampling
from stepspec.orchestrator.endpoints.interfaces import Server
from stepspec.orchestrator.endpoints.request_context import carrying
from stepspec.orchestrator.errors import ContextTooLong, MalformedReply
from stepspec.orchestrator.ledger import Account, Ledger
from stepspec.orchestrator.run import FinishReason
from stepspec.orchestrator.solution import Solution

PLAIN = "plain"
CHAT = "/v1/chat/completions"
REASONING = ("reasoning", "reasoning_content")  # of a server with a reasoning parser, by version


@dataclass(slots=True)
class Reply:
    """What came of a stream so far; *moments* are the seconds of its first and last tokens."""

    thinking: list[str] = field(default_factory=list[str])
    text: list[str] = field(default_factory=list[str])
    finish: str = ""
    prompt: int = 0
    cached: int = 0
    written: int = 0
    moments: list[float] = field(default_factory=list[float])

    def add(self, call: Call, event: bytes, at: float) -> None:
        """Take in one event of the stream. Raise the error that it carries."""
        try:
            reply: Mapping[str, Any] = orjson.loads(event)
            if (error := reply_error(call, reply)) is not None:
                raise error
            for choice in reply["choices"]:
                delta = cast("Mapping[str, str | None]", choice.get("delta") or {})
                thought = next((delta[name] for name in REASONING if delta.get(name)), None)
                if thought or delta.get("content"):
                    self.moments = [*self.moments[:1], at]
                    # until the usage at the end says it, which a stream that is cut lacks
                    self.written += 1
                self.thinking.append(thought or "")
                self.text.append(delta.get("content") or "")
                self.finish = ending(call, choice) or self.finish
            if reply.get("usage"):
                self.prompt, self.cached, self.written = usage(reply)
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            raise call.error(
                MalformedReply, f"not a piece of a conversation's stream: {event[:200]!r}"
            ) from exc

    def parts(self, closing: str, *, thinks: bool) -> tuple[str, str]:
        """
        Return the thinking and the text after it; a server without a reasoning parser leaves
        *closing* between.

        If the model *thinks* and was cut before that, all is thinking.
        """
        thinking = "".join(self.thinking)
        text = "".join(self.text)
        before, mark, after = text.partition(closing)
        return (
            (thinking + before, after)
            if mark or (self.cut and thinks and not thinking)
            else (thinking, text)
        )

    @property
    def cut(self) -> bool:
        """Whether the stream ended before the model did."""
        return self.finish in ("length", "time")

    @property
    def pace(self) -> float | None:
        """
        Seconds per token between the first and the last token; None for fewer than two tokens.
        """
        if len(self.moments) < 2 or self.written < 2:
            return None
        return (self.moments[1] - self.moments[0]) / (self.written - 1)


def body(
    model: str, messages: Sequence[Message], sampling: Sampling, limit: int, cache: str
) -> Body:
    """
    The request for one stream of at most *limit* tokens; *cache* separates its prefixes from those
    of other arms.
    """
    made = completion_body(model, (), sampling, limit)
    del made["prompt"]
    seeded = {"seed": sampling.seed} if sampling.temperature and sampling.seed is not None else {}
    return {
        **made,
        **seeded,
        "messages": [{"role": message.role, "content": message.content} for message in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_salt": cache,
    }


async def solve_plain(
    solver: Solver,
    problem: str,
    sampling: Sampling,
    budget: Budget,
    clock: Callable[[], float],
    system: str | None = None,
) -> tuple[Solution, Mapping[Role, float]]:
    """
    Solve *problem* by one request to the large model; return the solution, and the seconds per
    token by role.

    Raise `ContextTooLong` if the problem leaves no room for an answer.
    """
    large = solver.large
    messages = (*([Message("system", system)] if system else []), Message("user", problem))
    room = large.room - await large.count(messages)
    if room <= 0:
        raise ContextTooLong(
            "the problem alone is too long", role="large", url=large.settings.url, verb="write"
        )
    request = body(large.name, messages, sampling, min(budget.tokens, room), PLAIN)
    if large.settings.template:
        request["chat_template_kwargs"] = large.settings.template

    async def ask(server: Server) -> tuple[Reply, float]:
        assert isinstance(server, VllmEndpoint)
        reply = Reply()
        began = clock()
        call = server.connection.call("write")
        try:
            async with (
                asyncio.timeout(budget.seconds),
                server.connection.stream(call, request, path=CHAT) as events,
            ):
                while (event := await events.next()) is not None:
                    reply.add(call, event, clock())
                if not reply.finish:
                    raise call.error(MalformedReply, "the stream ended without a finish_reason")
        except TimeoutError:
            reply.finish = "time"
        return reply, clock() - began

    assert isinstance(large, ReplicatedEndpoint)
    # A problem has the same replica in every session while that is up.
    with carrying({}, session=problem):
        reply, seconds = await large.call(ask)
    parts = reply.parts(large.template.markers.closing, thinks=await large.thinks(messages))
    thinking, text = (part.strip() for part in parts)
    spent = Account(
        "large",
        reply.written,
        prompt=reply.prompt,
        cached=reply.cached,
        requests=1,
        writing=seconds,
    )
    solution = Solution(
        answer=extract(text),
        text=text,
        thinking=thinking,
        steps=(),
        ledger=Ledger(Account("small"), spent),
        finish_reason=cast("FinishReason", reply.finish if reply.cut else "stop"),
        seconds=seconds,
        seed=sampling.seed,
    )
    return solution, {} if reply.pace is None else {"large": reply.pace}
