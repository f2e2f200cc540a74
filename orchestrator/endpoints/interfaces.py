"""
The interface of an endpoint: one served model, whether on one server, on replicas, or as a nested
pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from ..chain import Message, Role, Token, Tool, Toolset
from ..events import Calling, Observer
from ..interfaces import Model
from .chat_template import Template
from .metrics import Acceptance, QueueGauges
from .probe import Capabilities
from .settings import Endpoint, Sampling
from .tool_protocol import ParserState
from .vllm_protocol import GREEDY, Format


class ModelEndpoint(Protocol):
    """
    One server (`VllmEndpoint`), the servers of one model (`ReplicatedEndpoint`), or a pair
    (`NestedEndpoint`).
    """

    @property
    def settings(self) -> Endpoint: ...

    @property
    def role(self) -> Role: ...

    @property
    def name(self) -> str: ...

    @property
    def template(self) -> Template: ...

    @property
    def vocabulary(self) -> str: ...

    @property
    def usable(self) -> bool:
        """Whether a call may work; False only while probes of all servers fail."""
        ...

    @property
    def room(self) -> int: ...

    async def count(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> int: ...

    async def thinks(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> bool: ...

    async def queue(self) -> QueueGauges | None: ...

    async def acceptance(self) -> Acceptance | None: ...

    async def capabilities(self) -> Capabilities: ...

    async def tool_format(self, toolset: Toolset) -> Format | None: ...

    async def parse_answer(
        self, toolset: Toolset, tokens: Sequence[Token], state: ParserState, *, finished: bool
    ) -> tuple[str, tuple[Calling, ...], ParserState]: ...

    def model(
        self,
        sampling: Sampling = GREEDY,
        *,
        observe: Observer = lambda event: None,
        clock: Callable[[], float] | None = None,
        format: Format | None = None,
    ) -> Model: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


class ServerParser:
    """The `AnswerParser` of one answer with *toolset*, by the server of *endpoint*."""

    def __init__(self, endpoint: ModelEndpoint, toolset: Toolset) -> None:
        self._endpoint, self._toolset = endpoint, toolset
        self._state: ParserState = {}

    async def parse(
        self, tokens: Sequence[Token], *, finished: bool
    ) -> tuple[str, tuple[Calling, ...]]:
        text, calls, self._state = await self._endpoint.parse_answer(
            self._toolset, tokens, self._state, finished=finished
        )
        return text, calls
