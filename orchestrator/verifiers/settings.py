"""
The settings of verifiers: where one is, what it judges, and what happens if it fails. Frozen; no
I/O.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, PositiveFloat, PositiveInt

from ..endpoints.settings import Address
from ..events import Fallback, Stage
from . import functions


class VerifierSettings(BaseModel, frozen=True, extra="forbid"):
    """What all verifiers have in common."""

    role: Literal["critic"] = "critic"
    """Always ``critic``."""
    judges: Literal["answer", "step", "both"] = "answer"
    """
    What it judges: the answer of every run, the steps of the policies that need a critic, or both.
    """
    seconds: PositiveFloat = 10.0
    """Seconds for one rating, waiting and retries included."""
    fallback: Fallback = "large"
    """
    What happens if it gives no rating in time, or a wrong one: the large model judges in its place,
    the step or answer counts as accepted or rejected, or the run fails.
    """
    threshold: float = Field(default=0.5, ge=0, le=1)
    """The least score of an answer that is accepted. For a step, that of the policy counts."""
    repairs: int = Field(default=1, ge=0, le=16)
    """How many times the large model may rewrite a rejected answer."""
    max_concurrency: PositiveInt = 16
    """The most ratings at a time."""

    def rates(self, stage: Stage) -> bool:
        """Whether it judges this *stage* of a run."""
        return self.judges in (stage, "both")


class DecisionsVerifier(VerifierSettings, Address, frozen=True):
    """
    A classifier or judge behind the Decisions API (``/v1/decisions``): vLLM 0.33, SGLang and OpenAI
    have it.
    """

    kind: Literal["decisions"] = "decisions"
    """Always ``decisions``."""
    question: str = Field(
        default="The candidate is correct, given the problem and the reasoning before it.",
        min_length=1,
    )
    """The statement whose probability is the score."""

    @property
    def name(self) -> str:
        return f"classifier at {self.url}"

    @property
    def address(self) -> Address:
        """The server, whose requests have the seconds of a rating."""
        connect = min(self.deadlines.connect, self.seconds)
        deadlines = self.deadlines.model_copy(update={"connect": connect, "total": self.seconds})
        return self.model_copy(update={"deadlines": deadlines})


class FunctionVerifier(VerifierSettings, frozen=True):
    """A verifier that is a Python function."""

    kind: Literal["function"] = "function"
    """Always ``function``."""
    function: Annotated[str, BeforeValidator(functions.named)]
    """
    Its name in the entry point group ``stepspec.verifiers``; in Python also the function itself.
    """

    @property
    def name(self) -> str:
        return f"verifier {self.function}"
