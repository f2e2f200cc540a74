"""
What every verifier is asked to judge, and verifiers that are Python functions.

`VERIFIERS` has them by name: those of plugins, and those that a program passed.

A coroutine function runs on the event loop. Any other function runs in a thread of its own, so that
the loop never waits for it. Python cannot end a thread: one that is too late runs on, and keeps its
place among those that may run at the same time. The threads are daemons, so that none of them keeps
the program from ending.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import TypeAlias, cast

from ..answer import extract
from ..chain import THINK_END, Chain, Message, Rating
from ..errors import ConfigurationError
from ..events import Stage
from ..registry import Registry, behind

MAX_REASON_LENGTH = 2000
"""Characters of a reason that are kept: it becomes part of a prompt."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A step or an answer that is to be judged."""

    stage: Stage
    """Whether it is a step or an answer."""
    problem: tuple[Message, ...]
    """The conversation that poses the problem."""
    steps: tuple[str, ...]
    """The texts of the steps before."""
    text: str
    """The text of the step or of the answer."""

    @classmethod
    def step(cls, chain: Chain) -> Candidate:
        """Return the last step of *chain*."""
        *before, last = [step.reasoning for step in chain.steps]
        return cls("step", chain.messages, tuple(before), last)

    @classmethod
    def final(cls, chain: Chain, answer: str) -> Candidate:
        """Return the *answer* at the end of *chain*, after the thinking if there is any."""
        thinking = chain.parts()[0].steps if chain.closed else ()
        return cls(
            "answer",
            chain.messages,
            tuple(step.reasoning for step in thinking),
            answer,
        )

    @property
    def answer(self) -> str:
        r"""The content of the last ``\boxed{}`` of the text, or else its last line."""
        return extract(self.text)

    @property
    def question(self) -> str:
        """The last turn of the problem, which in most conversations is the problem itself."""
        return self.problem[-1].content


def read_rating(value: object) -> Rating:
    """
    Return *value* as a rating: a `Rating`, a number from 0 to 1, or True or False.

    Raise `ValueError` for anything else.
    """
    score = value
    reason: object = ""
    if isinstance(value, Rating):
        score = value.score
        reason = value.reason
    if not isinstance(score, int | float) or not 0 <= score <= 1:  # nor NaN
        raise ValueError(f"its score is {score!r:.80}, and has to be a number from 0 to 1")
    text = str(reason or "").replace(THINK_END, "").strip()
    return Rating(float(score), text[:MAX_REASON_LENGTH])


VerifierFunction: TypeAlias = Callable[[Candidate], Rating | float | Awaitable[Rating | float]]
"""
A verifier in Python: rates a candidate, from 0 to 1 or as True or False. It may be a coroutine
function.
"""


def read_verifier(name: str, value: object) -> VerifierFunction:
    """
    Return *value* as a verifier. Raise `ConfigurationError` if it takes anything but one candidate.
    """
    if not callable(value) or isinstance(behind(value), type):
        raise ConfigurationError(
            f"{value!r} is not a function that rates a candidate: of a class, pass an instance"
        )
    try:
        inspect.signature(value).bind(None)
    except TypeError as exc:
        raise ConfigurationError(f"{name} has to take one argument, the candidate: {exc}") from exc
    return cast("VerifierFunction", value)


VERIFIERS = Registry[VerifierFunction](
    "verifier",
    "verifiers",
    "stepspec.verifiers",
    {},
    read_verifier,
)
"""The verifiers by name: those of plugins, and those that a program passed as a function."""


def named(verifier: object) -> object:
    """
    Return the name to choose *verifier* by; a function is added to `VERIFIERS` under its own name.
    """
    return VERIFIERS.add(verifier) if callable(verifier) else verifier


def is_async(function: object) -> bool:
    """Whether *function* is a coroutine function, or an instance that is called as one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )


async def in_thread(
    function: VerifierFunction,
    candidate: Candidate,
    ended: Callable[[], None],
) -> object:
    """
    Call *function* in a daemon thread, and wait for its result.

    *ended* is called on the loop when the thread ends, which may be long after this coroutine was
    cancelled.
    """
    loop = asyncio.get_running_loop()
    context = copy_context()
    result = Future[object]()
    # The thread sets a result also if nobody waits for it any more.
    result.set_running_or_notify_cancel()

    def work() -> None:
        try:
            result.set_result(context.run(function, candidate))
        except BaseException as exc:
            # SystemExit must not end the program's loop, and no future takes a StopIteration.
            ordinary = isinstance(exc, Exception) and not isinstance(exc, StopIteration)
            result.set_exception(exc if ordinary else RuntimeError(f"{type(exc).__name__}: {exc}"))
        with suppress(RuntimeError):  # The loop may be closed by now.
            loop.call_soon_threadsafe(ended)

    try:
        threading.Thread(target=work, name="verifier", daemon=True).start()
    except RuntimeError:  # The machine has no thread left.
        ended()
        raise
    return await asyncio.wrap_future(result)
