"""What the models wrote and judged: recorded from traces, to be replayed in a simulation. Values, without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from stepspec.orchestrator.chain import Role, Stop
from stepspec.orchestrator.trace import Moment


@dataclass(frozen=True, slots=True)
class Turn:
    """
    One step: the *author* drafts it with *draft* tokens, of which the large model agrees with the first *kept*.

    It is accepted if they are all kept. Otherwise the large model goes on with *repair* tokens; 0 stands for as many as
    the rejected draft has. *grade*, 0 to 9, is what a judge says. *stop* says why the step ends, as in `Step`: "end"
    closes the thinking the first time, and the turn after that.
    """

    draft: int
    kept: int
    repair: int = 0
    grade: float = 9.0
    author: Role = "small"
    stop: Stop = "delimiter"


@dataclass(frozen=True, slots=True)
class Script:
    """One problem: the tokens of its *prompt*, and the *turns* of its solution, the answer's included."""

    prompt: int
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """
    What models of a simulation answer from: *scripts* of problems, and the tokens that a *question* about a step has.

    These are all tokens that a verdict reads after the chain and the draft: a judge's question with its turn, or what a
    scoring method reads besides. If verdicts are *uncached*, each reads the whole chain again.
    """

    scripts: tuple[Script, ...]
    question: int = 64
    uncached: bool = False

    @classmethod
    def of(cls, traces: Sequence[Sequence[Moment]]) -> Self:
        """Record the *traces* of one arm, a script each. Runs that have no answer are left out."""
        raise NotImplementedError
