"""
Shadows: a small share of the accepted steps is checked once more, off the critical path, to measure the judge live.

A shadow delays no run and is part of none: its tokens are counted here, and not in the ledger of a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TypeAlias

from .chain import DELIMITER, Accept, Chain, Step, Verdict
from .errors import StepspecError
from .events import Called, Committed, Event
from .interfaces import RequestContext, requesting
from .load import Load

Check: TypeAlias = Callable[[Chain, Step], Awaitable[Verdict]]

MOST = 4  # at the same time; what comes on top is skipped, for it is only a sample


@dataclass(frozen=True, slots=True)
class Record:
    """
    What the shadows found so far: steps that the check *agreed* with, and that it thought *differed*.

    *failed* ones came to no end, and *skipped* ones were not begun as too many were under way or a server was busy.
    *read* and *written* are tokens, of all shadows.
    """

    agreed: int = 0
    differed: int = 0
    failed: int = 0
    skipped: int = 0
    read: int = 0
    written: int = 0

    @property
    def checked(self) -> int:
        return self.agreed + self.differed

    @property
    def disagreement(self) -> float | None:
        """The share of the accepted steps that the large model would have written otherwise; None if unknown."""
        return self.differed / self.checked if self.checked else None


class Shadows:
    """Checks a *share* of the accepted steps, chosen by lot; the same step is always chosen, or never."""

    def __init__(self, share: float, *, most: int = MOST) -> None:
        self._share, self._most = share, most
        self._open: set[asyncio.Task[None]] = set()
        self.record = Record()

    def consider(self, chain: Chain, step: Step, check: Check, *, calm: bool = True) -> None:
        """Perhaps begin to *check* that *step* goes on well from *chain*; not while a server is not *calm*."""
        whole = step.stop in ("delimiter", "end") and (not chain.text or chain.text.endswith(DELIMITER))
        if not whole or _drawn(chain, step) >= self._share:
            return
        if not calm or len(self._open) >= self._most:
            self.record = replace(self.record, skipped=self.record.skipped + 1)
            return
        task = asyncio.create_task(self._check(chain, step, check))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    def observe(self, event: Event) -> None:
        """Count what a shadow's own requests cost."""
        if isinstance(event, Called):
            read, written = self.record.read + event.prompt, self.record.written + event.written
            self.record = replace(self.record, read=read, written=written)

    async def settled(self) -> None:
        """Wait until none is under way."""
        if self._open:
            await asyncio.wait(self._open)

    async def close(self) -> None:
        """Cancel what is under way, and wait until it is gone."""
        for task in self._open:
            task.cancel()
        await self.settled()

    async def _check(self, chain: Chain, step: Step, check: Check) -> None:
        try:
            with requesting(RequestContext("shadow", len(chain.steps), bet=True)):
                verdict = await check(chain, step)
        except StepspecError:
            self.record = replace(self.record, failed=self.record.failed + 1)
        else:
            agreed = isinstance(verdict, Accept)
            one = self.record
            self.record = replace(one, agreed=one.agreed + agreed, differed=one.differed + (not agreed))


class Shadowing:
    """
    Lets *shadows* consider the accepted steps of one run, which begins with *chain*, while the *load* is calm.

    *checking* makes what a step of some grade is checked with.
    """

    def __init__(self, shadows: Shadows, chain: Chain, checking: Callable[[float | None], Check], load: Load) -> None:
        self._shadows, self._chain, self._checking, self._load = shadows, chain, checking, load

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Committed):
            return
        if event.step.author == "small":
            self._shadows.consider(self._chain, event.step, self._checking(event.score), calm=self._load.calm)
        self._chain = self._chain.extend(event.step)


def _drawn(chain: Chain, step: Step) -> float:
    """A number from 0 to below 1, every one as likely."""
    said = "\0".join([*[message.content for message in chain.messages], chain.text, step.text])
    return int.from_bytes(blake2b(said.encode(), digest_size=6, person=b"shadow").digest()) / 2**48
