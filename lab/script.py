"""
The script of a simulated run: how many tokens the models write, and what is judged, step by step.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepspec.orchestrator.chain import Role, Stop


@dataclass(frozen=True, slots=True)
class Turn:
    """
    One step: the *author* drafts it with *draft* tokens, of which the first *kept* are accepted.

    If not all are, the large model goes on with *repair* tokens; 0 stands for as many as the draft
    has. *grade* is the score of the verdict, None if it has none. *stop* says why the draft ended,
    as in `Step`. A step that *ends* closes the thinking or, after that, the turn.
    """

    draft: int
    kept: int
    repair: int = 0
    grade: float | None = None
    author: Role = "small"
    stop: Stop = "delimiter"
    ends: bool = False
    later: tuple[int, ...] = ()
    """Tokens after the first *kept* ones at which the models differ, for drafts within the step."""

    @property
    def differs(self) -> tuple[int, ...]:
        """The tokens at which the models differ, in order, from 0."""
        return (self.kept, *self.later) if self.kept < self.draft else ()


@dataclass(frozen=True, slots=True)
class Script:
    """
    One problem: the tokens of its *prompt*, and the *turns* of its solution, the answer's included.

    A verdict reads *question* tokens beyond the chain and the draft.
    """

    prompt: int
    turns: tuple[Turn, ...]
    question: int = 0
