"""A nested pair keeps the promises of `Model`, as far as a model can that shows nothing before it is verified."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from stepspec import policies
from stepspec.orchestrator.chain import Chain, Role, Step
from stepspec.orchestrator.events import Called, Event
from stepspec.orchestrator.nesting import Nested, observe_within

from ...contracts.model import SHORT, ModelContract, Subject
from ...fakes import ScriptedModel, counting

PROBLEM = Chain.of("What is 1 + 1?")


@pytest.mark.parametrize("policy", ["small", "glimpse"])  # which need no request to judge
class TestNested(ModelContract):
    @pytest.fixture
    def subject(self, policy: str) -> Subject:
        events: list[Event] = []

        def model(role: Role) -> ScriptedModel:
            return ScriptedModel(
                role,
                counting("small", 4),
                latency=lambda chain: 0.0,
                reading=lambda chain: 0.0,
                pace=1e-6,  # seconds; enough to be cancelled in
                judge=lambda chain, question: {"7": 0.5, "9": 0.25},
                observe=observe_within("small", events.append),
            )

        pair = Nested("small", model("small"), model("large"), partial(policies.make, policy), events.append)
        return Subject(pair, PROBLEM, events)

    async def test_every_request_is_reported_once(self, subject: Subject) -> None:
        step = await subject.model.write(subject.chain, limit=SHORT)
        calls = [event for event in subject.events if isinstance(event, Called)]
        assert {(call.role, call.fate) for call in calls} == {("small", "done")}
        assert sum(call.written for call in calls if call.verb == "write") == len(step.tokens)
        before = len(calls)
        await subject.model.ask(subject.chain, "Right?", "79")
        assert [call.path for call in subject.calls[before:]] == ["small.large"]

    async def test_a_cancelled_write_is_over_and_leaves_the_model_usable(self, subject: Subject) -> None:
        def cancel(step: Step) -> bool:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            return False

        writing = asyncio.create_task(subject.model.write(subject.chain, stop=(), until=cancel, limit=SHORT))
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert (await subject.model.write(subject.chain, limit=SHORT)).text
