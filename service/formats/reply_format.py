"""The interface of a reply format: how an API writes the reply to a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from stepspec.orchestrator.events import Answering, Calling, Committed, Event, Finished
from stepspec.orchestrator.solution import Solution

from ..errors import ApiError
from ..records import RunEvent, RunResult
from .requests import RunRequest

RunItem: TypeAlias = RunEvent | RunResult


PROGRESS_EVENTS = (
    Committed,
    Answering,
    Calling,
    Finished,
)  # the events that show that a run goes well


class RequestRuns(Protocol):
    """The runs of one request, as a format reads them."""

    @property
    def run_requests(self) -> Sequence[RunRequest]:
        """What each run was asked for, by the index of its choice."""
        ...

    @property
    def solutions(self) -> Mapping[int, Solution]:
        """The solutions of the runs that are over, by the index of their choice."""
        ...

    @property
    def thinks(self) -> bool:
        """Whether the large model thinks before it answers."""
        ...

    async def usage(self) -> dict[str, Any]:
        """Return the usage of all runs together, in the form of `deltas.usage`."""
        ...

    async def prompt_tokens(self) -> int:
        """Return the number of tokens of the conversation, as the large model reads it."""
        ...

    def extension(self, choices: Sequence[int]) -> dict[str, Any]:
        """Return the fields beyond OpenAI's API about the runs of *choices*, which are over."""
        ...


class ReplyFormat(Protocol):
    """
    How one API writes a reply.

    A stream consists of `opening`, the bytes of `render`, and `closing`. A reply that does not
    stream is the `body`.
    """

    @property
    def keep_alive(self) -> bytes:
        """The bytes that a stream sends while nothing happens."""
        ...

    @property
    def starts_at(self) -> tuple[type[Event], ...]:
        """The events with which a stream starts."""
        ...

    async def opening(self) -> bytes:
        """Return the first events of a stream."""
        ...

    def render(self, item: RunItem) -> bytes:
        """Take in the next *item*, streamed or not. Return its events of a stream."""
        ...

    async def closing(self) -> bytes:
        """Return the last events of a stream."""
        ...

    def failed(self, error: ApiError, body: bytes) -> bytes:
        """Return the last event of a stream that fails. *body* is *error* in the API's shape."""
        ...

    async def body(self) -> dict[str, Any]:
        """Return the reply of a request that does not stream."""
        ...
