"""The two seams of the system: what a model can do, and what a policy decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, runtime_checkable

from .chain import Chain, Role, Rollback, Step, Token, Verdict
from .events import Purpose

EndedBy: TypeAlias = Literal["large", "judge", "small"]
AnsweredBy: TypeAlias = Literal["large", "method", "small"]


DEFAULT_LIMIT = 512  # tokens, of a write without a limit of its own


class WriteOptions(TypedDict, total=False):
    """The options of `Model.write`, as a wrapper passes them on; `Model.write` has the default of an absent one."""

    stop: Sequence[str] | None
    limit: int
    until: Callable[[Step], bool] | None
    opening: str
    top: int


class Model(Protocol):
    """One served model. It can write a step, or several from given beginnings, score a text, and answer a question."""

    @property
    def role(self) -> Role: ...

    async def write(
        self,
        chain: Chain,
        *,
        stop: Sequence[str] | None = None,
        limit: int = DEFAULT_LIMIT,
        until: Callable[[Step], bool] | None = None,
        opening: str = "",
        top: int = 0,
    ) -> Step:
        """
        Write the next step, starting with *opening*, ending after a *stop* string or after *limit* tokens.

        Without *stop* it ends where the chain's steps end (`Chain.ends`): a delimiter within code, a LaTeX environment
        or a table is none. Strings that are given count wherever they stand. The end of the thinking block always ends
        a step, whose stop is then "end". *until* sees the partial step after every token and may end it there; that
        token is part of the step. With *top*, every token tells that many of the likeliest ones of its place, 20 at
        most, and its own log-probability; without, the model's sampling says whether it tells that: whoever reads it
        asks for a *top* of 1. Cancelling the call closes the request, which is how the server learns to stop. An
        *opening* that is longer than *limit* is cut to it.
        """
        ...

    async def branch(
        self, chain: Chain, begun: Sequence[Step], *, stop: Sequence[str] | None = None, limit: int = DEFAULT_LIMIT
    ) -> tuple[Step, ...]:
        """
        Write the next step several times at once: one for each of *begun*, the beginnings, in their order.

        It is one request, but for a model that samples by a seed: then it is one for each, with seeds of their own. A
        beginning counts towards *limit*, and no end is looked for in it; *stop* is that of `write`. Its tokens go to
        the server by their ids where these are the model's. Cancelling the call closes the requests.
        """
        ...

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        """
        Append *spans* to the chain and read them: one prefill, one tuple of tokens per span.

        The tokens of a span join to exactly its text. Every span is encoded by itself. *top* is that of `write`.
        """
        ...

    async def ask(
        self, chain: Chain, question: str, choices: Sequence[str], *, opening: str = ""
    ) -> Mapping[str, float]:
        """
        Ask about the chain in a turn of its own; the answer begins with *opening* and goes on with one of *choices*.

        A choice is a single token. Return the probability of every choice over the whole vocabulary: what is missing to
        1 went to other words, and tells a judge that did not understand.
        """
        ...


class Critic(Protocol):
    """One served reward model, which only rates."""

    async def rate(self, chain: Chain) -> float:
        """Return the reward of the chain's last step, squashed to 0 to 1."""
        ...


class Policy(Protocol):
    """Who drafts, who verifies, who repairs, who answers. Policies hold no state: it is all in the chain."""

    @property
    def answerer(self) -> Model:
        """The model that writes the final answer once the thinking is over, unless drafts and verdicts go on."""
        ...

    async def draft(self, chain: Chain) -> Step: ...

    async def verify(self, chain: Chain, draft: Step) -> Verdict: ...

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step: ...


@runtime_checkable
class Preparing(Policy, Protocol):
    """A policy that compares every draft with a step of its own making, which needs only the chain before the draft."""

    def prepare(self, chain: Chain) -> Coroutine[Any, Any, Step] | None:
        """
        Write what the draft of the next step is compared with; None if nothing is needed there.

        It begins with the draft and, where the draft is rejected whole, is its repair.
        """
        ...

    async def verify(self, chain: Chain, draft: Step, prepared: Awaitable[Step] | None = None) -> Verdict:
        """Compare *draft* with the *prepared* step; without one, prepare it now."""
        ...


def prepare(policy: Policy, chain: Chain) -> Coroutine[Any, Any, Step] | None:
    """What *policy* can begin together with the draft of the next step; None if there is nothing."""
    return policy.prepare(chain) if isinstance(policy, Preparing) else None


async def verify(policy: Policy, chain: Chain, draft: Step, prepared: Awaitable[Step] | None) -> Verdict:
    """Ask *policy* for its verdict on *draft*, with what it *prepared*, if it did."""
    if prepared is None or not isinstance(policy, Preparing):
        return await policy.verify(chain, draft)
    return await policy.verify(chain, draft, prepared)


def foreseeable(policy: Policy) -> bool:
    """
    Whether a draft rejected whole is repaired the same way whatever it was and whyever it was rejected.

    Such a repair may be begun before the verdict. A policy says so with a class attribute of this name.
    """
    return bool(getattr(policy, "foreseeable", False))


def answered_by(policy: object) -> AnsweredBy:
    """
    Who writes the answer in the paper of *policy*, which may be a policy or its class: a model, or all of the method.

    A policy says so with a class attribute called ``answer``; without one it is the large model.
    """
    answer: AnsweredBy = getattr(policy, "answer", "large")
    return answer


def ended_by(policy: object) -> EndedBy:
    """
    Who ends the thinking in the paper of *policy*, which may be a policy or its class.

    A policy says so with a class attribute called ``ending``; without one its small model may, by a draft that stands.
    """
    ending: EndedBy = getattr(policy, "ending", "small")
    return ending


KEPT_OPEN: ContextVar[AsyncExitStack | None] = ContextVar("KEPT_OPEN", default=None)
"""
Where a model may leave a request open between two writes (the sticky stream), for whoever set it to close.

Only a lookahead sets it: it alone knows that the next write probably extends the last, and when that hope is over.
"""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """
    Why a model is called: the *purpose*, and the index of the *step* that the call is about.

    A *bet* is wasted if an earlier draft is rolled back: nobody waits for it yet.
    """

    purpose: Purpose = ""
    step: int = -1
    bet: bool = False


REQUEST: ContextVar[RequestContext] = ContextVar("REQUEST", default=RequestContext())  # noqa: B039  # it is frozen
"""
Why the models are called in this task. The loop knows the purpose and sets it; a policy need not pass it on.

Endpoints read it: it orders the requests that wait at a server, and `Called` tells it to observers.
"""


@contextmanager
def requesting(context: RequestContext) -> Generator[None]:
    """Call models in the block for the reason that *context* gives."""
    token = REQUEST.set(context)
    try:
        yield
    finally:
        REQUEST.reset(token)


@contextmanager
def unkept() -> Generator[None]:
    """Leave no request open: the next step is another model's, and what this one wrote on would be thrown away."""
    token = KEPT_OPEN.set(None)
    try:
        yield
    finally:
        KEPT_OPEN.reset(token)
