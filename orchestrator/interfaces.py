"""
The two main interfaces of the system: `Model`, what a model can do, and `Policy`, what a method
decides.

The loop in `reason` knows models and methods only by these interfaces. A new method implements
`Policy`. A new back end implements `Model`, and the `Server` that makes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar, cast

from .chain import Chain, Rating, Role, Rollback, Step, Token, ToolCall, Verdict
from .events import Calling, Purpose

T = TypeVar("T")

EndedBy: TypeAlias = Literal["large", "small"]
"""
Who may end the thinking.

"small": either model, and a draft of the small one that ends the thinking has to be accepted.
"large": the large model only. The end is cut off a draft, and the large model writes the next step.
"""
AnsweredBy: TypeAlias = Literal["large", "method", "small"]
"""
Who writes the final answer: one model, or the "method", which drafts, verifies and repairs it like
the thinking.
"""

Until: TypeAlias = Callable[[Step], bool] | None
"""Is called with the step so far after every token, and ends the step if it returns true."""
DEFAULT_LIMIT = 512
"""The most tokens of one write, unless a policy asks for more."""


class WriteOptions(TypedDict, total=False):
    """The options of `Model.write`, for wrappers that pass them on."""

    stop: Sequence[str] | None
    limit: int
    until: Until
    opening: str
    top: int


class Model(Protocol):
    """One served model. It writes steps, reads text, and answers one-token questions."""

    @property
    def role(self) -> Role: ...

    async def write(
        self,
        chain: Chain,
        *,
        stop: Sequence[str] | None = None,
        limit: int = DEFAULT_LIMIT,
        until: Until = None,
        opening: str = "",
        top: int = 0,
    ) -> Step:
        """
        Write the next step of *chain*.

        The step starts with *opening*, which counts towards *limit* and is cut to it. It ends after
        *limit* tokens, after a *stop* string, at the end of the thinking block (its stop is then
        "end"), or with a token after which *until* returns true for the step so far.

        If *stop* is None, the step ends where steps of the chain end (`Chain.ends`): at a
        delimiter, except within code, a LaTeX environment or a table. Strings in *stop* end the
        step wherever they occur.

        With *top* above 0, at most 20, every token has its own log-probability and the *top*
        likeliest tokens of its position. With 0, log-probabilities may be absent. Cancelling the
        call closes the request, so that the server stops.
        """
        ...

    async def branch(
        self,
        chain: Chain,
        begun: Sequence[Step],
        *,
        stop: Sequence[str] | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> tuple[Step, ...]:
        """
        Write several versions of the next step at once.

        Return one step for each beginning in *begun*, in the same order. Each has a request of its
        own, and a seed of its own if the model samples by a seed. A beginning counts towards
        *limit*. *stop* is that of `write`, and does not count within a beginning. A beginning that
        this model wrote is sent as ids, any other as text. Cancelling closes the requests.
        """
        ...

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        """
        Append *spans* to the chain and read them in one prefill.

        Return one tuple of tokens per span. They join to exactly the text of the span, because
        every span is encoded separately. *top* is that of `write`.
        """
        ...

    async def ask(
        self,
        chain: Chain,
        question: str,
        choices: Sequence[str],
        *,
        opening: str = "",
    ) -> Mapping[str, float]:
        """
        Ask a *question* about the chain, in a new turn.

        The answer is *opening*, then one of *choices*. A choice is a single token. Return the
        probability of every choice over the whole vocabulary. If their sum is well below 1, the
        model wanted to write something else: it did not understand the question.
        """
        ...


class AnswerParser(Protocol):
    """Finds the calls of tools in one answer, as the server of its model would."""

    @property
    def live(self) -> bool:
        """Whether content and calls are to be found while the answer is written."""
        ...

    async def parse(
        self,
        tokens: Sequence[Token],
        *,
        finished: bool,
    ) -> tuple[int, str, Sequence[Calling]]:
        """
        Take in at least the first of *tokens*, which continue the answer.

        A *finished* answer ends with the last token. Return the number of tokens taken, and the
        content and the pieces of calls that these add. What may be the beginning of a call is held
        back until that is known. After a 0 the parser takes no more. If `parse` raises, the state
        has not changed. Call it again.
        """
        ...

    async def parse_whole(self, answer: Step) -> tuple[str, Sequence[ToolCall]]:
        """Return the content and the calls of the complete *answer*, whatever was parsed before."""
        ...


class Critic(Protocol):
    """A reward model or a verifier. It only rates steps."""

    async def rate(self, chain: Chain) -> Rating:
        """Rate the chain's last step from 0 to 1."""
        ...


class Policy(Protocol):
    """
    One method of a paper: who drafts, who verifies, who repairs, who answers.

    A policy has no state. All state is in the chain.
    """

    @property
    def answerer(self) -> Model:
        """The model that writes the final answer, unless the method does (`AnsweredBy`)."""
        ...

    async def draft(self, chain: Chain) -> Step:
        """Write a draft of the next step."""
        ...

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        """
        Accept *draft*, or roll it back to its first characters.

        A rollback may carry another draft that the policy accepts in its place (`rivals`), or a
        step that was written while verifying (`instead`). A policy that accepts a draft without
        having judged it says so (`Accept.judged`).
        """
        ...

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        """
        Write the step that replaces *draft*.

        *chain* includes the characters of the draft that were kept.
        """
        ...


PolicyFactory: TypeAlias = Callable[..., Policy]
"""
A policy's class, or a function that builds a policy.

Its parameters are *small* and *large*, the models, and options with defaults.
"""


class Preparing(Policy, Protocol):
    """
    A policy that compares every draft with a step of its own.

    That step depends only on the chain before the draft.
    """

    def prepare(self, chain: Chain) -> Coroutine[Any, Any, Step] | None:
        """
        Return what writes the step that the next draft is compared with; None if none is needed.

        The writing starts together with the draft. If the draft is rejected whole, the step is the
        repair.
        """
        ...

    async def verify(
        self,
        chain: Chain,
        draft: Step,
        prepared: Awaitable[Step] | None = None,
    ) -> Verdict:
        """Compare *draft* with the *prepared* step. If that is None, prepare it now."""
        ...


def prepare(policy: Policy, chain: Chain) -> Coroutine[Any, Any, Step] | None:
    """Return what writes the step that *policy* prepares during a draft; None if it does not."""
    if not hasattr(policy, "prepare"):
        return None
    return cast("Preparing", policy).prepare(chain)


async def verify(
    policy: Policy,
    chain: Chain,
    draft: Step,
    prepared: Awaitable[Step] | None,
) -> Verdict:
    """Return the verdict of *policy* on *draft*, compared with the *prepared* step if any."""
    if prepared is None:
        return await policy.verify(chain, draft)
    return await cast("Preparing", policy).verify(chain, draft, prepared)


def foreseeable(policy: Policy) -> bool:
    """
    Whether a repair may start before the verdict (a hedge).

    It may if the repair of a draft that is rejected whole depends neither on the draft nor on the
    reason. A policy declares this with a class attribute ``foreseeable``. The default is false.
    """
    return bool(getattr(policy, "foreseeable", False))


def guarded(policy: Policy) -> bool:
    """
    Whether empty drafts and loops are stopped.

    If so, a draft that is empty or in a loop is rejected without a verdict, and a loop that goes on
    ends the run. A policy declares this with a class attribute ``guarded``. The default is true. A
    policy of one model declares false, and writes what its server alone would.
    """
    return bool(getattr(policy, "guarded", True))


def answered_by(policy: object) -> AnsweredBy:
    """
    Return who writes the answer in the paper of *policy*, a policy or its class.

    A policy declares this with a class attribute ``answer``. The default is the large model.
    """
    return cast("AnsweredBy", getattr(policy, "answer", "large"))


def ended_by(policy: object) -> EndedBy:
    """
    Return who ends the thinking in the paper of *policy*, a policy or its class.

    A policy declares this with a class attribute ``ending``. The default is "small".
    """
    return cast("EndedBy", getattr(policy, "ending", "small"))


KEPT_OPEN: ContextVar[AsyncExitStack | None] = ContextVar("KEPT_OPEN", default=None)
"""
The stack on which a model may leave a request open between two writes (a sticky stream).

None: close every request. Only a lookahead sets the stack and closes it, because it knows whether
the next write probably extends the last one.
"""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Why a model is called."""

    purpose: Purpose = ""
    """What the call is for."""
    step: int = -1
    """The index of the step that the call is about. -1: none."""
    bet: bool = False
    """Whether nothing waits for the call yet. A rollback of an earlier draft wastes a bet."""
    again: bool = False
    """
    Whether the same request may have been made before, and its text was rejected for itself.

    A model that samples by a seed takes another seed.
    """


REQUEST: ContextVar[RequestContext] = ContextVar(
    "REQUEST",
    default=RequestContext(),  # noqa: B039  # it is frozen
)
"""
Why models are called in this task. The loop sets it, so that policies need not pass it on.

Endpoints read it. It orders the requests that wait for a server, and the event `Called` reports it.
"""


@contextmanager
def holding(variable: ContextVar[T], value: T) -> Generator[None]:
    """Let *variable* hold *value* in the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def requesting(context: RequestContext) -> AbstractContextManager[None]:
    """Set the context of all requests that are made in the block."""
    return holding(REQUEST, context)


def unkept() -> AbstractContextManager[None]:
    """
    Leave no request open in the block.

    Another model writes the next step, so that further tokens would be wasted.
    """
    return holding(KEPT_OPEN, None)
