"""The samples of the real pair: their lines, their replay, and their figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.real import __main__ as program
from lab.real.figures import figures, tables
from lab.real.modelled import Round, replay
from lab.real.runs import Cell, Work, chosen_problems, read_samples, rounds, take, write_numbers
from stepspec.orchestrator import Accept, Rollback, Step, Token
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Event, Judged, Repaired

from ...stand_in import StandIn

STRICT = "reading:threshold=1,tokens=all,draft_tokens=24,repair_tokens=4"
CUT: list[Round] = [(24, 24, True, 0), (24, 10, False, 4), (24, 24, True, 0), (12, 12, True, 0)]


def written(tokens: int) -> Step:
    return Step("x" * tokens, "small", "length", (Token("x"),) * tokens)


def test_a_line_has_the_tokens_of_each_draft_and_repair() -> None:
    rollback = Rollback(keep=2)
    events: list[Event] = [
        Judged(0, written(5), Accept()),
        Judged(1, written(4), rollback),
        Repaired(1, written(3), rollback),
    ]
    assert list(rounds(events)) == [(5, 5, True, 0), (4, 2, False, 3)]


@pytest.mark.parametrize(
    ("draft_tokens", "ahead", "seconds"),
    [
        # 84 tokens drafted, four verdicts, four tokens of a repair
        (None, 0, 84 * 0.0031 + 4 * 0.045 + 4 * 0.0202),
        (24, 0, 84 * 0.0031 + 4 * 0.045 + 4 * 0.0202),
        # only the verdict on the draft that is cut and the last one are waited for
        (None, 2, 84 * 0.0031 + 2 * 0.045 + 4 * 0.0202),
        # 24 + 10 tokens are 4 drafts and 2 tokens of the fifth; 36 are 4 drafts and 4 tokens
        (8, 0, (5 * 8 + 36) * 0.0031 + 10 * 0.045 + 4 * 0.0202),
    ],
)
def test_a_record_is_replayed_through_the_loop(
    draft_tokens: int | None, ahead: int, seconds: float
) -> None:
    found, work = replay(CUT, draft_tokens, ahead)
    assert found == pytest.approx(seconds)
    assert work.verdicts >= 4


def sample(number: int, *, right: bool, **more: Any) -> dict[str, Any]:
    account = {"kept": 100, "discarded": 0, "judging": 0, "requests": 1}
    return {"problem": number, "right": right, "large": account, "rounds": CUT, **more}


def test_the_figures_compare_the_problems_that_both_have() -> None:
    ours = {number: sample(number, right=number != 2) for number in range(4)}
    plain = {number: sample(number, right=number in (2, 3)) for number in range(1, 9)}
    found = figures(ours, plain)
    assert (found.problems, found.right, found.plain_right) == (3, 2, 2)
    assert (found.gained, found.lost, found.difference.value) == (1, 1, 0.0)
    assert found.large_share == pytest.approx(4 / 74)
    assert found.accepted == 0.75
    assert found.wasted == pytest.approx(1 - 70 / 84)
    once = 84 * 0.0031 + 4 * 0.045 + 4 * 0.0202
    ratio = found.sequential
    assert (ratio.value, ratio.low) == pytest.approx((once / (100 * 0.0202), ratio.high))


def test_a_table_has_a_row_for_each_method_and_length() -> None:
    plain = Cell("gsm8k", 0.6, "plain")
    strict = Cell("gsm8k", 0.6, STRICT)
    samples = {cell: {0: sample(0, right=True)} for cell in (plain, strict)}
    lines = tables(samples, [None, 8]).splitlines()
    assert lines[0] == "**gsm8k, temperature 0.6**"
    assert [line.split(" | ")[0] for line in lines[4:]] == [
        f"| {STRICT}",
        f"| {STRICT}, drafts of 8",
    ]
    assert tables({plain: samples[plain]}, [None]) == ""


async def test_samples_are_kept_and_only_missing_ones_are_taken(tmp_path: Path) -> None:
    cells = [Cell("gsm8k", 0.0, method) for method in ("plain", STRICT)]
    problem = '{"question": "What is 1 + 1?", "answer": "#### 2"}\n'
    (tmp_path / "gsm8k.jsonl").write_text(problem * 4)
    said: list[str] = []
    async with StandIn().listening() as small, StandIn(scale_out=True).listening() as large:
        urls = {"small": small, "large": large}
        for problems in (range(2), range(3)):
            await take(urls, Work(cells, problems, 2, tmp_path, tmp_path), said.append)
    assert said == ["4 samples to take", "2 samples to take"]
    samples = read_samples(tmp_path, cells, range(9))
    assert [sorted(samples[cell]) for cell in cells] == [[0, 1, 2]] * 2
    assert samples[cells[1]][0]["rounds"]
    assert samples[cells[0]][0]["large"]["kept"] > 0
    write_numbers(tmp_path / "numbers", samples)
    copied = read_samples(tmp_path / "numbers", cells, range(2))
    assert [sorted(copied[cell]) for cell in cells] == [[0, 1]] * 2
    assert "text" not in copied[cells[0]][0]


@pytest.mark.parametrize("text", ["7", "a-b", "-", "3-", "1-2-3"])
def test_problems_are_named_by_the_first_and_the_last(text: str) -> None:
    assert chosen_problems("100-139") == range(100, 140)
    with pytest.raises(ConfigurationError, match="the first and the last, such as 0-39"):
        chosen_problems(text)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"small": "http://a"}, "--small and --large belong together"),
        ({"small": "http://a", "large": "http://a"}, "are the same server"),
        ({"models": Path("nowhere")}, "no model in nowhere/small"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_fetched(
    options: dict[str, Any], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=complaint):
        program.command(fetched=tmp_path, **options)
