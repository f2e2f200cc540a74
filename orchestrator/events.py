"""
The events of a run, as frozen values. They are the format of traces: a new field needs a default.

The loop and the endpoints emit events; an `Observer` is any callable that takes one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .chain import Message, Party, Role, Rollback, Step, Tool, Verdict

Verb: TypeAlias = Literal["write", "score", "ask", "rate"]
Fate: TypeAlias = Literal["done", "cancelled", "failed"]
Stage: TypeAlias = Literal["step", "answer"]
"""What a verifier judges."""
Fallback: TypeAlias = Literal["large", "accept", "reject", "fail"]
"""
What happens if a verifier fails: the large model judges, nobody judges and the text is accepted or
rejected, or the run fails.
"""
Choice: TypeAlias = Literal["method", "large"]
"""Who writes the next steps of a run that decides: its method, or the large model alone."""
Purpose: TypeAlias = Literal["", "draft", "verify", "repair", "hedge", "answer"]
"""The purpose of a request; "" outside of a run."""


@dataclass(frozen=True, slots=True)
class Called:
    """One request to a served model has ended."""

    role: Party
    """The role of the model."""
    verb: Verb
    """The kind of request."""
    fate: Fate
    """How it ended."""
    started: float
    """When it started, in seconds since the run began."""
    seconds: float
    """How long it was open."""
    first: float | None = None
    """Seconds to its first token; None if there was none."""
    prompt: int = 0
    """Tokens of its prompt."""
    cached: int = 0
    """Tokens of its prompt that were in the server's prefix cache."""
    written: int = 0
    """Tokens that the server sent, used or not."""
    url: str = ""
    """The URL of the server, which tells replicas apart."""
    purpose: Purpose = ""
    """The purpose of the request."""
    step: int = -1
    """The index of the step of the chain that it was about; -1: none."""
    last_step: int = -1
    """
    The index of the last step that was taken from it.

    It is above `step` only for a request that was kept open (a sticky stream).
    """


@dataclass(frozen=True, slots=True)
class Started:
    """A run begins."""

    messages: tuple[Message, ...]
    """The conversation that poses the problem."""
    policy: str
    """The name of the policy."""
    models: tuple[tuple[str, str], ...] = ()
    """The role and the name of each model."""
    seed: int | None = None
    """The seed of the sampling; None if the models write greedily, or if the trace is old."""
    threshold: tuple[str, float] | None = None
    """The option that scores are compared with, and its value; None if none, or in old traces."""
    tools: tuple[Tool, ...] = ()
    """The tools that the answer may call."""
    thinks: bool = True
    """Whether the steps begin in a thinking block."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """The draft of step *index* is complete, and not verified yet."""

    index: int
    """The index of the step in the chain."""
    draft: Step
    """The draft."""


@dataclass(frozen=True, slots=True)
class Judged:
    """
    The verdict on the draft of step *index* is known.

    A draft may be judged before earlier steps are committed. It is lost if one of them is rolled
    back.
    """

    index: int
    draft: Step
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Lost:
    """The bet on step *index* is lost: an earlier draft was rolled back."""

    index: int
    draft: Step


@dataclass(frozen=True, slots=True)
class Chosen:
    """The draft of step *index* was rolled back, and its rival *step* replaces it."""

    index: int
    step: Step


@dataclass(frozen=True, slots=True)
class Shadowed:
    """The method drafted and judged a step that the large model wrote. Nothing of it is used."""

    index: int
    """The index of the step."""
    draft: Step
    """The draft of the method."""
    verdict: Verdict
    """The verdict on that draft."""
    drafting: float
    """Seconds that the draft took."""
    judging: float
    """Seconds that the verdict took."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """A repair of step *index* was written."""

    index: int
    step: Step
    rollback: Rollback


@dataclass(frozen=True, slots=True)
class Committed:
    """A step is in the chain, for good. An answer that the method wrote is committed as well."""

    index: int
    """Its index in the chain."""
    step: Step
    """The step."""
    score: float | None = None
    """The grade of an accepted draft; None if nobody judged the step, such as a repair."""


@dataclass(frozen=True, slots=True)
class Answering:
    """The next piece of the final answer. No piece is taken back, and all join to its text."""

    text: str


@dataclass(frozen=True, slots=True)
class Calling:
    """The next piece of a call of a tool in the answer. No piece is taken back."""

    index: int
    """The place of the call in the answer, from 0."""
    id: str = ""
    """The name of this call, in its first piece."""
    name: str = ""
    """The name of the tool, in the first piece of the call."""
    arguments: str = ""
    """A piece of the arguments. Those of all pieces join to a JSON text."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The final answer was written after the thinking, as the model spells it, with its calls."""

    step: Step


@dataclass(frozen=True, slots=True)
class AnswerJudged:
    """The answer was judged."""

    index: int
    """The index that the answer has as a step of the chain."""
    step: Step
    """The answer."""
    accepted: bool | None
    """The verdict; None if the verifier failed and its fallback is to accept."""
    score: float | None = None
    """The score of the rating."""
    reason: str = ""
    """The reason of the rating."""
    final: bool = False
    """Whether the answer stays even if it is rejected. Otherwise the large model rewrites it."""


@dataclass(frozen=True, slots=True)
class FellBack:
    """The verifier gave no rating, and its fallback decided instead."""

    stage: Stage
    """What it was to rate."""
    index: int
    """The index of the step, or of the answer as a step."""
    cause: str
    """Why it gave none."""
    fallback: Fallback
    """What decided."""


@dataclass(frozen=True, slots=True)
class Degraded:
    """A model failed for good, and the run continues without it."""

    role: Role
    """Its role."""
    cause: str
    """Why it failed."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A replica failed, and the run continues with another one."""

    role: Role
    """The role of the model."""
    url: str
    """The replica that failed."""
    to: str
    """The replica that goes on."""
    cause: str
    """Why the first one failed."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The run chose who writes from now on: its method, or the large model alone."""

    index: int
    """The first step that it is about."""
    choice: Choice
    """Who writes."""
    ahead: int
    """The number of drafts that are made ahead."""
    reason: str = ""
    """Why the large model writes alone. "": the method writes."""
    figures: str = ""
    """What the run expects of both writers. "": too little is measured."""
    shadow: bool = False
    """Whether the method drafts this step, too, and nothing of its draft is used."""

    @property
    def advice(self) -> str:
        """Why the large model writes alone although the method is measured; "" otherwise."""
        if not self.reason or not self.figures:
            return ""
        return f"{self.reason}: {self.figures}: run `stepspec tune`"


@dataclass(frozen=True, slots=True)
class Finished:
    """A run has ended after *seconds*; *reason* says why the thinking or the answer ended."""

    reason: str
    answer: str
    seconds: float


Event: TypeAlias = (
    Started
    | Called
    | Drafted
    | Judged
    | Lost
    | Shadowed
    | Chosen
    | Repaired
    | Committed
    | Answering
    | Calling
    | Answered
    | AnswerJudged
    | FellBack
    | Degraded
    | Moved
    | Decided
    | Finished
)
"""Whatever may happen in a run."""
Observer: TypeAlias = Callable[[Event], None]
"""A function that is called with each event of a run; it must not block."""
