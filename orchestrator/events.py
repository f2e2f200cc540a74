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
What judges in place of a verifier that fails: the large model, nobody, who accepts or rejects, or
nothing can.
"""
Choice: TypeAlias = Literal["method", "large"]
"""Who writes the next steps of a run that decides: its method, or the large model alone."""
Purpose: TypeAlias = Literal["", "draft", "verify", "repair", "hedge", "answer"]
"""The purpose of a request; "" outside of a run."""


@dataclass(frozen=True, slots=True)
class Called:
    """
    One request to a served model has ended; *fate* says how.

    *started* is in seconds since the run began, *seconds* the time that the request was open, and
    *first* the seconds to its first token. *written* counts every token that the server sent, used
    or not. *prompt* counts prompt tokens, of which *cached* were in the server's prefix cache.
    *url* tells replicas apart.

    If *role* is a nested pair, *path* names the model in it, such as ``small.large``; otherwise it
    is "".

    *purpose* is that of the request, and *step* the index of the step that it was about (-1: none).
    From a request that was kept open (a sticky stream) the steps from *step* to *last_step* were
    taken; for any other request the two are equal. In a nested pair the purpose is the one within
    that pair, and the step is that of the chain.
    """

    role: Party
    verb: Verb
    fate: Fate
    started: float
    seconds: float
    first: float | None = None
    prompt: int = 0
    cached: int = 0
    written: int = 0
    url: str = ""
    path: str = ""
    purpose: Purpose = ""
    step: int = -1
    last_step: int = -1


@dataclass(frozen=True, slots=True)
class Started:
    """
    A run begins, with the conversation that poses the problem.

    *models* are pairs of a role and the model's name; models in a nested pair are listed by their
    paths, as in `Called`. *seed* is that of the sampling; None if the models write greedily, and in
    traces without it. *threshold* is the option of the policy that its scores are compared with,
    and the value; None if there is none, and in traces without it. *tools* are those that the
    answer may call. *thinks* says whether the steps begin in a thinking block.
    """

    messages: tuple[Message, ...]
    policy: str
    models: tuple[tuple[str, str], ...] = ()
    seed: int | None = None
    threshold: tuple[str, float] | None = None
    tools: tuple[Tool, ...] = ()
    thinks: bool = True


@dataclass(frozen=True, slots=True)
class Drafted:
    """The draft of step *index* is complete, and not verified yet."""

    index: int
    draft: Step


@dataclass(frozen=True, slots=True)
class Judged:
    """
    The verdict on the draft of step *index* is known.

    A draft may be judged before the steps before it are committed, and is lost if one of those is
    rolled back.
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
class JudgedWithin:
    """The nested pair at *path* judged a draft of its own small model, as part of step *index*."""

    path: str
    index: int
    draft: Step
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Chosen:
    """
    The draft of step *index* was rolled back, and its rival *step* replaces it: nothing is
    repaired.
    """

    index: int
    step: Step


@dataclass(frozen=True, slots=True)
class Shadowed:
    """
    The method drafted and judged step *index* in the shadow of the large model, which wrote it;
    nothing of it is used.

    The *draft* took *drafting* seconds, and its *verdict* *judging*.
    """

    index: int
    draft: Step
    verdict: Verdict
    drafting: float
    judging: float


@dataclass(frozen=True, slots=True)
class Repaired:
    """A repair of step *index* was written."""

    index: int
    step: Step
    rollback: Rollback


@dataclass(frozen=True, slots=True)
class Committed:
    """
    *step* is now step *index* of the chain, for good.

    An answer that the method wrote is committed as well. *score* is the grade of an accepted draft;
    None if nobody judged the step, such as a repair.
    """

    index: int
    step: Step
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Answering:
    """The next piece of the final answer, for good; the pieces join to the text of the solution."""

    text: str


@dataclass(frozen=True, slots=True)
class Calling:
    """
    The next piece of the answer's call *index* of a tool, for good; calls are counted from 0.

    The first piece has the *id* and the *name*; the *arguments* of all pieces join to a JSON text.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Answered:
    """
    The final answer was written after the thinking, as the model spells it: calls of tools
    included.
    """

    step: Step


@dataclass(frozen=True, slots=True)
class AnswerJudged:
    """
    The answer *step* was judged; it would be step *index* of the chain.

    *accepted* is None if nobody judged it, because the verifier failed and its fallback is to
    accept. *score* and *reason* are those of the rating. The large model rewrites a rejected answer
    unless it is *final*.
    """

    index: int
    step: Step
    accepted: bool | None
    score: float | None = None
    reason: str = ""
    final: bool = False


@dataclass(frozen=True, slots=True)
class FellBack:
    """
    The verifier gave no rating of step *index*, or of the answer that follows it; the *fallback*
    decided instead.
    """

    stage: Stage
    index: int
    cause: str
    fallback: Fallback


@dataclass(frozen=True, slots=True)
class Degraded:
    """A model failed for good; the run continues without it. *path* is that of `Called`."""

    role: Role
    cause: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """
    The replica at *url* failed; the run continues with the one at *to*. *path* is that of `Called`.
    """

    role: Role
    url: str
    to: str
    cause: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """
    The run chose who writes from step *index* on: its method, *ahead* drafts ahead, or the large
    model alone.

    *reason* says in words why. *advice* says in a sentence why the large model writes alone and
    what the user can do about it, "" if it does not. With *shadow* the method drafts this step too.
    At the large model's server, as last polled, *running* requests were served and *waiting* ones
    were queued.
    """

    index: int
    choice: Choice
    ahead: int
    reason: str = ""
    running: int = 0
    waiting: int = 0
    advice: str = ""
    shadow: bool = False


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
    | JudgedWithin
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
