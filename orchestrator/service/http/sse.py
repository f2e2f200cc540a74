"""How many tokens a served model writes in an answer that passes through, streamed or not. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import orjson

END = b"\n\n"
USAGE_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
"""The paths whose streams tell the usage only if asked to."""


def asking_for_usage(path: str, content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return *content*, the body of a request to *path*, with the wish for the usage; None if it needs no change."""
    options = content.get("stream_options")
    wished = isinstance(options, Mapping) and bool(cast("Mapping[str, Any]", options).get("include_usage"))
    if path not in USAGE_PATHS or content.get("stream") is not True or wished:
        return None
    kept = dict(cast("Mapping[str, Any]", options)) if isinstance(options, Mapping) else {}
    return {**content, "stream_options": {**kept, "include_usage": True}}


class ForwardedUsage:
    """
    Reads an answer as it passes. `written` is what the usage in it says; until it is there, the number of its events.

    With *hidden* the event that has the usage alone is left out, because the client has not asked for it.
    """

    def __init__(self, *, stream: bool, hidden: bool = False) -> None:
        self._stream, self._hidden = stream, hidden
        self._rest = b""
        self._events, self._told = 0, -1

    @property
    def written(self) -> int:
        return self._told if self._told >= 0 else self._events

    def add(self, part: bytes) -> bytes:
        """Read the next *part* of the answer, and return what is to be passed on now."""
        self._rest += part
        if not self._stream:
            return part
        *events, self._rest = self._rest.split(END)
        return b"".join(event + END for event in events if self._passes(event))

    def finish(self) -> bytes:
        """Return what is still to be passed on at the end."""
        if self._stream:
            return self._rest
        self._read(self._rest)
        return b""

    def _passes(self, event: bytes) -> bool:
        data = event.rpartition(b"data: ")[2]
        if not data.startswith(b"{"):
            return True
        self._events += 1
        if b'"usage"' not in data:
            return True
        content = self._read(data)
        return not (self._hidden and content.get("choices") == [])

    def _read(self, data: bytes) -> Mapping[str, Any]:
        try:
            parsed: Any = orjson.loads(data)
        except orjson.JSONDecodeError:
            return {}
        if not isinstance(parsed, dict):
            return {}
        content = cast("dict[str, Any]", parsed)
        inner: Any = content.get("response")  # of the Responses API's events
        holder = cast("dict[str, Any]", inner) if isinstance(inner, dict) else content
        usage: Any = holder.get("usage")
        if isinstance(usage, dict):
            counts = cast("dict[str, Any]", usage)
            tokens: Any = counts.get("completion_tokens", counts.get("output_tokens"))
            self._told = tokens if isinstance(tokens, int) else self._told
        return content
