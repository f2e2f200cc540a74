"""The problems with tools: their worked loops, the tools, and the loop that drives and grades a model."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.worlds import tool_problems as world
from lab.worlds.tool_problems import (
    ITEMS,
    LARGEST,
    NO_CALLS,
    THREE_CALLS,
    TURNS,
    Call,
    Difficulty,
    Loop,
    Message,
    Problem,
    Turn,
    draw,
    generate,
    run_tool,
    tool_loop,
)
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.errors import ConfigurationError

SEEDS = st.integers(0, 2**32)
PROBLEMS = SEEDS.map(lambda seed: draw(random.Random(seed)))
NUMBER = re.compile(r"\d+")
CUPS = Problem("buy", "Ann", ((2, "cup"), (3, "pen")), (17, 23))


def reply(turn: Turn) -> Message:
    """The assistant's message of *turn*."""
    calls = [
        {"id": f"call-{at}", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for at, call in enumerate(turn.calls)
    ]
    return {"content": "" if calls else f"\\boxed{{{turn.answer}}}", "tool_calls": calls}


def play(problem: Problem, turns: Sequence[Turn]) -> Loop:
    """Let a model that takes *turns* solve *problem*."""
    loop = tool_loop(problem)
    next(loop)
    try:
        for turn in turns:
            loop.send(reply(turn))
    except StopIteration as end:
        solved: Loop = end.value
        return solved
    raise AssertionError("the loop wants another turn")


def test_a_worked_loop_reads_well() -> None:
    assert CUPS.text == "Ann buys cup x 2 and pen x 3. What does she pay?"
    first, second, third = "cup: 17, cup x 2, so 2 * 17.\n\n", "First I look up cup.\n</think>", "2 * 17 + 3 * 23"
    assert CUPS.turns == (
        Turn(("Someone buys cup x 2 and pen x 3.\n\n", second), (Call("lookup", "cup"),)),
        Turn((first, "After cup I look up pen.\n</think>"), (Call("lookup", "pen"),)),
        Turn(
            (first, f"After cup pen: 23, pen x 3, so {third}.\n\n", f"I calculate {third}.\n</think>"),
            (Call("calculator", third),),
        ),
        Turn(("result: 103.\n\n", "The answer is 103.\n</think>"), answer=103),
    )


@given(PROBLEMS)
def test_the_worked_loop_is_right_and_within_the_vocabulary(problem: Problem) -> None:
    assert len(problem.turns) < TURNS
    assert play(problem, problem.turns).correct
    steps = [step for turn in problem.turns for step in turn.steps]
    assert all(1 <= int(number) <= LARGEST for step in steps for number in NUMBER.findall(step))
    for turn in problem.turns:
        assert 1 <= len(turn.steps) <= 3
        assert [step.endswith(THINK_END) for step in turn.steps] == [False] * (len(turn.steps) - 1) + [True]


@given(PROBLEMS)
def test_no_price_is_in_the_problem_or_written_before_it_is_looked_up(problem: Problem) -> None:
    seen: set[str] = set(NUMBER.findall(problem.text))
    for turn in problem.turns:
        numbers = {number for step in turn.steps for number in NUMBER.findall(step)}
        assert numbers <= seen
        for call in turn.calls:
            seen |= set(NUMBER.findall(run_tool(problem.catalogue, call.name, call.arguments)))


def test_the_kinds_need_from_no_call_to_several_in_one_turn() -> None:
    def calls(difficulty: Difficulty) -> list[list[int]]:
        some = islice(generate(1, "test", difficulty), 100)
        return [[len(turn.calls) for turn in problem.turns] for problem in some]

    assert all(counts == [0] for counts in calls(NO_CALLS))
    assert all(sum(counts) == 3 for counts in calls(THREE_CALLS))
    assert {max(counts) for counts in calls(THREE_CALLS)} == {1, 2}


def test_training_and_test_problems_are_disjoint_and_depend_on_the_seed_only() -> None:
    test = list(islice(generate(0, "test"), 200))
    assert test == list(islice(generate(0, "test"), 200))
    assert not set(test) & set(islice(generate(0, "train"), 2000))


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


@pytest.mark.parametrize(
    ("kinds", "items"), [((), (1, 1)), (("steal",), (1, 1)), (("buy",), (0, 1)), (("buy",), (2, 1)), (("buy",), (1, 3))]
)
def test_an_impossible_difficulty_is_refused(kinds: Any, items: tuple[int, int]) -> None:
    with pytest.raises(ConfigurationError):
        Difficulty(kinds, items)


def test_no_item_begins_like_another() -> None:
    assert not [(one, other) for one in ITEMS for other in ITEMS if one != other and other.startswith(one)]


def test_a_loop_is_wrong_with_another_answer_other_calls_or_no_end() -> None:
    turns = CUPS.turns
    assert not play(CUPS, [*turns[:-1], Turn((), answer=13)]).correct
    assert not play(CUPS, [turns[-1]]).correct  # guessed, without the tools
    assert not play(CUPS, [Turn((), (Call("lookup", "lamp"),)), *turns]).correct
    endless = play(CUPS, [turns[0]] * TURNS)
    assert (endless.correct, len(endless.calls), endless.text) == (False, TURNS, "")


def test_the_messages_of_a_loop_are_those_of_the_api() -> None:
    before: list[Message] = [{"role": "system", "content": "Be brief."}]
    problem = Problem("buy", "Ann", ((2, "cup"), (3, "pen")), (17, 23), at_once=True)
    loop = tool_loop(problem, before)
    assert next(loop) == [*before, {"role": "user", "content": problem.text}]
    sent = reply(problem.turns[0])
    *_, assistant, first, second = loop.send(sent)
    assert assistant == sent
    arguments = [json.loads(call["function"]["arguments"]) for call in assistant["tool_calls"]]
    assert arguments == [{"item": "cup"}, {"item": "pen"}]
    ids = [call["id"] for call in assistant["tool_calls"]]
    assert [first, second] == [
        {"role": "tool", "tool_call_id": ids[0], "content": "cup: 17"},
        {"role": "tool", "tool_call_id": ids[1], "content": "pen: 23"},
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
    call = {"id": "1", "type": "function", "function": {"name": "lookup", "arguments": '{"item": "cup"}}'}}
    with pytest.raises(StopIteration) as ended:
        loop.send({"role": "assistant", "content": "", "tool_calls": [call]})
    solved: Loop = ended.value.value
    assert (solved.correct, solved.calls) == (False, ())


def test_the_tools_are_described_with_their_parameters() -> None:
    described = {tool["function"]["name"]: tool["function"]["parameters"] for tool in world.tools()}
    required = {name: schema["required"] for name, schema in described.items()}
    assert required == {"lookup": ["item"], "calculator": ["expression"]}
    assert Call("lookup", "cup").arguments == {"item": "cup"}
