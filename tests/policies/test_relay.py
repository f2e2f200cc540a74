"""
RelayGen: the large model leads up to a cue, the small one finishes the sentence, and nothing is
judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from stepspec.orchestrator import Chain, Ledger, Step, Token, reason
from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.events import Event
from stepspec.policies import Relay, make
from stepspec.policies.relay import CUES, WIDE_MARKS, ends_a_sentence

from ..contracts.model import kept_open
from ..fakes import Previous, ScriptedModel, counting, run
from ..orchestrator.arms import PROBLEM
from ..stand_in import FakeVllm


def both(previous: Previous) -> str:
    """What both models would write."""
    return ("Now 6 and 7. So, it is 42. Good.\n\n", "Thus we end.\n</think>")[len(previous)]


def relay(**options: Any) -> tuple[Relay, ScriptedModel, ScriptedModel]:
    log: list[str] = []
    small, large = (ScriptedModel(role, both, log=log) for role in ("small", "large"))
    made = make("relay", small, large, **options)
    assert isinstance(made, Relay)
    return made, small, large


def written(chain: Chain) -> list[tuple[str, str]]:
    return [(step.author, step.text) for step in chain.steps]


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_the_small_model_finishes_the_sentence_after_a_cue_and_control_returns(ahead: int) -> None:
    policy, _, _ = relay(cues=("So,", "Thus"))
    (chain, end), _ = run(reason(policy, PROBLEM, ahead=ahead))
    assert written(chain) == [
        ("large", "Now 6 and 7. So,"),
        ("small", " it is 42."),
        ("large", " Good.\n\nThus"),
        ("small", " we end."),
        ("large", "\n</think>"),
    ]
    assert end == "finished"


def test_no_draft_is_judged_so_that_there_is_no_accept_rate() -> None:
    policy, _, _ = relay(cues=("So,", "Thus"))
    events: list[Event] = []
    run(reason(policy, PROBLEM, observe=events.append))
    ledger = Ledger.of(events)
    assert (ledger.drafts, ledger.accept_rate) == (0, None)


def test_the_end_of_a_paragraph_ends_the_sentence() -> None:
    policy, _, _ = relay(cues=("Good",))
    chain = PROBLEM.extend(Step("Now 6 and 7. So, it is 42. Good", "large"))
    step = run(policy.draft(chain))[0]
    assert (step.author, step.text, step.stop) == ("small", ".\n\n", "delimiter")


@pytest.mark.parametrize(
    ("step", "author"),
    [
        (Step("Good. So,", "large"), "small"),
        (Step("Good. So,", "small"), "large"),  # it is the large model's cues that count
        (Step("Good.", "large"), "large"),
        (Step("So it", "small", "length"), "large"),
    ],
)
def test_whose_turn_it_is_can_be_read_from_the_chain(step: Step, author: str) -> None:
    small, large = (ScriptedModel(role, counting(role, 3)) for role in ("small", "large"))
    policy = Relay(small, large, cues=("So,",))
    assert run(policy.draft(PROBLEM))[0].author == "large"
    assert run(policy.draft(PROBLEM.extend(step)))[0].author == author


@pytest.mark.parametrize(
    "chain", [PROBLEM, PROBLEM.extend(Step("So,", "large"))], ids=["large", "small"]
)
def test_neither_model_writes_on_while_the_other_one_does(chain: Chain) -> None:
    policy, small, large = relay(cues=("So,",))
    small.sticky = large.sticky = True

    async def main() -> int:
        async with kept_open():
            await policy.draft(chain)
            return small.open + large.open

    assert run(main())[0] == 0


def test_no_default_cue_hides_behind_another() -> None:
    assert not [(a, b) for a in CUES for b in CUES if a != b and b.startswith(a)]


# Sentence ends inside merged tokens (`.\n`, `.)`, `?"`) and the full-width marks of Chinese.


def first_end(tokens: Sequence[str]) -> str:
    """What the small model writes if its tokens are *tokens*."""
    text = ""
    written = list[Token]()
    for token in tokens:
        text += token
        written.append(Token(token))
        if ends_a_sentence(Step(text, "small", "until", tuple(written))):
            break
    return text


@pytest.mark.parametrize(
    "end",
    [
        *".!?",
        ".\n",
        ".)",
        '?"',
        '."\n',
        ".)\n",
        ".**",
        ".$",
        ". ",
        *WIDE_MARKS,
        "\u3002\n",
        "\u3002\u201d",
    ],
)
def test_a_mark_ends_the_sentence_after_its_token(end: str) -> None:
    assert first_end((" it", " is", " so", end, " Then", " on", ".")) == f" it is so{end}"
    # also in a number, as in the authors' code
    assert first_end((" 3", ".", "1", "4", ".")) == " 3."


@pytest.mark.parametrize(
    "token", [",", " x", ".\n\n", '."\n\n', "...\n\n\n", ".com", ".5", ".,", "\n", ")", ""]
)
def test_other_tokens_do_not(token: str) -> None:
    """The end of a paragraph is a delimiter, which the model itself finds."""
    assert first_end((" it", token)) == f" it{token}"
    assert not ends_a_sentence(Step(f" it{token}", "small"))


async def test_over_http_the_token_keeps_its_id() -> None:
    """So that the next prompt holds the very ids that the small model wrote."""
    async with (
        FakeVllm(("So,", " it", " is", ".\n", " And", " on", "\n\n")).serve() as settings,
        VllmEndpoint(settings) as served,
    ):
        policy = Relay(served.model(), served.model(), cues=("So,",))
        step = await policy.draft(PROBLEM.extend(Step("So,", "large")))
    assert step.text == " it is.\n"
    assert all(token.id >= 0 for token in step.tokens)
