"""
The markers of the thinking block, by model family. Pure.

Chains, traces, events and policies mark the end of the thinking with `THINK_END`, whichever model wrote it. Only an
endpoint knows the markers of its own model: it translates text that the model writes as it arrives, and text that the
model reads when it is encoded. So two models with different markers can share a chain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .chain import THINK_END


@dataclass(frozen=True, slots=True)
class ThinkingMarkers:
    """
    The markers of one model family.

    *opening* opens the thinking block, *closing* ends it. *handover* has to follow *closing* before the answer can
    begin; if it is not empty, the models may write other things there. *skipped* is an empty block, after which a model
    answers at once.
    """

    opening: str
    closing: str
    skipped: str
    handover: str = ""

    def open_at(self, text: str) -> int:
        """Return the position of the opening marker that *text* ends with; -1 if it ends with none."""
        end = text.rstrip()
        mark = self.opening.rstrip()
        return len(end) - len(mark) if end.endswith(mark) else -1

    def skips(self, text: str) -> bool:
        """Whether *text* is an empty block, with or without its opening marker."""
        inside = text.replace(self.opening.rstrip(), "").strip()
        return text.strip() == self.skipped.strip() or (inside == self.closing and not self.handover)

    def closed_in(self, text: str) -> bool:
        """Whether *text*, a generation prompt, ends with a closed block, so that the model does not think."""
        return text.rstrip().endswith(self.skipped.strip() if self.handover else self.closing)

    def opened(self, skipped: str) -> str:
        """Return the opening of the block whose empty form is *skipped*, with half of the white space inside."""
        before, mark, rest = skipped.partition(self.opening.rstrip())
        if not mark:
            return self.opening
        inside = rest.partition(self.closing)[0]
        return before + mark + inside[: (len(inside) + 1) // 2]

    def begun(self, written: str) -> str:
        """Return the opening marker at the start of *written*, with the line breaks around it; "" if there is none."""
        match = re.match(rf"\s*{re.escape(self.opening.rstrip())}\n*", written)
        if not match:
            return ""
        empty = written[match.end() :].startswith(self.closing)
        return match[0].rstrip("\n") + "\n" if empty and match[0].endswith("\n") else match[0]


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
    """Whether *text* begins with a thinking block."""
    return text.lstrip().startswith(OPENINGS)


def may_open_block(text: str) -> bool:
    """Whether *text* begins with a thinking block, or is too short to know."""
    begun = text.lstrip()
    return opens_block(text) or any(mark.startswith(begun) for mark in OPENINGS)
