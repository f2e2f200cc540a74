"""
The runs of a request, and the interface of a reply format: how an API writes the reply.

The Responses API and Anthropic's API share `SingleReply` and `MessageParts`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

from stepspec.orchestrator.endpoints import ModelEndpoint
from stepspec.orchestrator.errors import EndpointError
from stepspec.orchestrator.events import Answering, Calling, Committed, Event, Finished
from stepspec.orchestrator.solution import Solution

from ..errors import ApiError
from ..json_types import JsonFields, JsonObject
from ..records import RunEvent, RunResult, ServiceRequest
from ..settings import Thinking
from . import deltas
from .deltas import KEEP_ALIVE, Delta, DeltaBuilder, TokenCounts
from .requests import RunRequest

RunItem: TypeAlias = RunEvent | RunResult

COUNT_SECONDS = 5.0
"""Seconds for the large model's server to count the tokens of a conversation."""
PROGRESS_EVENTS: tuple[type[Event], ...] = (Committed, Answering, Calling, Finished)
"""The events that show that a run goes well."""


class RequestRuns:
    """The runs of one request, one for each of *run_requests*. *large* is the large model."""

    def __init__(self, run_requests: Sequence[RunRequest], large: ModelEndpoint) -> None:
        self.run_requests = run_requests
        """What each run was asked for, by the index of its choice."""
        self.counts = [TokenCounts() for _ in run_requests]
        """The tokens of each run, by the index of its choice."""
        self.solutions: dict[int, Solution] = {}
        """The solutions of the runs that are over, by the index of their choice."""
        self.thinks = large.template.thinks
        """Whether the large model thinks before it answers."""
        self._large = large

    async def usage(self) -> JsonObject:
        """Return the usage of all runs together, in the form of `deltas.usage`."""
        return deltas.usage(await self.prompt_tokens(), self.counts)

    async def prompt_tokens(self) -> int:
        """Return the number of tokens of the conversation, as the large model reads it."""
        first = self.run_requests[0]
        tools = first.tools.tools if first.tools else ()
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                return await self._large.count(first.problem, tools)
        except (EndpointError, TimeoutError):  # the answer is complete without this number
            return self.counts[0].prompt

    def extension(self, choices: Sequence[int] = (0,)) -> JsonObject:
        """
        Return stepspec's own fields of a reply, about the runs of *choices*.

        These runs are over. By default, the reply is about the first run.
        """
        solutions = [self.solutions[choice] for choice in choices]
        ledgers = [deltas.ledger(solution.ledger) for solution in solutions]
        about = [
            deltas.about(self.solutions[choice], self.run_requests[choice]) for choice in choices
        ]
        steps = deltas.steps(solutions)
        if len(choices) == 1:
            return {"steps": steps, "ledger": ledgers[0], "stepspec": about[0]}
        return {"steps": steps, "ledger": ledgers, "stepspec": about}


class ReplyFormat(ABC):
    """
    How one API writes a reply.

    A stream consists of `opening`, the bytes of `render`, and `closing`. A reply that does not
    stream is the `body`.
    """

    keep_alive: bytes = KEEP_ALIVE
    """The bytes that a stream sends while nothing happens."""
    starts_at: tuple[type[Event], ...] = PROGRESS_EVENTS
    """The events with which a stream starts."""

    async def opening(self) -> bytes:
        """Return the first events of a stream."""
        return b""

    @abstractmethod
    def render(self, item: RunItem) -> bytes:
        """Take in the next *item*, streamed or not. Return its events of a stream."""

    async def closing(self) -> bytes:
        """Return the last events of a stream."""
        return b""

    def failed(self, error: ApiError, body: bytes) -> bytes:
        """Return the last event of a stream that fails. *body* is *error* in the API's shape."""
        return deltas.ANTHROPIC_ERROR_EVENT % body

    @abstractmethod
    async def body(self) -> JsonObject:
        """Return the reply of a request that does not stream."""


class MessageParts(ABC):
    """
    The parts of one message in the form of an API, and the events of a stream that build them.

    A part is the thinking, a text, or a call. An index identifies a call, since a server may repeat
    an id.
    """

    thinking_kind: str
    """The type of a part that is thinking."""
    text_kind: str
    """The type of a part that is text."""

    def __init__(self) -> None:
        self.parts: list[JsonObject] = []
        """The parts so far."""
        self._call_index = -1  # of the last call

    @property
    def _last(self) -> JsonObject:
        """The last part. It is empty if there is none."""
        return self.parts[-1] if self.parts else {}

    @property
    def _index(self) -> int:
        """The index of the last part."""
        return len(self.parts) - 1

    @property
    def _kind(self) -> str | None:
        """The type of the last part. None: there is none."""
        return self._last.get("type")

    def add(self, delta: Delta) -> bytes:
        """Add *delta* to the last part or to new parts. Return the events."""
        events = b"".join(map(self._add_call, delta.ended))
        for name, text in delta.fields.items():
            kind = self.thinking_kind if name == "reasoning" else self.text_kind
            if self._kind != kind:
                events += self.close() + self._open(kind)
            step_fields = {"stepspec": delta.step} if delta.step else {}
            events += self._add_text(text, step_fields)
        return events + b"".join(map(self._add_call, delta.calls))

    def _add_call(self, piece: Calling) -> bytes:
        events = b""
        if self._kind in (self.thinking_kind, self.text_kind) or piece.index != self._call_index:
            events = self.close() + self._open_call(piece)
            self._call_index = piece.index
        return events + self._add_arguments(piece.arguments) if piece.arguments else events

    @abstractmethod
    def close(self) -> bytes:
        """Complete the last part, if it is not complete. Return the events."""

    @abstractmethod
    def _open(self, kind: str) -> bytes:
        """Add an empty part of thinking or of text. Return the events."""

    @abstractmethod
    def _add_text(self, text: str, step_fields: JsonFields) -> bytes:
        """Add *text* to the last part. Return the event, with *step_fields* about the step."""

    @abstractmethod
    def _open_call(self, piece: Calling) -> bytes:
        """Add the call that *piece* begins. Return the events."""

    @abstractmethod
    def _add_arguments(self, arguments: str) -> bytes:
        """Add a piece of the arguments to the last call. Return the event."""


class SingleReply(ReplyFormat):
    """The reply of an API whose requests have one run."""

    def __init__(
        self,
        runs: RequestRuns,
        request: ServiceRequest,
        thinking: Thinking,
    ) -> None:
        self._runs = runs
        (self._run_request,) = runs.run_requests
        self._id = request.id
        # the messages of these APIs have one field for the thinking
        has_field = thinking in ("both", "reasoning_content")
        self._builder = DeltaBuilder("reasoning" if has_field else thinking)

    @property
    def _solution(self) -> Solution:
        return self._runs.solutions[0]
