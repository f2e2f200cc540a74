"""The blocks of code in the documents, and the comments that say what a test may do with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
)
SHELLS = ("console", "bash", "sh")

_FENCE = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n\n?)?^```(?P<language>\w+)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """
    A fenced block of a *language*, its *text*, and the *mark*: the comment right above it, if there
    is one.
    """

    language: str
    text: str
    mark: str
    line: int

    @property
    def commands(self) -> Sequence[str]:
        """
        The commands after the prompts, those that go on in further lines as one; without prompts,
        all lines.
        """
        joined = self.text.replace("\\\n", " ")
        if self.language != "console":
            return [
                line for line in joined.splitlines() if line.strip() and not line.startswith("#")
            ]
        return [line.removeprefix("$ ") for line in joined.splitlines() if line.startswith("$ ")]


def blocks(text: str) -> list[Block]:
    """All blocks of a document that name their language, in order."""
    return [
        Block(
            match["language"],
            match["text"],
            match["mark"] or "",
            text.count("\n", 0, match.start("language")) + 1,
        )
        for match in _FENCE.finditer(text)
    ]
