"""
Calls of tools in an answer, found while it is written: the same at any pace, and whatever fails on
the way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepspec.orchestrator import Step, Token
from stepspec.orchestrator.answer import (
    CallStream,
    answer_text,
    complete_calls,
    missing_json,
    write_answer,
)
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Chain, Role, ToolCall
from stepspec.orchestrator.errors import EndpointUnavailable
from stepspec.orchestrator.events import Answered, Answering, Calling, Committed, Event
from stepspec.orchestrator.run import Outcome, RunParts
from stepspec.orchestrator.run import run as run_policy
from stepspec.policies import make

from ..fakes import ScriptedModel, counting, run
from ..stand_in import tools as stand_in_tools
from .arms import PROBLEM

CALL = '<tool_call>\n{"name": "lookup", "arguments": {"item": "cup"}}\n</tool_call>'
ROLES: tuple[Role, ...] = ("small", "large")
ANSWERS = st.lists(
    st.sampled_from(["So ", "it is ", "<tool", " 42", "\n", " <", CALL]), max_size=6
).map("".join)


@dataclass
class TextParser:
    """
    A parser that takes *seconds* for each reply, of which the first *fails* fail; *texts* are what
    it was asked.
    """

    seconds: float = 0.0
    fails: int = 0
    text: str = ""
    texts: int = 0

    live = True

    async def parse(
        self, tokens: Sequence[Token], *, finished: bool
    ) -> tuple[int, str, Sequence[Calling]]:
        await self._ask()
        before = stand_in_tools.parse(self.text)
        self.text += "".join(token.text for token in tokens)
        content, calls = stand_in_tools.parse(self.text)
        if finished and not calls:
            content = self.text
        new = list(enumerate(calls))[len(before[1]) :]
        pieces = [
            piece for index, (name, arguments) in new for piece in _pieces(index, name, arguments)
        ]
        return len(tokens), content.removeprefix(before[0]), pieces

    async def parse_whole(self, answer: Step) -> tuple[str, Sequence[ToolCall]]:
        await self._ask()
        content, calls = stand_in_tools.parse(answer.text)
        made = [
            ToolCall(f"id-{index}", name, arguments)
            for index, (name, arguments) in enumerate(calls)
        ]
        return content if calls else answer.text, made

    async def _ask(self) -> None:
        self.texts += 1
        await asyncio.sleep(self.seconds)
        if self.fails:
            self.fails -= 1
            raise EndpointUnavailable("gone")


def _pieces(index: int, name: str, arguments: str) -> tuple[Calling, Calling]:
    return Calling(index, f"id-{index}", name), Calling(index, arguments=arguments)


def expected(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    content, calls = stand_in_tools.parse(text)
    made = tuple(
        ToolCall(f"id-{index}", name, arguments) for index, (name, arguments) in enumerate(calls)
    )
    if not calls:
        return answer_text(text), ()
    return answer_text("" if content.isspace() else content), made


def said(events: Sequence[Event]) -> tuple[str, tuple[ToolCall, ...]]:
    """The content and the calls that the pieces of a stream join to."""
    calls: dict[int, ToolCall] = {}
    for piece in events:
        if isinstance(piece, Calling):
            call = calls.get(piece.index, ToolCall("", "", ""))
            calls[piece.index] = ToolCall(
                call.id + piece.id, call.name + piece.name, call.arguments + piece.arguments
            )
    text = "".join(piece.text for piece in events if isinstance(piece, Answering))
    return text, tuple(calls[index] for index in sorted(calls))


@settings(deadline=None)  # a busy machine is slow; the clock of the test is virtual
@given(ANSWERS, st.sampled_from([0.0, 0.01, 0.3, 5.0]), st.sampled_from([0.0, 0.01, 1.0]))
@example(f"\n{CALL}", 0.0, 0.0)
def test_content_and_calls_are_the_same_at_any_pace(text: str, parsing: float, pace: float) -> None:
    events: list[Event] = []
    large = ScriptedModel("large", counting("large", 3), answer=text or " ", pace=pace)
    stream = CallStream(events.append, TextParser(parsing))
    step, _ = run(write_answer(large, PROBLEM, limit=999, stream=stream))
    stream.finish(step.text)
    assert said(events) == (answer_text(stream.text), stream.calls) == expected(step.text)


def test_a_call_streams_before_the_answer_is_complete() -> None:
    events: list[Event] = []
    calling = asyncio.Event()
    large = ScriptedModel("large", counting("large", 3), answer=f"Well. {CALL}\n{CALL}", pace=1.0)

    def emit(event: Event) -> None:
        events.append(event)
        if isinstance(event, Calling):
            calling.set()

    async def first_call() -> bool:
        stream = CallStream(emit, TextParser())
        writing = asyncio.create_task(write_answer(large, PROBLEM, limit=999, stream=stream))
        await asyncio.wait(
            [writing, asyncio.create_task(calling.wait())], return_when=asyncio.FIRST_COMPLETED
        )
        early = not writing.done()
        await writing
        return early

    early, _ = run(first_call())
    assert early
    assert isinstance(events[0], Answering)


def test_a_parser_that_fails_once_is_asked_again_and_one_that_goes_on_fails_the_answer() -> None:
    large = ScriptedModel("large", counting("large", 3), answer=CALL, pace=0.2)
    events: list[Event] = []
    stream = CallStream(events.append, TextParser(fails=1))
    run(write_answer(large, PROBLEM, limit=999, stream=stream))
    assert said(events) == expected(CALL)
    calls = (ToolCall("a", "lookup", '{"item": "cup"}'), ToolCall("b", "lookup", '{"item": "c'))
    assert complete_calls(calls) == calls[:1]  # of an answer that was cut
    failing = CallStream(events.append, TextParser(fails=99))
    with pytest.raises(EndpointUnavailable):
        run(write_answer(large, PROBLEM, limit=999, stream=failing))


def test_a_model_that_starts_again_takes_nothing_back() -> None:
    """As another replica does, which cuts the text into other tokens."""
    text = f"Well. {CALL}"
    events: list[Event] = []
    stream = CallStream(events.append, TextParser())
    cut = text.index(' "lookup"')
    written = Step(
        text[:cut], "large", "until", tuple(Token(character) for character in text[:cut])
    )
    other = ScriptedModel("large", counting("large", 3), answer=text)

    async def begun() -> None:
        async with stream.following():
            stream.on_token(written)
            await asyncio.sleep(1)
        assert said(events) == ("Well. ", ())
        await write_answer(other, PROBLEM, limit=999, stream=stream)

    run(begun())
    assert said(events) == expected(text)


def answered(
    small: ScriptedModel,
    large: ScriptedModel,
    *,
    thinks: bool = True,
    **how: Any,
) -> tuple[Outcome, list[Event]]:
    events: list[Event] = []
    policy = make("specreason", small, large)
    chain = replace(Chain.of("How much?"), thinks=thinks)
    parts = RunParts(policy, budget=Budget(tokens=500), answerer=large, parser=TextParser, **how)
    return run(run_policy(parts, chain, events.append))[0], events


@pytest.mark.parametrize("ahead", [0, 4])
def test_a_run_answers_with_calls_that_are_emitted_once(ahead: int) -> None:
    outcome, events = answered(
        *(ScriptedModel(role, counting(role, 3), answer=CALL) for role in ROLES), ahead=ahead
    )
    assert (outcome.text, outcome.calls, outcome.reason) == (*expected(CALL), "stop")
    assert said(events) == expected(CALL)
    assert sum(isinstance(event, Answered) for event in events) == 1


def test_models_that_do_not_think_call_tools_at_once() -> None:
    small, large = (ScriptedModel(role, lambda previous: CALL, answer=CALL) for role in ROLES)
    outcome, events = answered(small, large, ahead=2, thinks=False)
    assert (outcome.text, outcome.calls) == expected(CALL)
    assert not any(isinstance(event, Committed) for event in events)
    assert small.log == []


@pytest.mark.parametrize(
    ("begun", "whole", "rest"),
    [
        ("", '{"a": 1}', '{"a": 1}'),
        ('{"a":1', '{"a": 12, "b": 3}', '2, "b": 3}'),
        ('{ "a" : "x y', '{"a": "x yz"}', 'z"}'),
        ('{"a": "x\\"', '{"a": "x\\" y"}', ' y"}'),
        ('{"a": 1}', '{"a":1}', ""),
        ('{"a": 1} ', '{"a":1}', ""),
        ('{"a": "x y"', '{"a": "xy"}', None),
        ('{"b', '{"a": 1}', None),
        ('{"a": 1}}', '{"a": 1}', None),
    ],
)
def test_what_is_missing_of_arguments_is_found_whatever_white_space_they_have(
    begun: str, whole: str, rest: str | None
) -> None:
    assert missing_json(begun, whole) == rest


@dataclass
class HalfParser(TextParser):
    """A parser that, while the answer is written, finds the *begun* beginning of a call only."""

    begun: str = ""

    async def parse(
        self, tokens: Sequence[Token], *, finished: bool
    ) -> tuple[int, str, Sequence[Calling]]:
        if self.text or not self.begun:
            return 0, "", ()
        self.text = self.begun
        return len(tokens), "", (Calling(0, "id", "lookup"), Calling(0, arguments=self.begun))


@pytest.mark.parametrize("begun", ["", '{"item"', '{ "item" :"c'])
def test_a_complete_answer_adds_what_a_stream_has_missed(begun: str) -> None:
    events: list[Event] = []
    large = ScriptedModel("large", counting("large", 3), answer=CALL, pace=0.1)
    stream = CallStream(events.append, HalfParser(begun=begun))
    step, _ = run(write_answer(large, PROBLEM, limit=999, stream=stream))
    stream.finish(step.text)
    (call,) = said(events)[1]
    assert (call.name, json.loads(call.arguments)) == ("lookup", {"item": "cup"})
    assert stream.calls == (call,)


def test_an_answer_to_nobody_is_parsed_once() -> None:
    events: list[Event] = []
    large = ScriptedModel("large", counting("large", 3), answer=f"Well. {CALL}", pace=0.2)
    parser = TextParser()
    stream = CallStream(events.append, parser, live=False)
    run(write_answer(large, PROBLEM, limit=999, stream=stream))
    assert said(events) == expected(f"Well. {CALL}")
    assert parser.texts == 1


@pytest.mark.parametrize("tools_called", [True, False])
def test_an_answer_without_calls_is_written_anew_in_its_format(tools_called: bool) -> None:
    text = f"Let me look. {CALL}" if tools_called else "It costs 3 euros."
    small, large = (ScriptedModel(role, counting(role, 3), answer=text) for role in ROLES)
    formatted = ScriptedModel("large", counting("large", 3), answer='{"price": 3}')
    outcome, events = answered(small, large, without_calls=formatted)
    wanted = expected(text) if tools_called else ('{"price": 3}', ())
    assert (outcome.text, outcome.calls) == wanted
    assert said(events) == wanted
    assert sum(isinstance(event, Answered) for event in events) == 1
