"""
The problems with tools: their worked loops, the tools, and the loop that drives and grades a model.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import tool_problems as world
from tests.tool_problems import (
    LARGEST,
    NO_CALLS,
    THREE_CALLS,
    TURNS,
    Call,
    Difficulty,
    Loop,
    Message,
    Problem,
    draw,
    generate,
    run_tool,
    tool_loop,
)

SEEDS = st.integers(0, 2**32)
PROBLEMS = SEEDS.map(lambda seed: draw(random.Random(seed)))
NUMBER = re.compile(r"\d+")
CUPS = Problem("buy", "Ann", ((2, "cup"), (3, "pen")), (17, 23))


def play(problem: Problem, turns: Sequence[tuple[Call, ...]], answer: int) -> Loop:
    """Let a model that makes these calls in its *turns*, and answers, solve *problem*."""
    loop = tool_loop(problem)
    next(loop)
    try:
        for calls in (*turns, ()):
            made = [
                {
                    "id": f"call-{at}",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for at, call in enumerate(calls)
            ]
            loop.send({"content": "" if calls else f"\\boxed{{{answer}}}", "tool_calls": made})
    except StopIteration as end:
        solved: Loop = end.value
        return solved
    raise AssertionError("the loop wants another turn")


@given(PROBLEMS)
def test_the_worked_loop_is_right_and_within_the_vocabulary(problem: Problem) -> None:
    assert len(problem.calls) < TURNS
    assert play(problem, problem.calls, problem.answer).correct
    made = [call.argument for calls in problem.calls for call in calls]
    assert all(
        1 <= int(number) <= LARGEST for number in NUMBER.findall(" ".join((problem.text, *made)))
    )


def test_the_kinds_need_from_no_call_to_several_in_one_turn() -> None:
    def calls(difficulty: Difficulty) -> list[list[int]]:
        some = islice(generate(1, "test", difficulty), 100)
        return [[*map(len, problem.calls)] for problem in some]

    assert not any(calls(NO_CALLS))
    assert all(sum(counts) == 3 for counts in calls(THREE_CALLS))
    assert {max(counts) for counts in calls(THREE_CALLS)} == {1, 2}


def test_the_tools_answer_and_say_what_is_wrong_with_a_call() -> None:
    def run(name: str, **arguments: object) -> str:
        return run_tool(CUPS.catalogue, name, arguments)

    assert run("lookup", item="pen") == "pen: 23"
    assert run("calculator", expression="2 * 17 + 3 * 23") == "result: 103"
    assert run("lookup", item="yacht") == "there is no item 'yacht'"
    assert run("lookup", thing="pen") == "there is no item 'None'"
    assert run("weather", city="Bonn") == "there is no tool 'weather'"
    assert run("calculator", expression="2 * (17 - 3) // 5") == "result: 5"
    for wrong in ("2 *", "1 // 0", "9 ** 9", "__import__('os')", "2.5 + 1", "True + 1", "exit()"):
        assert run("calculator", expression=wrong).startswith("this cannot be calculated")


def test_a_loop_is_wrong_with_another_answer_other_calls_or_no_end() -> None:
    turns = CUPS.calls
    assert not play(CUPS, turns, 13).correct
    assert not play(CUPS, (), 103).correct  # guessed, without the tools
    assert not play(CUPS, ((Call("lookup", "lamp"),), *turns), 103).correct
    endless = play(CUPS, [turns[0]] * TURNS, 103)
    assert (endless.correct, len(endless.calls), endless.text) == (False, TURNS, "")


def test_the_messages_of_a_loop_are_those_of_the_api() -> None:
    before: list[Message] = [{"role": "system", "content": "Be brief."}]
    loop = tool_loop(CUPS, before)
    assert next(loop) == [*before, {"role": "user", "content": CUPS.text}]
    calls = [
        {"id": item, "function": {"name": "lookup", "arguments": json.dumps({"item": item})}}
        for item in ("cup", "pen")
    ]
    assert loop.send({"content": "", "tool_calls": calls})[2:] == [
        {"content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "cup", "content": "cup: 17"},
        {"role": "tool", "tool_call_id": "pen", "content": "pen: 23"},
    ]


def test_arguments_that_are_no_object_reach_the_tool_as_none() -> None:
    loop = tool_loop(CUPS)
    next(loop)
    call = {"id": "1", "type": "function", "function": {"name": "lookup", "arguments": '"cup"'}}
    messages = loop.send({"role": "assistant", "content": "", "tool_calls": [call]})
    assert messages[-1]["content"] == "there is no item 'None'"


def test_a_call_whose_arguments_are_no_json_ends_the_loop() -> None:
    loop = tool_loop(CUPS)
    next(loop)
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "lookup", "arguments": '{"item": "cup"}}'},
    }
    with pytest.raises(StopIteration) as ended:
        loop.send({"role": "assistant", "content": "", "tool_calls": [call]})
    solved: Loop = ended.value.value
    assert (solved.correct, solved.calls) == (False, ())


def test_the_tools_are_described_with_their_parameters() -> None:
    described = {tool["function"]["name"]: tool["function"]["parameters"] for tool in world.tools()}
    required = {name: schema["required"] for name, schema in described.items()}
    assert required == {"lookup": ["item"], "calculator": ["expression"]}
    assert Call("lookup", "cup").arguments == {"item": "cup"}
