"""How a request is answered with its runs: as a stream or in one piece, written by the format of its API."""

from __future__ import annotations

from typing import Any, Protocol

import orjson

from ...events import Event
from ..http.errors import ApiError
from ..http.runs import RunItem, Runs
from ..http.streaming import EVENT_STREAM, ClientConnection


class ReplyFormat(Protocol):
    """
    How one API writes a reply. `render` is called with every item in order, streamed or not.

    *keep_alive* is sent while nothing happens. A stream starts with the first event of *starts_at*.
    """

    @property
    def keep_alive(self) -> bytes: ...

    @property
    def starts_at(self) -> tuple[type[Event], ...]: ...

    async def opening(self) -> bytes:
        """Return the first bytes of a stream."""
        ...

    def render(self, item: RunItem) -> bytes:
        """Take in *item*, and return what a stream says about it."""
        ...

    async def closing(self) -> bytes:
        """Return the last bytes of a stream."""
        ...

    def failed(self, error: ApiError, body: bytes) -> bytes:
        """Return the last event of a stream that fails with *error*, whose *body* is in the shape of its API."""
        ...

    async def body(self) -> dict[str, Any]:
        """Return the reply to a request that does not stream."""
        ...


async def reply(runs: Runs, format: ReplyFormat, connection: ClientConnection, *, stream: bool) -> None:
    """Run *runs* and answer over *connection*. Raise `ApiError` before the response starts; later errors end it."""
    try:
        async with runs.started(stream=stream):
            if stream:
                await _stream(runs, format, connection)
            else:
                async for items in runs:
                    for item in items:
                        format.render(item)
                await connection.send_json(orjson.dumps(await format.body()))
    except Exception as exc:
        await runs.fail(exc, connection)


async def _stream(runs: Runs, format: ReplyFormat, connection: ClientConnection) -> None:
    first = await runs.until(format.starts_at)
    await connection.start(EVENT_STREAM, failure=format.failed)
    await connection.send(await format.opening() + b"".join(map(format.render, first)))
    async for items in runs:
        await connection.send(b"".join(map(format.render, items)) if items else format.keep_alive)
    await connection.finish(await format.closing())
