"""A scripted model that keeps its requests open in a real `StickyStream`, on a clock that jumps."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import cast
from weakref import WeakKeyDictionary

from stepspec.orchestrator.backends.vllm.sticky_stream import StickyStream
from stepspec.orchestrator.backends.vllm.token_stream import TokenStream
from stepspec.orchestrator.chain import THINK_END, Chain, Step, Stop, Token
from stepspec.orchestrator.events import Called, Started
from stepspec.orchestrator.http.request_meter import metered
from stepspec.orchestrator.interfaces import DEFAULT_LIMIT, OPEN_REQUESTS
from stepspec.orchestrator.reason import reason
from stepspec.orchestrator.step_builder import Closing
from stepspec.orchestrator.trace import Moment, Recorder
from stepspec.policies import SpecReason

from ...fakes import ScriptedModel, Until, counting, run
from ..arms import PROBLEM, pair

CLOSING = Closing(THINK_END)


@dataclass(eq=False)
class StreamingModel(ScriptedModel):
    """
    Its server sends *chunk* tokens at a time, each chunk after *pace* seconds, the first one after
    the latency.
    """

    chunk: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._streams: WeakKeyDictionary[AsyncExitStack, StickyStream] = WeakKeyDictionary()

    async def write(
        self,
        chain: Chain,
        *,
        stop: Sequence[str] | None = None,
        limit: int = DEFAULT_LIMIT,
        until: Until | None = None,
        opening: str = "",
        top: int = 0,
    ) -> Step:
        stack = OPEN_REQUESTS.get()
        if stack is None or opening:
            return await super().write(
                chain, stop=stop, limit=limit, until=until, opening=opening, top=top
            )
        growing = self._builder(chain, "", stop, limit, top)
        bounds = replace(growing.bounds, closing=CLOSING)
        stream = self._streams.get(stack)
        if stream is None or not stream.continues(chain, bounds):
            if stream is not None:
                await stream.close()

            stream = StickyStream(partial(self._open, chain), self.observe, bounds)
            self._streams[stack] = stream
            stack.push_async_callback(stream.close)
        return await stream.write(chain, growing, until)

    @asynccontextmanager
    async def _open(
        self, chain: Chain, observe: Callable[[Called], None]
    ) -> AsyncGenerator[TokenStream]:
        text = chain.text

        async def wait() -> None:
            nonlocal text
            await asyncio.sleep(self.pace + (0 if meter.written else self.latency(chain)))
            for _ in range(self.chunk):
                piece = self.next(text)
                if piece is None:
                    stream.ended = "end"
                    break
                stream.tokens.append(self.token(text, piece, 1))
                text += piece
                meter.add(1)

        async def take() -> Token | Stop:
            while not stream.tokens:
                if stream.ended:
                    return cast("Stop", stream.ended)
                await wait()
            return cast("Token", stream.tokens.popleft())

        stream = SimpleNamespace(take=take, wait=wait, tokens=deque[Token](), ended=None)
        with metered(self.role, "write", observe, asyncio.get_running_loop().time) as meter:
            # It is all that the sticky stream uses.
            yield cast("TokenStream", stream)


def streamed(chunk: int, length: int, wrong: tuple[int, ...] = (), ahead: int = 2) -> list[Moment]:
    """
    Run SpecReason on a small model whose server sends *chunk* tokens at a time; the run has
    *length* steps.
    """

    async def main() -> list[Moment]:
        recorder = Recorder(asyncio.get_running_loop().time)
        small = StreamingModel("small", counting("small", length), chunk=chunk)
        large = pair(length, wrong)[1]
        small.observe = large.observe = recorder
        recorder(Started(PROBLEM.messages, "specreason"))
        await reason(SpecReason(small, large), PROBLEM, ahead=ahead, observe=recorder)
        return recorder.moments

    return run(main())[0]
