r"""Relay missed sentence ends inside merged tokens (`.\n`, `.)`, `?"`) and the full-width marks of Chinese."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Step, Token
from stepspec.orchestrator.endpoints import VllmEndpoint
from stepspec.policies import Relay
from stepspec.policies.relay import CLOSERS, WIDE_MARKS, ends_a_sentence

from ..contracts.model import kept_open
from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import BOUNDED, PROBLEM
from ..orchestrator.endpoints.server import FakeVllm


def first_end(tokens: Sequence[str]) -> str:
    """What the small model writes if its tokens are *tokens*."""
    text, written = "", list[Token]()
    for token in tokens:
        text += token
        written.append(Token(token))
        if ends_a_sentence(Step(text, "small", "until", tuple(written))):
            break
    return text


@pytest.mark.parametrize(
    "end",
    [
        ".",
        "!",
        "?",
        ".\n",
        ".)",
        '?"',
        '."\n',
        ".)\n",
        ".**",
        ".$",
        "\u3002",
        "\uff01",
        "\uff1f",
        "\u3002\n",
        "\u3002\u201d",
        ". ",
    ],
)
def test_a_mark_ends_the_sentence_after_its_token(end: str) -> None:
    assert first_end((" it", " is", " so", end, " Then", " on", ".")) == f" it is so{end}"


@pytest.mark.parametrize("token", [",", " x", ".\n\n", '."\n\n', "...\n\n\n", ".com", ".5", ".,", "\n", ")", ""])
def test_other_tokens_do_not(token: str) -> None:
    """The end of a paragraph is a delimiter, which the model itself finds."""
    assert first_end((" it", token)) == f" it{token}"
    assert not ends_a_sentence(Step(f" it{token}", "small"))


def test_the_point_of_a_number_is_a_full_stop_as_in_the_authors_code() -> None:
    assert first_end((" 3", ".", "1", "4", ".")) == " 3."


@given(st.lists(st.sampled_from([*".!? \n)", *CLOSERS, *WIDE_MARKS, "a", "\n\n"]), max_size=12).map("".join))
@BOUNDED
def test_no_paragraph_is_taken_for_a_sentence(text: str) -> None:
    assert not (text.endswith("\n\n") and ends_a_sentence(Step(text, "small")))


@pytest.mark.parametrize("end", ["!)", '."', ".\n", "\u3002"])
async def test_over_http_the_token_keeps_its_id(end: str) -> None:
    """So that the next prompt holds the very ids that the small model wrote."""
    async with (
        FakeVllm(("So,", " it", " is", end, " And", " on", "\n\n")).serve() as settings,
        VllmEndpoint(settings) as served,
    ):
        policy = Relay(served.model(), served.model(), cues=("So,",))
        step = await policy.draft(PROBLEM.extend(Step("So,", "large")))
    assert step.text == f" it is{end}"
    assert all(token.id >= 0 for token in step.tokens)


def test_the_small_model_does_not_write_on_either() -> None:
    small, large = (ScriptedModel(role, counting(role, 3), sticky=True) for role in ("small", "large"))
    policy = Relay(small, large, cues=("So,",))

    async def main() -> int:
        async with kept_open():
            await policy.draft(PROBLEM.extend(Step("So,", "large")))
            return small.open

    assert run(main())[0] == 0
