"""Properties of `Model.branch`, and the models that they are tested with."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from stepspec.orchestrator.chain import DELIMITER, Chain, Step
from stepspec.orchestrator.events import Called, Event
from stepspec.orchestrator.interfaces import Model

SHORT = 40  # tokens; enough for a step, so that a model that never ends one does not take long


@dataclass
class Subject:
    """A greedy model, a problem for it, and the events that it has emitted. It has to think in several steps."""

    model: Model
    chain: Chain
    events: list[Event] = field(default_factory=list[Event])

    @property
    def calls(self) -> list[Called]:
        return [event for event in self.events if isinstance(event, Called)]


class BranchContract:
    """Inherited by `ModelContract`."""

    async def test_steps_are_written_from_several_beginnings_in_one_request(self, subject: Subject) -> None:
        full = await subject.model.write(subject.chain, limit=SHORT)
        begun = [full.cut(len(full.tokens[0].text)), Step(f"Wait,{full.text[:3]}", subject.model.role)]
        steps = await subject.model.branch(subject.chain, begun, limit=SHORT)
        assert [call.verb for call in subject.calls] == ["write", "write"]
        assert (steps[0].text, steps[0].stop) == (full.text, full.stop)
        assert [token.id for token in steps[0].tokens] == [token.id for token in full.tokens]
        assert steps[1].text.startswith(begun[1].text)
        for step in steps:
            assert step.author == subject.model.role
            assert step.vocabulary == full.vocabulary
            assert "".join(token.text for token in step.tokens) == step.text
            assert (step.stop == "delimiter") == step.text.endswith(DELIMITER)
            assert len(step.tokens) <= SHORT
        assert subject.calls[1].written >= sum(len(step.tokens) for step in steps) - 12  # those of the beginnings

    async def test_a_beginning_does_not_depend_on_the_other_beginnings(self, subject: Subject) -> None:
        full = await subject.model.write(subject.chain, limit=SHORT)
        begun = [full.cut(length) for length in (1, 3, len(full.text) // 2)]
        together = await subject.model.branch(subject.chain, begun, limit=SHORT)
        alone = [(await subject.model.branch(subject.chain, [one], limit=SHORT))[0] for one in begun]
        assert [(step.text, step.stop) for step in together] == [(step.text, step.stop) for step in alone]

    async def test_a_beginning_counts_towards_the_limit_and_is_cut_to_it(self, subject: Subject) -> None:
        full = await subject.model.write(subject.chain, limit=SHORT)
        begun = [full.cut(len(full.tokens[0].text)), replace(full, stop="until")]
        for step in await subject.model.branch(subject.chain, begun, limit=2):
            assert len(step.tokens) == 2
            assert "".join(token.text for token in step.tokens) == step.text
            assert step.stop == "length"
            assert full.text.startswith(step.text)
        assert len(subject.calls) == 2
        (cut,) = await subject.model.branch(subject.chain, begun[1:], limit=2)
        assert (len(cut.tokens), cut.stop) == (2, "length")
        assert len(subject.calls) == 2  # There was nothing to write.

    async def test_a_stop_string_in_a_beginning_does_not_end_the_step(self, subject: Subject) -> None:
        begun = Step(f"So.{DELIMITER}", subject.model.role)
        (step,) = await subject.model.branch(subject.chain, [begun], limit=SHORT)
        assert len(step.text) > len(begun.text)

    async def test_branching_that_is_cancelled_is_over_and_leaves_the_model_usable(self, subject: Subject) -> None:
        begun = [Step(word, subject.model.role) for word in ("So", "Wait,")]
        branching = asyncio.create_task(subject.model.branch(subject.chain, begun, limit=SHORT))
        for _ in range(3):
            await asyncio.sleep(0)
        branching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await branching
        assert [call.fate for call in subject.calls] in ([], ["cancelled"])
        assert len(await subject.model.branch(subject.chain, begun, limit=SHORT)) == 2
