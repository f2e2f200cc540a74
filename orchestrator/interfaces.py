"""
The two main interfaces of the system: `Model` and `Policy`.

A `Model` writes and reads text. A `Policy` is a method: it says which model drafts, verifies and
repairs a step. The loop in `reason` knows models and methods only by these interfaces. A new method
implements `Policy`. A new back end implements `Model` and the class that makes models, which is
`Server` in `endpoints/interfaces.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar, cast

from .chain import Chain, Rating, Role, Rollback, Step, Token, ToolCall, Verdict
from .events import Calling, Purpose
from .repetition import DEFAULT_GUARD, LoopGuard

T = TypeVar("T")

EndedBy: TypeAlias = Literal["large", "small"]
"""
Who may end the thinking.

"small": both models may. If a draft of the small model ends the thinking and is accepted, the
thinking is over. "large": only the large model may. If a draft of the small model ends the
thinking, the end marker is removed from the draft, and the large model writes the next step.
"""
AnsweredBy: TypeAlias = Literal["large", "method", "small"]
"""
Who writes the final answer.

"large": the large model. "small": the small model. "method": the method drafts, verifies and
repairs the answer step by step, like the thinking.
"""

Until: TypeAlias = Callable[[Step], bool] | None
"""
A function that may end a step.

The function is called after every token, with the step so far. If it returns true, the step ends.
None: there is no such function.
"""
DEFAULT_LIMIT = 512
"""The most tokens of one call of `Model.write`, unless a policy sets another limit."""


class WriteOptions(TypedDict, total=False):
    """The keyword arguments of `Model.write`. A model that wraps another model passes them on."""

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

        The step starts with the text *opening*. The tokens of the opening count towards *limit*. An
        opening that is longer than *limit* is cut. A stop string inside the opening does not end
        the step.

        The step ends after *limit* tokens, after a *stop* string, at the end of the thinking block
        (`Step.stop` is then "end"), or when *until* returns true. If *stop* is None, the step ends
        at a delimiter of the chain (`Chain.ends`), except within code, a LaTeX environment or a
        table. Strings in *stop* end the step wherever they occur.

        *top* is 0 to 20. Above 0, every token has its log-probability and the *top* likeliest
        tokens of its position. With 0, log-probabilities may be absent.

        If the call is cancelled, the request is closed, and the server stops writing.
        """
        ...

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        """
        Append the texts *spans* to the chain, and read them in one prefill.

        Return one tuple of tokens for each span. The texts of these tokens, joined, are exactly the
        span, because every span is encoded separately. *top* means the same as in `write`.
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

        The answer is the text *opening*, then one of *choices*. A choice is a single token. Return
        the probability of every choice. All tokens of the vocabulary together have the probability
        1. If the choices have much less, the model would probably write another token: it did not
        understand the question.
        """
        ...


class AnswerParser(Protocol):
    """Finds the tool calls in one answer, by the rules of the server that wrote the answer."""

    @property
    def live(self) -> bool:
        """Whether the parser can return content and calls before the answer is complete."""
        ...

    async def parse(
        self,
        tokens: Sequence[Token],
        *,
        finished: bool,
    ) -> tuple[int, str, Sequence[Calling]]:
        """
        Parse *tokens* from the first on, as many as the parser can. Pass only tokens that no
        earlier call has parsed.

        If *finished* is true, the answer ends with the last of *tokens*. Return the number of
        parsed tokens, and the content and the pieces of tool calls in the parsed tokens. The parser
        holds back text that may begin a tool call, until the parser is sure. The tokens of this
        text count as parsed. If the returned number is 0, the parser has given up: do not call
        `parse` again. If `parse` raises, the state of the parser has not changed, and `parse` can
        be called again with the same tokens.
        """
        ...

    async def parse_whole(self, answer: Step) -> tuple[str, Sequence[ToolCall]]:
        """Parse the complete *answer* anew. Return its content and its tool calls."""
        ...


class Critic(Protocol):
    """A reward model or a verifier. It rates steps, but does not write steps."""

    async def rate(self, chain: Chain) -> Rating:
        """Rate the chain's last step from 0 to 1."""
        ...


class Policy(Protocol):
    """
    The method of a paper. It says who drafts, who verifies, who repairs and who answers.

    A policy has no state. All state is in the chain.
    """

    @property
    def answerer(self) -> Model:
        """The model that writes the final answer, unless `AnsweredBy` says "method"."""
        ...

    async def draft(self, chain: Chain) -> Step:
        """Write a draft of the next step."""
        ...

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        """
        Accept *draft*, or reject it (`Rollback`).

        `Rollback.keep` says how many of the draft's first characters stay. `Rollback.rivals` are
        other drafts of the step. If one of them is good enough, it is `Rollback.chosen`, and
        replaces the rejected draft. `Rollback.instead` is a repair that was written during
        `verify`. If a policy accepts a draft without judging it, `Accept.judged` is false.
        """
        ...

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        """
        Write the step that replaces *draft*.

        If some first characters of the draft stay (`Rollback.keep`), *chain* ends with them.
        """
        ...


PolicyFactory: TypeAlias = Callable[..., Policy]
"""
A policy's class, or a function that builds a policy.

The first two parameters are the models *small* and *large*. The others are options with defaults.
"""


class Preparing(Policy, Protocol):
    """
    A policy that compares every draft with its own version of the step.

    The policy's version depends only on the chain before the draft.
    """

    def prepare(self, chain: Chain) -> Coroutine[Any, Any, Step] | None:
        """
        Return a coroutine that writes the policy's version of the next step.

        Return None if the next draft is not compared. The coroutine starts together with the draft.
        If no part of the draft is accepted, the policy's version is the repair.
        """
        ...

    async def verify(
        self,
        chain: Chain,
        draft: Step,
        prepared: Awaitable[Step] | None = None,
    ) -> Verdict:
        """Compare *draft* with *prepared*. None: write the policy's version now, and compare."""
        ...


def start_preparing(policy: Policy, chain: Chain) -> Coroutine[Any, Any, Step] | None:
    """Return the coroutine of `Preparing.prepare`. Return None if *policy* has no such method."""
    if not hasattr(policy, "prepare"):
        return None
    return cast("Preparing", policy).prepare(chain)


async def verdict_of(
    policy: Policy,
    chain: Chain,
    draft: Step,
    prepared: Awaitable[Step] | None,
) -> Verdict:
    """Return the verdict of *policy* on *draft*. *prepared* is the policy's version of the step."""
    if prepared is None:
        return await policy.verify(chain, draft)
    return await cast("Preparing", policy).verify(chain, draft, prepared)


def repair_may_start_early(policy: Policy, chain: Chain) -> bool:
    """
    Whether the repair of the step after *chain* may start before the verdict (a hedge).

    This is allowed if the repair of a wholly rejected draft depends neither on the draft nor on
    the reason. A policy declares this with a class attribute ``repair_may_start_early``, or with a
    method if it depends on the chain. The default is false.
    """
    declared: bool | Callable[[Chain], bool] = getattr(policy, "repair_may_start_early", False)
    if callable(declared):
        return declared(chain)
    return declared


def loop_guard(policy: Policy) -> LoopGuard | None:
    """
    Return what guards a run of *policy* against loops. None: nothing does.

    A loop is a text that repeats itself. The guard rejects a draft that is empty or in a loop,
    without asking the policy. If the repair goes on with the loop, the run ends. A policy declares
    its guard with an attribute ``loop_guard``. The default is `DEFAULT_GUARD`. A policy with one
    model declares None, because its text has to be what the server writes without stepspec. The
    option ``stop_loops`` of a run overrides the declaration (`Guarded` in
    ``policies/wrappers.py``).
    """
    return cast("LoopGuard | None", getattr(policy, "loop_guard", DEFAULT_GUARD))


def answered_by(policy: object) -> AnsweredBy:
    """
    Return who writes the answer according to the paper of *policy*.

    *policy* is a policy or its class. A policy declares this with a class attribute ``answer``. The
    default is the large model.
    """
    return cast("AnsweredBy", getattr(policy, "answer", "large"))


def ended_by(policy: object) -> EndedBy:
    """
    Return who may end the thinking according to the paper of *policy*.

    *policy* is a policy or its class. A policy declares this with a class attribute ``ending``. The
    default is "small".
    """
    return cast("EndedBy", getattr(policy, "ending", "small"))


OPEN_REQUESTS: ContextVar[AsyncExitStack | None] = ContextVar("OPEN_REQUESTS", default=None)
"""
The stack on which a model may leave a request open between two writes (a sticky stream).

The server then writes on past the end of the step, and the next write takes these tokens.

None: the model closes its request after each write. Only a `Lookahead` sets the stack and closes
its requests, because only the lookahead knows whether the next write probably continues the last
write.
"""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Why a model is called."""

    purpose: Purpose = ""
    """The purpose of the call, such as "draft"."""
    step: int = -1
    """The index of the step that the call is about. -1: the call is about no step."""
    bet: bool = False
    """
    Whether the result of the call may turn out to be useless.

    The run does not wait for the call yet. If an earlier draft is rejected, the call is cancelled.
    """
    new_seed: bool = False
    """
    Whether a model that samples by a seed takes a new seed.

    True if the draft of the step was empty or in a loop. With the old seed, the author of this
    draft would write the same text again.
    """


REQUEST: ContextVar[RequestContext] = ContextVar(
    "REQUEST",
    default=RequestContext(),  # noqa: B039  # The default is frozen.
)
"""
Why models are called in this task.

The loop sets this variable, and policies need not pass it on. Endpoints use the value to order the
requests that wait for a server, and report the value in the event `Called`.
"""


@contextmanager
def holding(variable: ContextVar[T], value: T) -> Generator[None]:
    """Set *variable* to *value* during the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def requesting(context: RequestContext) -> AbstractContextManager[None]:
    """Set the context of all requests that the block makes."""
    return holding(REQUEST, context)


def without_open_requests() -> AbstractContextManager[None]:
    """
    Make models close their request after every write in the block.

    Use this if another model may write the next step. The server would write tokens in vain while
    the request stays open.
    """
    return holding(OPEN_REQUESTS, None)
