"""
Shadows: a small share of the accepted steps is checked once more, in the background, to measure the judge live.

A shadow delays no run, and its tokens are counted here, not in the ledger of a run. Each check has a control: a step
that the large model writes itself at the same place is checked in the same way. The share of the model's own steps that
the check disputes is the error of the check; only the excess counts against the accepted steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Protocol, TypeAlias

from ..chain import Chain, Step
from ..endpoints import ModelEndpoint, ReplicatedModel, Sampling
from ..errors import StepspecError
from ..events import Called, Committed, Event, Observer
from ..interfaces import Model, RequestContext, requesting
from .learning import Learning
from .load import Load
from .run_stats import ShadowCheck

MOST = 4  # checks at the same time; further ones are skipped, because shadows are only a sample
SURE = 0.05  # of its probability that the large model has to put on Yes and No, or it has not understood
VARIED = 0.6  # temperature at least of the control: a greedy one would repeat the step that it is compared with


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a check *agreed* that an accepted step is correct, and that the control, the model's *own*, is."""

    agreed: bool
    own: bool


Check: TypeAlias = Callable[[Chain, Step], Awaitable[Finding | None]]  # None: the check came to no result


@dataclass(frozen=True, slots=True)
class ShadowRecord:
    """
    The results of all shadows so far: the number of accepted steps that were *agreed* to be correct, or *disputed*.

    There is one control for each; *own_disputed* of the controls were disputed. *failed* checks had no result, and
    *skipped* ones were not started, because too many were under way or a server was busy. *read* and *written* are the
    tokens of all shadows.
    """

    agreed: int = 0
    disputed: int = 0
    own_disputed: int = 0
    failed: int = 0
    skipped: int = 0
    read: int = 0
    written: int = 0

    @property
    def checked(self) -> int:
        return self.agreed + self.disputed

    @property
    def excess(self) -> float | None:
        """The disputed share of the accepted steps, minus that of the large model's own steps; None without checks."""
        return (self.disputed - self.own_disputed) / self.checked if self.checked else None

    def plus(self, finding: Finding) -> ShadowRecord:
        """Count one more *finding*."""
        return replace(
            self,
            agreed=self.agreed + finding.agreed,
            disputed=self.disputed + (not finding.agreed),
            own_disputed=self.own_disputed + (not finding.own),
        )


class Shadows:
    """Checks a random *share* of the accepted steps, at most *most* at a time; a step is always chosen, or never."""

    def __init__(self, share: float, *, most: int = MOST) -> None:
        self._share, self._most = share, most
        self._open: set[asyncio.Task[None]] = set()
        self.record = ShadowRecord()

    def consider(self, chain: Chain, step: Step, check: Check, *, calm: bool = True) -> None:
        """Start to *check* that *step* is correct after *chain*, if it is chosen and the server is *calm*."""
        if not self._share or step.stop not in ("delimiter", "end") or (chain.text and not chain.whole):
            return
        if _random(chain, step) >= self._share:
            return
        if not calm or len(self._open) >= self._most:
            self.record = replace(self.record, skipped=self.record.skipped + 1)
            return
        task = asyncio.create_task(self._check(chain, step, check))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    def observe(self, event: Event) -> None:
        """Count the tokens of a shadow's own requests."""
        if isinstance(event, Called):
            read, written = self.record.read + event.prompt, self.record.written + event.written
            self.record = replace(self.record, read=read, written=written)

    async def settled(self) -> None:
        """Wait until no check is under way."""
        if self._open:
            await asyncio.wait(self._open)

    async def close(self) -> None:
        """Cancel the checks that are under way, and wait until they are gone."""
        for task in self._open:
            task.cancel()
        await self.settled()

    async def _check(self, chain: Chain, step: Step, check: Check) -> None:
        try:
            with requesting(RequestContext("shadow", len(chain.steps), bet=True)):
                finding = await check(chain, step)
        except StepspecError:
            finding = None
        record = self.record
        self.record = replace(record, failed=record.failed + 1) if finding is None else record.plus(finding)


class Shadowing:
    """
    An observer of one run, which starts with *chain*: it passes the accepted steps to *shadows* while *load* is calm.

    *checking* returns the check of a step with a given grade.
    """

    def __init__(self, shadows: Shadows, chain: Chain, checking: Callable[[float | None], Check], load: Load) -> None:
        self._shadows, self._chain, self._checking, self._load = shadows, chain, checking, load

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Committed):
            return
        if event.step.author == "small":
            self._shadows.consider(self._chain, event.step, self._checking(event.score), calm=self._load.calm)
        self._chain = self._chain.extend(event.step)


class Question(Protocol):
    """A question about a step, and the words that open the reply to it."""

    @property
    def text(self) -> str: ...

    @property
    def opening(self) -> str: ...

    def fill(self, **values: object) -> str: ...


@dataclass(frozen=True, slots=True)
class ShadowJudge:
    """
    Asks the *large* model whether an accepted step is correct: by itself, and beside its own step at the same place.

    A step has to pass both questions. Whether the large model would go on in the same way does not matter: pairs of
    models put half of their steps differently, and all of them well. The control is a second step of the large model,
    checked by the same questions with the same reference. A step that is the reference, but for case and white space,
    is correct without asking. *alone* and *beside* are the two questions; the latter has a place for the ``{step}`` of
    the reference. *observe* sees what all of that costs. It counts as *company* of the runs at its servers.
    """

    large: ModelEndpoint
    alone: Question
    beside: Question
    sampling: Sampling
    observe: Observer
    company: Callable[[], AbstractContextManager[None]]

    async def __call__(self, chain: Chain, step: Step) -> Finding | None:
        seed = (self.sampling.seed or 0) + 1  # with the seed of the reference both would be the same step
        varied = {"seed": seed, "temperature": max(self.sampling.temperature, VARIED)}
        samplings = (self.sampling, self.sampling.model_copy(update=varied))
        large, other = (self.large.model(sampling, observe=self.observe) for sampling in samplings)
        try:
            with self.company():
                reference, control = await large.write(chain), await other.write(chain)
                agreed = await self._correct(large, chain, step, reference)
                own = await self._correct(large, chain, control, reference)
        finally:
            for model in (large, other):
                if isinstance(model, ReplicatedModel):
                    model.leave()
        return None if agreed is None or own is None else Finding(agreed, own)

    def teaching(self, learning: Learning | None, grade: float | None) -> Check:
        """The same for a step of that *grade*, so that *learning*, if there is any, hears of the result."""
        if learning is None or grade is None:
            return self

        async def check(chain: Chain, step: Step) -> Finding | None:
            finding = await self(chain, step)
            if finding is not None:
                learning.adaptation.checked(ShadowCheck(grade, finding.agreed, finding.own))
            return finding

        return check

    async def _correct(self, large: Model, chain: Chain, step: Step, reference: Step) -> bool | None:
        """Whether *large* calls *step* correct after *chain*; None if it does not understand a question."""
        if step.plain == reference.plain:
            return True
        beside = self.beside.fill(step=reference.text.strip())
        for question, opening in ((self.alone.text, self.alone.opening), (beside, self.beside.opening)):
            reply = await large.ask(chain.extend(step), question, ("Yes", "No"), opening=opening)
            if sum(reply.values()) < SURE:
                return None
            if reply["Yes"] <= reply["No"]:
                return False
        return True


def _random(chain: Chain, step: Step) -> float:
    """Return a uniform random number, 0 or above and below 1, determined by *chain* and *step*."""
    key = [message.content for message in chain.messages], chain.totals.hashed.digest(), step.text
    return int.from_bytes(blake2b(repr(key).encode(), digest_size=6, person=b"shadow").digest()) / 2**48
