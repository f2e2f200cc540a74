"""The training rows of the problems with tools, and their chat template: rows have the text of a server's prompts."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

import pytest

from lab.training import tokenizer as vocabulary
from lab.training.data import IGNORED, TRUNK, Row
from lab.training.tool_data import ToolWriter, answered, named, tool_batches
from lab.worlds import tool_problems as world
from lab.worlds.tool_problems import Message, Problem, generate
from stepspec.prompts import load

CUPS = Problem("buy", "Ann", ((2, "cup"), (3, "pen")), (17, 23), at_once=True)
USER = {"role": "user", "content": CUPS.text}


@pytest.fixture(scope="module")
def writer() -> ToolWriter:
    return ToolWriter(vocabulary.train("whole"))


def text(writer: ToolWriter, ids: list[int]) -> str:
    return str(writer.tokenizer.decode(ids))


def rows(writer: ToolWriter, count: int) -> list[tuple[Problem, Row]]:
    rng = random.Random(5)
    return [(problem, writer.row(rng, problem, 4)) for problem in islice(generate(3, "train"), count)]


def trunk(row: Row) -> list[int]:
    return [id for id, branch in zip(row.ids, row.branch, strict=True) if branch == TRUNK]


def test_numbers_and_items_are_one_token_wherever_they_stand(writer: ToolWriter) -> None:
    ids = writer.encode('cup x 2, "cup" 17*17: 199.')
    assert [text(writer, [id]) for id in ids if text(writer, [id]).strip() in ("2", "cup", "17", "199")] == [
        "cup", "2", "cup", "17", "17", "199",
    ]  # fmt: skip
    for word in (*map(str, range(1, world.LARGEST + 1)), *world.ITEMS):
        assert len(writer.encode(word)) == 1, word


def test_the_marks_of_thinking_and_calls_are_shown_and_those_of_turns_are_not(writer: ToolWriter) -> None:
    written = "</think>\n\n<tool_call>\n{}\n</tool_call>"
    ids = [*writer.encode(f"{written}<|im_end|>")]
    assert writer.tokenizer.decode(ids, skip_special_tokens=True) == written


def test_a_trunk_is_the_prompt_of_the_last_turn_and_what_the_model_writes_there(writer: ToolWriter) -> None:
    plain = ToolWriter(writer.tokenizer, varied=False)
    for problem in islice(generate(4, "train"), 30):
        row, _ = plain.trunk(random.Random(0), problem)
        *before, last = problem.turns
        messages: list[Message] = [{"role": "user", "content": problem.text}]
        for turn in before:
            messages += answered(problem, turn, thinking=True)
        written = "".join(last.steps) + last.reply + vocabulary.END_OF_TURN
        assert row.ids == list(plain.encode(plain.render(messages, world.tools()) + written))


def test_the_model_learns_to_write_its_turns_and_nothing_else(writer: ToolWriter) -> None:
    plain = ToolWriter(writer.tokenizer, varied=False)
    for problem in islice(generate(4, "train"), 30):
        row, _ = plain.trunk(random.Random(0), problem)
        learnt = text(writer, [target for target in row.targets if target != IGNORED])
        worked = ["".join(turn.steps) + turn.reply + vocabulary.END_OF_TURN for turn in problem.turns]
        assert learnt == "".join(worked)


def test_varied_rows_have_system_prompts_other_tools_earlier_problems_and_dropped_thinking(writer: ToolWriter) -> None:
    seen = [(problem, text(writer, trunk(row))) for problem, row in rows(writer, 300)]
    assert {problem.kind for problem, words in seen if "Tools:" not in words} == {"stated"}
    assert any("weather(city)" in words for _, words in seen)
    assert any("calculator(expression)\nlookup(item)" in words for _, words in seen)
    assert any("lookup(item)\ncalculator(expression)" in words for _, words in seen)
    assert any(words.count("\\boxed{") == 2 for _, words in seen)
    assert any("assistant\n<tool_call>" in words and words.count("<think>") == 1 for _, words in seen)
    assert any(words.startswith("<|im_start|>system\nYou are a careful assistant.") for _, words in seen)


def test_a_branch_is_a_draft_with_its_marks_and_the_question_of_the_endpoints(writer: ToolWriter) -> None:
    prompt = load("specreason.grade")
    question = writer.template.ask(prompt.text, prompt.opening)
    graded = 0
    for problem, row in rows(writer, 60):
        steps = {world.expected(problem, state) for state in world.states(problem)}
        for at, verdict in enumerate(row.verdicts):
            if verdict == IGNORED or text(writer, [verdict]) not in ("1", "9"):
                continue
            branch = [id for id, number in zip(row.ids, row.branch, strict=True) if number == row.branch[at]]
            draft = text(writer, branch).removesuffix(question)
            assert draft != text(writer, branch)
            if text(writer, [verdict]) == "9":
                assert draft in steps
            marks = [mark for mark, number in zip(row.wrong, row.branch, strict=True) if number == row.branch[at]]
            assert (1 in marks) == (text(writer, [verdict]) == "1")
            graded += 1
    assert graded > 30


def test_batches_have_about_as_many_tokens_as_asked_for(writer: ToolWriter) -> None:
    for batch in islice(tool_batches(writer, seed=1, tokens=3000, branches=2), 20):
        assert batch.ids.shape[0] == 1 or batch.ids.size <= 3000


def render(writer: ToolWriter, messages: list[dict[str, Any]], tools: list[Message] | None = None) -> str:
    return writer.render(messages, world.tools() if tools is None else tools)


TOOLS = "Tools:\nlookup(item)\ncalculator(expression)<|im_end|>\n"
OPEN = "<|im_start|>assistant\n<think>\n"
CALLS = (
    '<tool_call>\n{"name": "lookup", "arguments": {"item": "cup"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "lookup", "arguments": {"item": "pen"}}\n</tool_call><|im_end|>\n'
)
RESULTS = (
    "<|im_start|>user\n<tool_response>\ncup: 17\n</tool_response>\n"
    "<tool_response>\npen: 23\n</tool_response><|im_end|>\n"
)


def test_the_template_shows_a_tool_as_its_name_with_its_parameters(writer: ToolWriter) -> None:
    ask = f"<|im_start|>user\n{CUPS.text}<|im_end|>\n{OPEN}"
    assert render(writer, [USER]) == f"<|im_start|>system\n{TOOLS}{ask}"
    for role in ("system", "developer"):
        system = {"role": role, "content": "Be brief."}
        assert render(writer, [system, USER]) == f"<|im_start|>system\nBe brief.\n\n{TOOLS}{ask}"
        assert render(writer, [system, USER], []) == f"<|im_start|>system\nBe brief.<|im_end|>\n{ask}"
    flat = [tool["function"] for tool in world.tools()]
    assert render(writer, [USER], flat) == f"<|im_start|>system\n{TOOLS}{ask}"
    bare = [{"type": "function", "function": {"name": "now"}}, named("send(to, text)")]
    assert "Tools:\nnow()\nsend(to, text)<|im_end|>" in render(writer, [USER], bare)


@pytest.mark.parametrize("sent", ["reasoning_content", "reasoning", "content", "arguments as text"])
def test_the_template_keeps_the_thinking_of_a_loop_however_it_is_sent(writer: ToolWriter, sent: str) -> None:
    turn, *results = answered(CUPS, CUPS.turns[0], thinking=True)
    thinking = turn.pop("reasoning_content")
    if sent == "content":
        turn["content"] = f"{thinking}</think>\n\n"
    else:
        turn["reasoning" if sent == "reasoning" else "reasoning_content"] = thinking
    if sent == "arguments as text":
        turn["content"] = None
        for call in turn["tool_calls"]:
            call["function"]["arguments"] = f'{{"item": "{call["function"]["arguments"]["item"]}"}}'
    shown = render(writer, [USER, turn, *results])
    assert shown.endswith(f"{OPEN}{thinking}</think>\n\n{CALLS}{RESULTS}{OPEN}")


def test_the_template_drops_the_thinking_before_the_last_question(writer: ToolWriter) -> None:
    turn, *results = answered(CUPS, CUPS.turns[0], thinking=True)
    closing = {"role": "assistant", "content": "The answer is 103.\n</think>\n\n\\boxed{103}"}
    shown = render(writer, [USER, turn, *results, closing, {"role": "user", "content": "Thank you."}])
    assert shown.endswith(
        f"<|im_start|>assistant\n{CALLS}{RESULTS}<|im_start|>assistant\n\\boxed{{103}}<|im_end|>\n"
        f"<|im_start|>user\nThank you.<|im_end|>\n{OPEN}"
    )


def test_thinking_that_was_not_sent_back_leaves_no_block(writer: ToolWriter) -> None:
    turn, *results = answered(CUPS, CUPS.turns[0], thinking=False)
    assert render(writer, [USER, turn, *results]).endswith(f"<|im_start|>assistant\n{CALLS}{RESULTS}{OPEN}")


def test_words_before_a_call_stay(writer: ToolWriter) -> None:
    turn, *results = answered(CUPS, CUPS.turns[0], thinking=False)
    shown = render(writer, [USER, {**turn, "content": "One moment."}, *results])
    assert f"<|im_start|>assistant\nOne moment.\n{CALLS}" in shown
