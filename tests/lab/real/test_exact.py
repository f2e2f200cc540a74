"""Exact sampling over two servers and in one: odds of tokens, and modelled seconds by hand."""

from __future__ import annotations

from math import log
from pathlib import Path

import pytest

from lab.real.exact import by_steps, by_tokens, collect, compare, processed
from lab.real.runs import Cell, RunStore, Work, take
from stepspec.orchestrator import Token

from ...stand_in import StandIn

CHANCES = (0.6, 0.3, 0.06, 0.04)
TOP = tuple(Token(str(place), log(chance)) for place, chance in enumerate(CHANCES))


@pytest.mark.parametrize(
    ("chance", "temperature", "expected"),
    [
        (0.6, 1.0, 0.6 / 0.96),
        (0.06, 1.0, 0.06 / 0.96),
        (0.04, 1.0, 0.0),
        # squares: 0.36 and 0.09 are more than 95% of 0.4552
        (0.3, 0.5, 0.2),
        (0.06, 0.5, 0.0),
        (0.001, 1.0, 0.0),
    ],
)
def test_a_probability_is_that_of_the_sampling(
    chance: float, temperature: float, expected: float
) -> None:
    token = Token("x", log(chance), top=TOP)
    assert processed(token, temperature) == pytest.approx(expected)


def test_a_server_reads_each_draft_in_one_pass() -> None:
    # drafts of four: 4 + 1 tokens, then 1 + 1 before the cut, then 3 of 5
    assert by_tokens(4, {6}, 10) == pytest.approx(3 * (4 * 0.0031 + 0.0202))
    assert by_tokens(1, set(), 10) == pytest.approx(5 * (0.0031 + 0.0202))


def test_two_servers_hide_the_verdicts_of_accepted_drafts() -> None:
    assert by_steps(5, 0.0, set(), 10) == pytest.approx(10 * 0.0031 + 0.045)
    # the token at the end of the first draft is written anew
    assert by_steps(5, 0.01, {4}, 10) == pytest.approx(
        5 * 0.0031 + 0.045 + 0.01 + 5 * 0.0031 + 0.045
    )


def test_a_draft_that_is_always_accepted_is_bounded_by_the_small_model() -> None:
    found = compare([[(0.5, 0.5)] * 96])
    assert found.accepted == 1.0
    assert found.by_steps[24].value == pytest.approx((96 * 0.0031 + 0.045) / (96 * 0.0202))
    # a token that the small model never writes comes from the verdict
    refused = compare([[(0.5, 0.0)] * 96])
    assert refused.by_tokens[1].value == pytest.approx((0.0031 + 0.0202) / 0.0202)
    assert "0.000" in refused.table()


async def test_texts_are_read_by_both_models_once(tmp_path: Path) -> None:
    plain = Cell("gsm8k", 0.6, "plain")
    (tmp_path / "gsm8k.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n' * 2)
    work = Work([plain], range(2), 2, tmp_path, tmp_path)
    async with StandIn().listening() as small, StandIn(scale_out=True).listening() as large:
        urls = {"small": small, "large": large}
        await take(urls, work, lambda text: None)
        for _ in range(2):
            await collect(urls, plain, work, tmp_path / "odds.jsonl")
    store = RunStore(tmp_path / "odds.jsonl", plain.about())
    assert sorted(store.done) == [0, 1]
    assert all(0 <= chance <= 1 for pair in store.done[0]["odds"] for chance in pair)
    assert len((tmp_path / "odds.jsonl").read_bytes().splitlines()) == 3
