"""The servers of one model as one endpoint: `placement` chooses among them, and `breaker` watches over their health."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any, Self, TypeVar

from ..chain import Message, Role, Token, Tool, Toolset
from ..errors import EndpointUnreachable, StepspecError
from ..events import Calling, Observer
from ..stats import Acceptance
from .breaker import Health
from .chat_template import Template
from .interfaces import ModelServer
from .metrics import QueueGauges, total
from .placement import Placement, ReplicatedModel
from .probe import Capabilities
from .settings import Endpoint, Sampling
from .token_stream import or_now
from .tool_protocol import ParserState
from .vllm import VllmEndpoint
from .vllm_protocol import GREEDY, Format

T = TypeVar("T")


def connect(settings: Endpoint, table: str = "", *, optional: bool = False) -> ReplicatedEndpoint:
    """
    Make the endpoint that *settings* describe; it connects on entering. Errors name the *table* of the settings.

    An *optional* one may be entered while no server of it is up.
    """
    return ReplicatedEndpoint(settings, lambda server: VllmEndpoint(server, table), optional=optional)


class ReplicatedEndpoint:
    """
    The servers of one model, or the only one, as *settings* list them; *make* makes the endpoint of each.

    Entering succeeds if one server is up, or if the model is *optional*; `down` lists the others. Raise
    `EndpointUnavailable`, with every URL and its cause, if none is up, and `EndpointRejected` for a server with another
    model, vocabulary or chat template than the others, or that `refuses` gives a reason against.

    Each server has a circuit breaker. A failed call has the server probed at once, and until it passes a probe no other
    call is sent there. While no server works, a call waits for one for `patience` seconds.
    """

    def __init__(
        self,
        settings: Endpoint,
        make: Callable[[Endpoint], ModelServer] = VllmEndpoint,
        *,
        optional: bool = False,
    ) -> None:
        self.settings, self.patience = settings, 0.0
        self._health, self._optional = Health(settings, make), optional

    async def __aenter__(self) -> Self:
        await self._health.start(optional=self._optional)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._health.stop()

    @property
    def refuses(self) -> Callable[[ModelServer], str]:
        """What gives a reason against a server, or "" for none."""
        return self._health.refuses

    @refuses.setter
    def refuses(self, refuses: Callable[[ModelServer], str]) -> None:
        self._health.refuses = refuses

    @property
    def role(self) -> Role:
        return self.settings.role

    @property
    def name(self) -> str:
        """What the model calls itself; as long as no server of it was up, what the settings call it."""
        return self._first.name if self.known else self.settings.model or "unknown"

    @property
    def known(self) -> bool:
        """Whether a server was up at least once, so that template, vocabulary and room are known."""
        return any(self._health.entered)

    @property
    def usable(self) -> bool:
        """Whether a server works, or is being probed."""
        return any(replica.breaker.state != "open" for replica in self._health.replicas)

    @property
    def template(self) -> Template:
        return self._first.template

    @property
    def vocabulary(self) -> str:
        return self._first.vocabulary

    @property
    def room(self) -> int:
        return min(endpoint.room for endpoint in self._health.up or self._health.entered)

    @property
    def up(self) -> tuple[ModelServer, ...]:
        """The servers whose circuits are closed."""
        return tuple(self._health.up)

    @property
    def down(self) -> Mapping[str, str]:
        """The URL and the cause of every replica that failed and has passed no probe since."""
        return self._health.down

    @property
    def runs(self) -> Mapping[str, int]:
        """The number of runs and forwarded requests on the replica at each URL."""
        return {replica.url: len(replica.runs) for replica in self._health.replicas}

    @property
    def _first(self) -> ModelServer:
        return next(iter(self._health.up or self._health.entered))

    async def call(self, verb: Callable[[ModelServer], Awaitable[T]]) -> T:
        """
        Call *verb* on one server, or on the next if it raises `EndpointUnavailable` or `MalformedReply`.

        The failures are those of the server, which is then probed. The call counts as a run of its server meanwhile.
        """
        placement = Placement(self._health, lambda event: None, self.patience)
        try:
            return await placement.call(verb)
        finally:
            placement.leave()

    def report(self, url: str, exc: StepspecError) -> None:
        """Have the server at *url* probed, as something failed there that was no `call`: a health check, a stream."""
        self._health.report(url, exc)

    async def count(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> int:
        """Count the tokens that a chain about *messages* begins with."""
        return await self.call(lambda endpoint: endpoint.count(messages, tools))

    async def thinks(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> bool:
        """Ask a server as `VllmEndpoint.thinks` says."""
        return await self.call(lambda endpoint: endpoint.thinks(messages, tools))

    async def tool_format(self, toolset: Toolset) -> Format | None:
        """Ask a server as `VllmEndpoint.tool_format` does."""
        return await self.call(lambda endpoint: endpoint.tool_format(toolset))

    async def parse_answer(
        self, toolset: Toolset, tokens: Sequence[Token], state: ParserState, *, finished: bool
    ) -> tuple[str, tuple[Calling, ...], ParserState]:
        """Let any server parse, as `VllmEndpoint.parse_answer` does: *state* is all that it needs."""
        return await self.call(lambda endpoint: endpoint.parse_answer(toolset, tokens, state, finished=finished))

    async def queue(self) -> QueueGauges | None:
        """Add up the queues of the servers; None if no server reports one."""
        return QueueGauges.sum(await asyncio.gather(*(endpoint.queue() for endpoint in self._health.up)))

    async def acceptance(self) -> Acceptance | None:
        """Add up the servers' counters of token-level speculation; None if no server speculates."""
        return total(await asyncio.gather(*(endpoint.acceptance() for endpoint in self._health.up)))

    async def capabilities(self) -> Capabilities:
        """
        Find out what all servers can do that were up at least once.

        Those that cannot be reached now are left out; raise `EndpointUnreachable` if none can.
        """
        asked = [endpoint.capabilities() for endpoint in self._health.entered]
        found = await asyncio.gather(*asked, return_exceptions=True)
        every = [each for each in found if isinstance(each, Capabilities)]
        for failure in found:
            if isinstance(failure, BaseException) and not (every and isinstance(failure, EndpointUnreachable)):
                raise failure
        shared: dict[str, Any] = {}
        for name in [capability.name for capability in fields(Capabilities)]:
            first, *others = values = [getattr(capabilities, name) for capabilities in every]
            shared[name] = first if all(other == first for other in others) else False if False in values else None
        return Capabilities(**shared)

    def model(
        self,
        sampling: Sampling = GREEDY,
        *,
        observe: Observer = lambda event: None,
        clock: Callable[[], float] | None = None,
        format: Format | None = None,
    ) -> ReplicatedModel:
        """Make the model of one run, as `VllmEndpoint.model` does; a run that is over calls `ReplicatedModel.leave`."""
        clock = or_now(clock)
        placement = Placement(self._health, observe, self.patience)
        return ReplicatedModel(
            placement, lambda endpoint: endpoint.model(sampling, observe=observe, clock=clock, format=format)
        )
