"""
The runs of a request, and the interface of a reply format: how an API writes the reply.

The Responses API and Anthropic's API share `MessageParts`.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

from stepspec.orchestrator.endpoints import ReplicatedEndpoint
from stepspec.orchestrator.errors import EndpointError
from stepspec.orchestrator.events import Answering, Calling, Committed, Event, Finished
from stepspec.orchestrator.json_values import is_json
from stepspec.orchestrator.solution import Solution
from stepspec.orchestrator.trace import EventLog

from ..errors import ApiError
from ..json_types import JsonFields, JsonObject
from ..records import RunEvent, RunResult, ServiceRequest
from ..settings import Thinking
from . import deltas
from .deltas import KEEP_ALIVE, Delta, DeltaBuilder
from .requests import RunRequest
from .schemas import Request

B = TypeVar("B", bound=Request)
RunItem: TypeAlias = RunEvent | RunResult

COUNT_SECONDS = 5.0
"""Seconds for the large model's server to count the tokens of a conversation."""
PROGRESS_EVENTS: tuple[type[Event], ...] = (Committed, Answering, Calling, Finished)
"""The events that show that a run goes well."""


class RequestRuns:
    """The runs of one request, one for each of *run_requests*. *large* is the large model."""

    def __init__(self, run_requests: Sequence[RunRequest], large: ReplicatedEndpoint) -> None:
        self.run_requests = run_requests
        """What each run was asked for, by the index of its choice."""
        self.events = [EventLog() for _ in run_requests]
        """The events of each run so far, by the index of its choice."""
        self.solutions: dict[int, Solution] = {}
        """The solutions of the runs that are over, by the index of their choice."""
        self._large = large

    async def usage(self) -> JsonObject:
        """Return the usage of all runs together, in the form of `deltas.usage`."""
        requests = [deltas.calls_of(events) for events in self.events]
        cached = max([calls[0].cached for calls in requests if calls], default=0)
        return deltas.usage(await self.prompt_tokens(), cached, self.solutions.values())

    async def prompt_tokens(self) -> int:
        """Return the number of tokens of the conversation, as the large model reads it."""
        wanted = self.run_requests[0].wanted
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                return await self._large.call(
                    lambda server: server.count(wanted.conversation, wanted.tools.tools)
                )
        except (EndpointError, TimeoutError):  # the answer is complete without this number
            calls = deltas.calls_of(self.events[0])
            return calls[0].prompt if calls else 0

    def extension(self, *choices: int) -> JsonObject:
        """Return stepspec's own fields of a reply, about the runs of *choices*, which are over."""
        solutions = [self.solutions[choice] for choice in choices]
        fields: JsonObject = {
            "ledger": [deltas.ledger(solution.ledger) for solution in solutions],
            "stepspec": [
                deltas.about(solution, self.run_requests[choice].run.policy)
                for choice, solution in zip(choices, solutions, strict=True)
            ],
        }
        if len(choices) == 1:
            fields = {name: values[0] for name, values in fields.items()}
        return {"steps": deltas.steps(solutions), **fields}


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


PartKind: TypeAlias = Literal["thinking", "text", "call"]


@dataclass(slots=True)
class MessagePart:
    """A part of a message."""

    kind: PartKind
    """What the part is."""
    index: int
    """The place of the part in the message."""
    call: Calling
    """The first piece of the call. It is empty if the part is no call."""
    text: str = ""
    """The text so far. The text of a call is its arguments."""
    status: str = "in_progress"
    """"in_progress", "completed", or "incomplete" if the message was cut off here."""


class MessageParts(ABC):
    """
    The parts of one message, and the events of a stream that build them.

    An index identifies a call, since a server may repeat an id.
    """

    def __init__(self) -> None:
        self.parts: list[MessagePart] = []
        """The parts so far."""

    def add(self, delta: Delta) -> bytes:
        """Add *delta* to the last part or to a new part. Return the events."""
        if delta.call is not None:
            return self._add("call", delta.call.arguments, delta)
        texts = [*delta.fields.values()]
        if not texts:
            return b""
        # the thinking may be in two fields, with the same text
        return self._add("text" if "content" in delta.fields else "thinking", texts[0], delta)

    def _add(self, kind: PartKind, text: str, delta: Delta) -> bytes:
        call = delta.call or Calling(-1)
        events = b""
        last = self.parts[-1] if self.parts else None
        if last is None or (last.kind, last.call.index) != (kind, call.index):
            events = self.close()
            last = MessagePart(kind, len(self.parts), call)
            self.parts.append(last)
            events += self._opened(last)
        last.text += text
        if text or delta.step:
            step_fields = {"stepspec": delta.step} if delta.step else {}
            events += self._extended(last, text, step_fields)
        return events

    def close(self, status: str = "completed") -> bytes:
        """Give the last part its final *status*, if it has none. Return the events."""
        if not self.parts or self.parts[-1].status != "in_progress":
            return b""
        self.parts[-1].status = status
        return self._closed(self.parts[-1])

    def kept(self, *, cut: bool) -> list[MessagePart]:
        """
        Return the parts of a reply in one piece.

        If the answer was *cut* off, calls whose arguments are no JSON are left out. A stream cannot
        leave them out, because it announced them earlier.
        """
        return [part for part in self.parts if not cut or part.kind != "call" or is_json(part.text)]

    @abstractmethod
    def _opened(self, part: MessagePart) -> bytes:
        """Return the events that announce *part*."""

    @abstractmethod
    def _extended(self, part: MessagePart, text: str, step_fields: JsonFields) -> bytes:
        """Return the event that adds *text* to *part*, with *step_fields* about the step."""

    @abstractmethod
    def _closed(self, part: MessagePart) -> bytes:
        """Return the events that complete *part*."""


class ApiReply(ReplyFormat, Generic[B]):
    """How OpenAI's or Anthropic's API writes the reply to a request."""

    def __init__(
        self,
        runs: RequestRuns,
        request: ServiceRequest,
        body: B,
        thinking: Thinking,
    ) -> None:
        self._runs = runs
        self._request_id = request.id
        self._created = int(time.time())
        self._body = body
        self._builders = [DeltaBuilder(thinking) for _ in runs.run_requests]

    def render(self, item: RunItem) -> bytes:
        added = self._builders[item.choice].add(item)
        return b"".join([self._render_delta(item.choice, delta) for delta in added])

    @abstractmethod
    def _render_delta(self, choice: int, delta: Delta) -> bytes:
        """Return the events of *delta*, which continues the message of a run."""

    @property
    def _solution(self) -> Solution:
        """The solution of the first run."""
        return self._runs.solutions[0]
