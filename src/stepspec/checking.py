"""What is looked at once more: accepted steps, off the critical path, and an answer that had to be JSON."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import orjson

from stepspec.orchestrator.chain import Chain, Step
from stepspec.orchestrator.endpoints import ModelEndpoint, ReplicatedModel, Sampling
from stepspec.orchestrator.errors import MalformedReply
from stepspec.orchestrator.events import Observer
from stepspec.orchestrator.feedback.run_stats import ShadowCheck as Checked
from stepspec.orchestrator.feedback.shadow import Check, Finding
from stepspec.orchestrator.interfaces import Model
from stepspec.policies.lookahead_reasoning import plain
from stepspec.prompts import load

from .learning import Learning

ALONE = load("check")
BESIDE = load("shadow.correct")
SURE = 0.05  # of its probability that the large model has to put on Yes and No, or it has not understood
VARIED = 0.6  # temperature at least of the control: a greedy one would repeat the step that it is compared with


@dataclass(frozen=True, slots=True)
class ShadowJudge:
    """
    Asks the *large* model whether an accepted step is correct: by itself, and beside its own step at the same place.

    A step has to pass both questions. Whether the large model would go on in the same way does not matter: pairs of
    models put half of their steps differently, and all of them well. The control is a second step of the large model,
    checked by the same questions with the same reference. A step that is the reference, but for case and white space,
    is correct without asking. *observe* sees what all of that costs. It counts as *company* of the runs at its servers.
    """

    large: ModelEndpoint
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
                agreed = await _correct(large, chain, step, reference)
                own = await _correct(large, chain, control, reference)
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
                learning.adaptation.checked(Checked(grade, finding.agreed, finding.own))
            return finding

        return check


async def _correct(large: Model, chain: Chain, step: Step, reference: Step) -> bool | None:
    """Whether *large* calls *step* correct after *chain*; None if it does not understand a question."""
    if plain(step) == plain(reference):
        return True
    beside = BESIDE.text.format(step=reference.text.strip())
    for question, opening in ((ALONE.text, ALONE.opening), (beside, BESIDE.opening)):
        reply = await large.ask(chain.extend(step), question, ("Yes", "No"), opening=opening)
        if sum(reply.values()) < SURE:
            return None
        if reply["Yes"] <= reply["No"]:
            return False
    return True


def require_json(text: str, large: ModelEndpoint) -> None:
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
