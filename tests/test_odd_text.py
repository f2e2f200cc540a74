"""
Text as models really write it: blank paragraphs, equal rows, marks where no block is open,
characters that are broken.

Whatever a model writes, a run of that model alone gives the text that its server gives for one
request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepspec import Solution, Solver
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints import GREEDY

from .stand_in import IM_END, IM_START, THINK, THINK_END, FakeVllm

pytestmark = pytest.mark.usefixtures("nowhere")

HEAD = f"{IM_START}assistant\n{THINK}\n"
HALF = "\ufffd"
TYPED = ("</", "think", ">")  # the mark, as a model spells it out when it writes about it


@dataclass
class Writer(FakeVllm):
    """
    Writes its script behind the last opening of the assistant's turn, also where the script repeats
    that.
    """

    def continuation(self, prompt: str) -> list[bytes]:
        return super().continuation(HEAD + prompt.partition(HEAD)[2] if HEAD in prompt else prompt)


async def solved(
    scripts: Mapping[str, Sequence[str]], policies: Sequence[str]
) -> dict[tuple[str, str], Solution]:
    """
    Have both models write each of *scripts*, one piece after the other, with each of *policies*.
    """
    small = Writer(digits={"9": -0.1})
    large = Writer(digits={"9": -0.1})
    small._ids = large._ids  # pyright: ignore[reportPrivateUsage]  # They share their tokens.
    solutions: dict[tuple[str, str], Solution] = {}
    async with (
        small.serve("small") as s,
        large.serve("large") as other,
        Solver(s, other, sampling=GREEDY) as solver,
    ):
        for name, script in scripts.items():
            small.script = large.script = script
            for policy in policies:
                solution = await solver.solve(
                    "What is 1 + 1?", policy=policy, auto=False, budget=Budget(4000)
                )
                solutions[name, policy] = solution
    return solutions


def plain(script: Sequence[str]) -> tuple[str, str]:
    """
    The thinking and the answer of one request, as vLLM divides them at the token that closes the
    thinking.
    """
    place = script.index(THINK_END)
    return "".join(script[:place]), "".join(script[place + 1 :])


THINKING = {
    "four line breaks": ("A.", "\n\n", "\n\n", "B.", "\n"),
    "four line breaks in one token": ("A.", "\n\n\n\n", "B.", "\n"),
    "many line breaks in one token": ("A.", "\n" * 9, "B."),
    "a line of spaces": ("A.\n\n", "   ", "\n\n", "B.\n"),
    "a line of tabs": ("A.\n\n", "\t\n", "\n", "B.\n"),
    "a blank line first": ("\n\n", "A.\n\n", "B.\n"),
    "many blank lines first": ("\n\n", "\n", "\n\n", "A."),
    "a blank line before the mark": ("A.", "\n\n"),
    "two blank lines before the mark": ("A.\n\n", "\n\n"),
    "nothing": (),
    "a blank line and nothing else": ("\n\n",),
    "a line break and nothing else": ("\n",),
    "three equal rows": ("0\n\n",) * 3 + ("Done.",),
    "two rows in turn": ("0\n\n", "1\n\n") * 4 + ("Done.",),
    "many equal rows": ("0 0 0\n\n",) * 12 + ("Done.",),
    "a no-break space": ("A.\n\n", "\u00a0", "\n\n", "B."),
    "a zero-width space": ("A.\n\n", "\u200b", "\n\n", "B."),
    "carriage returns": ("A.\r\n", "\r\n", "B.\r\n\r\n", "C."),
    "the mark, spelt": ("The tag ", *TYPED, " closes it.\n\n", "B."),
    "the mark, spelt at the end of a step": ("Use ", *TYPED, "\n\n", "B."),
    "broken characters": (f"A {HALF}", "\n\n", HALF, HALF, " B."),
    "a broken character at the end of a step": ("A.\n\n", HALF),
    "broken characters alone": (HALF, HALF, HALF),
    "blank lines in code": ("```\n", "a\n\n", "\n\n", "b\n", "```\n\n", "So."),
    "a table": ("| a |\n|-|\n| 1 |\n\n", "| 2 |\n\n", "So."),
}
ANSWERS = {
    "the mark, spelt": ("Write ", *TYPED, " to close it."),
    "the mark twice": ("It is ", THINK_END, " or ", THINK_END, " 2."),
    "the mark at the end": ("2", THINK_END),
    "a block first": ("<", "think", ">", "\n", "Hmm.\n\n", "2"),
    "a second block": ("2\n\n", "<think>", "Hmm.\n\n", THINK_END, "\n\n3"),
    "the mark as a paragraph": ("One.\n\n", THINK_END, "\n\n", "Two."),
    "three equal rows": ("0\n\n", "0\n\n", "0\n\n", "done"),
    "a no-break space": ("One.\n\n", "\u00a0", "\n\n", "Two."),
    "blank paragraphs": ("One.", "\n\n", "\n\n", "\n\n", "Two."),
    "a broken character": ("One ", HALF, " two", HALF),
    "other marks": ("<reasoning>x</reasoning> [THINK] <|end|> <channel|> 2",),
}


POLICIES = ("large", "specreason", "bild")


async def test_all_of_the_thinking_is_kept() -> None:
    scripts = {name: (*thinking, THINK_END, "\n\n", "2") for name, thinking in THINKING.items()}
    for (name, policy), solution in (await solved(scripts, POLICIES)).items():
        kept = solution.thinking.removesuffix(THINK_END), solution.text, solution.finish_reason
        assert kept == ("".join(THINKING[name]), "2", "stop"), (name, policy)


async def test_all_of_the_answer_is_kept() -> None:
    scripts = {name: ("So.", "\n", THINK_END, "\n\n", *answer) for name, answer in ANSWERS.items()}
    for (name, policy), solution in (await solved(scripts, POLICIES)).items():
        kept = solution.thinking.removesuffix(THINK_END), solution.text, solution.finish_reason
        assert kept == ("So.\n", "".join(ANSWERS[name]), "stop"), (name, policy)


async def test_only_a_mark_that_is_repeated_at_once_is_left_out() -> None:
    repeats = {"once": (THINK_END,), "twice": ("\n", THINK_END, "\n\n", THINK_END)}
    scripts = {
        name: ("So.", THINK_END, *each, "\n\n2 ", THINK_END, ".") for name, each in repeats.items()
    }
    for case, solution in (await solved(scripts, ("large", "specreason"))).items():
        assert solution.text == f"2 {THINK_END}.", case


async def test_a_verdict_cuts_no_closing_mark_of_several_tokens() -> None:
    kinds: dict[str, Any] = {"special": (IM_START, IM_END, THINK), "rivals": ("x", "y")}
    kinds["script"] = ("So.\n\n", *TYPED, "\n\n", "2")
    small = Writer(**kinds)
    large = Writer(**kinds, unlikely=frozenset("k"))
    small._ids = large._ids  # pyright: ignore[reportPrivateUsage]
    async with (
        small.serve("small") as s,
        large.serve("large") as other,
        Solver(s, other, sampling=GREEDY) as solver,
    ):
        solution = await solver.solve(
            "Hi", policy="reading", options={"words": 0.1}, auto=False, budget=Budget(4000)
        )
    assert (solution.thinking, solution.text) == (f"So.\n\n{THINK_END}", "2")
    assert [step.fate for step in solution.steps].count("rejected") == 1


@dataclass
class Ending(Writer):
    """Ends its *first* request in the answer, after three tokens, with the finish reason *why*."""

    why: str = "abort"
    first: bool = True

    def pieces(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        made = list(super().pieces(body))
        if (
            self.first
            and len(made) > 3
            and THINK_END in self.decode(body["prompt"]).partition(HEAD)[2]
        ):
            self.first = False
            made = made[:3]
            made[-1] |= {"finish_reason": self.why, "stop_reason": None}
        return iter(made)


@pytest.mark.parametrize(
    ("why", "finish", "text"),
    [
        ("abort", "stop", "It is 2."),
        ("error", "stop", "It is 2."),
        ("repetition", "repetition", "It is"),
    ],
)
async def test_a_finish_reason_of_the_server_is_no_broken_stream(
    why: str, finish: str, text: str
) -> None:
    server = Ending(("So.", THINK_END, "\n\n", "It", " is", " 2", "."), why=why)
    async with (
        server.serve("large") as url,
        Solver(url, url, policy="large", sampling=GREEDY, auto=False) as solver,
    ):
        solution = await solver.solve("What is 1 + 1?", budget=Budget(4000))
    assert (solution.finish_reason, solution.text) == (finish, text)


WORDS = st.sampled_from(
    [
        *(
            "So",
            " it",
            " is",
            ".",
            "0",
            "\n",
            "\n\n",
            "\n\n\n",
            " ",
            "\t",
            "\u00a0",
            "\u200b",
            "\r\n",
            HALF,
            *TYPED,
        ),
        *(
            "<think>",
            "```",
            "```\n",
            "$$",
            "|",
            "| a |\n",
            "\\[",
            "\\begin{x}",
            "\u597d",
            "\U0001f642",
            "e\u0301",
        ),
    ]
)


@given(st.lists(WORDS, max_size=24), st.lists(st.one_of(WORDS, st.just(THINK_END)), max_size=24))
@settings(deadline=None, max_examples=25)
def test_one_model_alone_gives_what_its_server_gives(
    thinking: list[str], answer: list[str]
) -> None:
    script = [*thinking, THINK_END, "\n\n2", *answer]
    (solution,) = asyncio.run(solved({"": script}, ("large",))).values()
    assert (solution.thinking.removesuffix(THINK_END), solution.text) == (
        plain(script)[0],
        plain(script)[1].lstrip("\n"),
    )
    assert solution.finish_reason == "stop"
