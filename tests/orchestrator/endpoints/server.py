"""The server that tests of endpoints use, and its faults: those that `tests.stand_in` ships."""

from __future__ import annotations

from ...stand_in import (
    GENERATE,
    IM_END,
    IM_START,
    ROOM,
    THINK,
    THINK_END,
    Break,
    FakeVllm,
    Refuse,
    Slow,
    Stall,
    event,
    prompts,
)

__all__ = [
    "GENERATE",
    "IM_END",
    "IM_START",
    "ROOM",
    "SPECULATES",
    "THINK",
    "THINK_END",
    "Break",
    "FakeVllm",
    "Refuse",
    "Slow",
    "Stall",
    "event",
    "prompts",
]

SPECULATES = b"".join(
    b"vllm:spec_decode_num_%s_total 0.0\n" % name for name in (b"drafts", b"draft_tokens", b"accepted_tokens")
)
"""What ``/metrics`` of a server shows that speculates on tokens."""
