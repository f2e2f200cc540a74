"""How an API writes the reply to a request: what `http.runs` asks of a format."""

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
        """The usage of all runs together; see `deltas.usage`."""
        ...

    async def prompt_tokens(self) -> int:
        """The tokens of the conversation, as the large model reads it."""
        ...

    def extension(self, choices: Sequence[int]) -> dict[str, Any]:
        """The fields beyond OpenAI's API, about the runs of some *choices* that are over."""
        ...


class ReplyFormat(Protocol):
    """
    How one API writes a reply. `render` is called with every item in order, streamed or not.

    A stream starts with the first event of *starts_at*. Its bytes are the `opening`, what `render`
    returns, and the `closing`; *keep_alive* is sent while nothing happens. If it fails, the last
    event is `failed`, whose *body* is the error in the shape of the API. The reply to a request
    that does not stream is the `body`.
    """

    @property
    def keep_alive(self) -> bytes: ...

    @property
    def starts_at(self) -> tuple[type[Event], ...]: ...

    async def opening(self) -> bytes: ...

    def render(self, item: RunItem) -> bytes: ...

    async def closing(self) -> bytes: ...

    def failed(self, error: ApiError, body: bytes) -> bytes: ...

    async def body(self) -> dict[str, Any]: ...
