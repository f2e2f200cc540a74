"""
Token-scale BiLD never saw a loop; programs written three times were loops, and loops of digits or Chinese none.

Then equal rows, blank paragraphs and short answers were loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Chain, Step, reason
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import THINK_END, Stop
from stepspec.orchestrator.repetition import PER_UNIT, ROUNDS, SPAN, TAIL, obstacle, stuck
from stepspec.policies import BiLD, Relay, SpeculativeThinking
from stepspec.policies.solo import large_alone

from ..fakes import Previous, ScriptedModel, run, tokenise
from ..orchestrator.arms import BOUNDED, PROBLEM
from ..orchestrator.test_repetition import LISTS, chain

ROUND = (
    "Let me add the apples again: 12 + 3 = 15.",
    "Then she gives 4 away, which leaves 15 - 4 = 11.",
    "But wait, is that right? I should check the days.",
    "On Monday she has 12, on Tuesday 15, on Wednesday 11.",
)
LOOPS = {
    "words": "and so on, and then ",
    "one word": "no ",
    "a sentence": "Let me check that again, because 12 + 3 = 15. ",
    "digits": "3",
    "a period of digits": "142857",
    "Chinese": "\u8fd9\u662f\u5bf9\u7684\uff0c",
    "Chinese without signs": "\u597d\u7684",
    "no spaces": "haha",
    "one sign": "!",
    "line breaks": "\n \n",
    "paragraphs": "".join(f"{text}\n\n" for text in ROUND),
    "many paragraphs": "".join(f"{text} In case {case}, too.\n\n" for case in "abcdefg" for text in ROUND),
}


def pieces(text: str, size: int, stop: Stop = "until") -> list[Step]:
    """*text* as a policy commits it that moves by *size* characters."""
    return [Step(text[at : at + size], "small", stop) for at in range(0, len(text), size)]


def first_refused(text: str, size: int, before: str = "") -> int | None:
    """After how many characters of *text* the loop would refuse a draft; None if it never does."""
    grown = Chain((), tuple(pieces(before, 50)))
    for place, piece in enumerate(pieces(text, size)):
        if obstacle(grown, piece) == "repetition":
            return place * size
        grown = grown.extend(piece)
    return None


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("size", [1, 5, 40])
def test_a_loop_is_detected_in_its_fourth_round_for_all_step_sizes(loop: str, size: int) -> None:
    """Or later, where a round is short."""
    position = first_refused(loop * (1 + TAIL // len(loop)), size, "Well, 0.5 is it. ")
    most = max((ROUNDS + 1) * len(loop), ROUNDS * SPAN * PER_UNIT) + 2 * size
    assert position is not None
    assert position <= most


@pytest.mark.parametrize("loop", ["3", "\u597d\u7684", "no ", "a b c d e "])
def test_a_short_loop_takes_no_more_than_its_span(loop: str) -> None:
    position, most = first_refused(loop * 2000, 1, "0."), ROUNDS * SPAN + 4
    assert position is not None
    assert len(tokenise((loop * 2000)[:position])) <= most or position <= most


LEGITIMATE = {
    "a sum": "1 + " * 60 + "1 = 61.",
    "a row of zeros": "0 & " * 100 + "1",
    "a matrix of zeros": ("0 & " * 9 + "0 \\\\\n") * 10,
    "a googol": f"10^100 is 1{'0' * 100}.",
    "a table": "| n | n^2 | even |\n|---|---|---|\n" + "".join(f"| {n} | {n * n} | {n % 2} |\n" for n in range(200)),
    "a rule": "-" * 400,
    "numbers": ", ".join(map(str, range(600))),
    "a polynomial": " + ".join(f"{n}x^{n}y^{40 - n}" for n in range(40)),
    "confirmations": "Yes.\n\nSo x = 3.\n\nYes.\n\nSo x = 3, I am sure.\n\nYes, yes.\n\n" * 2,
    "cases": "".join(f"Case {n}: if x = {n}, then x is {'odd' if n % 2 else 'even'}, as it was.\n" for n in range(99)),
    "binary": " ".join(f"{n:010b}" for n in range(300)),
    "a third": f"1/3 = 0.{'3' * 60}...",
    "Chinese numbers": "\uff0c".join(f"\u7b2c{n}\u6b65" for n in range(200)),
}


@pytest.mark.parametrize("text", LEGITIMATE.values(), ids=LEGITIMATE)
@pytest.mark.parametrize("size", [1, 7, 60])
def test_tables_lists_sums_and_confirmations_are_none(text: str, size: int) -> None:
    assert first_refused(text, size) is None


@pytest.mark.parametrize("paragraphs", LISTS, ids=lambda paragraphs: paragraphs[0][:20])
def test_text_without_a_loop_in_steps_has_none_in_tokens(paragraphs: list[str]) -> None:
    assert first_refused("".join(f"{text}\n\n" for text in paragraphs), 6) is None


PROGRAM = """Let me write the program:

```python
def fib(n):
    a, b = 0, 1

    for _ in range(n):
        a, b = b, a + b

    return a
```

"""


def test_a_program_may_be_written_three_times() -> None:
    blank_lines_end_steps = [f"{part}\n\n" for part in PROGRAM.strip().split("\n\n")] * 3
    for parts in ([PROGRAM] * 3, [*PROGRAM.partition("```python\n")] * 3):
        grown = chain()
        for part in parts:
            assert obstacle(grown, Step(part, "small")) == ""
            assert not stuck(grown, Step(part, "large"))
            grown = grown.extend(Step(part, "small"))
    assert first_refused("".join(blank_lines_end_steps), 8) is None


def test_a_program_written_without_end_is_a_loop() -> None:
    assert first_refused(PROGRAM * 40, 8) is not None


def looping(role: str, loop: str) -> Callable[[Previous], str]:
    def script(previous: Previous) -> str:
        return "So it is. " + loop * 4000

    return script


@pytest.mark.parametrize("loop", ["and so on, and then ", "3 ", "Wait, is it? "])
@pytest.mark.parametrize("ahead", [0, 2])
def test_two_models_that_loop_end_the_run_early(loop: str, ahead: int) -> None:
    """With 8192 tokens to spend."""
    small, large = (ScriptedModel(role, looping(role, loop)) for role in ("small", "large"))
    spent = Budget(8192).spent
    for policy in (
        BiLD(small, large),
        SpeculativeThinking(small, large),
        Relay(small, large),
    ):
        (grown, end), _ = run(reason(policy, PROBLEM, ahead=ahead, spent=spent))
        assert end == "repetition", policy
        assert grown.tokens < 2048
    (grown, end), _ = run(reason(large_alone(small, large), PROBLEM, ahead=ahead, spent=spent))
    assert end != "repetition"  # as its server alone
    assert grown.tokens > 4000


@pytest.mark.parametrize("ahead", [0, 2])
def test_the_large_model_gets_the_small_one_out_of_its_loop(ahead: int) -> None:
    small = ScriptedModel("small", looping("small", "and so on, and then "), rivals=lambda before, token: ())
    large = ScriptedModel("large", looping("large", "and so on, and then "))

    def escape(text: str) -> str | None:
        return f" enough.\n{THINK_END}" if len(text) > 1300 else ScriptedModel.next(large, text)

    large.next = escape  # type: ignore[method-assign]
    (grown, end), _ = run(reason(BiLD(small, large), PROBLEM, ahead=ahead, spent=Budget(8192).spent))
    assert end == "finished"
    assert grown.steps[-1].author == "large"


@given(
    loop=st.text("ab \n.1\u597d", min_size=1, max_size=24), size=st.integers(1, 30), before=st.text("xyz ", max_size=40)
)
@BOUNDED
def test_every_endless_repetition_is_a_loop(loop: str, size: int, before: str) -> None:
    assert first_refused(loop * ((ROUNDS + 1) * SPAN * PER_UNIT // len(loop) + 2), size, before) is not None


@given(
    words=st.lists(st.sampled_from(["so", "x", "=", "3", "\n\n", "then ", "|", "0"]), max_size=120),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
@BOUNDED
def test_text_of_fewer_units_than_a_span_is_no_loop(words: Sequence[str], sizes: Sequence[int]) -> None:
    """Nor does it matter into what steps it is cut."""
    text = " ".join(words)
    for size in sizes:
        for loop in pieces(text, size)[-1:]:
            grown = Chain((), tuple(pieces(text, size)[:-1]))
            assert not stuck(grown, replace(loop, text=loop.text.replace("\n", " ")))
