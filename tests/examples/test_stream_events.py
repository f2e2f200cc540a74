"""
Every line of the example is true: the steps, their authors and grades, the rejected drafts, and the
costs.
"""

from __future__ import annotations

import re
from pathlib import Path

from stepspec.orchestrator.chain import THINK_END

from .conftest import STEP_TOKENS, STEPS
from .running import StandInPair, run_example

LINE = re.compile(r"([+-]) +(\d+)  (small|large)  ([\d. ]{3})  (.+)")
REJECTED = "  (rejected: grade)"
COLOUR = re.compile(r"\x1b\[[\d;]*m")
STRUCK = "\x1b[2;9m"


async def test_it_prints_committed_steps_rejected_drafts_and_costs(
    pair: StandInPair, tmp_path: Path
) -> None:
    printed = await run_example("stream_events.py", variables=pair.settings, folder=tmp_path)
    lines, _, costs = printed.partition("\n\n")
    steps = [match.groups() for line in lines.splitlines() if (match := LINE.fullmatch(line))]
    assert len(steps) == len(lines.splitlines())

    committed = [step[1:] for step in steps if step[0] == "+"]
    assert [int(index) for index, *_ in committed] == list(range(len(committed)))
    texts = [text.removesuffix(THINK_END) for *_, text in committed]
    assert len(set(filter(None, texts))) == STEPS + 1  # the last one is the answer
    assert texts[-1] == "The answer is \\boxed{42}."
    assert {(author, grade) for _, author, grade, _ in committed} == {
        ("small", "8.9"),
        ("large", "   "),
    }

    # a set, since a lost bet may be drafted again
    rejected = {step[1:] for step in steps if step[0] == "-"}
    assert 0 < len(rejected) < STEPS
    for index, author, grade, text in rejected:
        assert (author, grade, text[-len(REJECTED) :]) == ("small", "1.1", REJECTED)
        assert committed[int(index)][1] == "large"
        assert texts[int(index)] == text.removesuffix(REJECTED)

    answer, drafts, small, large = costs.strip().splitlines()
    assert answer == "answer: 42"
    assert drafts.startswith(
        f"{len(committed) - len(rejected)} of {len(committed)} drafts accepted, "
    )
    for line, model in ((small, "small"), (large, "large")):
        numbers = re.fullmatch(rf"{model}: (\d+) of (\d+) tokens wasted \((\d+)%\)", line)
        assert numbers
        wasted, written, share = map(int, numbers.groups())
        # the large one may lose no bet
        assert STEP_TOKENS * len(rejected) * (model == "small") <= wasted < written
        assert share == round(100 * wasted / written)


async def test_rejected_drafts_are_struck_through(pair: StandInPair, tmp_path: Path) -> None:
    variables = {**pair.settings, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    printed = await run_example("stream_events.py", variables=variables, folder=tmp_path)
    lines = [line for line in printed.splitlines() if LINE.fullmatch(COLOUR.sub("", line))]
    struck = [line for line in lines if line.startswith(f"{STRUCK}-")]
    assert struck
    assert struck == [line for line in lines if COLOUR.sub("", line).startswith("-")]
