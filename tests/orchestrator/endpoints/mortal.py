"""Endpoints on scripted models that may be up or down, on a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self, TypeVar, Unpack, cast

from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.chain import Chain, Message, Role, Step, Token, Tool, Toolset
from stepspec.orchestrator.endpoints import Endpoint, ReplicatedEndpoint, Sampling, Template
from stepspec.orchestrator.endpoints.interfaces import (
    Format,
    ParsedAnswer,
    ParsedTokens,
    ParserState,
    SingleModel,
)
from stepspec.orchestrator.endpoints.metrics import QueueGauges
from stepspec.orchestrator.errors import EndpointError, EndpointUnavailable
from stepspec.orchestrator.events import Called, Event, Observer
from stepspec.orchestrator.interfaces import WriteOptions

from ...fakes import ScriptedModel

T = TypeVar("T")
NEVER = float("inf")


@dataclass(eq=False)
class Mortal:
    """
    A server of *scripted*, dead from the second *dies* until *revives*: requests in between fail.

    *calls* counts the verbs begun here, *entered* the connections made and not yet closed, *looks*
    all of them. To connect takes *far* seconds.
    """

    url: str
    scripted: ScriptedModel
    dies: float = NEVER
    revives: float = NEVER
    name: str = "model"
    vocabulary: str = "words"
    template: Template = field(default_factory=lambda: Template("turn", "answer"))
    room: int = 4096
    queue: QueueGauges | None = None
    broken: EndpointError | None = None  # what becomes of a question about its features
    unhealthy: EndpointError | None = None  # what it says of itself
    far: float = 0.0
    calls: int = 0
    entered: int = 0
    looks: int = 0

    @property
    def alive(self) -> bool:
        return not self.dies <= asyncio.get_running_loop().time() < self.revives

    async def called(self, work: Awaitable[T]) -> T:
        self.calls += 1
        return await self.living(work)

    async def living(self, work: Awaitable[T]) -> T:
        """Wait for *work* as long as the server lives."""
        doomed = asyncio.get_running_loop().time() < self.revives
        try:
            async with asyncio.timeout_at(self.dies if doomed and self.dies < NEVER else None):
                return await work
        except TimeoutError:
            raise self.gone() from None

    def gone(self) -> EndpointUnavailable:
        return EndpointUnavailable(f"{self.url} is dead", role=self.scripted.role, url=self.url)


class MortalEndpoint:
    """The public face of an endpoint, over one mortal server."""

    def __init__(self, settings: Endpoint, server: Mortal) -> None:
        self.settings = settings
        self.server = server
        self.name = ""
        self.role: Role = settings.role
        self.template = server.template
        self.vocabulary = server.vocabulary
        self.room = server.room

    async def __aenter__(self) -> Self:
        self.server.looks += 1
        await asyncio.sleep(self.server.far)
        if not self.server.alive:
            raise self.server.gone()
        self.server.entered += 1
        self.name = self.server.name
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.server.entered -= 1

    async def count(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> int:
        await self.server.living(asyncio.sleep(0))
        return sum(len(message.content.split()) for message in messages) + len(tools)

    async def thinks(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> bool:
        await self.server.living(asyncio.sleep(0))
        return True

    async def tool_format(self, toolset: Toolset) -> Format | None:
        await self.server.living(asyncio.sleep(0))
        return None

    async def parse_answer(self, toolset: Toolset, tokens: Sequence[Token]) -> ParsedAnswer:
        await self.server.living(asyncio.sleep(0))
        return ParsedAnswer("".join(token.text for token in tokens), ())

    async def parse_tokens(
        self, toolset: Toolset, tokens: Sequence[Token], state: ParserState, *, finished: bool
    ) -> ParsedTokens:
        await self.server.living(asyncio.sleep(0))
        return ParsedTokens("".join(token.text for token in tokens), (), {"url": self.server.url})

    async def queue(self) -> QueueGauges | None:
        return self.server.queue if self.server.alive else None

    async def check_health(self) -> None:
        await asyncio.sleep(0)
        if self.server.unhealthy:
            raise self.server.unhealthy

    async def check_unchanged(self) -> None:
        await asyncio.sleep(0)

    def without_questions(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def adopt(self, fresh: VllmEndpoint) -> None:
        self.name = fresh.name

    def model(
        self,
        sampling: Sampling | None = None,
        *,
        observe: Observer = lambda event: None,
        clock: Callable[[], float] | None = None,
        format: Format | None = None,
    ) -> MortalModel:
        def tell(event: Event) -> None:
            observe(replace(event, url=self.server.url) if isinstance(event, Called) else event)

        self.server.scripted.observe = tell
        return MortalModel(self.server, self.settings.deadlines.first)


@dataclass(eq=False)
class MortalModel(SingleModel):
    """What one run asks of a mortal server, whose tokens have *first* seconds."""

    server: Mortal
    first: float

    @property
    def role(self) -> Role:
        return self.server.scripted.role

    async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
        try:
            async with asyncio.timeout(self.first):
                return await self.server.called(self.server.scripted.write(chain, **options))
        except TimeoutError:
            raise EndpointUnavailable(
                f"no token in the first {self.first:g} s", url=self.server.url
            ) from None

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        return await self.server.called(self.server.scripted.score(chain, *spans, top=top))

    async def ask(
        self, chain: Chain, question: str, choices: Sequence[str], *, opening: str = ""
    ) -> Mapping[str, float]:
        return await self.server.called(
            self.server.scripted.ask(chain, question, choices, opening=opening)
        )


def replicated(*servers: Mortal, optional: bool = False, **deadlines: float) -> ReplicatedEndpoint:
    """Put *servers* behind one endpoint."""
    by_url = {server.url: server for server in servers}
    settings = Endpoint.model_validate(
        {"role": servers[0].scripted.role, "url": ",".join(by_url), "deadlines": deadlines}
    )

    def make(settings: Endpoint) -> VllmEndpoint:
        return cast("VllmEndpoint", MortalEndpoint(settings, by_url[settings.url]))

    return ReplicatedEndpoint(settings, make, optional=optional)
