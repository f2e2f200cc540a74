"""What is looked at once more: accepted steps, off the critical path, and an answer that had to be JSON."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import orjson

from . import policies
from .learning import Learning
from .orchestrator.chain import Accept, Chain, Step, Verdict
from .orchestrator.endpoints import AnyEndpoint, ReplicatedModel, Sampling
from .orchestrator.errors import MalformedReply
from .orchestrator.events import Observer
from .orchestrator.shadow import Check


@dataclass(frozen=True, slots=True)
class LargeCheck:
    """
    Checks with the *large* model whether it would go on as a step does; *observe* sees what that costs.

    It counts as *company* of the runs at its servers.
    """

    large: AnyEndpoint
    sampling: Sampling
    observe: Observer
    company: Callable[[], AbstractContextManager[None]]

    async def __call__(self, chain: Chain, step: Step) -> Verdict:
        large = self.large.model(self.sampling, observe=self.observe)
        try:
            with self.company():
                return await policies.LookaheadReasoning(large, large).verify(chain, step)
        finally:
            if isinstance(large, ReplicatedModel):
                large.leave()

    def teaching(self, learning: Learning | None, grade: float | None) -> Check:
        """The same for a step of that *grade*, so that *learning*, if there is any, hears of what is found."""
        if learning is None or grade is None:
            return self

        async def check(chain: Chain, step: Step) -> Verdict:
            verdict = await self(chain, step)
            learning.adaptation.checked(grade, agreed=isinstance(verdict, Accept))
            return verdict

        return check


def require_json(text: str, large: AnyEndpoint) -> None:
    """Raise `MalformedReply` if *text* is no JSON: some servers accept a format and ignore it."""
    try:
        orjson.loads(text)
    except ValueError as exc:
        raise MalformedReply(
            f"it was asked for JSON and wrote {text[:80]!r}: serve it with structured outputs enabled",
            role="large",
            url=large.settings.url,
            verb="write",
        ) from exc
