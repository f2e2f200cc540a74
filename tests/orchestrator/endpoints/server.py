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
