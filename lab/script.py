"""The script of a simulated run: the tokens that models write, and verdicts, step by step."""

from __future__ import annotations

from dataclasses import dataclass

from stepspec.orchestrator.chain import Role, Stop


@dataclass(frozen=True, slots=True)
class Turn:
    """One step."""

    draft: int
    """Tokens of the draft."""
    kept: int
    """Tokens at the beginning of the draft that are accepted."""
    repair: int = 0
    """Tokens of the large model's repair; 0: those of the draft."""
    grade: float | None = None
    """The score of the verdict, from 0 to 9; None: it has none."""
    author: Role = "small"
    """The model that drafts."""
    stop: Stop = "delimiter"
    """Why the draft ends, as in `Step`."""
    ends: bool = False
    """Whether the step closes the thinking, or the turn if the thinking is closed."""
    later: tuple[int, ...] = ()
    """Places after the accepted tokens at which the models differ, for drafts within the step."""

    @property
    def accepted(self) -> bool:
        """Whether the whole draft is accepted."""
        return self.kept == self.draft

    @property
    def differs(self) -> tuple[int, ...]:
        """The places at which the models differ, from 0."""
        if self.accepted:
            return ()
        return (self.kept, *self.later)


@dataclass(frozen=True, slots=True)
class Script:
    """One problem."""

    prompt: int
    """Tokens of the prompt."""
    turns: tuple[Turn, ...]
    """The steps of the solution and of the answer."""
    question: int = 0
    """Tokens that a verdict reads beyond the chain and the draft."""
