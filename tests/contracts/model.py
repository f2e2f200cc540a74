"""
Properties of `Model`. A subclass named ``Test...`` sets the tested model by the fixture *subject*.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from stepspec.orchestrator.chain import DELIMITER, THINK_END, Chain, Step
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.events import Called, Event
from stepspec.orchestrator.interfaces import OPEN_REQUESTS, Model

DIGITS = "0123456789"
SHORT = 40  # tokens; enough for a step, so that a model that never ends one does not take long


@dataclass
class Subject:
    """
    A greedy model, a problem for it, and the events that it has emitted. It has to think in several
    steps.
    """

    model: Model
    chain: Chain
    events: list[Event] = field(default_factory=list[Event])

    @property
    def calls(self) -> list[Called]:
        return [event for event in self.events if isinstance(event, Called)]


@asynccontextmanager
async def kept_open() -> AsyncGenerator[None]:
    """Let models keep requests open, as a lookahead does."""
    async with AsyncExitStack() as stack:
        token = OPEN_REQUESTS.set(stack)
        try:
            yield
        finally:
            OPEN_REQUESTS.reset(token)


def cancel_writer(step: Step) -> bool:
    task = asyncio.current_task()
    assert task is not None
    return not task.cancel()


async def written(subject: Subject, *openings: str, limit: int) -> list[Step]:
    """Write a step for each of *openings*, all at once."""
    return await at_once(
        subject.model.write(subject.chain, opening=opening, limit=limit) for opening in openings
    )


async def think(subject: Subject, steps: int) -> Chain:
    chain = subject.chain
    while not chain.finished and len(chain.steps) < steps:
        chain = chain.extend(await subject.model.write(chain, limit=SHORT))
    return chain


class ModelContract:
    """Inherit from it and define the fixture *subject*."""

    @pytest.fixture
    def subject(self) -> Subject:
        raise NotImplementedError

    async def test_a_step_is_the_text_of_its_tokens_up_to_its_delimiter(
        self, subject: Subject
    ) -> None:
        for step in (await think(subject, 4)).steps:
            assert step.author == subject.model.role
            assert "".join(token.text for token in step.tokens) == step.text
            assert step.text.find(DELIMITER) in (-1, len(step.text) - len(DELIMITER))
            assert step.text.endswith(DELIMITER) == (step.stop == "delimiter")
            assert step.text.find(THINK_END) in (-1, len(step.text) - len(THINK_END))

    async def test_writing_again_writes_the_same(self, subject: Subject) -> None:
        assert await think(subject, 3) == await think(subject, 3)

    async def test_another_stop_string_ends_a_step_too(self, subject: Subject) -> None:
        full = await subject.model.write(subject.chain, limit=SHORT)
        step = await subject.model.write(subject.chain, stop=(full.text[2:4],), limit=SHORT)
        assert (step.text, step.stop) == (full.text[:4], "delimiter")

    async def test_the_limit_holds(self, subject: Subject) -> None:
        full = await subject.model.write(subject.chain, limit=SHORT)
        step = await subject.model.write(subject.chain, limit=2)
        assert step.stop == "length"
        assert 1 <= len(step.tokens) <= 2
        assert full.text.startswith(step.text)

    async def test_until_sees_every_token_and_may_end_the_step(self, subject: Subject) -> None:
        partials: list[Step] = []

        def until(step: Step) -> bool:
            partials.append(step)
            return len(step.tokens) == 3

        step = await subject.model.write(subject.chain, until=until, limit=SHORT)
        full = await subject.model.write(subject.chain, limit=SHORT)
        assert [len(partial.tokens) for partial in partials] == [1, 2, 3]
        assert (step.text, step.stop) == (partials[-1].text, "until")
        assert full.text.startswith(step.text)

    async def test_until_that_never_ends_a_step_changes_nothing(self, subject: Subject) -> None:
        plain = await subject.model.write(subject.chain, limit=SHORT)
        assert (
            await subject.model.write(subject.chain, until=lambda step: False, limit=SHORT) == plain
        )

    async def test_an_opening_begins_the_step_and_counts(self, subject: Subject) -> None:
        step = await subject.model.write(subject.chain, opening="Wait,", limit=SHORT)
        assert step.text.startswith("Wait,")
        assert "".join(token.text for token in step.tokens) == step.text
        assert len(step.tokens) <= SHORT

    async def test_an_opening_is_cut_to_the_limit(self, subject: Subject) -> None:
        for limit in (1, 2):
            short = await subject.model.write(
                subject.chain, opening="Wait, what is this?", limit=limit
            )
            assert len(short.tokens) == limit
            assert "".join(token.text for token in short.tokens) == short.text
            assert short.stop == "length"
            assert "Wait, what is this?".startswith(short.text)

    async def test_a_write_after_a_cut_continues_the_text(self, subject: Subject) -> None:
        step = await subject.model.write(subject.chain, limit=SHORT)
        half = step.cut(len(step.text) // 2)
        following = await subject.model.write(subject.chain.extend(half), limit=SHORT)
        assert "".join(token.text for token in following.tokens) == following.text
        if len(step.cut(len(half.text)).tokens) == len(half.tokens) and half.tokens[-1].id >= 0:
            assert half.text + following.text == step.text

    async def test_a_finished_chain_ends_in_the_end_of_thinking_or_of_the_turn(
        self, subject: Subject
    ) -> None:
        chain = subject.chain.extend(Step(f"So.\n{THINK_END}", subject.model.role, "end"))
        answer = await subject.model.write(chain, stop=(), limit=SHORT)
        assert answer.stop in ("end", "length")
        assert "".join(token.text for token in answer.tokens) == answer.text

    async def test_spans_are_scored_word_for_word(self, subject: Subject) -> None:
        chain = await think(subject, 1)
        spans = ("So it is 12.", "", " Wait,\n\n", THINK_END)
        scored = await subject.model.score(chain, *spans)
        assert ["".join(token.text for token in tokens) for tokens in scored] == list(spans)
        assert all(token.logprob <= 0 for tokens in scored for token in tokens)

    async def test_a_written_text_scores_as_it_was_written(self, subject: Subject) -> None:
        step = await subject.model.write(subject.chain, limit=SHORT)
        (tokens,) = await subject.model.score(subject.chain, step.text)
        if [token.text for token in tokens] == [token.text for token in step.tokens]:
            written = [token.logprob for token in step.tokens]
            assert [token.logprob for token in tokens] == pytest.approx(written, abs=1e-3)

    async def test_tokens_have_the_likeliest_alternatives_on_request(
        self, subject: Subject
    ) -> None:
        plain = await subject.model.write(subject.chain, limit=SHORT)
        ranked = await subject.model.write(subject.chain, limit=SHORT, top=3)
        (scored,) = await subject.model.score(subject.chain, plain.text, top=3)
        assert all(token.top == () for token in plain.tokens)
        assert [(token.text, token.id) for token in ranked.tokens] == [
            (token.text, token.id) for token in plain.tokens
        ]
        for token in (*ranked.tokens, *scored):
            assert 1 <= len(token.top) <= 3
            logprobs = [rival.logprob for rival in token.top]
            assert logprobs == sorted(logprobs, reverse=True)
            assert token.logprob <= logprobs[0] + 1e-6
            assert (token.rank in range(1, len(token.top) + 1)) == (
                token.logprob >= logprobs[-1] - 1e-6
            )
        for token in ranked.tokens:  # The model is greedy.
            assert token.top[0].logprob == pytest.approx(token.logprob)

    async def test_choices_have_probabilities_over_the_full_vocabulary(
        self, subject: Subject
    ) -> None:
        chain = await think(subject, 1)
        grades = await subject.model.ask(
            chain, "Grade the last step from 0 to 9.", DIGITS, opening="The grade is "
        )
        assert list(grades) == list(DIGITS)
        assert all(0 <= grade <= 1 for grade in grades.values())
        assert sum(grades.values()) <= 1 + 1e-6
        fewer = await subject.model.ask(
            chain, "Grade the last step from 0 to 9.", "97", opening="The grade is "
        )
        assert fewer == pytest.approx({choice: grades[choice] for choice in "97"}, abs=1e-3)

    async def test_every_request_is_reported_once(self, subject: Subject) -> None:
        step = await subject.model.write(subject.chain, limit=SHORT)
        await subject.model.score(subject.chain, "So")
        await subject.model.ask(subject.chain, "Right?", "79")
        assert [(call.verb, call.fate) for call in subject.calls] == [
            ("write", "done"),
            ("score", "done"),
            ("ask", "done"),
        ]
        assert subject.calls[0].written >= len(step.tokens)
        for call in subject.calls:
            assert call.role == subject.model.role
            assert call.first is None or 0 <= call.first <= call.seconds

    async def test_a_cancelled_write_is_over_and_leaves_the_model_usable(
        self, subject: Subject
    ) -> None:
        writing = asyncio.create_task(
            subject.model.write(subject.chain, until=cancel_writer, limit=SHORT)
        )
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert [call.fate for call in subject.calls] == ["cancelled"]
        assert subject.calls[0].written >= 1
        assert (await subject.model.write(subject.chain, limit=SHORT)).text

    async def test_requests_do_not_disturb_each_other(self, subject: Subject) -> None:
        alone = await subject.model.write(subject.chain, limit=SHORT)
        together = await asyncio.gather(
            *[subject.model.write(subject.chain, limit=SHORT) for _ in range(8)]
        )
        assert {step.text for step in together} == {alone.text}

    @pytest.mark.parametrize("limit", [3, SHORT])
    async def test_keeping_requests_open_changes_no_step(
        self, subject: Subject, limit: int
    ) -> None:
        async def write(count: int) -> list[Step]:
            chain = subject.chain
            while not chain.finished and len(chain.steps) < count:
                chain = chain.extend(await subject.model.write(chain, limit=limit))
            return list(chain.steps)

        def text(steps: list[Step]) -> list[tuple[str, str]]:
            """Log-probabilities may be absent, and a busy server merges tokens."""
            return [(step.text, step.stop) for step in steps]

        plain = await write(4)
        before = asyncio.all_tasks()
        subject.events.clear()
        async with kept_open():
            assert text(await write(4)) == text(plain)
        assert asyncio.all_tasks() <= before
        assert sum(call.written for call in subject.calls) >= sum(
            len(step.tokens) for step in plain
        )

    async def test_a_step_goes_on_from_its_opening(self, subject: Subject) -> None:
        full = await subject.model.write(subject.chain, limit=SHORT)
        openings = (full.tokens[0].text, f"Wait,{full.text[:3]}")
        steps = await written(subject, *openings, limit=SHORT)
        assert {call.verb for call in subject.calls} == {"write"}
        assert (steps[0].text, steps[0].stop) == (full.text, full.stop)
        assert steps[1].text.startswith(openings[1])
        for step in steps:
            assert step.author == subject.model.role
            assert step.vocabulary == full.vocabulary
            assert "".join(token.text for token in step.tokens) == step.text
            assert (step.stop == "delimiter") == step.text.endswith(DELIMITER)
            assert len(step.tokens) <= SHORT
        tokens = sum(call.written for call in subject.calls[1:])
        assert tokens >= sum(len(step.tokens) for step in steps) - 12  # those of the openings

    async def test_a_step_does_not_depend_on_those_that_are_written_at_once(
        self, subject: Subject
    ) -> None:
        full = await subject.model.write(subject.chain, limit=SHORT)
        openings = [full.text[:length] for length in (1, 3, len(full.text) // 2)]
        together = await written(subject, *openings, limit=SHORT)
        alone = [
            await subject.model.write(subject.chain, opening=opening, limit=SHORT)
            for opening in openings
        ]
        assert [(step.text, step.stop) for step in together] == [
            (step.text, step.stop) for step in alone
        ]

    async def test_an_opening_as_long_as_the_step_is_cut_to_the_limit(
        self, subject: Subject
    ) -> None:
        full = await subject.model.write(subject.chain, limit=SHORT)
        openings = (full.tokens[0].text, full.text)
        for step in await written(subject, *openings, limit=2):
            assert len(step.tokens) == 2
            assert "".join(token.text for token in step.tokens) == step.text
            assert step.stop == "length"
            assert full.text.startswith(step.text)
        calls = len(subject.calls)
        assert calls <= 2
        (cut,) = await written(subject, full.text, limit=2)
        assert (len(cut.tokens), cut.stop) == (2, "length")
        assert len(subject.calls) == calls  # There was nothing to write.

    async def test_a_stop_string_in_an_opening_does_not_end_the_step(
        self, subject: Subject
    ) -> None:
        opening = f"So.{DELIMITER}"
        step = await subject.model.write(subject.chain, opening=opening, limit=SHORT)
        assert len(step.text) > len(opening)

    async def test_writes_at_once_that_are_cancelled_are_over_and_leave_the_model_usable(
        self, subject: Subject
    ) -> None:
        writing = asyncio.create_task(written(subject, "So", "Wait,", limit=SHORT))
        for _ in range(3):
            await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert {call.fate for call in subject.calls} <= {"cancelled"}
        assert len(await written(subject, "So", "Wait,", limit=SHORT)) == 2
