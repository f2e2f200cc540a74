"""
How models mark their thinking. Pure.

A chain spells the end of its thinking as `THINK_END`, whichever model wrote it, and so do traces, events and policies.
Only an endpoint knows how its own model spells it: what the model writes is translated as it arrives, and what the
model reads is translated as it is encoded. So two models with different markers can share a chain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .chain import THINK_END


@dataclass(frozen=True, slots=True)
class ThinkingMarkers:
    """
    The marks of one family of models.

    *opening* opens the thinking block. *closing* is what the model writes where its thinking ends. *handover* has to
    follow before the answer can begin; where it is not empty, the models may write other things there. *skipped* is an
    empty block, after which a model answers at once.
    """

    opening: str
    closing: str
    skipped: str
    handover: str = ""

    def open_at(self, text: str) -> int:
        """Return where the block begins that *text* ends in; -1 if *text* leaves no block open."""
        end = text.rstrip()
        mark = self.opening.rstrip()
        return len(end) - len(mark) if end.endswith(mark) else -1

    def skips(self, text: str) -> bool:
        """Whether *text* is an empty block, with or without its opening."""
        inside = text.replace(self.opening.rstrip(), "").strip()
        return text.strip() == self.skipped.strip() or (inside == self.closing and not self.handover)

    def closed_in(self, text: str) -> bool:
        """Whether *text*, a generation prompt, ends in a block that is closed: the model is not to think."""
        return text.rstrip().endswith(self.skipped.strip() if self.handover else self.closing)

    def opened(self, skipped: str) -> str:
        """Return how the block begins of which *skipped* is the empty form, with half the white space inside."""
        before, mark, rest = skipped.partition(self.opening.rstrip())
        if not mark:
            return self.opening
        inside = rest.partition(self.closing)[0]
        return before + mark + inside[: (len(inside) + 1) // 2]

    def begun(self, written: str) -> str:
        """Return the opening that *written* begins with, and the line breaks around it; "" if there is none."""
        found = re.match(rf"\s*{re.escape(self.opening.rstrip())}\n*", written)
        if not found:
            return ""
        empty = written[found.end() :].startswith(self.closing)
        return found[0].rstrip("\n") + "\n" if empty and found[0].endswith("\n") else found[0]


THINK = ThinkingMarkers("<think>", THINK_END, f"<think>\n\n{THINK_END}\n\n")
"""Qwen, DeepSeek, GLM, SmolLM, LFM, MiMo, Phi-4-reasoning and most others."""

BRACKETS = ThinkingMarkers("[THINK]", "[/THINK]", "[THINK][/THINK]")
"""Mistral's reasoning models since Magistral 2507."""

SEED = ThinkingMarkers("<seed:think>", "</seed:think>", "<seed:think>\n</seed:think>\n")
"""Seed-OSS."""

CHANNEL = ThinkingMarkers("<|channel>thought\n", "<channel|>", "<|channel>thought\n<channel|>")
"""Gemma 4."""

HARMONY = ThinkingMarkers(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    "<|channel|>final<|message|>",
    "<|start|>assistant<|channel|>final<|message|>",
)
"""gpt-oss. Its thinking is a message of its own, so that the answer's message has to be opened after it."""

KNOWN = (THINK, BRACKETS, SEED, CHANNEL, HARMONY)
OPENINGS = tuple(markers.opening.rstrip() for markers in KNOWN)


def opens_block(text: str) -> bool:
    """Whether *text* begins with a thinking block, as that of a model that was taken not to think may do."""
    return text.lstrip().startswith(OPENINGS)


def may_open_block(text: str) -> bool:
    """The same, or *text* is too short to tell."""
    begun = text.lstrip()
    return opens_block(text) or any(mark.startswith(begun) for mark in OPENINGS)
