"""The settings of a verifier: its function, what it judges, and what happens if it fails."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, PositiveFloat, PositiveInt

from ..events import Fallback, Stage
from . import functions


class FunctionVerifier(BaseModel, frozen=True, extra="forbid"):
    """A verifier that is a Python function."""

    role: Literal["critic"] = "critic"
    """Always ``critic``."""
    judges: Literal["answer", "step", "both"] = "answer"
    """
    What it judges: the answer of every run, the steps of the policies that need a critic, or both.
    """
    seconds: PositiveFloat = 10.0
    """Seconds for one rating, waiting included."""
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
    kind: Literal["function"] = "function"
    """Always ``function``."""
    function: Annotated[str, BeforeValidator(functions.named)]
    """
    Its name in the entry point group ``stepspec.verifiers``; in Python also the function itself.
    """

    @property
    def name(self) -> str:
        return f"verifier {self.function}"

    def rates(self, stage: Stage) -> bool:
        """Whether it judges this *stage* of a run."""
        return self.judges in (stage, "both")
