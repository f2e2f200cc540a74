"""
The OpenAI SDK, and LangChain in an environment of its own, against the service over stand-ins.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..integration.clients.environments import installed
from .conftest import STEPS
from .running import StandInPair, run_example

ANSWER = "The answer is \\boxed{42}."
SECTION = re.compile(r"^--- (\w+)\n(.*?)(?=^--- |\Z)", re.DOTALL | re.MULTILINE)


async def test_the_openai_sdk_shows_steps_options_ledger_and_structured_output(
    client_settings: dict[str, str], pair: StandInPair, tmp_path: Path
) -> None:
    # above the default threshold, and below that of the example's options
    pair.large.digits = {"7": -0.69, "8": -0.69}
    printed = await run_example("openai_sdk.py", variables=client_settings, folder=tmp_path)
    sections: dict[str, str] = dict(SECTION.findall(printed))
    assert list(sections) == ["plain", "streamed", "with_options", "structured"]

    assert re.fullmatch(
        rf"reasoning: [1-9]\d+ characters\ncontent: {re.escape(ANSWER)}\n", sections["plain"]
    )

    *lines, answer = sections["streamed"].splitlines()
    steps = [
        step.groups()
        for line in lines
        if (step := re.fullmatch(r"\[(small|large)(, grade 7\.5)?\] (.+)", line))
    ]
    assert len(steps) == len(lines) == STEPS
    assert {(author, bool(grade)) for author, grade, _ in steps} == {
        ("small", True),
        ("large", False),
    }
    assert len({text for *_, text in steps}) == STEPS
    assert answer == ANSWER

    method, drafts, small, large = sections["with_options"].splitlines()
    assert method == "method: specreason, answer: 42, finish reason: stop"
    assert re.fullmatch(r"0 of [1-9]\d* drafts accepted", drafts)
    assert re.fullmatch(r"small: 0 tokens kept, [1-9]\d* wasted", small)
    assert re.fullmatch(r"large: [1-9]\d* tokens kept, \d+ wasted", large)

    assert sections["structured"] == "parsed: count=42\n"


async def test_langchain_answers_streams_reasons_and_chains(
    client_settings: dict[str, str], tmp_path: Path
) -> None:
    python = (str(installed("langchain") / "python"),)
    printed = await run_example(
        "langchain_chat.py", variables=client_settings, folder=tmp_path, python=python
    )
    sections: dict[str, str] = dict(SECTION.findall(printed))
    assert list(sections) == ["invoked", "streamed", "with_reasoning", "chained"]
    content, usage = sections["invoked"].splitlines()
    assert content == f"content: {ANSWER}"
    streamed, streamed_usage = sections["streamed"].strip().splitlines()
    assert streamed == ANSWER
    for each in (usage, streamed_usage):
        assert re.search(r"'reasoning': [1-9]\d+", each)
    reasoning, answer = sections["with_reasoning"].strip().rsplit("\n", 1)
    assert len(reasoning.removeprefix("reasoning: ").split("\n\n")) == STEPS
    assert answer == f"answer: {ANSWER}"
    assert sections["chained"] == f"answer: {ANSWER}\n" * 2
