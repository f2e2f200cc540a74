"""What happens in a run, as frozen values. The loop and the endpoints emit them; whoever watches consumes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .chain import Message, Party, Role, Rollback, Step, Verdict
from .stats import Acceptance

Verb: TypeAlias = Literal["write", "score", "ask", "rate"]
Fate: TypeAlias = Literal["done", "cancelled", "failed"]
Purpose: TypeAlias = Literal["", "draft", "verify", "repair", "hedge", "answer", "watch", "shadow"]
"""What a request is for; "" outside of a run. A *watch* may end the thinking, a *shadow* measures the judge."""


@dataclass(frozen=True, slots=True)
class Called:
    """
    One request to a served model is over, whatever became of it.

    *started* is in seconds since the run began and *seconds* how long the request was open; *first* is the seconds to
    its first token. *written* counts every token that the server sent, whether or not anybody used it; *prompt* and
    *cached* are prompt tokens, of which the server found *cached* in its prefix cache. *url* tells replicas apart.

    Where *role* is a nested pair, the model is the one at its *path* there: ``small.large``, say. Elsewhere it is "".

    *purpose* is what the request was for, and *step* the index of the step that it was about, -1 if it was about none.
    A request that was kept open (the sticky stream) wrote for the steps from *step* to *last_step*; for any other
    request the two are equal. In a nested pair the purpose is the one within that pair, and the step that of the chain.
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
    A run begins: the conversation that poses the problem, and what is needed to read the rest.

    *models* names them by their roles, and those within a nested pair also by their paths, as in `Called`. *seed* is
    that of the sampling; None if the models write greedily, and in traces from before it was recorded.
    """

    messages: tuple[Message, ...]
    policy: str
    models: tuple[tuple[str, str], ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Drafted:
    """The draft of step *index* is complete; nobody has verified it yet."""

    index: int
    draft: Step


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on the draft of step *index* is known."""

    index: int
    draft: Step
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Lost:
    """The bet on step *index* is off: an earlier draft was rolled back."""

    index: int
    draft: Step


@dataclass(frozen=True, slots=True)
class JudgedWithin:
    """The nested pair at *path* came to a verdict on its own smaller model's draft, as part of step *index*."""

    path: str
    index: int
    draft: Step
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Chosen:
    """The draft of step *index* was rolled back, and a rival of it, *step*, stands in its place: nobody repairs it."""

    index: int
    step: Step


@dataclass(frozen=True, slots=True)
class Repaired:
    """A repair of step *index* was written."""

    index: int
    step: Step
    rollback: Rollback


@dataclass(frozen=True, slots=True)
class Committed:
    """*step* now is step *index* of the chain, for good."""

    index: int
    step: Step
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Answering:
    """A further piece of the final answer, for good; the pieces join to the text of the solution."""

    text: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The final answer was written after the thinking."""

    step: Step


@dataclass(frozen=True, slots=True)
class Degraded:
    """A model failed for good; the run goes on without it. *path* is that of `Called`, if it was in a nested pair."""

    role: Role
    cause: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """The replica at *url* failed; the run goes on at another one. *path* is that of `Called`."""

    role: Role
    url: str
    to: str
    cause: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class Adapted:
    """
    What a run was given, as earlier ones taught: a *value* of the *option* that makes its policy looser, and a depth.

    Of a policy that has no such option the depth alone, *ahead*, is adapted. At the value at most a share of *bad* of
    the accepted steps may be bad, and a committed step is expected to take so many *seconds*; None where too little is
    known. All of it was learnt from so many *runs*. *checks* are the grades of the steps that shadows have looked at
    since the last event of this kind, and whether the large model agreed that they are correct; *own* says, check by
    check, whether it agreed with a step of its own at the same place.
    """

    option: str
    value: float | None
    ahead: int
    runs: int
    bad: float | None = None
    seconds: float | None = None
    checks: tuple[tuple[float, bool], ...] = ()
    own: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class Speculated:
    """
    What the server at *url* *counted* of the tokens that it drafts itself, from second *since* of a run to *until*.

    It is a look at the server's own counters, which know no runs: they hold what the server did for everybody. *shared*
    says that others are known to have been at work there. A window may begin before the run, at the last look before.
    The model is told as in `Called`.
    """

    role: Party
    counted: Acceptance
    since: float
    until: float
    shared: bool = False
    url: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """A run is over after *seconds*; *reason* is why the thinking or the answer ended."""

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
    | Chosen
    | Repaired
    | Committed
    | Answering
    | Answered
    | Degraded
    | Moved
    | Adapted
    | Speculated
    | Finished
)
Observer: TypeAlias = Callable[[Event], None]
