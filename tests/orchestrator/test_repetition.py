"""
Text that counts as a loop, and text that does not: for examples in whole runs see `test_odd_text`.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Budget, Chain, Step, reason
from stepspec.orchestrator.chain import THINK_END, Stop
from stepspec.orchestrator.repetition import (
    CHARACTERS_PER_UNIT,
    SPAN_UNITS,
    TAIL_CHARACTERS,
    LoopGuard,
    loops,
)
from stepspec.policies import BiLD, Relay, SpeculativeThinking
from stepspec.policies.baselines import large_alone

from ..fakes import Previous, ScriptedModel, run
from .arms import BOUNDED, PROBLEM

GUARD = LoopGuard()


def chain(*texts: str) -> Chain:
    return Chain((), tuple(Step(f"{text}\n\n", "small") for text in texts))


def step(text: str, stop: Stop = "delimiter") -> Step:
    return Step(f"{text}\n\n", "small", stop)


@pytest.mark.parametrize(
    ("draft", "why"),
    [
        (Step("A\n\n", "small"), ""),
        (Step("\n\n", "small"), ""),
        (Step("", "small", "length"), "empty"),
        (Step("", "small", "repetition"), "empty"),
        (Step("A", "small", "repetition"), "repetition"),
        (Step("", "small", "end"), ""),
        (Step(f"\n\n{THINK_END}", "small", "end"), ""),
        (Step("no " * 4000, "small", "end"), ""),
    ],
)
def test_what_a_draft_needs_no_judge_for(draft: Step, why: str) -> None:
    assert GUARD.obstacle(chain("A"), draft) == why


def test_an_answer_that_ends_before_it_begins_is_empty() -> None:
    closed = chain("A").extend(Step(THINK_END, "small", "end"))
    assert [GUARD.obstacle(closed, Step(text, "small", "end")) for text in ("", "\n", "2")] == [
        "empty",
        "empty",
        "",
    ]


def pieces(text: str, size: int) -> list[Step]:
    """*text* as a policy commits it that moves by *size* characters."""
    return [Step(text[at : at + size], "small", "until") for at in range(0, len(text), size)]


def rejected(steps: list[Step]) -> bool:
    """Whether the loop would reject one of *steps* as a repetition."""
    grown = Chain(())
    for one in steps:
        if GUARD.obstacle(grown, one) == "repetition":
            return True
        grown = grown.extend(one)
    return False


SPANS = [  # with the units of each
    ("no ", 1),
    ("1, ", 2),
    ("Let me check that again, because 12 + 3 = 15. ", 15),
    ("Let me check that again.\n\n", 6),
    ("Let me check that.\n\nIs it right?\n\n", 9),
    ("\u8fd9\u662f\u5bf9\u7684\uff0c", 5),
    ("3", 1),
    ("142857", 6),
    ("ha! ", 2),
]


@pytest.mark.parametrize(("span", "units"), SPANS)
@pytest.mark.parametrize("rounds", [GUARD.rounds_to_reject, GUARD.rounds_to_end])
def test_a_span_of_enough_units_has_to_repeat_several_times(
    span: str, units: int, rounds: int
) -> None:
    """A draft is rejected in the third round, and the run ends in the fourth."""
    times = max(rounds, math.ceil(rounds * SPAN_UNITS / units))
    assert loops(Chain(()), Step(span * times, "small"), rounds)
    assert not loops(Chain(()), Step(span * (times - 1), "small"), rounds)


ALGEBRA = [
    line
    for x in range(2, 30)
    for line in (
        f"For x = {x}, we substitute x = {x} into the equation and simplify both of its sides.",
        f"x^2 + 2x + 1 = {x}^2 + 2*{x} + 1 = {x * x} + {2 * x} + 1 = {(x + 1) ** 2}",
        f"So (x + 1)^2 = {(x + 1) ** 2}, which is {'even' if x % 2 else 'odd'}.",
    )
]
LISTS = [
    [
        f"- Item {number}: the remainder of {number} divided by 3 is {number % 3}."
        for number in range(60)
    ],
    [" ".join(f"{place:06b}") + f" has {place.bit_count()} ones." for place in range(64)],
    [f"| {a} | {b} | {a * b} |" for a in range(8) for b in range(8)],
    [f"a{index} = a{index - 1} + a{index - 2}" for index in range(2, 60)],
    [
        f"{letter} is to the left of {other}, so {letter} comes first."
        for letter in "abcdefg"
        for other in "abcdefg"
    ],
    ALGEBRA,
    [*ALGEBRA[:30], "Let me verify all of this.", *ALGEBRA[:30]],
    [
        "Hmm.",
        "So x = 3.",
        "Wait.",
        "So x = 3, as I said.",
        "Then 2x = 6.",
        "So x = 3.",
        "Good.",
        "The answer is 3.",
    ],
    ["0"] * 40,
    ["0", "1"] * 20,
    ["0 & 0 & 0 \\\\"] * 12,
    ["Yes."] * 30,
    ["", " ", "\t", "\u00a0"] * 12,
    ["\n\n"] * 60,
    ["Wait.", "Is that right?"] * 12,
]


@pytest.mark.parametrize("paragraphs", LISTS, ids=lambda paragraphs: paragraphs[0][:20])
def test_lists_derivations_checks_and_equal_rows_are_no_loop(paragraphs: list[str]) -> None:
    assert not rejected([step(text) for text in paragraphs])


LEGITIMATE = {
    "a sum": "1 + " * 60 + "1 = 61.",
    "a row of zeros": "0 & " * 100 + "1",
    "a matrix of zeros": ("0 & " * 9 + "0 \\\\\n") * 10,
    "a googol": f"10^100 is 1{'0' * 100}.",
    "a table": (
        "| n | n^2 | even |\n|---|---|---|\n"
        + "".join(f"| {n} | {n * n} | {n % 2} |\n" for n in range(200))
    ),
    "a rule": "-" * 400,
    "numbers": ", ".join(map(str, range(600))),
    "a polynomial": " + ".join(f"{n}x^{n}y^{40 - n}" for n in range(40)),
    "confirmations": "Yes.\n\nSo x = 3.\n\nYes.\n\nSo x = 3, I am sure.\n\nYes, yes.\n\n" * 2,
    "cases": "".join(
        f"Case {n}: if x = {n}, then x is {'odd' if n % 2 else 'even'}, as it was.\n"
        for n in range(99)
    ),
    "binary": " ".join(f"{n:010b}" for n in range(300)),
    "a third": f"1/3 = 0.{'3' * 60}...",
    "Chinese numbers": "\uff0c".join(f"\u7b2c{n}\u6b65" for n in range(200)),
}


@pytest.mark.parametrize("text", LEGITIMATE.values(), ids=LEGITIMATE)
def test_tables_lists_sums_and_confirmations_are_none_in_steps_of_any_size(text: str) -> None:
    for size in (1, 7, 60):
        assert not rejected(pieces(text, size))


PROGRAM = """Let me write the program:

```python
def fib(n):
    a, b = 0, 1

    for _ in range(n):
        a, b = b, a + b

    return a
```

"""


def test_a_program_may_be_written_three_times_and_not_without_end() -> None:
    parts = [f"{part}\n\n" for part in PROGRAM.strip().split("\n\n")] * 3
    for steps in ([PROGRAM] * 3, [*PROGRAM.partition("```python\n")] * 3, parts):
        assert not rejected([Step(text, "small") for text in steps])
    assert not rejected(pieces("".join(parts), 8))
    assert rejected(pieces(PROGRAM * 40, 8))


@pytest.mark.parametrize("text", ["\n\n", "\n \n", "\u00a0\n\n", "\n"])
def test_only_very_much_white_space_is_a_loop(text: str) -> None:
    most = GUARD.rounds_to_reject * SPAN_UNITS * CHARACTERS_PER_UNIT
    assert not loops(
        Chain(()), Step("A" + text * (most // len(text) - 1), "small"), GUARD.rounds_to_reject
    )
    assert loops(
        Chain(()), Step("A" + text * (most // len(text) + 1), "small"), GUARD.rounds_to_reject
    )


@given(st.lists(st.text(alphabet="ab .1\n", min_size=1, max_size=12), max_size=60))
@BOUNDED
def test_new_text_is_never_refused(texts: list[str]) -> None:
    assert not rejected([step(f"{text} {number}") for number, text in enumerate(texts)])


@given(st.integers(1, 400), st.text(alphabet="ab12 .", max_size=30))
@BOUNDED
def test_the_end_of_the_text_alone_decides(length: int, draft: str) -> None:
    """That is what makes a long chain cheap."""
    full = chain(*[f"Paragraph {number % 7} of a long chain." for number in range(length)])
    recent = Chain((), (Step(full.text[-TAIL_CHARACTERS:], "small"),))
    assert GUARD.obstacle(full, step(draft)) == GUARD.obstacle(recent, step(draft))
    assert GUARD.stuck(full, step(draft)) == GUARD.stuck(recent, step(draft))


@given(
    loop=st.text("ab \n.1\u597d", min_size=1, max_size=24),
    size=st.integers(1, 30),
    before=st.text("xyz ", max_size=40),
)
@BOUNDED
def test_every_endless_repetition_is_a_loop(loop: str, size: int, before: str) -> None:
    text = loop * ((GUARD.rounds_to_reject + 1) * SPAN_UNITS * CHARACTERS_PER_UNIT // len(loop) + 2)
    assert rejected([*pieces(before, 50), *pieces(text, size)])


def looping(previous: Previous) -> str:
    return "So it is. " + "and so on, and then " * 4000


def test_two_models_that_loop_end_the_run_early_and_one_alone_goes_on() -> None:
    small, large = (ScriptedModel(role, looping) for role in ("small", "large"))
    spent = Budget(3000).spent
    for policy in (BiLD(small, large), SpeculativeThinking(small, large), Relay(small, large)):
        (grown, end), _ = run(reason(policy, PROBLEM, ahead=2, spent=spent))
        assert end == "repetition", policy
        assert grown.tokens < 2048
    (grown, end), _ = run(reason(large_alone(small, large), PROBLEM, spent=spent))
    assert end == "budget"  # as its server alone
    assert grown.tokens > 2048
